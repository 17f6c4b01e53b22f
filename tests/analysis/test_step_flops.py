"""FLOPs of steps, on lakes of a few rows: each program by its own, why a ratio is absent, clock and dtypes."""

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table, step_table
from fleetscope.schema.vocabulary import Kind, StepFlag
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
EVERYTHING = Scope()
T0 = 1_796_000_000 * 10**9
SECOND = 10**9
V6E = 918_000
"""FLOP a ns of a TPU v6e in bf16."""

Lake = Callable[..., Snapshot]
Rows = list[dict[str, Any]]
OF = {"host": 1, "process": 2}
STEP = {**OF, "t_ns": T0, "run": 9, "attempt": 8, "step": 1, "dur_ns": 1000, "source": "declared"}
PART = {**OF, "t_ns": T0, "attempt": 8, "step": 1}


def _lake(**more: Rows) -> dict[str, Rows]:
    """A step of 1 000 ns on one device of 10 FLOP a ns, seen whole: two executions of program 6, one of program 7."""
    return {
        "hosts": [{"host": 1, "name": "h0"}],
        "processes": [{"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train"}],
        "devices": [{"device": 3, "host": 1, "key": "chip", "sku": "TPU v6 Lite"}],
        "device_10s": [{**OF, "t_ns": T0, "device": 3, "weight": 1, "observed_ns": 100, "peak_flop": 1000}],
        "programs": [
            {"program": 6, "module": "jit_train", "flops": 3000, "model_flops": 2000, "flops_known": True},
            {"program": 7, "module": "jit_eval", "flops": 500, "model_flops": 500, "flops_known": True},
        ],
        "step": [{**STEP, "program": 7, "executions": 3, "covered_ns": 1000}],
        "step_program": [
            {**PART, "program": 6, "executions": 2, "dur_ns": 600},
            {**PART, "program": 7, "executions": 1, "dur_ns": 200},
        ],
        **more,
    }


def _both(snapshot: Snapshot) -> list[dict[str, Any]]:
    found = []
    for table in (step_table, rank_step_table):
        (row,) = table(snapshot, EVERYTHING).to_pylist()
        found.append(row)
    return found


def test_each_program_counts_its_own_flops(lake_of: Lake) -> None:
    """2 x 3 000 + 500 FLOPs of 10 000; by the program that leads it would be 1 500, or 9 000."""
    for row in _both(lake_of(**_lake())):
        assert (row["hfu_ratio"], row["mfu_ratio"]) == (pytest.approx(0.65), pytest.approx(0.45))
        assert (row["flops_coverage_ratio"], row["mfu_absent"]) == (1.0, None)


def test_a_step_of_an_older_lake_counts_its_leading_program(lake_of: Lake) -> None:
    for row in _both(lake_of(**_lake(step_program=[]))):
        assert row["hfu_ratio"] == pytest.approx(0.15)


def test_a_program_under_the_label_it_was_loaded_by(lake_of: Lake) -> None:
    parts = _lake()["step_program"]
    loads = [{"process": 2, "program_id": 777, "program": 6}]
    for row in _both(lake_of(**_lake(step_program=[{**parts[0], "program": 777}, parts[1]], program_loads=loads))):
        assert row["hfu_ratio"] == pytest.approx(0.65)


def _unknown(program: int, **more: Any) -> Rows:
    known, other = _lake()["programs"]
    return [{**row, "flops": None, "model_flops": None, "flops_known": False, **more}
            if row["program"] == program else row for row in (known, other)]  # fmt: skip


ABSENT: list[Any] = [
    pytest.param({"step": [{**STEP, "program": 7, "executions": 3, "covered_ns": 300}]},
                 "devices were seen for 30 % of the step", id="windows"),
    pytest.param({"step": [{**STEP, "covered_ns": 1000}], "step_program": []}, "no execution was seen", id="none"),
    pytest.param({"step": [{**STEP, "program": 7, "executions": 3, "covered_ns": 1000, "flags": StepFlag.MISTIMED}]},
                 "its executions were told late", id="late"),
    pytest.param({"programs": _unknown(7)}, "the FLOPs of jit_eval are not known", id="FLOPs"),
    pytest.param({"programs": []}, "the FLOPs of #6, #7 are not known", id="table"),
    pytest.param({"device_10s": [{**OF, "t_ns": T0, "device": 3, "weight": 1, "watched_ns": 100}],
                  "devices": [{"device": 3, "sku": "a chip"}],
                  "processes": [{"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train",
                                 "labels": [("peak_flops_per_s", "0")]}],
                  "ops": [{"program": 6, "op": 1, "entry": True, "flops": 3000, "model_flops": 2000,
                           "dtype": "bf16"}]}, "the peak of the chip is not known", id="peak"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "reason"), ABSENT)
def test_an_absent_ratio_has_a_reason(lake_of: Lake, change: dict[str, Rows], reason: str) -> None:
    for row in _both(lake_of(**_lake(**change))):
        assert (row["hfu_ratio"], row["mfu_ratio"], row["mfu_absent"]) == (None, None, reason)
        assert (row["hfu_by_dtype"], row["mfu_at_clock_ratio"]) == (None, None)


OPS: Rows = [
    {"program": 7, "op": 1, "opcode": "dot", "entry": True, "flops": 480, "model_flops": 240, "dtype": "bf16"},
    {"program": 7, "op": 2, "opcode": "custom-call", "entry": True, "flops": None, "model_flops": None},
    {"program": 7, "op": 3, "opcode": "dot", "entry": False, "flops": 10**6, "model_flops": 10**6, "dtype": "bf16"},
]


@pytest.mark.parametrize(("unknown_ns", "hfu"), [(30, 0.648), (60, None)])
def test_known_ops_stand_for_a_program_from_95_percent_of_its_op_time_on(
    lake_of: Lake, unknown_ns: int, hfu: float | None
) -> None:
    """1 000 ns of op time, so much of it in an op whose FLOPs are unknown."""
    seen = {**OF, "t_ns": T0, "program": 7, "kind": Kind.COMPUTE, "weight": 1, "count": 1}
    spans = [{**seen, "op": 1, "sum_ns": 1000 - unknown_ns}, {**seen, "op": 2, "sum_ns": unknown_ns}]
    for row in _both(lake_of(**_lake(programs=_unknown(7), ops=OPS, op_10s=spans))):
        assert row["hfu_ratio"] == (None if hfu is None else pytest.approx(hfu))
        # 600 ns of program 6, all known, and 200 of program 7
        assert row["flops_coverage_ratio"] == pytest.approx((600 + 200 * (1 - unknown_ns / 1000)) / 800)


def test_what_holds_others_and_is_unknown_is_never_left_out(lake_of: Lake) -> None:
    seen = {**OF, "t_ns": T0, "program": 7, "kind": Kind.COMPUTE, "weight": 1, "count": 1, "op": 1, "sum_ns": 1000}
    ops = [OPS[0], {**OPS[1], "opcode": "while"}]
    for row in _both(lake_of(**_lake(programs=_unknown(7), ops=ops, op_10s=[seen]))):
        assert row["mfu_absent"] == "the FLOPs of jit_eval are not known"


def test_against_the_clock_the_chip_ran_at_in_that_time(lake_of: Lake) -> None:
    """In the window of the step half of the clock beside ops, two thirds beside executions, 2 500 of 4 000 FLOPs; three
    quarters an hour later."""
    device = _lake()["device_10s"][0]
    slow = {**device, "peak_flop_clock": 500, "watched_peak_flop": 3000, "watched_peak_flop_clock": 2000}
    later = {**device, "t_ns": T0 + 3600 * SECOND, "peak_flop_clock": 750}
    for row in _both(lake_of(**_lake(device_10s=[slow, later]))):
        assert row["clock_ratio"] == pytest.approx(0.625)
        assert (row["hfu_at_clock_ratio"], row["mfu_at_clock_ratio"]) == (pytest.approx(1.04), pytest.approx(0.72))


def test_without_any_window_the_data_sheet_has_the_peak(lake_of: Lake) -> None:
    """A step of 1 000 ns seen by its executions alone: 2 x (100 ns of products in bf16 + 40 ns in int8, whose peak is
    twice that): 0.2 and 0.08 of the step; all FLOPs over the peak of the costlier dtype, 0.36."""
    program = {"program": 6, "module": "jit_train", "flops": 180 * V6E, "model_flops": 150 * V6E, "flops_known": True}
    op = {"program": 6, "opcode": "dot", "entry": True}
    ops = [
        {**op, "op": 1, "flops": 100 * V6E, "model_flops": 100 * V6E, "dtype": "bf16"},
        {**op, "op": 2, "flops": 80 * V6E, "model_flops": 50 * V6E, "dtype": "s8"},
    ]
    tables = _lake(
        programs=[program], ops=ops, step_program=[_lake()["step_program"][0]],
        device_10s=[{**OF, "t_ns": T0, "device": 3, "weight": 1, "watched_ns": 1000}],
        step=[{**STEP, "program": 6, "executions": 2, "watched_ns": 1000}],
    )  # fmt: skip
    for row in _both(lake_of(**tables)):
        assert dict(row["hfu_by_dtype"]) == {"bf16": pytest.approx(0.2), "s8": pytest.approx(0.08)}
        assert dict(row["mfu_by_dtype"]) == {"bf16": pytest.approx(0.2), "s8": pytest.approx(0.05)}
        assert (row["hfu_ratio"], row["mfu_ratio"]) == (pytest.approx(0.36), pytest.approx(0.3))


def test_without_any_window_integers_count_at_the_peak_of_the_training_dtype(lake_of: Lake) -> None:
    """2 x 180 ns of a step of 1 000 ns; no data sheet has a peak for u32."""
    program = {"program": 6, "module": "jit_hash", "flops": 180 * V6E, "model_flops": 180 * V6E, "flops_known": True}
    hashing = {"program": 6, "op": 1, "opcode": "fusion", "entry": True, "dtype": "u32"}
    tables = _lake(
        programs=[program], ops=[{**hashing, "flops": 180 * V6E, "model_flops": 180 * V6E}],
        step_program=[_lake()["step_program"][0]],
        device_10s=[{**OF, "t_ns": T0, "device": 3, "weight": 1, "watched_ns": 1000}],
        step=[{**STEP, "program": 6, "executions": 2, "watched_ns": 1000}],
    )  # fmt: skip
    for row in _both(lake_of(**tables)):
        assert (row["hfu_ratio"], row["mfu_absent"]) == (pytest.approx(0.36), None)
        assert dict(row["hfu_by_dtype"]) == {"u32": pytest.approx(0.36)}


@pytest.mark.parametrize(
    ("covered_ns", "hfu", "reason"), [(1000, 0.65, None), (0, None, "devices were seen for 0 % of the step")]
)
def test_a_step_of_two_ranks_adds_them_and_wants_both(
    lake_of: Lake, covered_ns: int, hfu: float | None, reason: str | None
) -> None:
    one = _lake()
    second = {name: [{**row, "process": 5} for row in one[name]] for name in one if "process" in one[name][0]}
    second["step"][0]["covered_ns"] = covered_ns
    both = {name: rows + second.get(name, []) for name, rows in one.items()}
    (row,) = step_table(lake_of(**both), EVERYTHING).to_pylist()
    assert (row["ranks"], row["mfu_absent"]) == (2, reason)
    assert row["hfu_ratio"] == (None if hfu is None else pytest.approx(hfu))
