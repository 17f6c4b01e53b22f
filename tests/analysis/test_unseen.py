"""Ops of which no window shows a span: named where time is missing, from the program's table; and never otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.analysis.estimate import UNOBSERVABLE
from fleetscope.analysis.groups import group_table
from fleetscope.analysis.ops import op_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.top import top_ops
from fleetscope.schema.tables import PROGRAM_TOTAL
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
EVERYTHING = Scope()
T0 = 1_796_000_000 * 10**9
SECOND = 10**9
Q30 = 1 << 30
ROW = {"t_ns": T0, "host": 1, "process": 2, "device": 3}
HISTOGRAM = {"hist_index": [640], "hist_count": [20], "min_ns": 1_000_000, "max_ns": 1_010_000}
W_NS = SECOND // 5
WINDOWS = 100
OPS = {
    4: ("small.4", "fusion", Kind.COMPUTE, True, 10**6, 10**6),
    5: ("giant.5", "custom-call", Kind.COMPUTE, True, None, None),
    6: ("tiny.6", "fusion", Kind.COMPUTE, True, 10, 10),
    7: ("p0", "parameter", Kind.OTHER, True, 0, 0),
    8: ("inside.8", "dot", Kind.COMPUTE, False, 10**9, 10**9),
    9: ("all-reduce.9", "all-reduce", Kind.COLLECTIVE, True, 10, 10),
}
"""Ordinal -> name, opcode, kind, of the entry, FLOPs, bytes."""


def _lake(execution_s: float, seen_share: float, entries: tuple[int, ...] = (4, 5, 6, 7, 8)) -> dict[str, Any]:
    """100 s watched, in which the program always ran, each execution so long; op 4 took `seen_share` of that time."""
    duty = int(seen_share * Q30)
    squares = {"duty_sq_hi": WINDOWS * duty * duty >> 32, "duty_sq_lo": WINDOWS * duty * duty % 2**32}
    seen = {"windows": WINDOWS, "count": 20, "duty_q30": WINDOWS * duty, **squares}
    runs = round(100 / execution_s)
    return {
        "hosts": [{"host": 1, "name": "h0"}],
        "processes": [{"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train", "pid": 77}],
        "devices": [{"device": 3, "host": 1, "key": "gpu-uuid", "local_name": "GPU:0"}],
        "windows": [{"window": n, "host": 1, "process": 2, "device": 3, "length_ns": W_NS} for n in range(1, 4)],
        "device_10s": [
            {**ROW, "weight": 0, "windows": WINDOWS, "observed_ns": WINDOWS * W_NS, "busy_ns": SECOND, **squares,
             "duty_q30": WINDOWS * duty},
            {**ROW, "weight": 1, "watched_ns": 100 * SECOND, "occupancy_ns": 100 * SECOND, "executions": runs},
        ],
        "op_10s": [
            {**ROW, "device": 0, "kind": Kind.COMPUTE, "program": 6, "op": 4, "weight": 0, "sum_ns": SECOND,
             **HISTOGRAM, **seen},
            {**ROW, "kind": Kind.MODULE, "program": 6, "op": PROGRAM_TOTAL, "weight": 0, **seen, "count": 0},
            {**ROW, "kind": Kind.MODULE, "program": 777, "op": 0, "weight": 1, "count": runs, "sum_ns": 100 * SECOND,
             "hist_index": [640], "hist_count": [runs]},
        ],
        "program_loads": [{"process": 2, "program_id": 777, "program": 6}],
        "programs": [{"program": 6, "module": "jit_step"}],
        "ops": [
            {"program": 6, "op": number, "name": name, "opcode": opcode, "category": opcode, "kind": kind,
             "entry": entry, "flops": flops, "bytes_accessed": moved}
            for number, (name, opcode, kind, entry, flops, moved) in OPS.items() if number in entries
        ],
    }  # fmt: skip


Lake = Callable[..., Snapshot]


def test_an_op_always_longer_than_the_windows_is_named(lake_of: Lake) -> None:
    """Executions of 2 s in windows of 0.2 s; ops that were seen explain 0.6 s of each: 1.4 s, 70 %, are missing."""
    snapshot = lake_of(**_lake(2.0, 0.3))
    first, second = op_table(snapshot, EVERYTHING).to_pylist()
    assert (first["op"], first["reason"], first["count"], first["share_ratio"]) == ("giant.5", UNOBSERVABLE, 0, None)
    assert (first["run"], first["host"], first["module"], first["seen"]) == ("train", "h0", "jit_step", "windows")
    assert first["residual_ratio"] == pytest.approx(0.7, abs=1e-3)
    assert (second["op"], second["reason"]) == ("small.4", None)
    assert [row["op"] for row in op_table(snapshot, EVERYTHING, "giant").to_pylist()] == ["giant.5"]
    assert [row["op"] for row in op_table(snapshot, EVERYTHING, "small").to_pylist()] == ["small.4"]
    (program,) = group_table(snapshot, EVERYTHING, "program").to_pylist()
    assert (program["unobservable"], program["share_ratio"]) == (["giant.5"], pytest.approx(0.3, rel=1e-6))
    by_category = {row["category"]: row for row in group_table(snapshot, EVERYTHING, "category").to_pylist()}
    assert by_category["custom-call"]["reason"] == UNOBSERVABLE
    assert by_category["fusion"]["unobservable"] is None
    top = top_ops(snapshot, EVERYTHING).to_pylist()
    assert [(row["op"], row["reason"]) for row in top] == [("giant.5", UNOBSERVABLE), ("small.4", None)]


def test_a_program_of_which_windows_show_nothing_names_it_too(lake_of: Lake) -> None:
    tables = _lake(2.0, 0.3)
    tables["op_10s"] = tables["op_10s"][2:]
    rows = op_table(lake_of(**tables), EVERYTHING).to_pylist()
    assert [(row["op"], row["residual_ratio"]) for row in rows] == [("small.4", 1.0), ("giant.5", 1.0)]


def test_a_collective_waits_for_others_whatever_it_computes(lake_of: Lake) -> None:
    rows = op_table(lake_of(**_lake(2.0, 0.3, (4, 6, 7, 8, 9))), EVERYTHING).to_pylist()
    assert [row["op"] for row in rows] == ["all-reduce.9", "small.4"]


@pytest.mark.parametrize(
    "lake",
    [
        pytest.param(_lake(2.0, 0.3, (4, 6, 7, 8)), id="only negligible ops and those of no entry were never seen"),
        pytest.param(_lake(2.0, 0.95), id="5 % is missing: gaps"),
        pytest.param(_lake(0.1, 0.3), id="what is missing in an execution is shorter than a window"),
        pytest.param(_lake(2.0, 0.3, ()), id="no op table"),
        pytest.param(_lake(2.0, 0.3) | {"windows": []}, id="length of the windows unknown"),
    ],
)
def test_nothing_is_named_without_reason(lake_of: Lake, lake: dict[str, Any]) -> None:
    assert [row["reason"] for row in op_table(lake_of(**lake), EVERYTHING).to_pylist()] == [None]


def test_nothing_is_named_without_counts_or_with_few_windows(lake_of: Lake) -> None:
    tables = _lake(2.0, 0.3)
    few = [{**row, "windows": 7} if row.get("weight") == 0 else row for row in tables["device_10s"]]
    rows = op_table(lake_of(**{**tables, "device_10s": few}), EVERYTHING).to_pylist()
    assert [row["op"] for row in rows] == ["small.4"]


def test_nothing_is_named_without_a_shim(lake_of: Lake) -> None:
    tables = _lake(2.0, 0.3)
    alone = {**tables, "device_10s": tables["device_10s"][:1], "op_10s": tables["op_10s"][:2]}
    assert [row["op"] for row in op_table(lake_of(**alone), EVERYTHING).to_pylist()] == ["small.4"]


def test_top_takes_exact_counts_where_there_are_any(lake_of: Lake) -> None:
    """100 s of executions of 10 ms. Op 4 took 4 ms of each whole one that windows saw: 40 %. Windows alone saw 30 %."""
    tables = _lake(0.01, 0.3)
    # A whole execution weighs 1 / (W - c); each window holds one execution's worth a second, of 4 ms in op 4.
    rate, inside = 10**6, int(0.004 * Q30)
    sums = {
        "executions": WINDOWS, "rate_uhz": WINDOWS * rate, "whole_q30": WINDOWS * inside,
        "rate_sq_hi": WINDOWS * rate**2 >> 32, "rate_sq_lo": WINDOWS * rate**2 % 2**32,
        "whole_sq_hi": WINDOWS * inside**2 >> 32, "whole_sq_lo": WINDOWS * inside**2 % 2**32,
        "whole_rate_hi": WINDOWS * inside * rate >> 32, "whole_rate_lo": WINDOWS * inside * rate % 2**32,
    }  # fmt: skip
    for row in tables["op_10s"][:2]:
        row.update(sums)
    (row,) = top_ops(lake_of(**tables), EVERYTHING).to_pylist()
    assert (row["op"], row["calibrated"], row["windows"]) == ("small.4", True, WINDOWS)
    assert row["share_ratio"] == pytest.approx(0.4, rel=1e-3)
    assert row["low_ratio"] <= row["share_ratio"] <= row["high_ratio"] < 0.41


def test_top_by_windows_alone_where_there_is_no_shim(lake_of: Lake) -> None:
    tables = _lake(0.01, 0.3)
    alone = {**tables, "device_10s": tables["device_10s"][:1], "op_10s": tables["op_10s"][:2]}
    (row,) = top_ops(lake_of(**alone), EVERYTHING).to_pylist()
    assert (row["calibrated"], row["share_ratio"]) == (False, pytest.approx(0.3, rel=1e-6))
