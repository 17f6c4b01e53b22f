"""When the ranks of a run take device windows: decided here, where all ranks' costs and steps are seen, for all alike.

K of a step is decided once and never changed. A decision covers steps [from, until); a later one begins where the last
ended. So whoever learns of one late, or joins late, or goes back to a checkpoint, may leave windows out, but takes none
where another rank takes it elsewhere. Each is committed in the lake under a number (put-if-absent) before it is told:
of two coordinators, or of one that was frozen, only one decision of a number exists.
"""

import base64
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

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

    @property
    def window_ns(self) -> float:
        """What one window costs its steps: the measured stall, or, before it is known, opening and stopping."""
        report = self.report
        if report.stalls >= STALLS_MEASURED:
            return report.stall_ns
        return report.cost_ns / report.windows if report.windows else 0.0

    def step_at(self, now_s: float) -> float:
        """The step it has reached now, going on at its pace."""
        ahead_ns = (now_s - self.heard_s) * 1e9
        return self.report.step + ahead_ns / max(1, self.report.period_ns)


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


def steps_between(window_s: float, budget: float, ranks: Iterable[Rank]) -> int:
    """K: the smallest power of two whose steps take `window_s` on the fastest rank, and in which a window of the rank
    where it costs most stays within `budget` of that rank's time."""
    every = 2
    for rank in ranks:
        wanted_ns = max(window_s * 1e9, rank.window_ns / budget)
        while every * rank.report.period_ns < wanted_ns and every < MOST_K:
            every *= 2
    return every


def believable(report: wire.RankReport) -> bool:
    """Its numbers are those of a rank that runs. One report that is not must neither stop the coordinator nor decide
    for the others of its run."""
    steps = (report.step + 1, report.steps, report.settled_steps, report.windows, report.stalls)
    times = (report.longest_ns, report.cost_ns, report.stall_ns)
    return (
        all(0 <= number <= MOST_STEPS for number in steps)
        and all(0 <= number <= MOST_NS for number in times)
        # 0 until a step is over, and then no pace is believed
        and (1 if report.settled_steps >= STEPS_SEEN else 0) <= report.period_ns <= MOST_NS
        and 0 <= report.source.rank < RANKS
    )


def next_cadence(key: Key, attempt: Attempt, window_s: float, budget: float, now_s: float) -> wire.Cadence | None:
    """The decision that is due for an attempt; None: none is."""
    ranks = [rank for rank in attempt.living(now_s) if rank.report.settled_steps >= STEPS_SEEN]
    living = attempt.living(now_s)
    if not attempt.assembled(now_s) or len(ranks) < len(living) or any(r.report.configured_k for r in living):
        return None
    every = steps_between(window_s, budget, ranks)
    furthest = max(rank.step_at(now_s) for rank in ranks)
    last = attempt.newest.stretches[-1] if attempt.newest is not None and attempt.newest.stretches else None
    if last is not None and last.until_step - furthest > RENEW_K * last.k:
        return None
    begin = int(furthest) + 1 + LEAD_K * every
    coarse = every
    if last is not None:
        coarse = max(every, last.k)
        # The steps between two stretches belong to nobody; usually there are none.
        begin = last.until_step if last.until_step - furthest >= LEAD_K * every else max(begin, last.until_step)
    begin = -(-begin // coarse) * coarse
    strata = STRATA if max(rank.report.longest_ns for rank in ranks) > LONG_STEP_NS else 1
    stretch = wire.Cadence.Stretch(from_step=begin, until_step=begin + LENGTH_K * every, k=every, strata=strata)
    before = list(attempt.newest.stretches) if attempt.newest is not None else []
    return wire.Cadence(
        run=key[0],
        attempt=key[1],
        number=attempt.newest.number + 1 if attempt.newest is not None else 1,
        stretches=joined([*before, stretch])[-STRETCHES_KEPT:],
        reason=_reason(every, window_s, ranks),
        issued_ns=time.time_ns(),
    )


def _reason(every: int, window_s: float, ranks: Sequence[Rank]) -> str:
    dearest = max(ranks, key=lambda rank: rank.window_ns)
    period_s = min(rank.report.period_ns for rank in ranks) / 1e9
    return (
        f"{len(ranks)} ranks, fastest step {period_s:.4g} s, least period {window_s:g} s, "
        f"dearest window {dearest.window_ns / 1e6:.3g} ms on rank {dearest.report.source.rank}"
    )


def joined(stretches: Sequence[wire.Cadence.Stretch]) -> list[wire.Cadence.Stretch]:
    """Neighbours of the same K as one: openings of a block depend on nothing else."""
    result: list[wire.Cadence.Stretch] = []
    for item in stretches:
        last = result[-1] if result else None
        if last is not None and (last.until_step, last.k, last.strata) == (item.from_step, item.k, item.strata):
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
        attempt.ranks[report.source.rank] = Rank(report, now_s)

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
