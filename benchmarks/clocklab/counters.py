"""Registers of any modulus and number of fraction bits, driven by a crystal; resets and stretches of standing still.

A counter's own time is laid down in picoseconds, exactly: in a second it gains rate_ppb * ns // 10^6 ps on true time.
Its ticks are the whole ones of that own time, so truth is integers and has no tolerance.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clocklab.oscillator import SECOND, Crystals, Floats, Int64s, Wander


@dataclass(frozen=True, slots=True)
class Shape:
    """`modulus` values; a value lasts period_num / period_den ns (of fraction bits the smallest)."""

    modulus: int
    period_num: int
    period_den: int
    fraction_bits: int = 0


GTC = Shape(1 << 45, 5, 4)
SHAPES = tuple(Shape(1 << width, 5, 4 << bits, bits) for width in (32, 36, 45, 48, 56, 64) for bits in (0, 4))
ODD = (Shape((1 << 40) - 87, 3, 2), Shape(3 * 10**12 + 7, 10, 7))


class Counter:
    """`base` ticks at true time 0. `resets`: (true ns, ticks it shows then). `stands`: [from, to) of standing still."""

    def __init__(
        self,
        shape: Shape,
        rate_ppb: Sequence[int],
        base: int = 0,
        resets: Sequence[tuple[int, int]] = (),
        stands: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.shape, self.base = shape, base
        self.rate: Int64s = np.asarray(rate_ppb, np.int64)
        self.gained: Int64s = np.concatenate([[0], np.cumsum(self.rate * 1000)]).astype(np.int64)
        self.resets, self.stands = tuple(resets), tuple(stands)

    def elapsed_ps(self, true_ns: Int64s) -> Int64s:
        """Its own time since true time 0; true times are within the seconds there are rates of."""
        at = np.asarray(true_ns, np.int64)
        for begin, end in self.stands:
            at = np.where(at >= begin, np.maximum(at - (end - begin), begin), at)
        second = at // SECOND
        rest = at - second * SECOND
        return at * 1000 + self.gained[second] + self.rate[second] * rest // 1_000_000

    def moved(self, true_ns: Int64s) -> Int64s:
        """Ticks since true time 0, as if it had never been reset."""
        return self.elapsed_ps(true_ns) * self.shape.period_den // (self.shape.period_num * 1000)

    def raw(self, true_ns: int) -> int:
        """What the register shows."""
        value = self.base + int(self.moved(np.asarray([true_ns]))[0])
        for at, shown in self.resets:
            if true_ns >= at:
                value = shown + int(np.diff(self.moved(np.asarray([at, true_ns])))[0])
        return value % self.shape.modulus


def rates(rng: np.random.Generator, seconds: int, drift_ppm: float, wander: Wander) -> list[int]:
    """ppb of each second of a crystal that is off by `drift_ppm`; `wander.drift_ppm` is not asked."""
    crystal = Crystals(rng, 1, seconds, Wander(0.0, wander.walk, wander.swing_ppm, wander.period_s))
    rate: Floats = crystal.rate[0, crystal.MARGIN_S :] * 1e9 + drift_ppm * 1e3
    return [int(value) for value in np.rint(rate)]
