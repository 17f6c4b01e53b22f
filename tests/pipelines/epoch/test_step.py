"""Steps: begin to begin, deltas that add up, what belongs to a step that is not yet over, inference. By hand."""

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.pipelines import step
from fleetscope.pipelines.state import PartitionState, SourceRecord
from fleetscope.schema.vocabulary import StepFlag

pytestmark = pytest.mark.unit

P = 7
SUMMED = (*step.SUMS, "dur_ns", "executions", "covered_ns")


def state() -> PartitionState:
    return PartitionState(sources={1: SourceRecord(host=3, process=P, run="r")})


def mark(number: int, begin_ns: int, dur_ns: int = 10) -> dict[str, Any]:
    return {
        "process": P,
        "host": 3,
        "run": 4,
        "attempt": 5,
        "rank": 6,
        "step": number,
        "begin_ns": begin_ns,
        "dur_ns": dur_ns,
    }


def part(begin_ns: int, dur_ns: int, column: str) -> dict[str, Any]:
    return {"process": P, "begin_ns": begin_ns, "dur_ns": dur_ns, "column": column}


def cover(begin_ns: int, end_ns: int) -> dict[str, Any]:
    return {"process": P, "host": 3, "run": 4, "attempt": 5, "rank": 6, "begin_ns": begin_ns, "end_ns": end_ns}


def execution(begin_ns: int, dur_ns: int = 80, program: int = 9, device: int = 2, window: int = 0) -> dict[str, Any]:
    return {
        "process": P,
        "device": device,
        "program": program,
        "window": window,
        "begin_ns": begin_ns,
        "dur_ns": dur_ns,
        "compute_ns": dur_ns - 20,
        "collective_ns": 15,
        "copy_ns": 5,
    }


def run(where: PartitionState, now_ns: int = 1000, **rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    tables = {name: pa.Table.from_pylist(found, schema=step.TABLES[name]) for name, found in rows.items()}
    # The carried state crosses the manifest between epochs.
    out = step.advance({0: where}, tables, now_ns).to_pylist()
    where.steps = PartitionState.from_json(where.to_json()).steps
    return out


def total(rows: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, int]]:
    found: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: dict.fromkeys(SUMMED, 0))
    for row in rows:
        for name in SUMMED:
            found[row["step"], row["t_ns"]][name] += row[name]
    return dict(found)


def test_a_step_lasts_until_the_next_begins_and_the_last_stays_open() -> None:
    rows = run(state(), marks=[mark(1, 100), mark(2, 250, 20), mark(3, 380)])
    assert [(r["step"], r["t_ns"], r["dur_ns"], r["dispatch_ns"], r["source"]) for r in rows] == [
        (1, 100, 150, 10, "declared"),
        (2, 250, 130, 20, "declared"),
    ]
    assert [r["flags"] for r in rows] == [StepFlag.FIRST, 0]
    assert {(r["host"], r["run"], r["attempt"], r["rank"], r["process"]) for r in rows} == {(3, 4, 5, 6, P)}


def test_a_step_that_straddles_epochs_is_one_step() -> None:
    where = state()
    assert run(where, marks=[mark(1, 100)], parts=[part(120, 30, "data_wait_ns")]) == []
    assert run(where, parts=[part(170, 7, "data_wait_ns")]) == []
    rows = run(where, marks=[mark(2, 200)])
    assert [(r["step"], r["dur_ns"], r["data_wait_ns"]) for r in rows] == [(1, 100, 37)]


def test_device_time_that_comes_after_its_step_was_written_is_added_to_it() -> None:
    where = state()
    first = run(where, marks=[mark(1, 100), mark(2, 200)])
    later = run(where, executions=[execution(110), execution(210)], coverage=[cover(90, 230)])
    last = run(where, marks=[mark(3, 300)])
    found = total(first + later + last)
    assert found[1, 100] | {"dispatch_ns": 0} == {
        **dict.fromkeys(SUMMED, 0),
        "dur_ns": 100,
        "compute_ns": 60,
        "collective_ns": 15,
        "copy_ns": 5,
        "executions": 1,
        "covered_ns": 100,
    }
    assert (found[2, 200]["dur_ns"], found[2, 200]["executions"], found[2, 200]["covered_ns"]) == (100, 1, 30)
    assert set(found) == {(1, 100), (2, 200)}


def test_a_begin_that_comes_late_splits_the_step_that_was_written_too_long() -> None:
    where = state()
    rows = run(where, marks=[mark(1, 100), mark(3, 300)])
    assert total(rows)[1, 100]["dur_ns"] == 200
    rows += run(where, marks=[mark(2, 220)])
    found = total(rows)
    assert (found[1, 100]["dur_ns"], found[2, 220]["dur_ns"]) == (120, 80)
    assert run(where, marks=[mark(2, 220)]) == []


def test_compiling_marks_its_step() -> None:
    rows = run(state(), marks=[mark(1, 100), mark(2, 200), mark(3, 300)], parts=[part(210, 40, "compile_ns")])
    assert [(r["step"], r["compile_ns"], bool(r["flags"] & StepFlag.AFTER_COMPILE)) for r in rows] == [
        (1, 0, False),
        (2, 40, True),
    ]


def test_what_waits_too_long_goes_to_the_open_step() -> None:
    where = state()
    run(where, now_ns=1000, marks=[mark(1, 100)], parts=[part(150, 9, "h2d_ns")])
    rows = run(where, now_ns=151 + step.PATIENCE_NS)
    assert [(r["step"], r["h2d_ns"], r["dur_ns"]) for r in rows] == [(1, 9, 0)]
    assert run(where, now_ns=152 + 2 * step.PATIENCE_NS) == []


def test_without_annotations_the_dominant_program_on_one_device_makes_the_steps() -> None:
    where = state()
    begins = [1000 * index for index in range(1, step.INFER_AFTER + 1)]
    executions = [execution(begin, 600) for begin in begins]
    executions += [execution(begin + 700, 50, program=8) for begin in begins]
    executions += [execution(begin + 3, 590, device=1) for begin in begins[:-2]]
    rows = run(where, executions=executions[:10], coverage=[cover(0, 20_000)])
    assert rows == []
    rows = run(where, executions=executions[10:])
    assert [(r["step"], r["t_ns"], r["dur_ns"], r["source"]) for r in rows] == [
        (ordinal, begin, 1000, "inferred") for ordinal, begin in enumerate(begins[:-1], 1)
    ]
    assert {r["executions"] for r in rows[1:-2]} == {3}
    assert {r["run"] for r in rows} == {4}


def test_a_step_is_never_inferred_across_two_profiler_windows() -> None:
    where = state()
    one = [execution(1000 * index, 600, window=1) for index in range(step.INFER_AFTER)]
    two = [execution(10**9 + 1000 * index, 600, window=2) for index in range(3)]
    rows = [r for r in run(where, executions=one + two) if r["dur_ns"]]
    assert {r["dur_ns"] for r in rows} == {1000}
    assert len(rows) == len(one) - 1 + len(two) - 1


def test_an_epoch_may_hold_more_steps_than_are_carried() -> None:
    where = state()
    count = 3 * step.RECENT_STEPS
    marks = [mark(index, 100 * index) for index in range(count)]
    rows = run(where, marks=marks, executions=[execution(100 * index + 10) for index in range(count)])
    assert [(r["step"], r["executions"]) for r in rows] == [(index, 1) for index in range(count - 1)]
    assert len(where.steps[P][2]) == step.RECENT_STEPS
    late = run(where, marks=[mark(-1, 50)], executions=[execution(60)])
    assert late == [], "older than what is carried: the raw rows have it, the step table cannot"
