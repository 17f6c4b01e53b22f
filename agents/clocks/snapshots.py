"""Brackets: one clock read between two readings of another, and what a step of the wall clock looks like in them."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fleetscope.agents.clocks.unwrap import Register, Unwrapper
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag

MONOTONIC_RAW = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
REALTIME = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)

STEP_NS = 200_000
"""A change of (realtime - monotonic_raw) beyond slewing that counts as a step of the wall clock."""
SLEW_PPM = 1_000
"""adjtime slews by at most 500 ppm; crystal error against CLOCK_MONOTONIC_RAW comes on top."""
WIDE_NS = 50_000
"""A bracket wider than this was interrupted: it still bounds, but says little (measured: p50 50 ns, p99 60 ns)."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """(MONOTONIC_RAW ns, host counter, REALTIME ns, MONOTONIC_RAW ns), read in this order."""

    raw_before_ns: int
    counter: int
    realtime_ns: int
    raw_after_ns: int


def _read_without_native() -> HostReading:
    best: HostReading | None = None
    for _ in range(5):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        realtime = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if best is None or after - before < best.raw_after_ns - best.raw_before_ns:
            best = HostReading(before, before, realtime, after)
    assert best is not None
    return best


def native_reader() -> tuple[Callable[[], HostReading], wire.ClockEpoch]:
    """The recorder's own bracket (tightest of five in C, ~50 ns wide) and the epoch of the counter it stamps with.

    Where the native module is not built: MONOTONIC_RAW itself, whose bracket costs two Python calls (~1 us wide).
    """
    try:
        from fleetscope.native import recorder
    except ImportError:
        return _read_without_native, MONOTONIC_RAW
    name, num, den = recorder.host_counter()
    if name == "monotonic_raw":
        return lambda: HostReading(*recorder.read_clocks()), MONOTONIC_RAW
    epoch = wire.ClockEpoch(clock=name, period_num=num, period_den=den, width_bits=64)
    return lambda: HostReading(*recorder.read_clocks()), epoch


class HostClocks:
    """Snapshots of the host's clocks against MONOTONIC_RAW. Not thread-safe.

    The wall clock keeps one epoch; the first snapshot after a step of it, forward or backward, is flagged STEPPED.
    """

    def __init__(self, read: Callable[[], HostReading] | None = None, counter: wire.ClockEpoch | None = None) -> None:
        if read is None or counter is None:
            read, counter = native_reader()
        self._read = read
        self.counter = counter
        self._offset: tuple[int, int] | None = None
        self.steps = 0
        self.last: HostReading | None = None

    def now(self) -> int:
        """The host counter now, in its ticks."""
        return self._read().counter

    def snapshot(self) -> list[wire.ClockSnapshot]:
        """One for REALTIME and, where the counter is a clock of its own, one for it."""
        reading = self._read()
        self.last = reading
        flags = ClockFlag(0)
        if reading.raw_after_ns - reading.raw_before_ns > WIDE_NS:
            flags |= ClockFlag.SUSPECT
        stepped = self._stepped(reading)
        taken = [_bracket(REALTIME, reading.realtime_ns, reading, flags | stepped)]
        if self.counter.clock != MONOTONIC_RAW.clock:
            taken.append(_bracket(self.counter, reading.counter, reading, flags))
        return taken

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


def _bracket(clock: wire.ClockEpoch, value: int, reading: HostReading, flags: int) -> wire.ClockSnapshot:
    return wire.ClockSnapshot(
        clock=clock,
        ref=MONOTONIC_RAW,
        value=value,
        ref_before=reading.raw_before_ns,
        ref_after=reading.raw_after_ns,
        flags=flags,
    )


class RegisterRead(Protocol):
    """Reads a device's raw counter once."""

    def __call__(self) -> int: ...


class DeviceClock:
    """A device's counter against MONOTONIC_RAW: the tightest of `tries` brackets, unwrapped."""

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

    def snapshot(self) -> wire.ClockSnapshot:
        before, raw, after = min((self._try() for _ in range(self._tries)), key=lambda found: found[2] - found[0])
        reading = self.unwrapper.observe(raw, (before + after) // 2)
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
