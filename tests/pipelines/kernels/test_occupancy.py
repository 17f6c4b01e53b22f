"""Occupancy, queueing, run-ahead and idle causes of executions, against a walk over single ticks."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines import idle
from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo, Block
from fleetscope.pipelines.busy import busy_by_slot, device_rollup, idle_gaps
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.pipelines.occupancy import Stretches
from fleetscope.pipelines.state import PartitionState, SourceRecord
from fleetscope.pipelines.windows import slots_of
from fleetscope.schema.vocabulary import WINDOW_NS, Kind, SpanFlag

pytestmark = pytest.mark.property

SECOND = 1_000_000_000
NOW = 1 << 62
EXECUTED = int(SpanFlag.INFERRED_BEGIN)


def rollup(block: Block) -> pa.Table:
    placed = place_rows(block)
    return device_rollup(block, placed, nest(block, placed.dur_ns))


def executions(small: SimpleNamespace, seed: int, cuts: int) -> tuple[list[Any], list[tuple[int, int, int]]]:
    """(batches, (enqueue, begin, end) of every execution) of one device in ticks of a second, cut anywhere legal."""
    rng = random.Random(seed)
    ran, at, ended = [], 5, 5
    for _ in range(rng.randint(1, 12)):
        at += rng.choice([0, 1, 4])
        begin = max(at, ended)
        ended = begin + rng.choice([1, 2, 7])
        ran.append((at, begin, ended))
    low, high = 0, ended + rng.randint(1, 6)
    legal = [t for t in range(low + 1, high) if not any(begin < t < end for _, begin, end in ran)]
    edges = [low, *sorted(rng.sample(legal, min(cuts, len(legal)))), high]
    batches = []
    line = small.line_of(0, 0, SECOND, 1)
    for first, last in pairwise(edges):
        rows = []
        for number, (enqueue, begin, end) in enumerate(ran):
            if first <= begin < last:
                rows.append(
                    small.Row(4096, begin, end - begin, Kind.MODULE, exec=number, flow=number + 1, flags=EXECUTED)
                )
                if begin > enqueue:
                    before = sum(done <= enqueue for _, _, done in ran)
                    queued = small.Row(4097, enqueue, begin - enqueue, Kind.QUEUE, exec=before, flow=number + 1)
                    rows.append(queued)
        info = BatchInfo(1, 2, 3, first, last, SECOND, 1, watched=True, epoch=9)
        batches.append(small.Given(info, (line,), tuple(rows)))
    return batches, ran


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32), cuts=st.integers(0, 6))
def test_every_tick_is_occupied_or_idle(small: SimpleNamespace, seed: int, cuts: int) -> None:
    batches, ran = executions(small, seed, cuts)
    rows = {row["t_ns"]: row for row in rollup(small.build(batches)).to_pylist()}
    told: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    high = batches[-1].info.tick_to
    for tick in range(high):
        window = told[tick * SECOND // WINDOW_NS * WINDOW_NS]
        window["watched_ns"] += SECOND
        occupied = any(begin <= tick < end for _, begin, end in ran)
        window["occupancy_ns" if occupied else "idle_unknown_ns"] += SECOND
    for enqueue, begin, end in ran:
        told[begin * SECOND // WINDOW_NS * WINDOW_NS]["queue_ns"] += (begin - enqueue) * SECOND
        window = told[end * SECOND // WINDOW_NS * WINDOW_NS]
        window["executions"] += 1
        ahead = sum(other <= enqueue and done > enqueue for other, _, done in ran[: ran.index((enqueue, begin, end))])
        window["run_ahead_max"] = max(window["run_ahead_max"], ahead + 1)
    assert set(rows) >= set(told)
    for t_ns, row in rows.items():
        for name in ("watched_ns", "occupancy_ns", "idle_unknown_ns", "queue_ns", "executions", "run_ahead_max"):
            assert row[name] == told[t_ns][name], name
        assert (row["busy_ns"], row["observed_ns"], row["weight"]) == (0, 0, 1), "no op was looked at"


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1 << 32), cuts=st.integers(1, 6))
def test_any_legal_cut_adds_up_to_the_same_row(small: SimpleNamespace, seed: int, cuts: int) -> None:
    whole = rollup(small.build(executions(small, seed, 0)[0]))
    parts = [rollup(small.build([batch])) for batch in executions(small, seed, cuts)[0]]
    assert merge("device_10s", parts).to_pylist() == whole.to_pylist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_gaps_and_what_ran_are_the_whole_range(small: SimpleNamespace, seed: int) -> None:
    """For ops too: nested, on several lines, in several windows of fleet time."""
    rng = random.Random(seed)
    batches = []
    for number in range(rng.randint(1, 3)):
        first, last = number * 40, number * 40 + 35
        rows = [
            small.Row(rng.randint(1, 2), begin, rng.randint(0, last - begin), rng.choice([1, 2, 3, 4, 17]))
            for begin in (rng.randint(first, last) for _ in range(rng.randint(0, 6)))
        ]
        info = BatchInfo(1, 2, 3, first, last, SECOND, 1, epoch=9)
        batches.append(small.Given(info, (small.line_of(0, 0, SECOND, 1),), tuple(rows)))
    block = small.build(batches)
    slots = slots_of(block)
    placed = place_rows(block)
    stretches: list[Stretches] = []
    busy, _, _ = busy_by_slot(block, nest(block, placed.dur_ns), slots, stretches)
    gaps: dict[int, int] = defaultdict(int)
    for row in idle_gaps(block, slots, stretches).to_pylist():
        assert row["from_ns"] // WINDOW_NS * WINDOW_NS == row["t_ns"]
        gaps[row["t_ns"]] += row["to_n"] - row["from_n"]
    rows = device_rollup(block, placed, nest(block, placed.dur_ns)).to_pylist()
    assert sum(row["busy_ns"] for row in rows) == int(busy.sum())
    for row in rows:
        assert gaps[row["t_ns"]] == row["observed_ns"] - row["busy_ns"] == row["idle_unknown_ns"]


def _state() -> PartitionState:
    return PartitionState(sources={1: SourceRecord(host=1, process=2, run="r")})


CAUSES = ("input", "compile", "checkpoint", "dispatch")


def _walked(gaps: list[tuple[int, int]], spans: list[tuple[int, int, int]]) -> dict[str, int]:
    told: dict[str, int] = defaultdict(int)
    for begin, end in gaps:
        for tick in range(begin, end):
            found = [cause for cause, first, last in spans if first <= tick < last]
            told[CAUSES[min(found)] if found else "unknown"] += 1
    return told


def _cause_rows(spans: list[tuple[int, int, int]], epoch: int) -> pa.Table:
    rows = [
        {"process": 2, "cause": cause, "epoch": epoch, "from_n": first, "to_n": last, "from_ns": first, "to_ns": last}
        for cause, first, last in spans
    ]
    return pa.Table.from_pylist(rows, schema=idle.CAUSES)


def _gap_rows(gaps: list[tuple[int, int]], window: int = 0) -> pa.Table:
    given = {"process": 2, "host": 1, "device": 3, "weight": 1, "t_ns": window, "epoch": 9}
    rows = [{**given, "from_n": a, "to_n": b, "from_ns": a, "to_ns": b} for a, b in gaps]
    return pa.Table.from_pylist(rows, schema=idle.GAPS)


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 1 << 32), epochs=st.integers(1, 6), same_clock=st.booleans())
def test_causes_are_found_in_whatever_order_they_come(seed: int, epochs: int, same_clock: bool) -> None:
    rng = random.Random(seed)
    edges = sorted(rng.sample(range(100), 2 * rng.randint(1, 8)))
    gaps = list(zip(edges[::2], edges[1::2], strict=True))
    spans = [
        (rng.randrange(4), a, a + rng.randint(1, 30)) for a in (rng.randrange(90) for _ in range(rng.randint(0, 9)))
    ]
    parts: list[tuple[list[Any], list[Any]]] = [([], []) for _ in range(epochs)]
    for begin, end in gaps:  # a gap may be told in two pieces
        cut = rng.randint(begin, end)
        for piece in ((begin, cut), (cut, end)):
            if piece[0] < piece[1]:
                parts[rng.randrange(epochs)][0].append(piece)
    for span in spans:
        parts[rng.randrange(epochs)][1].append(span)
    state, found = _state(), []
    for some_gaps, some_spans in parts:
        tables = {"gaps": _gap_rows(some_gaps), "causes": _cause_rows(some_spans, 9 if same_clock else 8)}
        found.append(idle.advance({0: state}, tables, NOW))
        state = PartitionState.from_json(state.to_json())
    rows = merge("device_10s", found).to_pylist()
    total = rows[0] if rows else defaultdict(int)
    told = _walked(gaps, spans)
    assert {cause: total[f"idle_{cause}_ns"] for cause in CAUSES} == {cause: told[cause] for cause in CAUSES}
    assert total["idle_unknown_ns"] == -sum(told[cause] for cause in CAUSES), "what causes take, unknown gives"


def test_what_is_forgotten_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "CAUSES_KEPT", 2)
    state = _state()
    first = idle.advance({0: state}, {"gaps": _gap_rows([(0, 10)]), "causes": _cause_rows([(0, 0, 5)], 9)}, NOW)
    later = [
        idle.advance(
            {0: state}, {"causes": _cause_rows([(3, at, at + 1) for at in range(100 * i, 100 * i + 4)], 9)}, NOW
        )
        for i in range(1, 4)
    ]
    assert first.to_pylist()[0]["idle_input_ns"] == 5
    assert all(table.num_rows == 0 for table in later)


def test_a_clock_that_runs_fast_gives_no_more_than_the_gap() -> None:
    state = _state()
    gaps = _gap_rows([(0, 1000)])
    gaps = gaps.set_column(gaps.schema.get_field_index("to_ns"), gaps.schema.field("to_ns"), pa.array([1003]))
    (row,) = idle.advance(
        {0: state}, {"gaps": gaps, "causes": _cause_rows([(0, 0, 700), (3, 700, 2000)], 8)}, NOW
    ).to_pylist()
    assert row["idle_input_ns"] + row["idle_dispatch_ns"] == 1000 == -row["idle_unknown_ns"]


def test_an_execution_that_was_cut_off_occupies_and_is_not_counted(small: SimpleNamespace) -> None:
    cut = EXECUTED | int(SpanFlag.TRUNCATED)
    rows = (small.Row(4096, 2, 3, Kind.MODULE, exec=0, flags=EXECUTED), small.Row(4096, 5, 4, Kind.MODULE, flags=cut))
    info = BatchInfo(1, 2, 3, 0, 9, SECOND, 1, watched=True)
    (row,) = rollup(small.build([small.Given(info, (small.line_of(0, 0, SECOND, 1),), rows)])).to_pylist()
    assert (row["occupancy_ns"], row["executions"]) == (7 * SECOND, 1)


def test_one_device_in_ops_and_in_executions_keeps_the_two_apart(small: SimpleNamespace) -> None:
    line = (small.line_of(0, 0, SECOND, 1),)
    ops = small.Given(BatchInfo(1, 2, 3, 0, 9, SECOND, 1), line, (small.Row(1, 2, 3, Kind.COMPUTE),))
    alone = small.Given(
        replace(ops.info, watched=True), line, (small.Row(4096, 1, 6, Kind.MODULE, exec=0, flags=EXECUTED),)
    )
    (row,) = rollup(small.build([ops, alone])).to_pylist()
    assert np.array([row[name] for name in ("observed_ns", "busy_ns", "watched_ns", "occupancy_ns")]).tolist() == [
        9 * SECOND,
        3 * SECOND,
        9 * SECOND,
        6 * SECOND,
    ]
    assert row["idle_unknown_ns"] == 6 * SECOND + 3 * SECOND


def test_a_clock_that_ran_ahead_does_not_make_the_rest_be_forgotten() -> None:
    state, hour = _state(), 3_600 * SECOND
    idle.advance({0: state}, {"causes": _cause_rows([(0, 24 * hour, 25 * hour)], 9)}, hour)
    idle.advance({0: state}, {"gaps": _gap_rows([(hour, hour + 50)])}, hour)
    (row,) = idle.advance({0: state}, {"causes": _cause_rows([(0, hour, hour + 20)], 9)}, hour).to_pylist()
    assert row["idle_input_ns"] == 20


def test_a_queue_span_lies_in_its_batch_by_its_end() -> None:
    from fleetscope.pipelines.decode import Bounds, span_faults

    def faults(start: int, dur: int, kind: Kind) -> list[str]:
        columns = (np.array([start]), np.array([dur]), np.array([4097], np.int32), np.array([1]))
        bounds = [Bounds(100, 200, 1, 1, whole=True, cut=False)]
        return [type(fault).__name__ for _, fault in span_faults(*columns, bounds, np.array([kind], np.uint8))]

    assert faults(5, 100, Kind.QUEUE) == []
    assert faults(5, 90, Kind.QUEUE) == ["RowOutsideRange"]
    assert faults(150, 60, Kind.QUEUE) == ["RowOutsideRange"]
    assert faults(5, 100, Kind.MODULE) == ["RowOutsideRange"]


def test_a_region_that_its_process_died_in_is_a_row_and_no_duration(small: SimpleNamespace) -> None:
    cut = int(SpanFlag.TRUNCATED)
    rows = (small.Row(1, 2, 3, Kind.HOST), small.Row(1, 6, 3, Kind.HOST, flags=cut))
    given = small.Given(BatchInfo(1, 2, 0, 0, 9, SECOND, 1), (small.line_of(0, 0, SECOND, 1),), rows)
    block = small.build([given])
    placed = place_rows(block)
    assert placed.dur_ns.tolist() == [3 * SECOND, 3 * SECOND]
    (row,) = op_rollup(block, placed, nest(block, placed.dur_ns), slots_of(block)).to_pylist()
    assert (row["count"], row["sum_ns"]) == (1, 3 * SECOND)


@given(st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=6, max_size=6), max_size=20))
def test_carried_rows_come_back_as_they_were(rows: list[list[int]]) -> None:
    table = np.array(rows, np.int64).reshape(-1, 6)
    text = idle._packed(table, 1)
    assert json.loads(json.dumps(text)) == text
    assert idle._unpacked(text, 6, 1).tolist() == rows


@pytest.mark.parametrize("epochs", [1, idle.LEFT_ALONE, 3 * idle.LEFT_ALONE + 1])
def test_gaps_of_epochs_without_a_cause_wait_for_it(epochs: int) -> None:
    state = _state()
    gaps = [(100 * number, 100 * number + 10) for number in range(epochs)]
    for gap in gaps:
        assert idle.advance({0: state}, {"gaps": _gap_rows([gap])}, NOW).num_rows == 0
    assert len(state.idle[2][0]) <= idle.LEFT_ALONE
    found = idle.advance({0: state}, {"causes": _cause_rows([(0, 0, 100 * epochs)], 9)}, NOW)
    assert sum(found.column("idle_input_ns").to_pylist()) == 10 * epochs
