"""The numbers of issue 3, "Real files": computed from the files by other code than ours when it was written."""

import importlib
import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from fleetscope.agents.xspace import DeviceSpans
from fleetscope.agents.xspace.importing import Imported
from fleetscope.schema.vocabulary import DEVICE_WORK, Kind

Get = Callable[[str], Imported]

V6E_BUSY_PS = [78_783_723_903_750, 78_788_304_606_250, 78_780_797_327_500, 78_765_077_868_750]


def work(spans: DeviceSpans) -> pa.RecordBatch:
    kinds = spans.rows.column("kind").to_numpy()
    return spans.rows.filter(pa.array(np.isin(kinds, [int(kind) for kind in DEVICE_WORK])))


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of [start, end): the textbook loop."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        begin = start if reached is None else max(start, reached)
        total += max(end - begin, 0)
        reached = end if reached is None else max(end, reached)
    return total


def busy_ps(spans: DeviceSpans) -> int:
    rows = work(spans)
    starts, durs = rows.column("start").to_pylist(), rows.column("dur").to_pylist()
    ticks = union((start, start + dur) for start, dur in zip(starts, durs, strict=True))
    return ticks * 1000 * spans.clock.period_num // spans.clock.period_den


@pytest.mark.golden
def test_v6e_busy_time_is_raw_device_time(imported: Get) -> None:
    devices = imported("v6e").capture.devices
    assert [device.name for device in devices] == [f"/device:TPU:{i}" for i in range(4)]
    assert [busy_ps(device) for device in devices] == V6E_BUSY_PS
    assert sum(work(device).num_rows for device in devices) == 6_013
    assert {(device.clock.period_num, device.clock.period_den) for device in devices} == {(5, 4)}


@pytest.mark.golden
def test_v6e_declared_work(imported: Get) -> None:
    report = imported("v6e").report
    assert report.ops == 6_013
    assert sum(device.flops or 0 for device in report.devices) == 1_626_718_863_360
    assert sum(device.bytes_accessed or 0 for device in report.devices) == 38_788_923_392_000
    assert sum(device.bytes_hbm or 0 for device in report.devices) == 25_904_021_504_000
    assert [device.busy_ps for device in report.devices] == V6E_BUSY_PS


@pytest.mark.golden
def test_v6e_waits_for_copies(imported: Get) -> None:
    found = [device.category_ps["copy-done"] for device in imported("v6e").report.devices]
    assert (sum(count for count, _ in found), sum(ps for _, ps in found)) == (2_400, 304_033_212_062_500)


@pytest.mark.golden
def test_v6e_peaks(imported: Get) -> None:
    report = imported("v6e").report
    assert {device.peak_flops for device in report.devices} == {918e12}
    assert {round(device.peak_hbm_bytes_per_s / 1e7) / 100 for device in report.devices} == {1_637.99}
    # 1 640 GB/s in hardware.json: within 1 %, no conflict.
    assert {tuple(device.conflicts) for device in report.devices} == {()}


@pytest.mark.golden
def test_v6e_own_view(imported: Get) -> None:
    report = imported("v6e").report
    assert report.duty is not None
    assert round(100 * report.duty, 1) == 86.5
    assert report.displaced == 3_090
    drifts = [device.own.drift_ppm for device in report.devices if device.own]
    # xprof.md 5.3: one slope for all four cores, 15.04 to 15.05 ppm.
    assert [round(drift, 2) for drift in drifts] == pytest.approx([15.045] * 4, abs=0.006)


@pytest.mark.golden
def test_v6e_executions_hold_their_ops(imported: Get) -> None:
    """Modules have no raw time of their own: each reaches from its first op to its last, none overlaps another."""
    for device, modules in zip(imported("v6e").capture.devices, (105, 103, 103, 103), strict=True):
        rows = device.rows.to_pylist()
        executions = {row["exec"]: row for row in rows if row["kind"] == Kind.MODULE}
        assert len(executions) == device.executions == modules
        ordered = sorted((row["start"], row["start"] + row["dur"]) for row in executions.values())
        assert all(first[1] <= second[0] for first, second in pairwise(ordered))
        for row in rows:
            if row["kind"] != Kind.MODULE:
                holder = executions[row["exec"]]
                assert holder["start"] <= row["start"] <= row["start"] + row["dur"] <= holder["start"] + holder["dur"]
                assert holder["program"] == row["program"]


@pytest.mark.golden
def test_v6e_every_op_has_a_category_and_its_program_an_hlo_table(imported: Get) -> None:
    capture = imported("v6e")
    assert {program.source for program in capture.programs} == {"hlo"}
    assert all("" not in device.category_ps for device in capture.report.devices)


@pytest.mark.golden
def test_mi300x_stream_lines(imported: Get) -> None:
    capture = imported("mi300x")
    [device] = capture.capture.devices
    rows = work(device)
    assert (device.name, rows.num_rows, busy_ps(device)) == ("/device:GPU:0", 54, 3_475_484_000)
    names = {
        (program.program, op): name
        for program in capture.programs
        for op, name in zip(program.ops.column("op").to_pylist(), program.ops.column("name").to_pylist(), strict=True)
    }
    gemm = [row for row in rows.to_pylist() if names.get((row["program"], row["op"])) == "custom-call.1"]
    assert (len(gemm), sum(row["dur"] for row in gemm) * 1000) == (15, 3_218_884_000)
    free = [row for row in rows.to_pylist() if (row["program"], row["op"]) not in names]
    assert sum(row["dur"] for row in free) * 1000 == 60_240_000
    assert {device.names[row["program"]] for row in free} == {"__amd_rocclr_copyBuffer.kd"}


@pytest.mark.golden
def test_v100_takes_streams_and_not_what_repeats_them(imported: Get) -> None:
    devices = {device.name: device for device in imported("v100").capture.devices}
    device = devices["/device:GPU:4"]
    assert (device.rows.num_rows, busy_ps(device)) == (759, 14_983_622_000)
    assert set(device.lines.values()) == {
        "Stream #63(MemcpyH2D)", "Stream #134(Compute)", "Stream #135(MemcpyH2D)", "Stream #136(MemcpyD2H)",
    }  # fmt: skip
    assert device.skipped == {"Steps": 1, "TensorFlow Ops": 665, "TensorFlow Name Scope": 2_450}
    copies = [row for row in device.rows.to_pylist() if row["kind"] == Kind.COPY]
    assert len(copies) == 94  # events with memcpy_details, counted in the file


@pytest.mark.golden
def test_cpu_thunks_are_the_device(imported: Get) -> None:
    """2 371 events of the file name an HLO op; they belong to 297 run ids (both counted with google.protobuf)."""
    [device] = imported("cpu").capture.devices
    assert (device.platform, device.ordinal) == ("cpu", 0)
    assert work(device).num_rows == 2_371
    assert device.executions == 297
    host = imported("cpu").capture.host
    assert host is not None
    assert host.rows.num_rows == 19_589 - 2_371
    steps = [row for row in host.rows.to_pylist() if row["kind"] == Kind.STEP]
    assert len(steps) == 296
    numbers = sorted(row["step"] for row in steps)
    assert numbers == list(range(numbers[0], numbers[0] + 296))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["v6e", "mi300x", "v100", "cpu"])
def test_rows_are_in_the_order_of_the_wire(imported: Get, name: str) -> None:
    capture = imported(name).capture
    for rows in [*(device.rows for device in capture.devices), *([capture.host.rows] if capture.host else [])]:
        keys = [(row["line"], row["start"], -row["dur"]) for row in rows.to_pylist()]
        assert keys == sorted(keys)
        assert (rows.column("weight").to_numpy() == 1).all()


@pytest.mark.golden
def test_v6e_clock_drifts_as_read_by_hand_and_its_ops_keep_raw_durations(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """benchmarks/clock_v6e.py: 15.04 to 15.05 ppm on four cores through the code of every clock, half of all ops
    displaced in the capture's own view, and another ranking of the top four."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    monkeypatch.setenv("FLEETSCOPE_SAMPLES", str(samples))
    assert importlib.import_module("clock_v6e").main() == 0
    found = json.loads(capsys.readouterr().out)
    assert [core["displaced"] for core in found["cores"]] == [772, 772, 755, 791]
    assert found["durations_kept"] == found["ops"] == 6_013
