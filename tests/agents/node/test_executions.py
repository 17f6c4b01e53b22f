"""Completions in any order -> disjoint ranges of executions, against a plain sum over what really happened."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.agents.node import executions as module
from fleetscope.agents.node.executions import Completion, DeviceRows, Executions
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import Kind, SpanFlag

pytestmark = pytest.mark.unit

MS = 1000
"""Ticks of a millisecond in these tests."""
LABEL = 5


def known(label: int) -> tuple[int, bool] | None:
    return 1000 + label, False


@dataclass(frozen=True)
class Ran:
    """What really happened on one device. `told`: when its completion reached the agent."""

    launch: int
    enqueue: int
    end: int
    told: int


def told_of(found: list[DeviceRows], kind: Kind) -> list[dict[str, int]]:
    return [row for part in found for row in part.rows.to_pylist() if row["kind"] == kind]


def contiguous(found: list[DeviceRows]) -> None:
    for before, after in pairwise(found):
        assert after.tick_from == before.tick_to
    for part in found:
        assert part.tick_from < part.tick_to
        for row in part.rows.to_pylist():
            end = row["start"] + row["dur"]
            if row["kind"] == Kind.MODULE:
                assert part.tick_from <= row["start"] < part.tick_to
            assert part.tick_from <= end <= part.tick_to


def expected(ran: list[Ran]) -> list[tuple[int, int, int, int]]:
    """(launch, begin, end, queue) by the definition alone."""
    ended, out = 0, []
    for item in sorted(ran, key=lambda item: (item.end, item.launch)):
        begin = max(item.enqueue, ended)
        out.append((item.launch, begin, item.end, begin - item.enqueue))
        ended = item.end
    return out


def feed(ran: list[Ran], rounds: list[int], *, record_launch_after: int = 0) -> list[DeviceRows]:
    """Give each record in the round it was told in; launches when the call returned."""
    executions = Executions()
    executions.add_device(0, wire.Device(key="d"), 0)
    executions.launches.program(LABEL, 1)
    found: list[DeviceRows] = []
    given_launch, given_done = set(), set()
    for now in rounds:
        for item in ran:
            if item.launch not in given_launch and item.enqueue + record_launch_after <= now:
                given_launch.add(item.launch)
                executions.launches.launch(item.launch, item.enqueue, LABEL)
            if item.launch not in given_done and item.told <= now:
                given_done.add(item.launch)
                executions.add_done(0, Completion(item.end, item.enqueue, item.launch, LABEL))
        found += executions.settle(now, MS, known)
    found += executions.finish(rounds[-1], known)
    assert not executions.counts
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Ran], list[int], int]:
    seed = random.Random(draw(st.integers(0, 1 << 32)))
    at, ended, ran = 10_000 * MS, 0, []
    for launch in range(1, draw(st.integers(1, 40))):
        at += seed.choice([0, 1, 5 * MS, 300 * MS, 3000 * MS])
        ended = max(at, ended) + seed.choice([0, 1, 20 * MS, 400 * MS, 5000 * MS])
        ran.append(Ran(launch, at, ended, ended + seed.choice([0, 10 * MS, 45 * MS])))
    last = max((item.told for item in ran), default=at) + 3000 * MS
    rounds = sorted({seed.randrange(9_000 * MS, last) for _ in range(draw(st.integers(0, 30)))} | {last})
    return ran, rounds, seed.choice([0, 1, 900 * MS])


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(history=histories())
def test_any_timing_of_rounds_gives_the_same_executions(history: tuple[list[Ran], list[int], int]) -> None:
    ran, rounds, call = history
    found = feed(ran, rounds, record_launch_after=call)
    contiguous(found)
    modules = sorted(told_of(found, Kind.MODULE), key=lambda row: row["exec"])
    queues = {row["flow"]: row["dur"] for row in told_of(found, Kind.QUEUE)}
    got = [(row["flow"], row["start"], row["start"] + row["dur"], queues.get(row["flow"], 0)) for row in modules]
    assert got == expected(ran)
    assert [row["exec"] for row in modules] == list(range(len(ran)))
    assert all(row["flags"] == SpanFlag.INFERRED_BEGIN for row in modules)


def test_run_ahead_is_told_by_what_was_complete_at_the_enqueue() -> None:
    # four enqueued at once on an idle device, each 10 ms
    ran = [Ran(i, 10_000 * MS, (10_000 + 10 * i) * MS, (10_000 + 10 * i) * MS) for i in range(1, 5)]
    found = feed(ran, [20_000 * MS])
    exec_of = {row["flow"]: row["exec"] for row in told_of(found, Kind.MODULE)}
    ahead = [exec_of[row["flow"]] - row["exec"] + 1 for row in told_of(found, Kind.QUEUE)]
    assert sorted(ahead) == [2, 3, 4]


def fresh(devices: int = 1, ordinals: tuple[int, ...] = (0,)) -> Executions:
    executions = Executions()
    for ordinal in ordinals:
        executions.add_device(ordinal, wire.Device(key=f"d{ordinal}"), 0)
    executions.launches.program(LABEL, devices)
    return executions


def test_a_launch_on_another_device_holds_nothing_back() -> None:
    executions = fresh(1, (0, 1))
    executions.launches.launch(1, 1_000 * MS, LABEL)
    executions.add_done(0, Completion(1_010 * MS, 1_000 * MS, 1, LABEL))
    executions.launches.launch(2, 2_000 * MS, LABEL)
    ranges = {part.device.key: part.tick_to for part in executions.settle(9_000 * MS, MS, known)}
    assert ranges == {"d0": 2_000 * MS, "d1": 8_000 * MS}


def test_an_execution_in_flight_is_not_lost_and_does_not_age() -> None:
    executions = fresh()
    executions.launches.launch(1, 1_000 * MS, LABEL)
    told = list(executions.settle(500_000 * MS, MS, known))
    assert [part.tick_to for part in told] == [1_000 * MS]
    executions.add_done(0, Completion(600_000 * MS, 1_000 * MS, 1, LABEL))
    told = list(executions.settle(700_000 * MS, MS, known))
    (row,) = told_of(told, Kind.MODULE)
    assert (row["start"], row["dur"], row["flags"]) == (1_000 * MS, 599_000 * MS, SpanFlag.INFERRED_BEGIN)


def test_a_completion_told_twice_counts_once() -> None:
    executions = fresh()
    executions.launches.launch(1, 1_000 * MS, LABEL)
    for _ in range(3):
        executions.add_done(0, Completion(1_010 * MS, 1_000 * MS, 1, LABEL))
    assert len(told_of(list(executions.settle(9_000 * MS, MS, known)), Kind.MODULE)) == 1
    assert executions.counts["duplicate"] == 2


def test_a_completion_that_never_comes_holds_back_only_until_it_is_stale() -> None:
    executions = fresh()
    executions.launches.launch(1, 1_000 * MS, LABEL)
    executions.launches.launch(2, 2_000 * MS, LABEL)
    executions.add_done(0, Completion(2_010 * MS, 2_000 * MS, 2, LABEL))
    (first,) = executions.settle(10_000 * MS, MS, known)
    assert first.tick_to == 2_010 * MS
    (then,) = executions.settle(70_000 * MS, MS, known)
    assert then.tick_to == 69_000 * MS
    assert executions.counts["missing"] == 1
    # it comes after all: kept, flagged, and not in what was told to be idle
    executions.add_done(0, Completion(3_000 * MS, 1_000 * MS, 1, LABEL))
    late = told_of(list(executions.settle(80_000 * MS, MS, known)), Kind.MODULE)
    assert [(row["start"], row["dur"]) for row in late] == [(69_000 * MS, 0)]
    assert late[0]["flags"] & SpanFlag.CUT_BATCH
    assert executions.counts["late"] == 1


def test_what_was_in_flight_at_death_is_truncated_there() -> None:
    executions = fresh()
    for launch, enqueue in ((1, 1_000), (2, 1_001), (3, 1_002)):
        executions.launches.launch(launch, enqueue * MS, LABEL)
    executions.add_done(0, Completion(1_500 * MS, 1_000 * MS, 1, LABEL))
    found = list(executions.settle(5_000 * MS, MS, known))
    found += executions.finish(6_000 * MS, known)
    contiguous(found)
    rows = told_of(found, Kind.MODULE)
    cut = SpanFlag.INFERRED_BEGIN | SpanFlag.TRUNCATED
    assert [(row["flow"], row["start"] // MS, row["dur"] // MS, row["flags"]) for row in rows] == [
        (1, 1_000, 500, SpanFlag.INFERRED_BEGIN),
        (2, 1_500, 4_500, cut),
        (3, 5_999, 0, cut),
    ]


def test_all_devices_of_a_process_end_together() -> None:
    """A run shorter than a round: one device works, one does nothing, one was told further than the rest."""
    executions = fresh(1, (0, 1, 2))
    executions.launches.launch(1, 100 * MS, LABEL)
    executions.add_done(0, Completion(550 * MS, 100 * MS, 1, LABEL))
    executions.lanes[2].since = 700 * MS
    found = list(executions.finish(50 * MS, known))
    assert max(part.tick_to for part in found) == 700 * MS, "nothing after what was told"
    ranges = {part.device.key: (part.tick_from, part.tick_to) for part in found if part.tick_to == 700 * MS}
    assert ranges == {"d0": (550 * MS, 700 * MS), "d1": (0, 700 * MS)}
    assert [row["flow"] for row in told_of(found, Kind.MODULE)] == [1]


def test_executions_wait_for_the_fingerprint_of_their_program() -> None:
    executions = fresh()
    executions.launches.launch(1, 1_000 * MS, LABEL)
    executions.add_done(0, Completion(1_010 * MS, 1_000 * MS, 1, LABEL))
    (idle,) = executions.settle(5_000 * MS, MS, lambda label: None)
    assert (idle.tick_to, idle.rows.num_rows) == (1_000 * MS, 0)
    rows = told_of(list(executions.settle(6_000 * MS, MS, lambda label: (77, False))), Kind.MODULE)
    assert [(row["program"], row["start"]) for row in rows] == [(77, 1_000 * MS)]


def test_an_agent_that_starts_again_goes_on_where_it_was() -> None:
    executions = fresh(2, (0, 1))
    executions.launches.launch(1, 1_000 * MS, LABEL)
    executions.add_done(0, Completion(1_010 * MS, 1_000 * MS, 1, LABEL))
    before = list(executions.settle(1_020 * MS, MS, known))
    again = Executions()
    again.restore(executions.carried())
    again.add_done(1, Completion(1_030 * MS, 1_000 * MS, 1, LABEL))
    again.add_done(1, Completion(1_030 * MS, 1_000 * MS, 1, LABEL))
    after = list(again.settle(9_000 * MS, MS, known))
    for key in ("d0", "d1"):
        mine = [part for part in before + after if part.device.key == key]
        contiguous(mine)
        assert len(told_of(mine, Kind.MODULE)) == 1
    assert again.counts["duplicate"] == 1


def test_hostile_numbers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEVICE_LIMIT", 4)
    executions = Executions()
    for ordinal in range(4096):
        executions.add_device(ordinal, wire.Device(key=f"d{ordinal}"), 0)
    assert len(executions.lanes) == 4
    assert executions.counts["device_refused"] == 4092
    for launch in range(1, 20_000):
        executions.launches.launch(launch, launch, launch % 7, 1 << 40)
    assert len(executions.launches.open) <= 1 << 13
    monkeypatch.setattr(module, "HELD_LIMIT", 10)
    for launch in range(30_000, 30_100):
        executions.add_done(0, Completion(5_000, 1_000, launch, LABEL))
    told = told_of(list(executions.settle(4_000, MS, known)) + list(executions.settle(4_000, MS, known)), Kind.MODULE)
    assert executions.counts["held_too_many"] > 0
    assert len(told) <= 100


def test_completions_of_a_device_nobody_named_wait_for_its_record_and_are_bounded() -> None:
    executions = Executions()
    executions.launches.program(LABEL, 1)
    for launch in range(1, module.EARLY_LIMIT + 11):
        executions.launches.launch(launch, 1_000 * MS, LABEL)
        executions.add_done(6, Completion(1_000 * MS + launch, 1_000 * MS, launch, LABEL))
    assert executions.counts == {"device_unknown": 10}
    assert not list(executions.settle(9_000 * MS, MS, known))
    assert executions.add_device(6, wire.Device(key="d6"), 5_000 * MS)
    told = list(executions.settle(9_000 * MS, MS, known))
    contiguous(told)
    assert told[0].tick_from == 1_000 * MS
    assert len(told_of(told, Kind.MODULE)) == module.EARLY_LIMIT


def test_a_batch_of_many_executions_is_cut_between_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_EXECUTIONS", 10)
    ran = [Ran(i, 10_000 * MS + i, 10_000 * MS + i + 1, 10_000 * MS + i + 1) for i in range(1, 96)]
    ran += [Ran(i, 10_200 * MS, 10_200 * MS, 10_200 * MS) for i in range(96, 130)]  # many at one tick
    found = feed(ran, [20_000 * MS, 21_000 * MS])
    contiguous(found)
    assert len(found) > 9
    assert len(told_of(found, Kind.MODULE)) == 129
