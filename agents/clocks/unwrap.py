"""Raw register values to ticks that never wrap.

How often a register of M values wrapped between two readings is decided by how much host time passed:
k = round((expected - delta) / M). That is only sound while the gap is below half a wrap; beyond, or when the register
ran backwards or jumped against the host's time, nothing before may be compared with anything after, and a new clock
epoch begins. What a suspension or the restoration of a VM does to a register is seen by that alone. A register that
stands still, or shows what it cannot hold, gives no reading: it is set aside with its reason until it can be told what
became of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RATE_PPM = 1_000
"""Slope error a real counter may show: crystals are within +-50 ppm, a guest's TSC after migration is off by more."""

_TICK_LIMIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Register:
    """A counter as its driver gives it. A tick is one unit of the register, fraction bits included.

    `modulus` is the number of values it takes (2^45, 2^64, or an odd number); nominal nanoseconds a tick are
    period_num / period_den.
    """

    modulus: int
    period_num: int
    period_den: int
    fraction_bits: int = 0

    @property
    def width_bits(self) -> int:
        return (self.modulus - 1).bit_length()

    def ticks_of(self, ns: int) -> int:
        """floor(ns / nominal period)"""
        return ns * self.period_den // self.period_num


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading, unwrapped. `reason` says why a new epoch began with it, "" otherwise; `wraps` since the last one.
    `refused`: why it is none; its ticks are those of the last one then."""

    raw: int
    ticks: int
    resets: int
    wraps: int = 0
    reason: str = ""
    refused: str = ""


class Unwrapper:
    """Unwraps readings of one register in order. A new epoch continues nothing: its ticks begin at the raw value."""

    def __init__(self, register: Register, slack_ns: int = 1_000_000) -> None:
        """`slack_ns`: how uncertain the host times of two readings are together (bracket widths, scheduling)."""
        self.register = register
        self._slack_ns = slack_ns
        self._last: Reading | None = None
        self._host_ns = 0
        """When the last reading was taken, and when the register was last looked at."""
        self._seen_ns = 0

    @property
    def last(self) -> Reading | None:
        return self._last

    def observe(self, raw: int, host_ns: int) -> Reading:
        """`raw` was read at `host_ns` of a monotonic host clock."""
        if not 0 <= raw < self.register.modulus:
            return self._refuse(raw, f"{raw} is no value of a register with {self.register.modulus} values")
        last = self._last
        if last is None:
            reading = self._first(raw, 0, "")
        elif self._stands(last, raw, host_ns):
            self._seen_ns = host_ns
            return self._refuse(raw, "stands still")
        else:
            reading = self._follow(last, raw, host_ns - self._host_ns)
        self._last, self._host_ns, self._seen_ns = reading, host_ns, host_ns
        return reading

    def _refuse(self, raw: int, why: str) -> Reading:
        last = self._last or Reading(0, 0, 0)
        return Reading(raw, last.ticks, last.resets, refused=why)

    def _stands(self, last: Reading, raw: int, host_ns: int) -> bool:
        """Whether it shows what it showed, though it must have moved since it was last looked at, not once round."""
        if raw != last.raw:
            return False
        expected = self.register.ticks_of(host_ns - self._seen_ns)
        slack = self._slack(expected)
        return slack < expected and 2 * (expected + slack) < self.register.modulus

    def _slack(self, expected: int) -> int:
        return self.register.ticks_of(self._slack_ns) + abs(expected) * RATE_PPM // 1_000_000 + 1

    def _first(self, raw: int, resets: int, reason: str) -> Reading:
        # Ticks must stay below 2^62; a register that starts near or beyond loses its upper bits, for the whole epoch.
        return Reading(raw, raw if raw < _TICK_LIMIT >> 1 else raw % (_TICK_LIMIT >> 1), resets, 0, reason)

    def _follow(self, last: Reading, raw: int, elapsed_ns: int) -> Reading:
        modulus = self.register.modulus
        expected = self.register.ticks_of(elapsed_ns)
        slack = self._slack(expected)
        if elapsed_ns < 0:
            return self._first(raw, last.resets + 1, "host time ran backwards")
        if 2 * (expected + slack) >= modulus:
            return self._first(raw, last.resets + 1, f"no reading for {elapsed_ns} ns, half a wrap or more")
        delta = raw - last.raw
        # round((expected - delta) / modulus) in integers.
        wraps = (2 * (expected - delta) + modulus) // (2 * modulus)
        moved = delta + wraps * modulus
        if moved < 0:
            return self._first(raw, last.resets + 1, f"ran backwards by {-moved} ticks")
        if abs(moved - expected) > slack:
            return self._first(raw, last.resets + 1, f"moved {moved} ticks where {expected} were expected")
        if abs(last.ticks + moved) >= _TICK_LIMIT:
            return self._first(raw, last.resets + 1, "ticks reached 2^62")
        return Reading(raw, last.ticks + moved, last.resets, wraps)


def near(raw: NDArray[np.int64] | NDArray[np.uint64], reading: Reading, modulus: int) -> NDArray[np.int64]:
    """Ticks of raw event stamps taken within half a wrap of `reading`: the nearest value with these register bits."""
    if modulus & (modulus - 1) == 0:
        shift = np.uint64(64 - (modulus.bit_length() - 1))
        moved = raw.astype(np.uint64) - np.uint64(reading.raw)
        # Sign extension from the register's width; for 64 bits the subtraction alone is right.
        signed = (moved << shift).view(np.int64) >> shift.view(np.int64) if shift else moved.view(np.int64)
        return signed + reading.ticks
    moved_signed = raw.astype(np.int64) - reading.raw
    return np.mod(moved_signed + modulus // 2, modulus) - modulus // 2 + reading.ticks
