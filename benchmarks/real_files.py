"""The figures of three real captures, twice: from the conversion alone, and from the lake behind import, worker and
coordinator.

Expected values are issue 3's ("Real files"), computed from the files by other code. Spans carry raw device time as
ticks, so sums are exact; rollups keep whole nanoseconds and may differ by 1 ns an interval.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from report import report

from fleetscope.agents.xspace import DeviceSpans
from fleetscope.agents.xspace.importing import Imported, import_capture, read_capture
from fleetscope.agents.xspace.report import union_ticks
from fleetscope.schema.config import Config, load
from fleetscope.schema.durations import smallest_ticks
from fleetscope.schema.vocabulary import DEVICE_WORK

ROOT = Path(__file__).resolve().parent.parent
V6E, MI300X, V100 = "xprof__tpu_inference_2", "tracelens__mi300_jax08_gemm", "xprof__demo_gpu_v100x8_tf_2020"
V6E_BUSY_PS = (78_783_723_903_750, 78_788_304_606_250, 78_780_797_327_500, 78_765_077_868_750)
WORK = ", ".join(str(int(kind)) for kind in sorted(DEVICE_WORK))


@dataclass
class Figures:
    """What was found beside what must come out."""

    rows: list[tuple[str, Any, Any, bool]] = field(default_factory=list)

    def check(self, name: str, found: Any, expected: Any, within: float = 0) -> None:
        same = found is not None and abs(found - expected) <= within
        self.rows.append((name, found, expected, same))
        print(f"{'ok  ' if same else 'FAIL'} {name}: {found:,}" + ("" if same else f", expected {expected:,}"))

    @property
    def wrong(self) -> int:
        return sum(not same for *_, same in self.rows)


def work_of(spans: DeviceSpans) -> Any:
    kinds = spans.rows.column("kind").to_numpy()
    return np.isin(kinds, [int(kind) for kind in DEVICE_WORK])


def busy_ps(spans: DeviceSpans) -> int:
    work = work_of(spans)
    ticks = union_ticks(spans.rows.column("start").to_numpy()[work], spans.rows.column("dur").to_numpy()[work])
    return ticks * 1000 * spans.clock.period_num // spans.clock.period_den


def device(capture: Imported, name: str) -> DeviceSpans:
    return next(spans for spans in capture.capture.devices if spans.name == name)


def direct(figures: Figures, files: dict[str, Path]) -> None:
    """Decoder and conversion alone."""
    v6e = read_capture(files[V6E])
    report = v6e.report
    figures.check("v6e ops", report.ops, 6_013)
    figures.check("v6e FLOPs", sum(d.flops or 0 for d in report.devices), 1_626_718_863_360)
    figures.check("v6e bytes accessed", sum(d.bytes_accessed or 0 for d in report.devices), 38_788_923_392_000)
    figures.check("v6e HBM bytes", sum(d.bytes_hbm or 0 for d in report.devices), 25_904_021_504_000)
    for spans, expected in zip(v6e.capture.devices, V6E_BUSY_PS, strict=True):
        figures.check(f"v6e {spans.name} busy, ps", busy_ps(spans), expected)
    waits = [d.category_ps.get("copy-done", (0, 0)) for d in report.devices]
    figures.check("v6e copy-done ops", sum(count for count, _ in waits), 2_400)
    figures.check("v6e copy-done time, ps", sum(ps for _, ps in waits), 304_033_212_062_500)
    figures.check("v6e peak, TFLOP/s", (report.devices[0].peak_flops or 0) / 1e12, 918)
    figures.check("v6e HBM peak, GB/s", (report.devices[0].peak_hbm_bytes_per_s or 0) / 1e9, 1_637.99, 0.01)
    figures.check("v6e own view: duty, %", round(100 * (report.duty or 0), 1), 86.5)
    figures.check("v6e own view: ops displaced > 1 ms", report.displaced, 3_090)

    mi300x = read_capture(files[MI300X])
    gpu = device(mi300x, "/device:GPU:0")
    figures.check("MI300X events", int(work_of(gpu).sum()), 54)
    figures.check("MI300X busy, ps", busy_ps(gpu), 3_475_484_000)
    names = {
        (program.program, op): name
        for program in mi300x.programs
        for op, name in zip(program.ops.column("op").to_pylist(), program.ops.column("name").to_pylist(), strict=True)
    }
    rows = gpu.rows.to_pylist()
    gemm = [row["dur"] for row in rows if names.get((row["program"], row["op"])) == "custom-call.1"]
    figures.check("MI300X custom-call.1 count", len(gemm), 15)
    figures.check("MI300X custom-call.1 time, ps", sum(gemm) * 1000, 3_218_884_000)
    free = [row["dur"] for row in rows if (row["program"], row["op"]) not in names]
    figures.check("MI300X time without an HLO op, ps", sum(free) * 1000, 60_240_000)

    v100 = device(read_capture(files[V100]), "/device:GPU:4")
    figures.check("V100 GPU:4 events", int(work_of(v100).sum()), 759)
    figures.check("V100 GPU:4 busy, ps", busy_ps(v100), 14_983_622_000)


def through_the_path(figures: Figures, files: dict[str, Path], config: Config) -> None:
    """`fleetscope import`, `worker --once`, `coordinator --once`, then SQL on the lake."""
    from fleetscope.pipelines.coordinate.rounds import Coordinator
    from fleetscope.pipelines.drivers.epoch import Worker
    from fleetscope.sinks.lake.objects import open_store
    from fleetscope.sinks.lake.read import Snapshot

    for name in (V6E, MI300X, V100):
        import_capture(config, files[name])
    worker = Worker(config)
    worker.start()
    worker.run_once()
    Coordinator(config).round_once()
    lake = Snapshot.open(open_store(config.lake_url)).duckdb()

    devices = {
        (host, local): key
        for host, local, key in lake.execute(
            "select h.name, d.local_name, d.device from devices d join hosts h using (host)"
        ).fetchall()
    }
    v6e = [devices[V6E, f"/device:TPU:{i}"] for i in range(4)]
    figures.check("lake v6e ops", _count(lake, v6e), 6_013)
    for i, key in enumerate(v6e):
        figures.check(f"lake v6e chip {i} time of ops, ps", _ticks(lake, key, 5, 4) * 1250, V6E_BUSY_PS[i])
        rolled = _one(lake, "select sum(busy_ns) from device_10s where device = ?", key)
        figures.check(f"lake v6e chip {i} busy in rollups, ns", rolled, V6E_BUSY_PS[i] // 1000, 1_504)
    sums = lake.execute(
        f"""select sum(o.flops), sum(o.bytes_accessed), sum(o.bytes_hbm)
        from spans s join ops o on o.program = s.program and o.op = s.op
        where s.device in ({_list(v6e)}) and s.kind in ({WORK})"""
    ).fetchone()
    for name, found, expected in zip(
        ("FLOPs", "bytes accessed", "HBM bytes"),
        sums or (None,) * 3,
        (1_626_718_863_360, 38_788_923_392_000, 25_904_021_504_000),
        strict=True,
    ):
        figures.check(f"lake v6e {name}", found or 0, expected)
    copies = f"""from spans s join ops o on o.program = s.program and o.op = s.op
        where s.device in ({_list(v6e)}) and s.kind in ({WORK}) and o.category = 'copy-done'"""
    figures.check("lake v6e copy-done ops", _one(lake, f"select count(*) {copies}"), 2_400)
    durations = lake.execute(f"select s.dur_ns, s.dur_sub {copies}").fetchnumpy()
    figures.check("lake v6e copy-done time, ps", _sum_ticks(durations, 5, 4) * 1250, 304_033_212_062_500)

    [gpu] = [key for (_, local), key in devices.items() if local == "/device:GPU:0"]
    figures.check("lake MI300X events", _count(lake, [gpu]), 54)
    figures.check("lake MI300X busy, ps", _union_ns(lake, gpu) * 1000, 3_475_484_000)
    rolled = _one(lake, "select sum(busy_ns) from device_10s where device = ?", gpu)
    figures.check("lake MI300X busy in rollups, ns", rolled, 3_475_484, 54)
    gemm = lake.execute(
        f"""select count(*), sum(s.dur_ns) from spans s join ops o on o.program = s.program and o.op = s.op
        where s.device = {gpu} and o.name = 'custom-call.1'"""
    ).fetchone() or (0, 0)
    figures.check("lake MI300X custom-call.1 count", gemm[0], 15)
    figures.check("lake MI300X custom-call.1 time, ps", (gemm[1] or 0) * 1000, 3_218_884_000)
    free = _one(
        lake,
        f"""select sum(dur_ns) from spans s where device = {gpu} and kind in ({WORK})
        and not exists (select 1 from ops o where o.program = s.program)""",
    )
    figures.check("lake MI300X time without an HLO op, ps", free * 1000, 60_240_000)

    [v100] = [key for (_, local), key in devices.items() if local == "/device:GPU:4"]
    figures.check("lake V100 GPU:4 events", _count(lake, [v100]), 759)
    figures.check("lake V100 GPU:4 busy, ps", _union_ns(lake, v100) * 1000, 14_983_622_000)
    rolled = _one(lake, "select sum(busy_ns) from device_10s where device = ?", v100)
    figures.check("lake V100 GPU:4 busy in rollups, ns", rolled, 14_983_622, 759)


def _list(keys: Sequence[int]) -> str:
    return ", ".join(map(str, keys))


def _one(lake: duckdb.DuckDBPyConnection, sql: str, *values: Any) -> int:
    row = lake.execute(sql, list(values)).fetchone()
    return int(row[0]) if row and row[0] is not None else 0


def _count(lake: duckdb.DuckDBPyConnection, keys: Sequence[int]) -> int:
    return _one(lake, f"select count(*) from spans where device in ({_list(keys)}) and kind in ({WORK})")


def _ticks(lake: duckdb.DuckDBPyConnection, key: int, num: int, den: int) -> int:
    """Ticks of all ops of a device whose ops do not overlap."""
    sql = f"select dur_ns, dur_sub from spans where device = ? and kind in ({WORK})"
    return _sum_ticks(lake.execute(sql, [key]).fetchnumpy(), num, den)


def _sum_ticks(columns: Any, num: int, den: int) -> int:
    dur_ns = np.asarray(columns["dur_ns"], np.int64)
    return int((smallest_ticks(dur_ns, num, den) + np.asarray(columns["dur_sub"], np.int64)).sum())


def _union_ns(lake: duckdb.DuckDBPyConnection, key: int) -> int:
    """Busy time of a device whose ticks are nanoseconds."""
    sql = f"select t_ns, dur_ns from spans where device = ? and kind in ({WORK})"
    found = lake.execute(sql, [key]).fetchnumpy()
    return union_ticks(np.asarray(found["t_ns"], np.int64), np.asarray(found["dur_ns"], np.int64))


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--samples", default=os.environ.get("FLEETSCOPE_SAMPLES", ROOT / "../shared/samples"))
    arguments.add_argument("--direct", action="store_true", help="without log, worker and lake")
    options = arguments.parse_args()
    files = {name: Path(options.samples) / "xplane" / f"{name}.xplane.pb" for name in (V6E, MI300X, V100)}
    missing = [str(file) for file in files.values() if not file.is_file()]
    if missing:
        print(f"no captures at {', '.join(missing)}: set FLEETSCOPE_SAMPLES", file=sys.stderr)
        return 69
    figures = Figures()
    direct(figures, files)
    if not options.direct:
        with tempfile.TemporaryDirectory() as folder:
            through_the_path(figures, files, load(None, state_dir=Path(folder)))
    wrong = [f"{name}: {found}, expected {expected}" for name, found, expected, same in figures.rows if not same]
    return report("real_files", figures.wrong, f"figures that differ, of {len(figures.rows)}", 0, failed=wrong)


if __name__ == "__main__":
    sys.exit(main())
