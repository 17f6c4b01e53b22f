"""Brackets: one clock read between two readings of another, and what a step of the wall clock looks like in them."""

import time
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import astuple
from typing import Protocol

from fleetscope.agents.clocks.kept import HostReading, KeptEpochs
from fleetscope.agents.clocks.unwrap import Register, Unwrapper
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag

MONOTONIC_RAW = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
REALTIME = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
OTHERS = {
    "tai": time.CLOCK_TAI,
    "boottime": time.CLOCK_BOOTTIME,
}
"""Clocks of a host that no row is stamped with: they tell of leap seconds and of suspension."""
BURST = 5
"""Snapshots at once, every ten seconds: the tightest of many bounds best (native-clock.md B4: 50 ns at p99, not 60)."""

COUNTERS = ("tsc", "monotonic_raw")
"""What a recorder can stamp with (docs/format/recorder.md)."""
LOOK_S = 60.0
"""Between two looks at what the kernel keeps time by; whether the counter leapt is looked at every round."""
LEAP_NS = 1_000_000
"""With a thousandth of the time between: further off the line of an epoch a reading is not of it (clock.cpp)."""
STEP_NS = 200_000
"""A change of (realtime - monotonic_raw) beyond slewing that counts as a step of the wall clock."""
SLEW_PPM = 1_000
"""adjtime slews by at most 500 ppm; crystal error against CLOCK_MONOTONIC_RAW comes on top."""
WIDE_NS = 50_000
"""A bracket wider than this was interrupted: it still bounds, but says little (measured: p50 50 ns, p99 60 ns)."""


class Counter(Protocol):
    """The counter that the recorders of this host stamp with."""

    def epoch(self) -> wire.ClockEpoch:
        """Of the host now, `resets` left out."""

    def read(self, clock: str) -> HostReading:
        """The tightest of some brackets of the counter of that name."""

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        """Why the counter does not go on from `before` as it did; "" while it does. `look`: also at what the kernel
        keeps time by now, which is what epoch() says from then on."""

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        """(MONOTONIC_RAW, POSIX clock, MONOTONIC_RAW), ns: the tightest of some."""


class _Native:
    """The recorder's own brackets: tightest of five in C, ~50 ns wide."""

    def epoch(self) -> wire.ClockEpoch:
        name, num, den = recorder.host_counter()
        return wire.ClockEpoch(clock=name, period_num=num, period_den=den, width_bits=64)

    def read(self, clock: str) -> HostReading:
        return HostReading(*recorder.read_clocks(clock))

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        return recorder.clock_change(clock, astuple(before), look)

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        return recorder.read_clock(clock_id)


class HostClocks:
    """Snapshots of the host's clocks against MONOTONIC_RAW. Not thread-safe, but for now().

    The wall clock keeps one epoch; the first snapshot after a step of it, forward or backward, is flagged STEPPED. The
    counter begins a new epoch when check() finds that it is another, or steps: its values before and after have no
    common line.
    """

    def __init__(self, counter: Counter | None = None, kept: KeptEpochs | None = None) -> None:
        """`kept`: where epochs are kept for the next life of the agent, and those of the last one lie."""
        self._source = counter or _Native()
        self._kept = kept
        self.raw = wire.ClockEpoch()
        """The present epoch of MONOTONIC_RAW, of which all brackets are."""
        self.raw.CopyFrom(MONOTONIC_RAW)
        self._epochs: dict[str, wire.ClockEpoch] = {}
        """Of each counter that was the host's since we began, the present epoch."""
        self.counter = self._go_on() or self._begin()
        self._offset: tuple[int, int] | None = None
        self._look_s = time.monotonic() + LOOK_S
        self.steps = 0
        self.changes: list[str] = []
        """Why new epochs of the counter began, oldest first."""
        self.last = self._source.read(self.counter.clock)
        self._keep()

    def _go_on(self) -> wire.ClockEpoch | None:
        """The epoch that an earlier life of the agent left of the present counter, or the one that began since."""
        present = self._source.epoch()
        for name, (epoch, before) in (self._kept.load() if self._kept is not None else {}).items():
            if name == present.clock and self._source.change(name, before, False):
                epoch.resets += 1
            self._epochs[name] = epoch
        known = self._epochs.get(present.clock)
        if known is not None:
            # The kernel may say another rate of it than it did.
            known.period_num, known.period_den = present.period_num, present.period_den
        return known

    def _keep(self) -> None:
        if self._kept is not None:
            self._kept.keep(
                {
                    name: (epoch, self.last if epoch == self.counter else self._source.read(name))
                    for name, epoch in self._epochs.items()
                }
            )

    def _begin(self) -> wire.ClockEpoch:
        epoch = self._source.epoch()
        before = self._epochs.get(epoch.clock)
        if before is not None:
            epoch.resets = before.resets + 1
        self._epochs[epoch.clock] = epoch
        return epoch

    def disrupted(self, why: str) -> None:
        """Nothing goes on as it did: a VM was restored or moved. All clocks of the host begin new epochs."""
        raw = wire.ClockEpoch()
        raw.CopyFrom(self.raw)
        raw.resets += 1
        self.raw = raw
        self.counter = self._begin()
        if self.counter.clock == raw.clock:
            self.counter.resets = max(self.counter.resets, raw.resets)
        self.changes.append(why)
        self.last = self._source.read(self.counter.clock)
        self._keep()

    def read_raw(self) -> HostReading:
        """REALTIME bracketed by MONOTONIC_RAW. Safe from any thread."""
        return self._source.read(MONOTONIC_RAW.clock)

    def now(self) -> int:
        """The host counter now, in its ticks."""
        return self._source.read(self.counter.clock).counter

    def ticks(self) -> dict[str, int]:
        """One moment on each counter that a recorder of this host can stamp with."""
        return {name: self._source.read(name).counter for name in COUNTERS}

    def check(self) -> None:
        """Whether the counter is what it was; every minute also what the kernel keeps time by."""
        now_s = time.monotonic()
        look = now_s >= self._look_s
        if look:
            self._look_s = now_s + LOOK_S
        why = self._source.change(self.counter.clock, self.last, look)
        if why:
            self.counter = self._begin()
            self.changes.append(why)
        self.last = self._source.read(self.counter.clock)
        if why or look:
            self._keep()

    def resets(self, clock: str, anchor: tuple[int, int, int, int]) -> int:
        """Of the epoch that a reading (MONOTONIC_RAW, counter, REALTIME, MONOTONIC_RAW) of that counter belongs to."""
        present = self.present(clock)
        if present == 0:
            return 0
        last = self._source.read(clock)
        epoch = self._epochs[clock]
        passed_ns = last.raw_before_ns - anchor[0]
        expected = last.counter - passed_ns * epoch.period_den // epoch.period_num
        slack = (LEAP_NS + abs(passed_ns) // 1000) * epoch.period_den // epoch.period_num
        return present if abs(anchor[1] - expected) <= slack else present - 1

    def present(self, clock: str) -> int:
        """Resets of that counter's present epoch."""
        return self._epochs[clock].resets if clock in self._epochs else 0

    def snapshot(self) -> list[wire.ClockSnapshot]:
        """One for REALTIME and one for each counter that was the host's, where it is a clock of its own."""
        reading = self._source.read(self.counter.clock)
        flags = _width_flags(reading)
        stepped = self._stepped(reading)
        taken = [self._bracket(REALTIME, reading.realtime_ns, reading, flags | stepped)]
        for name, epoch in self._epochs.items():
            if name == MONOTONIC_RAW.clock:
                continue
            own = reading if epoch == self.counter else self._source.read(name)
            taken.append(self._bracket(epoch, own.counter, own, _width_flags(own)))
        return taken

    def others(self) -> list[wire.ClockSnapshot]:
        """One for each of OTHERS."""
        return [self.named(name, self._source.bracket(clock_id)) for name, clock_id in OTHERS.items()]

    def named(self, name: str, bracket: tuple[int, int, int]) -> wire.ClockSnapshot:
        """A clock of the host that counts ns, read so: (MONOTONIC_RAW, clock, MONOTONIC_RAW)."""
        epoch = wire.ClockEpoch(clock=name, period_num=1, period_den=1, width_bits=64)
        before, value, after = bracket
        reading = HostReading(before, value, value, after)
        return self._bracket(epoch, value, reading, _width_flags(reading))

    def burst(self) -> list[wire.ClockSnapshot]:
        """BURST times everything but steps: those are snapshot()'s to find."""
        taken: list[wire.ClockSnapshot] = []
        for _ in range(BURST):
            reading = self._source.read(self.counter.clock)
            taken.append(self._bracket(REALTIME, reading.realtime_ns, reading, _width_flags(reading)))
            if self.counter.clock != MONOTONIC_RAW.clock:
                taken.append(self._bracket(self.counter, reading.counter, reading, _width_flags(reading)))
            taken += self.others()
        return taken

    def wall(self, raw_before_ns: int, realtime_ns: int, raw_after_ns: int) -> wire.ClockSnapshot:
        """A bracket of REALTIME that a process of this host read."""
        reading = HostReading(raw_before_ns, 0, realtime_ns, raw_after_ns)
        return self._bracket(REALTIME, realtime_ns, reading, _width_flags(reading))

    def _bracket(self, clock: wire.ClockEpoch, value: int, reading: HostReading, flags: int) -> wire.ClockSnapshot:
        return wire.ClockSnapshot(
            clock=clock,
            ref=self.raw,
            value=value,
            ref_before=reading.raw_before_ns,
            ref_after=reading.raw_after_ns,
            flags=flags,
        )

    def _stepped(self, reading: HostReading) -> ClockFlag:
        middle = (reading.raw_before_ns + reading.raw_after_ns) // 2
        offset, before = reading.realtime_ns - middle, self._offset
        self._offset = (middle, offset)
        if before is None:
            return ClockFlag(0)
        width = reading.raw_after_ns - reading.raw_before_ns
        allowed = STEP_NS + width + abs(middle - before[0]) * SLEW_PPM // 1_000_000
        if abs(offset - before[1]) <= allowed:
            return ClockFlag(0)
        self.steps += 1
        return ClockFlag.STEPPED


def _width_flags(reading: HostReading) -> ClockFlag:
    return ClockFlag.SUSPECT if reading.raw_after_ns - reading.raw_before_ns > WIDE_NS else ClockFlag(0)


class RegisterRead(Protocol):
    """Reads a device's raw counter once."""

    def __call__(self) -> int: ...


class DeviceClock:
    """A device's counter against MONOTONIC_RAW: the tightest of `tries` brackets, unwrapped. Which epoch of
    MONOTONIC_RAW they are of is for whoever sends them to say (agents/node/timekeeper.py)."""

    def __init__(
        self,
        name: str,
        device: str,
        register: Register,
        read: RegisterRead,
        host_ns: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
        tries: int = 5,
    ) -> None:
        self._name = name
        self._device = device
        self._read = read
        self._host_ns = host_ns
        self._tries = tries
        self.unwrapper = Unwrapper(register)
        self.reasons: list[str] = []
        """Why new epochs began, oldest first."""
        self.refused: Tally[str] = Tally()
        """Reads that were none, by reason."""

    def epoch(self, resets: int) -> wire.ClockEpoch:
        register = self.unwrapper.register
        return wire.ClockEpoch(
            clock=self._name,
            device=self._device,
            resets=resets,
            period_num=register.period_num,
            period_den=register.period_den,
            width_bits=register.width_bits,
            fraction_bits=register.fraction_bits,
        )

    def snapshot(self) -> wire.ClockSnapshot | None:
        """None where the register cannot be right: counted, and told to nobody."""
        before, raw, after = min((self._try() for _ in range(self._tries)), key=lambda found: found[2] - found[0])
        reading = self.unwrapper.observe(raw, (before + after) // 2)
        if reading.refused:
            self.refused[reading.refused if reading.refused == "stands still" else "no value of the register"] += 1
            return None
        flags = ClockFlag.WRAPPED if reading.wraps else ClockFlag(0)
        if reading.reason:
            self.reasons.append(reading.reason)
        return wire.ClockSnapshot(
            clock=self.epoch(reading.resets),
            ref=MONOTONIC_RAW,
            value=reading.ticks,
            ref_before=before,
            ref_after=after,
            flags=flags,
        )

    def _try(self) -> tuple[int, int, int]:
        before = self._host_ns()
        raw = self._read()
        return before, raw, self._host_ns()
