"""When the ranks of a run take device windows: decided here, where all ranks' costs and steps are seen, for all alike.

K of a step is decided once and never changed. A decision covers steps [from, until); a later one begins where the last
ended. So whoever learns of one late, or joins late, or goes back to a checkpoint, may leave windows out, but takes none
where another rank takes it elsewhere. Where a job has no step numbers, executions of one program stand for them, on the
ranks that count it alike (executions.py). Each decision is committed in the lake under a number (put-if-absent)
before it is told: of two coordinators, or of one that was frozen, only one decision of a number exists.
"""

import base64
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from fleetscope.pipelines.coordinate import executions
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import ObjectMissing
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.transport.log import Log, Message, Tail

_log = logging.getLogger(__name__)

LEAD_K = 2
"""A stretch begins at least so many K beyond the furthest rank: every rank has heard of it by then."""
LENGTH_K = 8
"""Windows a stretch holds: a K that turned out wrong is in force for no more."""
RENEW_K = 4
"""The next stretch is decided when less than so many K are left of the last."""
STEPS_SEEN = 16
"""Steps since the last compile before a rank's pace is believed."""
PATIENCE_S = 60.0
"""How long all ranks are waited for before those heard of are all: a host without an agent never speaks."""
STALE_S = 60.0
"""Reports come every 5 s; a rank that has not spoken for so long is not asked."""
FORGET_S = 900.0
STALLS_MEASURED = 4
LONG_STEP_NS, STRATA = 7_500_000_000, 8
"""agents/profiler/placement.py's: from 7.5 s on, a window of at most 30 s holds less than four steps."""
FOLDER = "cadence"
DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
SWEEP_S = 3600.0
MOST_STEPS, MOST_NS = 1 << 40, 1 << 53
"""A report that says more is wrong: 2^40 steps of 1 us are twelve days, 2^53 ns a hundred."""
MOST_K = 1 << 31
ATTEMPTS, RANKS = 4096, 1 << 17
"""Followed at once; reports of more are refused."""
STRETCHES_KEPT = 64
"""Of one K each, joined: a run changes its pace a few times."""

PART_CHARS = 200

Key = tuple[str, str]
"""(run, attempt)"""


@dataclass(frozen=True, slots=True)
class Rank:
    """The newest report of one rank, and when it came (monotonic s): clocks of hosts are not compared."""

    report: wire.RankReport
    heard_s: float
    marks: executions.Marks = field(default_factory=dict)
    """Of the program it follows."""

    def heard(self, report: wire.RankReport, now_s: float) -> "Rank":
        """After its next report."""
        same = (executions.life(self.report), self.report.followed.program) == (
            executions.life(report), report.followed.program
        )  # fmt: skip
        return Rank(report, now_s, executions.with_mark(self.marks if same else {}, report.followed))

    @property
    def window_ns(self) -> float:
        """What one window costs its steps: the measured stall, or, before it is known, opening and stopping."""
        report = self.report
        if report.stalls >= STALLS_MEASURED:
            return report.stall_ns
        return report.cost_ns / report.windows if report.windows else 0.0

    def pace(self, program: str) -> "Pace":
        """In the user's steps, or in executions of `program`."""
        report, followed = self.report, self.report.followed
        if not program:
            return Pace(report.step, report.period_ns, report.longest_ns, report.settled_steps)
        if followed.program != program:
            return Pace(-1, 0, 0, 0)
        return Pace(followed.execution, followed.period_ns, followed.longest_ns, followed.settled)

    def step_at(self, program: str, now_s: float) -> float:
        """The step it has reached now, going on at its pace."""
        pace = self.pace(program)
        return pace.step + (now_s - self.heard_s) * 1e9 / max(1, pace.period_ns)


@dataclass(frozen=True, slots=True)
class Pace:
    """Of a rank, in whatever stands for steps."""

    step: int
    period_ns: int
    longest_ns: int
    settled: int


@dataclass(slots=True)
class Attempt:
    """The ranks of one start of a job, and what was decided for them."""

    ranks: dict[int, Rank] = field(default_factory=dict)
    first_heard_s: float = 0.0
    newest: wire.Cadence | None = None
    off: str = ""

    def living(self, now_s: float) -> list[Rank]:
        return [rank for rank in self.ranks.values() if now_s - rank.heard_s < STALE_S]

    def assembled(self, now_s: float) -> bool:
        """All ranks have spoken, or those that have are taken for all. One alone never is: ranks whose launcher names
        no attempt look like a run of one each."""
        heard = len(self.living(now_s))
        world = max((rank.report.world_size for rank in self.ranks.values()), default=0)
        if world < 2 or heard < 2:
            return False
        return heard >= world or now_s - self.first_heard_s >= PATIENCE_S


def steps_between(window_s: float, budget: float, ranks: Iterable[Rank], program: str = "") -> int:
    """K: the smallest power of two whose steps take `window_s` on the fastest rank, and in which a window of the rank
    where it costs most stays within `budget` of that rank's time."""
    every = 2
    for rank in ranks:
        wanted_ns = max(window_s * 1e9, rank.window_ns / budget)
        while every * rank.pace(program).period_ns < wanted_ns and every < MOST_K:
            every *= 2
    return every


def believable(report: wire.RankReport) -> bool:
    """Its numbers are those of a rank that runs. One report that is not must neither stop the coordinator nor decide
    for the others of its run."""
    followed = report.followed
    steps = [report.step + 1, report.steps, report.settled_steps, report.windows, report.stalls]
    steps += [followed.execution + 1, followed.settled, followed.marked + 1, *(ran.executions for ran in report.ran)]
    times = (report.longest_ns, report.cost_ns, report.stall_ns, followed.longest_ns, followed.after_ns)
    return (
        all(0 <= number <= MOST_STEPS for number in steps)
        and all(0 <= number <= MOST_NS for number in (*times, *(ran.busy_ns for ran in report.ran)))
        # 0 until a step is over, and then no pace is believed
        and (1 if report.settled_steps >= STEPS_SEEN else 0) <= report.period_ns <= MOST_NS
        and (1 if followed.settled >= STEPS_SEEN else 0) <= followed.period_ns <= MOST_NS
        and 0 <= report.source.rank < RANKS
    )


def next_cadence(key: Key, attempt: Attempt, window_s: float, budget: float, now_s: float) -> wire.Cadence | None:
    """The decision that is due for an attempt; None: none is."""
    living = attempt.living(now_s)
    if not attempt.assembled(now_s) or any(rank.report.configured_k for rank in living):
        return None
    before = attempt.newest if attempt.newest is not None else wire.Cadence()
    ranks, program = living, ""
    members: list[int] = []
    if any(rank.report.settled_steps < STEPS_SEEN for rank in living):
        if (before.number and not before.program) or now_s - attempt.first_heard_s < PATIENCE_S:
            return None  # its steps are the user's, or may yet be
        if all(rank.report.step >= 0 for rank in living):
            return None
        program = executions.busiest([rank.report for rank in living], before.program, STEPS_SEEN)
        if not program:
            return None
        if program != before.program:
            # All must follow it before they can be compared. What was decided of another program stays decided.
            return _decision(key, before, program, before.members, before.stretches, f"executions of {program}")
        following = [rank for rank in living if rank.report.followed.program == program]
        found = executions.agreement({rank.report.source.rank: rank.marks for rank in following})
        left_out = _lives(following, found.otherwise) & set(before.members)
        if left_out:
            kept = sorted(set(before.members) - left_out)
            return _decision(key, before, program, kept, before.stretches, f"{len(left_out)} ranks count otherwise")
        unready = found.unheard or any(rank.pace(program).settled < STEPS_SEEN for rank in following)
        if unready or len(found.alike) < 2 or 2 * len(found.alike) <= len(living):
            return None
        ranks = [rank for rank in following if rank.report.source.rank in found.alike]
        members = sorted(_lives(ranks, found.alike))
    return _renewed(key, before, ranks, program, members, window_s, budget, now_s)


def _lives(ranks: Iterable[Rank], chosen: frozenset[int]) -> set[int]:
    return {executions.life(rank.report) for rank in ranks if rank.report.source.rank in chosen}


def _renewed(
    key: Key, before: wire.Cadence, ranks: Sequence[Rank], program: str, members: Sequence[int], window_s: float,
    budget: float, now_s: float,
) -> wire.Cadence | None:  # fmt: skip
    """The next stretch for `ranks`, if the last is about to end."""
    stretches = list(before.stretches)
    if program and before.members and not set(members) & set(before.members):
        stretches = [item for item in stretches if not item.program]  # all of them have begun to count anew
    every = steps_between(window_s, budget, ranks, program)
    furthest = max(rank.step_at(program, now_s) for rank in ranks)
    last = next((item for item in reversed(stretches) if item.program == program), None)
    if last is not None and last.until_step - furthest > RENEW_K * last.k:
        return None
    begin = int(furthest) + 1 + LEAD_K * every
    coarse = every
    if last is not None:
        coarse = max(every, last.k)
        # The steps between two stretches belong to nobody; usually there are none.
        begin = last.until_step if last.until_step - furthest >= LEAD_K * every else max(begin, last.until_step)
    begin = -(-begin // coarse) * coarse
    strata = STRATA if max(rank.pace(program).longest_ns for rank in ranks) > LONG_STEP_NS else 1
    stretches.append(
        wire.Cadence.Stretch(
            from_step=begin, until_step=begin + LENGTH_K * every, k=every, strata=strata, program=program
        )
    )
    return _decision(key, before, program, members, stretches, _reason(every, window_s, ranks, program))


def _decision(
    key: Key, before: wire.Cadence, program: str, members: Iterable[int], stretches: Iterable[wire.Cadence.Stretch],
    reason: str,
) -> wire.Cadence:  # fmt: skip
    return wire.Cadence(
        run=key[0],
        attempt=key[1],
        number=before.number + 1,
        stretches=joined([*stretches])[-STRETCHES_KEPT:],
        reason=reason,
        issued_ns=time.time_ns(),
        program=program,
        members=members,
    )


def _reason(every: int, window_s: float, ranks: Sequence[Rank], program: str) -> str:
    dearest = max(ranks, key=lambda rank: rank.window_ns)
    period_s = min(rank.pace(program).period_ns for rank in ranks) / 1e9
    return (
        f"{len(ranks)} ranks, fastest {program or 'step'} {period_s:.4g} s, least period {window_s:g} s, "
        f"dearest window {dearest.window_ns / 1e6:.3g} ms on rank {dearest.report.source.rank}"
    )


def joined(stretches: Sequence[wire.Cadence.Stretch]) -> list[wire.Cadence.Stretch]:
    """Neighbours of the same K as one: openings of a block depend on nothing else."""
    result: list[wire.Cadence.Stretch] = []
    for item in stretches:
        last = result[-1] if result else None
        if last is not None and (last.until_step, last.k, last.strata, last.program) == (
            item.from_step, item.k, item.strata, item.program
        ):  # fmt: skip
            longer = wire.Cadence.Stretch()
            longer.CopyFrom(last)
            longer.until_step = item.until_step
            result[-1] = longer
        else:
            result.append(item)
    return result


class Decisions:
    """Committed cadences: `cadence/<run>/<attempt>/<number>.pb` in the lake's store, the newest number in force."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def newest(self, key: Key) -> wire.Cadence | None:
        for _ in range(3):
            keys = self._store.keys(folder(key))
            if not keys:
                return None
            try:
                return wire.Cadence.FromString(self._store.get(keys[-1]))
            except (ObjectMissing, DecodeError):
                continue  # swept while it was looked for: a newer one is there
        return None

    def commit(self, cadence: wire.Cadence) -> wire.Cadence:
        """What is in force then: `cadence`, or what another coordinator had decided under its number or since."""
        key = (cadence.run, cadence.attempt)
        name = f"{folder(key)}/{cadence.number:012d}.pb"
        if self._store.put_if_absent(name, cadence.SerializeToString()):
            return cadence
        return self.newest(key) or cadence

    def sweep(self, now_s: float | None = None) -> None:
        """Decisions that a later one holds go after a day: until then no frozen coordinator can take their number
        again. The newest of an attempt goes when nobody has decided for it for a week."""
        now_s = time.time() if now_s is None else now_s
        newest: dict[str, str] = {}
        written = self._store.modified(FOLDER)
        for name in sorted(written):
            newest[name.rpartition("/")[0]] = name
        for name, written_s in written.items():
            kept_s = WEEK_S if name == newest[name.rpartition("/")[0]] else DAY_S
            if now_s - written_s > kept_s:
                self._store.delete(name)


def folder(key: Key) -> str:
    """Names of runs are the user's: any text, as a path of one part each."""
    return "/".join([FOLDER, *map(_part, key)])


def _part(name: str) -> str:
    """A file system takes 255 bytes; what is longer is told apart by its digest."""
    encoded = base64.urlsafe_b64encode(name.encode()).decode().rstrip("=") or "-"
    if len(encoded) <= PART_CHARS:
        return encoded
    return encoded[: PART_CHARS - 65] + "." + hashlib.sha256(name.encode()).hexdigest()


class Cadences:
    """Follows the reports and tells runs their cadence. Not for several threads; any number of processes."""

    def __init__(
        self, log: Log, reports: str, control: str, store: ObjectStore, window_s: float, budget: float
    ) -> None:
        self._log = log
        self._reports, self._control = reports, control
        self._decisions = Decisions(store)
        self._window_s, self._budget = window_s, budget
        self._tail: Tail | None = None
        self.attempts: dict[Key, Attempt] = {}
        self._swept_s = float("-inf")
        self.refused = self.decided = 0

    def poll(self, now_s: float | None = None) -> int:
        """Take what is new, decide what is due; how many messages were sent."""
        if self._tail is None:
            # What was said before this coordinator began is minutes old at most, or of no use.
            self._tail = self._log.tail(self._reports, self._log.end_offsets(self._reports))
        messages = self._tail.poll()
        now_s = time.monotonic() if now_s is None else now_s
        for message in messages:
            self._take(message, now_s)
        if now_s - self._swept_s > SWEEP_S:
            self._swept_s = now_s
            self._decisions.sweep()
        return sum(self._decide(key, attempt, now_s) for key, attempt in list(self.attempts.items()))

    def _take(self, message: Message, now_s: float) -> None:
        try:
            report = wire.RankReport.FromString(message.value)
        except DecodeError:
            self.refused += 1
            return
        if not report.source.run or time.time_ns() - report.at_ns > STALE_S * 1e9:
            return
        key = (report.source.run, report.source.attempt)
        attempt = self.attempts.get(key)
        if not believable(report) or (attempt is None and len(self.attempts) >= ATTEMPTS):
            self.refused += 1
            return
        if attempt is None:
            attempt = self.attempts[key] = Attempt(first_heard_s=now_s, newest=self._decisions.newest(key))
            if attempt.newest is not None:
                # Whoever decided it may have died before it was told.
                self._tell(wire.Control(cadence=attempt.newest), "cadence", key)
        known = attempt.ranks.get(report.source.rank, Rank(report, now_s))
        attempt.ranks[report.source.rank] = known.heard(report, now_s)

    def _decide(self, key: Key, attempt: Attempt, now_s: float) -> int:
        living = attempt.living(now_s)
        if not living and all(now_s - rank.heard_s > FORGET_S for rank in attempt.ranks.values()):
            del self.attempts[key]  # its decisions stay: it may only have been out of reach
            return 0
        sent = 0
        broken = next((rank.report for rank in living if rank.report.breaker), None)
        if broken is not None and not attempt.off and broken.world_size > 1:
            # What broke one rank is on all of them, and one dead rank is a dead job.
            attempt.off = f"{broken.breaker} on rank {broken.source.rank}"
            self._tell(switch(key, attempt.off), "switch", key)
            sent += 1
        cadence = next_cadence(key, attempt, self._window_s, self._budget, now_s)
        if cadence is not None:
            known = self._decisions.newest(key)
            if known is not None and known.number >= cadence.number:
                attempt.newest = known  # another coordinator decided meanwhile
                return sent
            attempt.newest = self._decisions.commit(cadence)
            self._tell(wire.Control(cadence=attempt.newest), "cadence", key)
            self.decided += 1
            sent += 1
            _log.info("%s: %s", key[0], _said(attempt.newest))
        return sent

    def _tell(self, control: wire.Control, what: str, key: Key) -> None:
        self._log.append(self._control, control_key(what, key), control.SerializeToString())

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _said(cadence: wire.Cadence) -> str:
    if not cadence.stretches:
        return cadence.reason
    last = cadence.stretches[-1]
    return f"K = {last.k} in steps {last.from_step} to {last.until_step} ({cadence.reason})"


def control_key(what: str, key: Key) -> bytes:
    """Of a message of the control topic; unambiguous whatever the names hold."""
    return json.dumps([what, *key], separators=(",", ":")).encode()


def switch(key: Key, reason: str, off: bool = True) -> wire.Control:
    """Windows of a run off (or on again), from now on."""
    run, attempt = key
    return wire.Control(
        windows=wire.WindowSwitch(run=run, attempt=attempt, off=off, reason=reason, issued_ns=time.time_ns())
    )
