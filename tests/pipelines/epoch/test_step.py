"""Steps: begin to begin, deltas that add up, what belongs to a step that is not yet over, inference. By hand."""

import itertools
import random
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.pipelines import step
from fleetscope.pipelines.infer import INFER_AFTER
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


def cover(begin_ns: int, end_ns: int, watched: int = 0) -> dict[str, Any]:
    owner = {"process": P, "host": 3, "run": 4, "attempt": 5, "rank": 6}
    return {**owner, "begin_ns": begin_ns, "end_ns": end_ns, "watched": watched}


def execution(
    begin_ns: int,
    dur_ns: int = 80,
    program: int = 9,
    device: int = 2,
    window: int = 0,
    watched: int = 0,
    queue: int = 0,
    launch: int = 0,
) -> dict[str, Any]:
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
        "sparse_core_ns": 0,
        "queue_ns": queue,
        "watched": watched,
        "launch": launch,
    }


def unknown(process: int, device: int, program: int) -> int:
    return 0


def run(
    where: PartitionState, now_ns: int = 1000, least: step.Least = unknown, **rows: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    tables = {name: pa.Table.from_pylist(found, schema=step.TABLES[name]) for name, found in rows.items()}
    # The carried state crosses the manifest between epochs.
    steps, programs = step.advance({0: where}, tables, now_ns, least)
    out = steps.to_pylist()
    # What the programs of a step ran is what it ran.
    assert sum(programs.column("executions").to_pylist()) == sum(row["executions"] for row in out)
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


def test_each_program_of_a_step_is_counted_by_itself_whenever_it_comes() -> None:
    """Two of program 9 (80 ns each), one of program 8, one of them late; and one in the step that is open."""
    where = state()
    found: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for rows in (
        {"marks": [mark(1, 100), mark(2, 200)], "executions": [execution(110), execution(150, 30, program=8)]},
        {"executions": [execution(120), execution(210, program=8)]},
    ):
        tables = {name: pa.Table.from_pylist(given, schema=step.TABLES[name]) for name, given in rows.items()}
        _, programs = step.advance({0: where}, tables, 1000, unknown)
        where.steps = PartitionState.from_json(where.to_json()).steps
        for row in programs.to_pylist():
            assert (row["host"], row["process"], row["attempt"], row["t_ns"]) == (3, P, 5, 100)
            found[row["step"], row["program"]][0] += row["executions"]
            found[row["step"], row["program"]][1] += row["dur_ns"]
    assert found == {(1, 9): [2, 160], (1, 8): [1, 30]}


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
    begins = [1000 * index for index in range(1, INFER_AFTER + 1)]
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
    one = [execution(1000 * index, 600, window=1) for index in range(INFER_AFTER)]
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


def test_executions_of_the_shim_fill_a_step_with_occupancy_queueing_and_idle_time() -> None:
    where = state()
    rows = run(where, marks=[mark(1, 100), mark(2, 200), mark(3, 300)])
    # one execution crosses the edge between the steps; it was begun in the first
    rows += run(where, executions=[execution(120, 30, watched=1, queue=4), execution(180, 40, watched=1, queue=7)])
    rows += run(where, coverage=[cover(100, 250, watched=1), cover(250, 300, watched=1)])
    rows += run(where, marks=[mark(4, 400)])
    found = total(rows)
    names = ("watched_ns", "occupancy_ns", "idle_ns", "queue_ns", "executions", "covered_ns")
    assert [found[1, 100][name] for name in names] == [100, 50, 50, 11, 2, 0]
    assert [found[2, 200][name] for name in names] == [100, 20, 80, 0, 0, 0]


def test_a_window_beside_the_shim_gives_classes_and_is_not_counted_again() -> None:
    where = state()
    rows = run(where, marks=[mark(1, 100), mark(2, 200), mark(3, 300)])
    rows += run(where, executions=[execution(110, 80, watched=1)], coverage=[cover(100, 200, watched=1)])
    rows += run(where, executions=[execution(112, 78, window=5)], coverage=[cover(105, 195)])
    one = total(rows)[1, 100]
    assert (one["executions"], one["compute_ns"]) == (1, 60 + 58)
    assert (one["covered_ns"], one["watched_ns"], one["occupancy_ns"]) == (90, 100, 80)


def inferred(executions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of steps that ended; the executions come in two epochs."""
    where, half = state(), len(executions) // 2
    rows = run(where, executions=executions[:half], now_ns=1)
    rows += run(where, executions=executions[half:], now_ns=1)
    rows += run(where, coverage=[cover(0, 1, watched=1)])
    return [row for row in rows if row["dur_ns"]]


def test_gradient_accumulation_is_one_step_from_its_first_micro_step() -> None:
    executions, at, truth = [execution(10 * i, 5, program=100 + i, watched=1) for i in range(5)], 1000, []
    for _ in range(12):
        truth.append(at)
        for _ in range(4):
            executions.append(execution(at, 90, program=9, watched=1))
            at += 100
        executions.append(execution(at, 40, program=8, watched=1))
        at += 60
    rows = inferred(executions)
    assert [(r["t_ns"], r["dur_ns"]) for r in rows] == [(begin, 460) for begin in truth[:-1]]
    assert {r["executions"] for r in rows} == {5}
    assert {r["confidence"] for r in rows} == {1000}


def test_evaluation_between_training_steps_is_flagged_and_leaves_the_period_alone() -> None:
    executions, at, truth = [], 1000, []
    for number in range(60):
        truth.append((at, False))
        executions.append(execution(at, 95, watched=1))
        executions.append(execution(at + 96, 1, program=7, watched=1))  # a small helper in each step
        at += 100
        if number % 20 == 19:
            for _ in range(3):
                truth.append((at, True))
                executions.append(execution(at, 50, program=8, watched=1))
                at += 55
    rows = inferred(executions)
    assert [(r["t_ns"], bool(r["flags"] & StepFlag.EVAL)) for r in rows] == truth[:-1]
    training = [r["dur_ns"] for r in rows if not r["flags"] & StepFlag.EVAL]
    assert set(training) == {100}
    assert rows[-1]["confidence"] == 1000


def test_confidence_falls_where_steps_are_irregular() -> None:
    executions, at = [], 1000
    for number in range(64):
        executions.append(execution(at, 50, watched=1))
        at += 100 if number % 2 else 400
    confidence = {r["confidence"] for r in inferred(executions)}
    assert max(confidence) <= 600


def test_another_program_leads_when_the_first_is_not_seen_any_more() -> None:
    first = [execution(1000 + 100 * i, 90, watched=1) for i in range(20)]
    second = [execution(10_000 + 200 * i, 180, program=5, watched=1) for i in range(200)]
    where = state()
    rows = run(where, executions=first, now_ns=1)
    rows += run(where, executions=second[:100], now_ns=1)
    rows += run(where, executions=second[100:], now_ns=1)
    late = [row for row in rows if row["t_ns"] >= 10_000 + 200 * 110 and row["dur_ns"]]
    assert len(late) > 50
    assert {row["dur_ns"] for row in late} == {200}
    assert not any(row["flags"] & StepFlag.EVAL for row in late)


def test_state_that_was_carried_by_an_earlier_release_goes_on() -> None:
    where = state()
    pending = [["cover", 1000, 1100], ["exec", 1000, 2, 9, 0, 80, 60, 15, 5]]
    where.steps[P] = [[3, 4, 5, 6], "inferred", [[1000, 1, 0, 0, 0]], False, 1, [2, 9], pending]
    rows = run(where, executions=[execution(1200), execution(1400)])
    assert [(r["t_ns"], r["dur_ns"]) for r in rows if r["dur_ns"]] == [(1000, 200), (1200, 200)]
    names = ("executions", "compute_ns", "covered_ns", "queue_ns", "confidence")
    assert [rows[0][name] for name in names] == [1, 60, 100, 0, 0]


def test_a_declared_step_that_an_earlier_release_carried_is_as_sure_as_any() -> None:
    where = state()
    where.steps[P] = [[3, 4, 5, 6], "declared", [[100, 1, 10, 0, 0]], False, 0, [], []]
    (row,) = [row for row in run(where, marks=[mark(2, 200)]) if row["dur_ns"]]
    assert (row["t_ns"], row["source"], row["confidence"]) == (100, "declared", step.SURE)


def test_dispatch_of_launches_counts_where_no_annotation_tells_it() -> None:
    where = state()
    executions = [execution(1000 + 100 * i, 90, watched=1) for i in range(20)]
    rows = run(where, executions=executions, parts=[part(1505, 3, "dispatch_ns")], now_ns=1)
    assert {r["t_ns"]: r["dispatch_ns"] for r in rows}[1500] == 3
    declared = run(state(), marks=[mark(1, 100), mark(2, 200)], parts=[part(110, 3, "dispatch_ns")])
    assert declared[0]["dispatch_ns"] == 10


def test_what_is_observed_of_a_process_without_steps_is_carried_in_few_stretches() -> None:
    second = 1_000_000_000
    where, split = state(), state()
    for number in range(40):
        # two devices, half a second apart
        told = [cover(number * second + half, (number + 1) * second + half) for half in (0, second // 2)]
        run(where, coverage=told)
    pending = step.ProcessSteps.from_json(next(iter(where.steps.values()))).pending
    assert sum(item[2] - item[1] for item in pending) == 80 * second
    assert len(pending) == 2 * 40 * second // step.JOINED_NS

    run(split, coverage=[cover(begin * second, (begin + 1) * second) for begin in range(40)])
    marks = [mark(1, 15 * second), mark(2, 36 * second)]
    twice, once = (total(run(one, now_ns=41 * second, marks=marks))[1, 15 * second] for one in (where, split))
    assert twice["covered_ns"] == 2 * once["covered_ns"] == 2 * 21 * second


def told_late(ran: list[tuple[int, int, int]], late: float, by_ns: int, dice: random.Random) -> list[dict[str, Any]]:
    """Executions as an agent tells them whose completions come late: `ran` is (begin, end, program) in order of launch,
    each launched long before. A share `late` of the callbacks is late by up to `by_ns`."""
    told = sorted(
        (end + (dice.randrange(by_ns) if dice.random() < late else 0), launch, program)
        for launch, (_, end, program) in enumerate(ran, 1)
    )
    begins = [ran[0][0], *(end for end, _, _ in told)]
    return [
        execution(begin, end - begin, program=program, watched=1, launch=launch)
        for begin, (end, launch, program) in zip(begins, told, strict=False)
    ]


@pytest.mark.parametrize("late", [0.0, 0.02, 0.05, 0.2, 0.5])
def test_completions_that_are_told_late_change_neither_the_steps_nor_what_is_in_them(late: float) -> None:
    """Four micro steps of 20 ms and an optimizer of 5 ms; callbacks late by up to 50 ms pass two others and more."""
    dice, ran, at, truth = random.Random(7), [], 1_000_000_000, []
    for _ in range(150):
        truth.append(at)
        for length, program in ((20, 9),) * 4 + ((5, 8),):
            ran.append((at, at + length * 1_000_000, program))
            at += length * 1_000_000
    executions = told_late(ran, late, 50_000_000, dice)
    passed = sum(a["launch"] > b["launch"] for a, b in itertools.pairwise(executions))
    assert (passed > 0) == (late > 0)
    where, rows = state(), []
    for begin in range(0, len(executions), 70):  # epochs that end anywhere
        rows += run(where, executions=executions[begin : begin + 70], coverage=[cover(0, 1, watched=1)], now_ns=1)
    rows += run(where, now_ns=at + 2 * step.PATIENCE_NS)
    flags: dict[int, int] = defaultdict(int)
    for row in rows:
        flags[row["t_ns"]] |= row["flags"]
    begun = sorted(flags)
    # Not one step more or less, and none begins before it did or more than a callback's lateness after it.
    assert len(begun) == len(truth)
    assert all(0 <= told - real <= 50_000_000 for told, real in zip(begun, truth, strict=True))
    assert set(begun) <= {item["begin_ns"] for item in executions}
    off = [told != real for told, real in zip(begun, truth, strict=True)]
    assert any(off) == (late > 0)
    assert any(flag & StepFlag.REORDERED for flag in flags.values()) == (late > 0)
    # Five executions a step: which of them begins first in it is as uncertain as its begin.
    assert sum(found["executions"] for found in total(rows).values()) == len(ran)


HOST_TIMES = ("data_wait_ns", "compile_ns", "checkpoint_ns", "h2d_ns", "d2h_ns", "dispatch_ns")


def test_a_loop_that_waits_inside_its_annotation_has_each_instant_once() -> None:
    """A step of 100 ns, 90 of it annotated. In the annotation 40 of data wait, on another thread 20 of a transfer, half
    of them under the wait; 30 of compilation that begin in the wait, and 15 that outlast the step."""
    where = state()
    parts = [part(105, 40, "data_wait_ns"), part(135, 20, "h2d_ns"), part(140, 30, "compile_ns")]
    rows = run(where, parts=[*parts, part(195, 15, "compile_ns")])
    rows += run(where, marks=[mark(1, 100, 90), mark(2, 200, 50), mark(3, 300)])
    found = total(rows)
    # [105, 145) wait, [145, 170) and [195, 200) compile; the transfer is under both of them
    assert [found[1, 100][name] for name in HOST_TIMES] == [40, 30, 0, 0, 0, 90 - 40 - 25]
    assert [found[2, 200][name] for name in HOST_TIMES] == [0, 10, 0, 0, 0, 40]
    # A wait of 60 told late: all but 5 ns of the first step had been given.
    late = total(run(where, parts=[part(110, 60, "data_wait_ns")]))
    assert late[1, 100]["data_wait_ns"] == 5


@given(
    st.lists(
        st.tuples(st.integers(100, 480), st.integers(0, 150), st.sampled_from(HOST_TIMES[:-1]), st.booleans()),
        max_size=12,
    ),
    st.lists(st.integers(0, 130), min_size=4, max_size=4),
)
def test_the_parts_of_a_step_are_each_instant_once_and_never_more_than_the_step(
    told: list[tuple[int, int, str, bool]], annotated: list[int]
) -> None:
    """Against each ns by itself: the first of HOST_TIMES that is at it. What is late only keeps the sum in bounds."""
    where, late = state(), [part(*item[:3]) for item in told if item[3]]
    rows = run(where, parts=[part(*item[:3]) for item in told if not item[3]])
    rows += run(where, marks=[mark(step, 100 * step, dur) for step, dur in enumerate(annotated, 1)])
    spans = [(column, begin, begin + dur) for begin, dur, column, is_late in told if not is_late]
    for number, found in [(number, found) for (number, _), found in total(rows).items() if found["dur_ns"]]:
        begin = 100 * number
        mine = [*spans, ("dispatch_ns", begin, begin + annotated[number - 1])]
        at = [[name for name in HOST_TIMES if any(c == name and b <= ns < e for c, b, e in mine)]
              for ns in range(begin, begin + 100)]  # fmt: skip
        assert [found[name] for name in HOST_TIMES] == [
            sum(1 for names in at if names and names[0] == name) for name in HOST_TIMES
        ]
    rows += run(where, parts=late)
    for found in total(rows).values():
        assert all(found[name] >= 0 for name in HOST_TIMES)
        assert not found["dur_ns"] or sum(found[name] for name in HOST_TIMES) <= found["dur_ns"]


def test_what_is_given_to_a_long_step_early_is_not_dispatch_again() -> None:
    where = state()
    rows = run(where, marks=[mark(1, 100, 10**9)], parts=[part(150, 10**8, "data_wait_ns")])
    rows += run(where, now_ns=151 + step.PATIENCE_NS)
    assert rows[0]["data_wait_ns"] == 10**8
    rows += run(where, marks=[mark(2, 100 + 10**9)])
    found = total(rows)[1, 100]
    assert (found["data_wait_ns"], found["dispatch_ns"]) == (10**8, 9 * 10**8)


LATE = [1000 + 100 * i for i in range(20)] + [3350, 3360, 3370, 3380, 3480, 3580]
"""Begins of steps that take 90 ns at least: four completions, due every 100 ns, were told at once, at 3350 to 3380."""


@pytest.mark.parametrize("first", [20, 21, 22, len(LATE)], ids=["before", "within the long one", "within", "at once"])
def test_steps_that_no_chip_does_and_the_one_that_took_their_time_are_flagged(first: int) -> None:
    def least(process: int, device: int, program: int) -> int:
        assert (process, device) == (P, 2)
        return {9: 60, 8: 30}[program]

    executions = [execution(at, 5, watched=1) for at in LATE]
    executions += [execution(at + 5, 2, program=8, watched=1) for at in LATE]
    executions += [execution(at + 1, 2, program=8, device=3, watched=1) for at in LATE]
    executions.sort(key=lambda row: row["begin_ns"])
    where = state()
    rows = run(where, now_ns=1, least=least, executions=executions[: 3 * first])
    rows += run(where, now_ns=1, least=least, executions=executions[3 * first :])
    flags: dict[int, int] = defaultdict(int)
    for row in rows:
        flags[row["t_ns"]] |= row["flags"]
    assert sorted(at for at, found in flags.items() if found & StepFlag.MISTIMED) == [2900, 3350, 3360, 3370]
    assert sum(1 for row in rows if row["flags"] & StepFlag.MISTIMED) == 4, "each once, however it is told"
    assert sum(found["dur_ns"] for found in total(rows).values()) == LATE[-1] - LATE[0]
    where = state()
    rows = run(where, now_ns=1, executions=executions)
    assert not any(row["flags"] & StepFlag.MISTIMED for row in rows), "nobody knows what it takes at least"


def test_the_steps_of_a_process_that_ended_wait_for_no_completion() -> None:
    """Two of 30 completions changed places, so the newest are held back for what may still come, until it has ended."""
    ran = [(1_000_000 * at, 1_000_000 * (at + 10), 9) for at in range(100, 400, 10)]
    executions = told_late(ran, 0.0, 1, random.Random(1))
    executions[4]["launch"], executions[5]["launch"] = executions[5]["launch"], executions[4]["launch"]
    where = state()
    rows = run(where, executions=executions, now_ns=400_000_000)
    assert 0 < len({row["t_ns"] for row in rows if row["dur_ns"]}) < 20
    where.processes[P] = {"end_ns": 400_000_000}
    rows += run(where, now_ns=400_000_001)
    assert len({row["t_ns"] for row in rows if row["dur_ns"]}) == 29
