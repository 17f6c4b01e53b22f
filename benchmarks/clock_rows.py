"""What reading rows by the fleet's clock costs: an hour of maps (provisional, proved, final, of hosts and of chips) and
rows of that hour, placed as DuckDB asks for them; each against exact integers of the map that counts.

The last line is one JSON object; value: ns a row that a query over `spans` takes longer than as written. `--svg FILE`
draws how far two hosts' times of one moment are apart by wall clocks, by the fleet's clock, and what is proved.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from clock_runs import judge, run
from clocklab.fleet import Fleet
from report import report

from fleetscope.schema.tables import CLOCK_MAPS, SPANS
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.segment import write_segment

BUDGET_NS = 600.0
"""Beside the ~100 ns that reading a row takes (docs/design/0005): numpy is called ~150 times for 2 048 rows."""
T0 = 1_796_000_000 * 10**9
SECOND, HOP = 10**9, 10 * 10**9
RAW0 = 5_000 * SECOND
HOPS, SEGMENTS, LIVE = 360, 60, 44
"""An hour: stretches of a host; segments its rows were written with; pieces of a chip (docs/design/0021)."""


def maps(hosts: int, seed: int) -> tuple[pa.Table, dict[str, Any]]:
    """Rows of clock_maps, and of each host: rate of its chip's ticks, how far its wall clock is ahead."""
    draw = np.random.default_rng(seed)
    ppb = draw.integers(-50_000, 50_000, hosts)
    ahead = draw.integers(-5_000_000, 5_000_000, hosts)
    parts = []
    for host in range(hosts):
        d = 10**9
        chip = (10**9 + int(ppb[host]), 8 * 10**8)
        begin = np.arange(SEGMENTS) * 60 * SECOND
        base = {"host": host + 1, "period_num": 5, "period_den": 4}
        ticks = begin * 4 // 5
        y0 = T0 + int(ahead[host]) + exact(ticks, *chip)
        written = {
            "map": host * 1000 + np.arange(SEGMENTS) + 1,
            "epoch": 2 * host + 1,
            "version": 1,
            "x0": ticks,
            "y0": y0,
            "n": chip[0],
            "d": chip[1],
            "valid_from": ticks,
            "valid_to": ticks + 48 * SECOND,
        }
        edge = np.linspace(0, 3_700 * SECOND * 4 // 5, LIVE + 1).astype(np.int64)
        live = {"map": -(host * 1000 + np.arange(LIVE) + 1), "epoch": 2 * host + 1, "version": 1, "ref": 2 * host + 2,
                "x0": edge[:-1], "y0": RAW0 + exact(edge[:-1], *chip), "n": chip[0], "d": chip[1],
                "valid_from": edge[:-1], "valid_to": edge[1:], "lo_ns": -300, "hi_ns": 300}  # fmt: skip
        parts += [rows(len(begin), "unsynced", **base, **written), rows(LIVE, "guaranteed", **base, **live)]
        at = RAW0 + np.arange(HOPS + 20) * HOP
        for version, off, quality in ((0, 2_000, "statistical"), (1, 900, "guaranteed"), (6, 0, "guaranteed")):
            stretch = {"map": (host + 1) * 10**9 + np.arange(len(at)) * 10 + version, "epoch": 2 * host + 2,
                       "version": at // HOP + T0 // HOP + version, "x0": at, "y0": at - RAW0 + T0 + off, "n": d, "d": d,
                       "valid_from": at, "valid_to": at + HOP, "lo_ns": -40_000, "hi_ns": 40_000}  # fmt: skip
            parts.append(rows(len(at), quality, final=version == 6, **base, **stretch))
    return pa.concat_tables(parts), {"ppb": ppb, "ahead": ahead}


def exact(ticks: np.ndarray, n: int, d: int) -> np.ndarray:
    """floor(ticks * n / d) in Python integers."""
    return np.array([int(tick) * n // d for tick in ticks], np.int64)


def rows(count: int, quality: str, **columns: Any) -> pa.Table:
    """Of clock_maps; a column not given is 0."""
    made = []
    for field in CLOCK_MAPS:
        text = {"quality": quality, "clock": "gtc", "method": "filter"}.get(field.name)
        value = text if text is not None else columns.get(field.name, 0)
        values = value if isinstance(value, np.ndarray) else [value] * count
        made.append(pa.array(values, field.type) if field.type != pa.bool_() else pa.array([bool(value)] * count))
    return pa.Table.from_arrays(made, schema=CLOCK_MAPS)


def spans(count: int, hosts: int, about: dict[str, Any], seed: int) -> tuple[pa.Table, np.ndarray]:
    """(rows of an hour, written by wall clocks; where the final maps have them, by plain arithmetic)."""
    draw = np.random.default_rng(seed)
    host, ticks = draw.integers(0, hosts, count), np.sort(draw.integers(0, 3_600 * SECOND * 4 // 5, count))
    n, d = 10**9 + about["ppb"][host], 8 * 10**8
    segment = np.minimum(ticks * 5 // 4 // (60 * SECOND), SEGMENTS - 1)
    x0 = segment * 60 * SECOND * 4 // 5
    shifted = (ticks - x0).astype(object) * n  # exact: Python integers
    y0 = T0 + about["ahead"][host] + (x0.astype(object) * n) // d
    t_ns = (y0 + shifted // d).astype(np.int64)
    sub = ticks - (x0 - (-(t_ns - y0.astype(np.int64)).astype(object) * d // n)).astype(np.int64)
    edge = np.linspace(0, 3_700 * SECOND * 4 // 5, LIVE + 1).astype(np.int64)
    low = edge[np.searchsorted(edge, ticks, side="right") - 1].astype(object)
    true = (T0 + (low * n) // d + ((ticks - low) * n) // d).astype(np.int64)
    given = {"t_ns": t_ns, "t_sub": sub, "map": host * 1000 + segment + 1, "host": host + 1, "process": host + 1,
             "seq": np.arange(count), "dur_ns": 1000}  # fmt: skip
    made = [pa.array(v if isinstance(v := given.get(f.name, 0), np.ndarray) else [v] * count, f.type) for f in SPANS]
    return pa.Table.from_arrays(made, schema=SPANS), true


def query_s(snapshot: Snapshot, tries: int) -> float:
    """CPU seconds of the fastest of some queries over all rows, on one thread."""
    taken = []
    with snapshot.duckdb(["spans"], threads=1) as connection:
        for _ in range(tries):
            began = time.process_time()
            connection.sql("SELECT sum(t_ns::HUGEINT), min(t_ns) FROM spans").fetchall()
            taken.append(time.process_time() - began)
    return min(taken)


def draw(file: Path, seed: int) -> None:
    """Median, over pairs of hosts, of how far times of one moment are apart, at the middle of each stretch."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["svg.hashsalt"] = "none", "0021"
    from matplotlib import pyplot

    fleet = Fleet(seed, 16, 600)
    lines: dict[str, list[tuple[float, float]]] = {}
    wall = np.abs(np.subtract.outer(fleet.wall, fleet.wall))[np.triu_indices(16, 1)]
    for hop, _, result in run(fleet):
        lines.setdefault("by wall clocks", []).append((hop * 10, float(np.median(wall))))
        for name, pieces, delay in (("provisional", result.provisional, 0), ("final", result.final, 6)):
            found = judge(fleet, pieces, 0.5)
            if found is None:
                continue
            apart = np.abs(np.subtract.outer(found.error, found.error))[np.triu_indices(len(found.error), 1)]
            lines.setdefault(name, []).append(((hop - delay) * 10, float(np.median(apart))))
            width = (found.hi - found.lo)[np.isfinite(found.hi - found.lo)] / 2
            if name == "final" and len(width):
                lines.setdefault("proved within", []).append(((hop - delay) * 10, float(np.median(width))))
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for name, points in lines.items():
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1.2)
    axes.set(yscale="log", xlabel="s", ylabel="ns")
    axes.legend(loc=(0.76, 0.22), fontsize=8)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    if options.svg:
        draw(options.svg, options.seed)
    table, about = maps(options.hosts, options.seed)
    made, true = spans(options.rows, options.hosts, about, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        store = LocalFolder(Path(folder) / "lake")
        segments = [
            *write_segment(store, "clock_maps", table, "maps"),
            *(part for at in range(0, options.rows, 250_000)
              for part in write_segment(store, "spans", made.slice(at, 250_000), f"spans-{at}")),
        ]  # fmt: skip
        Chain(store, 0).commit(Manifest(0, 1, 1, "a", "", T0, (), tuple(segments)))
        aligned, written = Snapshot.open(store), Snapshot.open(store, clock_version=0)
        began = time.process_time()
        alignment = aligned.alignment
        made_s = time.process_time() - began
        found = alignment.place(*(made.column(name).to_numpy() for name in ("map", "t_ns", "t_sub")))
        wrong = int((found.t_ns != true).sum()) + int((~found.moved).sum())
        more = [(query_s(aligned, 3) - query_s(written, 3)) / options.rows * 1e9 for _ in range(3)]
    value = round(statistics.median(more), 1)
    failed = [f"{value} ns over {BUDGET_NS}"] * (value > BUDGET_NS) + [f"{wrong} rows elsewhere"] * (wrong > 0)
    return report(
        "clock_rows", value, "ns/row", BUDGET_NS, failed=failed, rows=options.rows, hosts=options.hosts,
        maps=table.num_rows, alignment_ns_a_map=round(made_s / table.num_rows * 1e9), rows_elsewhere=wrong,
        widest_ms=round(alignment.widest_ns / 1e6, 3),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
