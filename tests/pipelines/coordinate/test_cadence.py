"""Decisions about windows: by the dearest and the fastest rank, far enough ahead, and never changed once made."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.agents.node.control import Controls
from fleetscope.agents.profiler import placement
from fleetscope.agents.profiler.protocol import Hello, Schedule
from fleetscope.pipelines.coordinate.cadence import Attempt, Cadences, Decisions, Rank, next_cadence, switch
from fleetscope.schema import wire_pb2 as wire
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport import Log, Topics, open_log

KEY = ("job", "a1")
TOPICS = Topics()


def said(rank: int, step: int, *, world: int = 2, period_ms: float = 100, **more: Any) -> wire.RankReport:
    fields = {"settled_steps": 1000, "steps": step + 1, "longest_ns": 0} | more
    source = wire.Source(run=KEY[0], attempt=KEY[1], rank=rank, host=f"h{rank}", pid=1 + rank)
    return wire.RankReport(
        source=source, world_size=world, at_ns=time.time_ns(), step=step, period_ns=int(period_ms * 1e6), **fields
    )


def attempt(*reports: wire.RankReport, heard_s: float = 0.0) -> Attempt:
    return Attempt({report.source.rank: Rank(report, heard_s) for report in reports}, first_heard_s=heard_s)


def decide(of: Attempt, now_s: float = 0.0, budget: float = 0.005) -> wire.Cadence | None:
    found = next_cadence(KEY, of, 60.0, budget, now_s)
    if found is not None:
        of.newest = found
    return found


@pytest.mark.unit
def test_k_from_the_fastest_and_the_dearest_rank() -> None:
    """Steps of 100 and 80 ms: 60 s are 750 of the faster, so 1024. A stall of 820 ms at 0.5 % wants 164 s: 2048."""
    cadence = decide(attempt(said(0, 50, period_ms=100), said(1, 70, period_ms=80)))
    assert cadence is not None
    (stretch,) = cadence.stretches
    assert stretch.k == 1024
    assert (stretch.from_step, stretch.until_step) == (3 * 1024, 11 * 1024)  # 71 + 2 K, up to a multiple of K
    assert stretch.from_step >= 70 + 2 * 1024
    dear = {"windows": 40, "cost_ns": 40 * 10_000_000, "stalls": 20, "stall_ns": 820_000_000}
    cadence = decide(attempt(said(0, 50), said(1, 70, period_ms=80, **dear)))
    assert cadence is not None
    assert cadence.stretches[0].k == 4096  # 164 s of 80 ms steps are 2050
    # Before stalls are measured, opening and stopping are what a window costs at most: 640 ms -> 128 s.
    cadence = decide(attempt(said(0, 50), said(1, 70, windows=3, cost_ns=3 * 640_000_000)))
    assert cadence is not None
    assert cadence.stretches[0].k == 2048
    assert "rank 1" in cadence.reason


@pytest.mark.unit
def test_phases_are_arranged_only_where_steps_are_long() -> None:
    for longest_s, strata in ((7.5, 1), (7.6, 8)):
        cadence = decide(attempt(said(0, 5, period_ms=7000), said(1, 5, longest_ns=int(longest_s * 1e9))))
        assert cadence is not None
        assert cadence.stretches[0].strata == strata


@pytest.mark.unit
def test_who_is_waited_for() -> None:
    assert decide(attempt(said(0, 50, world=3), said(1, 50, world=3))) is None
    # A host without an agent never speaks; after a minute those heard are all.
    slow = attempt(said(0, 50, world=3), said(1, 50, world=3))
    slow.first_heard_s = -61.0
    assert decide(slow) is not None
    # One rank alone is never taken for all: without a common attempt each rank looks like that.
    alone = attempt(said(0, 50))
    alone.first_heard_s = -1e6
    assert decide(alone) is None
    assert decide(attempt(said(0, 50, world=1))) is None
    assert decide(attempt(said(0, 50), said(1, 50, settled_steps=15))) is None
    assert decide(attempt(said(0, 50), said(1, 50, configured_k=64))) is None
    # Silent ranks are not asked, nor can they hold up the others.
    gone = attempt(said(0, 50), said(1, 50), said(2, 50, settled_steps=0))
    gone.ranks[2] = Rank(gone.ranks[2].report, -61.0)
    assert decide(gone) is not None


@pytest.mark.unit
def test_renewal_is_seamless_and_rewinds_change_nothing() -> None:
    of = attempt(said(0, 0), said(1, 0))
    assert decide(of) is not None  # [3 * 1024, 11 * 1024)
    assert decide(of) is None
    of.ranks = attempt(said(0, 7 * 1024 - 1), said(1, 0)).ranks
    assert decide(of) is None  # more than 4 K left
    of.ranks = attempt(said(0, 7 * 1024), said(1, 0)).ranks
    renewed = decide(of)
    assert renewed is not None
    assert [(s.from_step, s.until_step, s.k) for s in renewed.stretches] == [(3 * 1024, 19 * 1024, 1024)]
    assert renewed.number == 2
    of.ranks = attempt(said(0, 100), said(1, 100)).ranks  # back to a checkpoint
    assert decide(of) is None


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-5000, 9000), st.sampled_from((20, 100, 400, 9000)), st.integers(0, 3_000)),
        min_size=1,
        max_size=30,
    )
)
def test_the_k_of_a_step_is_decided_once(history: list[tuple[int, int, int]]) -> None:
    """Any run of steps forward and back, paces and costs: a later decision never says another thing about a step."""
    step, of = 0, attempt(said(0, 0), said(1, 0))
    known: dict[int, tuple[int, int]] = {}
    for moved, period_ms, stall_ms in history:
        step = max(0, step + moved)
        of.ranks = attempt(
            said(0, step, period_ms=period_ms), said(1, step, stalls=9, stall_ns=stall_ms * 1_000_000)
        ).ranks
        before = of.newest
        cadence = decide(of)
        if cadence is None:
            continue
        assert cadence.number == (before.number if before is not None else 0) + 1
        ends = [edge for s in cadence.stretches for edge in (s.from_step, s.until_step)]
        assert ends == sorted(ends)
        newest = cadence.stretches[-1]
        assert newest.until_step > step + 2 * newest.k
        for stretch in cadence.stretches:
            assert stretch.from_step % stretch.k == stretch.until_step % stretch.k == 0
            for block in range(
                stretch.from_step, min(stretch.until_step, stretch.from_step + 200 * stretch.k), stretch.k
            ):
                assert known.setdefault(block, (stretch.k, stretch.strata)) == (stretch.k, stretch.strata)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"file://{tmp_path}/log") as opened:
        opened.create_topics(TOPICS.specs(1))
        yield opened


def cadences(log: Log, lake: Path) -> Cadences:
    return Cadences(log, TOPICS.reports, TOPICS.control, open_store(lake), 60.0, 0.005)


def tell(log: Log, *reports: wire.RankReport) -> None:
    for report in reports:
        log.append(TOPICS.reports, b"k", report.SerializeToString())
    log.flush()


def told(log: Log) -> tuple[Controls, Schedule | None]:
    """What an agent makes of the topic."""
    log.flush()
    controls = Controls()
    for message in log.read(TOPICS.control, 0, 0, log.end_offsets(TOPICS.control)[0]):
        controls.take(message)
    return controls, controls.schedule(HELLO)


HELLO = Hello(1, 1, 1, "boot", KEY[0], KEY[1], 0, 2, "", "", "", "", "cpu", "", 0)


@pytest.mark.unit
def test_from_reports_to_what_a_process_is_told(log: Log, tmp_path: Path) -> None:
    one = cadences(log, tmp_path / "lake")
    one.poll(0.0)
    tell(log, said(0, 10), said(1, 12))
    log.append(TOPICS.reports, b"k", b"\xff\xff not a report")
    log.flush()
    assert one.poll(1.0) == 1
    assert one.refused == 1
    controls, schedule = told(log)
    assert schedule is not None
    assert (schedule.number, schedule.attempt, schedule.off) == (1, "a1", "")
    assert [tuple(s) for s in schedule.stretches] == [(3 * 1024, 11 * 1024, 1024, 1)]
    assert controls.schedule(HELLO._replace(attempt="a2")) is None
    # And that is where the processes open.
    opening = placement.next_in("job", schedule.stretches, 0)
    assert opening is not None
    assert opening[:2] == placement.opening("job", 1024, 3)
    one.close()


@pytest.mark.fault
def test_two_coordinators_and_one_that_died_before_it_told(log: Log, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    one, two = cadences(log, lake), cadences(log, lake)
    for each in (one, two):
        each.poll(0.0)
    tell(log, said(0, 10, period_ms=100), said(1, 12))
    one.poll(1.0)
    tell(log, said(0, 10, period_ms=1000), said(1, 12, period_ms=1000))
    two.poll(1.0)  # sees another pace, and what the first decided
    _, schedule = told(log)
    assert schedule is not None
    assert [s.every for s in schedule.stretches] == [1024]
    # A third dies between the lake and the topic; whoever follows tells what it decided.
    of = one.attempts[KEY]
    assert of.newest is not None
    lost = wire.Cadence()
    lost.CopyFrom(of.newest)
    lost.number = 2
    lost.stretches.append(wire.Cadence.Stretch(from_step=11 * 1024, until_step=13 * 1024, k=2048, strata=1))
    assert Decisions(open_store(lake)).commit(lost) == lost
    mine = wire.Cadence()
    mine.CopyFrom(of.newest)
    mine.number = 2
    assert Decisions(open_store(lake)).commit(mine) == lost
    three = cadences(log, lake)
    three.poll(2.0)
    tell(log, said(0, 20), said(1, 20))
    three.poll(3.0)
    _, schedule = told(log)
    assert schedule is not None
    assert (schedule.number, [s.every for s in schedule.stretches]) == (2, [1024, 2048])
    for each in (one, two, three):
        each.close()


@pytest.mark.unit
def test_a_broken_rank_switches_the_whole_job_off(log: Log, tmp_path: Path) -> None:
    one = cadences(log, tmp_path / "lake")
    one.poll(0.0)
    tell(log, said(0, 10), said(1, 12, breaker="crash"))
    one.poll(1.0)
    controls, schedule = told(log)
    assert schedule is not None
    assert schedule.off == "crash on rank 1"
    log.append(TOPICS.control, b"k", switch((KEY[0], ""), "", off=False).SerializeToString())
    _, schedule = told(log)
    assert schedule is not None
    assert schedule.off == ""  # the newest counts
    assert controls.schedule(HELLO._replace(run="other")) is None
    one.close()


@pytest.mark.unit
def test_old_decisions_are_swept_but_not_the_newest(tmp_path: Path) -> None:
    decisions = Decisions(open_store(tmp_path / "lake"))
    for number in (1, 2, 3):
        decisions.commit(wire.Cadence(run="a/../b", attempt="", number=number))
    now_s = time.time()
    decisions.sweep(now_s + 86_000)
    assert len(list((tmp_path / "lake" / "cadence").rglob("*.pb"))) == 3
    decisions.sweep(now_s + 87_000)
    found = decisions.newest(("a/../b", ""))
    assert found is not None
    assert found.number == 3
    assert len(list((tmp_path / "lake" / "cadence").rglob("*.pb"))) == 1
    decisions.sweep(now_s + 8 * 86_400)
    assert decisions.newest(("a/../b", "")) is None


@pytest.mark.fault
def test_reports_that_cannot_be_true_neither_stop_the_coordinator_nor_decide(log: Log, tmp_path: Path) -> None:
    """Found: a pace of 0 ns was doubled towards for ever, and a step near 2^63 ended every round with an error."""
    coordinator = cadences(log, tmp_path / "lake")
    top = (1 << 63) - 1
    lies = [
        {"period_ns": 0}, {"step": top}, {"step": -2}, {"longest_ns": top}, {"cost_ns": top, "windows": 1},
        {"stall_ns": top, "stalls": 9}, {"period_ns": top}, {"settled_steps": top},
    ]  # fmt: skip
    coordinator.poll(0.0)
    for number, lie in enumerate(lies):
        for rank in (0, 1):
            report = said(rank, 100)
            report.source.run = f"liar {number}"
            for name, value in lie.items():
                setattr(report, name, value)
            log.append(TOPICS.reports, b"x", report.SerializeToString())
    for rank in (0, 1):
        report = said(rank, 100)
        report.source.run = "r" * 250  # longer, as a path, than a file system takes
        report.source.attempt = "\u00e4" * 256
        log.append(TOPICS.reports, b"y", report.SerializeToString())
    log.flush()
    assert coordinator.poll(1.0) == 1
    assert coordinator.refused == 2 * len(lies)
    assert [run for run, _ in coordinator.attempts] == ["r" * 250]
    coordinator.close()
