"""What a host tells of its clocks: a ClockRecord a second, with a burst every ten, and one at once when something is
odd."""

import logging
import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from fleetscope.agents.clocks import MONOTONIC_RAW, HostClocks, HostReading
from fleetscope.agents.clocks.sources import ClockSources, Told
from fleetscope.agents.node.collectives import Passed, RawOf, observation
from fleetscope.agents.node.facts import Host
from fleetscope.agents.probes import ALL_STAMPS, Exchange
from fleetscope.agents.profiler.protocol import Clocks
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag, ProbeFlag

log = logging.getLogger(__name__)

BURST_EVERY_S = 10.0
SUSPEND_NS = 1_000_000
"""BOOTTIME - MONOTONIC is read to within a microsecond; no machine is suspended for less than this."""
NS_LIMIT = 1 << 62
BRACKETS, BRACKET_NS, NOMINAL_PPM = 128, 1_000_000_000, 200
"""Kept of the host counter, so far apart: a device window waits for up to two minutes until its launches are told."""
COLLECTIVES = 4096
"""Observations that wait for the next record."""

_counter = attrgetter("counter")


class ClockRecords:
    """`put` takes an encoded record. `tick` is the agent's loop's; the rest is safe from any thread."""

    def __init__(
        self, host: Host, clocks: HostClocks, sources: ClockSources, period_s: float, put: Callable[[bytes], object]
    ) -> None:
        self._clocks, self._sources, self._period_s, self._put = clocks, sources, period_s, put
        self._source = host.source()
        self._source.incarnation = secrets.randbits(63)  # of the records' numbers, which begin anew with each life
        self._lock = threading.Lock()
        self._sequence = 0
        self._next_s = self._burst_s = float("-inf")
        self._collectives: list[wire.CollectiveObservation] = []
        self._reason = "start"
        self._changes = 0
        self._brackets: deque[HostReading] = deque((clocks.last,), maxlen=BRACKETS)
        """Of the host counter, the newest of the last round."""
        self._suspended_ns: int | None = None
        self._vm: tuple[int, int] | None = None
        self._leaping = False
        self._told_s = 0.0
        self._asked: Counter[str] = Counter()
        """By peer: requests that are not in a record yet."""
        self.reasons: Counter[str] = Counter()
        self.overflow = 0
        """Observations of collectives for which no record had room."""

    def check(self) -> None:
        """Before the round's snapshots: whether the host's clocks begin new epochs, and why."""
        self._clocks.check()
        if len(self._clocks.changes) != self._changes:
            self._because("clocksource")
        vm = self._sources.vm()
        if vm is not None:
            told = (vm.disruption, vm.generation)
            if self._vm is not None and told != self._vm:
                self._clocks.disrupted("vm restored")
                self._because("vm_restore")
            self._vm = told
        if len(self._clocks.changes) != self._changes:
            self._brackets.clear()
        kept = self._brackets
        if len(kept) > 1 and kept[-1].raw_before_ns - kept[-2].raw_before_ns < BRACKET_NS:
            kept.pop()
        kept.append(self._clocks.last)
        self._changes = len(self._clocks.changes)
        suspended_ns = self._sources.suspended_ns()
        if self._suspended_ns is not None and suspended_ns - self._suspended_ns > SUSPEND_NS:
            self._because("suspend")
        self._suspended_ns = suspended_ns

    def _because(self, reason: str) -> None:
        """The first of a round counts: it is the cause of those that follow it. A start explains nothing."""
        if self._reason in ("", "start"):
            self._reason = reason

    def tick(
        self,
        now_s: float,
        snapshots: Sequence[wire.ClockSnapshot],
        exchanges: Iterable[Exchange] = (),
        asked: Counter[str] | None = None,
    ) -> None:
        """One round: the snapshots it took, what the probes brought, and what was odd."""
        told = self._sources.told()
        if any(snapshot.flags & ClockFlag.STEPPED for snapshot in snapshots):
            self._because("step")
        if told.kernel is not None and told.kernel.leaping != self._leaping:
            self._leaping = told.kernel.leaping
            self._because("leap")
        self._asked.update(asked or {})
        if not self._reason and now_s < self._next_s and not exchanges:
            return
        self._next_s = now_s + self._period_s * 0.9  # the loop's rounds are not to the millisecond
        taken = [*snapshots, *self._clocks.others(), *self._hardware(told)]
        if now_s >= self._burst_s or self._reason:
            self._burst_s = now_s + BURST_EVERY_S
            taken += self._clocks.burst()
        reason, self._reason = self._reason, ""
        self._send(taken, reason, told, peer_probes(exchanges, self._asked))

    def _hardware(self, told: Told) -> list[wire.ClockSnapshot]:
        """Of the newest look, once."""
        if told.at_s == self._told_s:
            return []
        self._told_s = told.at_s
        return [self._clocks.named(found.name, found.bracket) for found in told.hardware]

    def window(self, opened: Clocks, closed: Clocks) -> None:
        """A device window was taken between these brackets of a process."""
        for reason, clocks in (("window_begin", opened), ("window_end", closed)):
            if not all(0 <= ns < NS_LIMIT for ns in clocks) or clocks.raw_after_ns < clocks.raw_before_ns:
                continue  # a process may say what it likes; a record with it would be refused whole
            snapshot = self._clocks.wall(clocks.raw_before_ns, clocks.realtime_ns, clocks.raw_after_ns)
            self._send([snapshot], reason, self._sources.told(), [])

    def observe(self, source: wire.Source, world: int, clock: str, passed: Sequence[Passed]) -> None:
        """Executions that a process passed, in ticks of that counter; they go with the next record."""
        raw_of = self.raw_of(clock)
        if raw_of is None:
            return
        made = [observation(source, world, one, raw_of) for one in passed]
        with self._lock:
            room = COLLECTIVES - len(self._collectives)
            self._collectives += made[:room]
            self.overflow += max(0, len(made) - room)

    def raw_of(self, clock: str) -> RawOf | None:
        """What a tick of that counter is in ns of MONOTONIC_RAW, and what that may be off. None for a counter that is
        not the host's any more: it has no brackets here."""
        if clock == MONOTONIC_RAW.clock:
            return lambda tick: (tick, 0)
        return self._raw_of if clock == self._clocks.counter.clock else None

    def _raw_of(self, tick: int) -> tuple[int, int]:
        """A tick of the host counter in ns of MONOTONIC_RAW, and what that may be off: between two brackets their
        widths, elsewhere what the counter's nominal rate is off as well."""
        kept = self._brackets
        after = kept[min(bisect_left(kept, tick, key=_counter), len(kept) - 1)]
        first = bisect_right(kept, tick, key=_counter)
        before = kept[first - 1] if first else after
        at = (before.raw_before_ns + before.raw_after_ns) // 2
        half = max(found.raw_after_ns - found.raw_before_ns for found in (before, after)) // 2 + 1
        if before.counter <= tick <= after.counter and before.counter < after.counter:
            length = (after.raw_before_ns + after.raw_after_ns) // 2 - at
            return at + (tick - before.counter) * length // (after.counter - before.counter), half
        epoch = self._clocks.counter
        away = (tick - before.counter) * epoch.period_num // epoch.period_den
        return at + away, half + abs(away) * NOMINAL_PPM // 1_000_000

    def stop(self) -> None:
        """The last record of this life."""
        self._because("stop")
        if self._reason == "stop":
            self._send([*self._clocks.snapshot(), *self._clocks.others()], "stop", self._sources.told(), [])

    def _send(
        self, snapshots: list[wire.ClockSnapshot], reason: str, told: Told, probes: list[wire.PeerProbes]
    ) -> None:
        with self._lock:
            collectives, self._collectives = self._collectives, []
            record = wire.ClockRecord(
                source=self._source,
                snapshots=snapshots,
                sequence=self._sequence,
                resets=self._clocks.raw.resets,
                at_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
                state=told.state(),
                probes=probes,
                collectives=collectives,
                reason=reason,
            )
            self._sequence += 1
            if reason:
                self.reasons[reason] += 1
            self._put(record.SerializeToString())


def peer_probes(exchanges: Iterable[Exchange], asked: Counter[str]) -> list[wire.PeerProbes]:
    """Exchanges by peer, its epoch, and whether the kernels took all four times.

    Requests go with the first exchange of their peer and are taken out of `asked`: nobody knows the epoch of one that
    does not answer.
    """
    found: dict[tuple[str, str, int, bool], list[int]] = {}
    for one in exchanges:
        key = (one.peer.host, one.boot, one.resets, one.stamps == ALL_STAMPS)
        found.setdefault(key, []).extend((one.sent, one.received, one.answered, one.returned))
    made = []
    for (host, boot, resets, kernel), stamps in found.items():
        flags = ProbeFlag.KERNEL if kernel else ProbeFlag(0)
        sent = asked.pop(host, 0)
        made.append(wire.PeerProbes(peer=host, boot_id=boot, resets=resets, stamps=stamps, flags=int(flags), sent=sent))
    return made
