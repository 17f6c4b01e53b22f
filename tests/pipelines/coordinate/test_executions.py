"""Executions in place of steps: one program for all ranks, and windows only where their numbers mean the same."""

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.agents.node.control import Controls
from fleetscope.agents.profiler.protocol import Hello
from fleetscope.pipelines.coordinate import executions
from fleetscope.pipelines.coordinate.cadence import PATIENCE_S, Attempt, Rank, next_cadence
from fleetscope.schema import wire_pb2 as wire
from fleetscope.transport.log import Message

KEY = ("job", "a1")
MS, S = 1_000_000, 1_000_000_000


class Job:
    """Ranks that run `train` every `period_ms` in lockstep. `offsets`: what each has counted more than the others;
    `clocks_ms`: how wrong the clock of its host is. `jitter_ms`: how late a completion may be told."""

    def __init__(self, offsets: list[int], period_ms: float = 100, jitter_ms: float = 5, seed: int = 1) -> None:
        self.offsets, self.period_ms, self.jitter_ms = offsets, period_ms, jitter_ms
        self.clocks_ms = [0.0] * len(offsets)
        self.lives = [1] * len(offsets)
        self.steps = [-1] * len(offsets)
        self.busy_s = {"jit_train": 90, "jit_loss": 9}
        self.attempt = Attempt()
        self.at_s = 0
        self._dice = random.Random(seed)

    def report(self, rank: int, following: str) -> wire.RankReport:
        mark_ns = self.at_s * S - self.at_s * S % (5 * S)
        # The first completion after the moment, on the rank's own clock; execution n of the job ends at n * period.
        moment_ms = mark_ns / MS - self.clocks_ms[rank]
        number = int(moment_ms // self.period_ms) + 1
        after_ms = number * self.period_ms - moment_ms + self._dice.random() * self.jitter_ms
        source = wire.Source(run=KEY[0], attempt=KEY[1], rank=rank, boot_id="b", pid=rank + 1)
        source.start_ticks = self.lives[rank]
        report = wire.RankReport(source=source, world_size=len(self.offsets), at_ns=time.time_ns(), step=-1)
        for name, busy_s in self.busy_s.items():
            report.ran.add(program=name, executions=1000, busy_ns=busy_s * S)
        if self.steps[rank] >= 0:
            report.step, report.settled_steps, report.period_ns = self.steps[rank], 1000, int(self.period_ms * MS)
        if following:
            execution = int(self.at_s * 1000 / self.period_ms) + self.offsets[rank]
            report.followed.CopyFrom(
                wire.RankReport.Followed(
                    program=following, execution=execution, period_ns=int(self.period_ms * MS), settled=1000,
                    mark_ns=mark_ns, marked=number + self.offsets[rank], after_ns=int(after_ms * MS),
                )
            )  # fmt: skip
        return report

    def on(self, seconds: int, but: tuple[int, ...] = ()) -> list[wire.Cadence]:
        """Lives on, with a report of every rank each 5 s; what was decided."""
        decided = []
        for _ in range(0, seconds, 5):
            self.at_s += 5
            for rank in range(len(self.offsets)):
                if rank in but:
                    continue
                following = self.attempt.newest.program if self.attempt.newest is not None else ""
                report = self.report(rank, following)
                known = self.attempt.ranks.get(rank, Rank(report, self.at_s))
                self.attempt.ranks[rank] = known.heard(report, self.at_s)
            while (cadence := next_cadence(KEY, self.attempt, 60.0, 0.005, self.at_s)) is not None:
                self.attempt.newest = cadence
                decided.append(cadence)
        return decided

    def members(self) -> set[int]:
        assert self.attempt.newest is not None
        named = set(self.attempt.newest.members)
        return {rank for rank in range(len(self.offsets)) if executions.life(self.report(rank, "")) in named}


@pytest.mark.unit
def test_a_job_without_steps_is_given_a_program_and_then_stretches_of_its_executions() -> None:
    job = Job([0, 0, 0])
    assert job.on(int(PATIENCE_S) - 5) == []  # a job may still begin to number its steps
    named, first = job.on(40)
    assert (named.program, list(named.stretches), list(named.members)) == ("jit_train", [], [])
    (stretch,) = first.stretches
    assert (stretch.program, stretch.k, first.number) == ("jit_train", 1024, 2)  # 60 s of 100 ms are 600
    assert stretch.from_step >= 10 * job.at_s // 2 + 2 * 1024
    assert job.members() == {0, 1, 2}
    # Only those that are named are told the stretches; all are told the program.
    controls = Controls()
    controls.take(Message("control", 0, 0, b"", wire.Control(cadence=first).SerializeToString(), (), 0))
    for rank, started, stretches in ((0, 1, 1), (2, 1, 1), (2, 99, 0), (7, 1, 0)):
        hello = Hello(1, rank + 1, started, "b", *KEY, rank, 3, "", "", "", "", "cpu", "", 0)
        schedule = controls.schedule(hello)
        assert schedule is not None
        assert (schedule.program, len(schedule.stretches)) == ("jit_train", stretches)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("offsets", "wanted"),
    [
        ([0, 0, 0, 1], {0, 1, 2}),
        ([0, -1, 0, 0], {0, 2, 3}),
        ([0, 0, 4000], {0, 1}),
        ([5, 5, 0, 0], None),
        ([0, 1], None),
    ],
)
def test_who_counts_otherwise_is_left_out(offsets: list[int], wanted: set[int] | None) -> None:
    job = Job(offsets)
    decided = job.on(200)
    assert decided[0].program == "jit_train"
    if wanted is None:
        assert len(decided) == 1  # nobody knows whose numbers are meant
    else:
        assert job.members() == wanted


@pytest.mark.unit
def test_a_rank_that_starts_again_is_out_until_the_whole_job_does() -> None:
    job = Job([0, 0, 0, 0])
    job.on(100)
    assert job.members() == {0, 1, 2, 3}
    before = job.attempt.newest
    job.lives[2], job.offsets[2] = 2, -990
    # Its life is no member from the moment it begins, whatever is decided later.
    assert job.members() == {0, 1, 3}
    job.on(900)
    assert job.attempt.newest is not None
    assert job.members() == {0, 1, 3}
    assert before is not None
    assert before.stretches[0].from_step == job.attempt.newest.stretches[0].from_step
    # All begin anew under the same attempt: numbers are small again, and so are the stretches.
    end = job.attempt.newest.stretches[-1].until_step
    job.lives, job.offsets = [3] * 4, [-10 * job.at_s] * 4
    job.on(100)
    assert job.members() == {0, 1, 2, 3}
    assert job.attempt.newest.stretches[0].from_step < end


@pytest.mark.unit
def test_a_member_that_runs_the_program_once_more_is_taken_out_at_once() -> None:
    job = Job([0, 0, 0, 0])
    job.on(100)
    job.offsets[1] += 1
    (revoked,) = job.on(45)
    assert job.members() == {0, 2, 3}
    assert [s.until_step for s in revoked.stretches]  # what was decided for the others stands


@pytest.mark.unit
def test_clocks_that_do_not_agree_leave_windows_out() -> None:
    job = Job([0, 0, 0, 0])
    job.clocks_ms[3] = 40.0  # 0.4 of an execution: not sure of its own number
    job.on(200)
    assert job.members() == {0, 1, 2}


@pytest.mark.unit
def test_steps_win_once_all_ranks_have_them_and_another_program_takes_over_only_when_it_is_clearly_busier() -> None:
    job = Job([0, 0])
    job.on(100)
    job.busy_s |= {"jit_eval": 170}
    assert job.on(10) == []
    job.busy_s |= {"jit_eval": 190}
    assert [(c.program, len(c.stretches)) for c in job.on(5)] == [("jit_eval", 1)]
    job.steps = [500, -1]
    job.on(100)  # one rank with numbers is no common count
    assert job.attempt.newest is not None
    assert job.attempt.newest.program == "jit_eval"
    job.steps = [500, 501]
    (decided,) = job.on(5)
    assert (decided.program, decided.stretches[-1].program, list(decided.members)) == ("", "", [])
    assert {s.program for s in decided.stretches} == {"jit_train", "jit_eval", ""}
    job.steps = [600, -1]
    assert job.on(30) == []  # and never back


@pytest.mark.property
@settings(max_examples=60, deadline=None)
@given(
    offsets=st.lists(st.sampled_from((0, 0, 0, 0, 1, -1, 2, -300)), min_size=2, max_size=9),
    jitter_ms=st.sampled_from((0, 10, 30, 60)),
    seed=st.integers(0, 1 << 16),
)
def test_members_never_count_differently(offsets: list[int], jitter_ms: int, seed: int) -> None:
    """Whatever the offsets, with completions told late by up to 0.6 of an execution."""
    job = Job(offsets, jitter_ms=jitter_ms, seed=seed)
    decided: list[Any] = job.on(160)
    for cadence in decided:
        job.attempt.newest = cadence
        assert len({offsets[rank] for rank in job.members()}) <= 1
