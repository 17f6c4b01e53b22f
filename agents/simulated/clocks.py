"""Clocks of the simulation: counters as exact functions of true time, with drift and wander.

A counter is piecewise linear with a knot every second: value(t) = values[k] + floor((t - knot k) * rate[k]). In a
second the product stays below 2^53, so the floor is exact enough to be the definition: the truth is what this returns.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.clocks.unwrap import Register

KNOT_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Counter:
    """Ticks by true nanoseconds since the simulation's begin. Strictly increasing where its rate is at least 1."""

    values: NDArray[np.int64]
    rates: NDArray[np.float64]

    def at(self, true_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ticks at each true time; the last second's rate goes on beyond the last knot."""
        knot = np.clip(true_ns // KNOT_NS, 0, len(self.rates) - 1)
        inside = (true_ns - knot * KNOT_NS).astype(np.float64)
        return self.values[knot] + np.floor(inside * self.rates[knot]).astype(np.int64)

    def one(self, true_ns: int) -> int:
        return int(self.at(np.asarray([true_ns], np.int64))[0])


def drifting(
    rng: np.random.Generator, seconds: int, ticks_a_ns: float, base: int, ppm: float, wander_ppm: float
) -> Counter:
    """A counter off by `ppm`, its rate moving by about `wander_ppm` with temperature and noise (native-clock.md B6)."""
    count = seconds + 60
    second = np.arange(count)
    period, phase = float(rng.uniform(300, 900)), float(rng.uniform(0, 2 * np.pi))
    temperature = wander_ppm * np.sin(2 * np.pi * second / period + phase)
    walk = np.cumsum(rng.normal(0, wander_ppm / 60, count))
    rates = ticks_a_ns * (1 + 1e-6 * (ppm + temperature + walk))
    steps = np.floor(KNOT_NS * rates).astype(np.int64)
    values = base + np.concatenate([[0], np.cumsum(steps)[:-1]]).astype(np.int64)
    return Counter(values, rates)


@dataclass(slots=True)
class WallClock:
    """CLOCK_REALTIME of a host: begin + true time, off by a slewed offset, with steps and slews at true times."""

    begin_ns: int
    counter: Counter
    steps: list[tuple[int, int]] = field(default_factory=list)
    slews: list[tuple[int, int, float]] = field(default_factory=list)
    """(from, until, ppm) in true ns: a leap second that is smeared, a clock that is led back."""

    def at(self, true_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Unix ns the host would have read."""
        out = self.begin_ns + self.counter.at(true_ns)
        for when, delta in self.steps:
            out = out + np.where(true_ns >= when, delta, 0)
        for begin, until, ppm in self.slews:
            out = out + np.floor((np.clip(true_ns, begin, until) - begin) * (ppm / 1e6)).astype(np.int64)
        return out

    def one(self, true_ns: int) -> int:
        return int(self.at(np.asarray([true_ns], np.int64))[0])


REGISTERS = {
    "gtc": Register(1 << 45, 5, 4),
    "gtc16": Register(1 << 45, 5, 64, fraction_bits=4),
    "wide": Register(1 << 64, 5, 4),
}
"""Shapes of device counters: 800 MHz; the same x16 with 4 fraction bits, which wraps every 46 minutes; 64 bits."""


def register_of(chip: int) -> str:
    """Most chips of a host have the plain counter; the second has fraction bits, the fourth 64 bits."""
    return {1: "gtc16", 3: "wide"}.get(chip % 8, "gtc")
