"""Crystals: drift, random walk of the rate, temperature as a sinusoid, steps of rate and of phase.

The phase a clock has run ahead of true time is laid down on a grid of 1 s when the clock is made; between grid points
its rate is constant. So reading and its inverse are exact to the nanosecond, whatever was mixed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Wander:
    """`drift_ppm`: uniform within +-; `walk`: of the rate, per sqrt(s); `swing_ppm` with a period in `period_s`."""

    drift_ppm: float = 50.0
    walk: float = 1e-9
    swing_ppm: float = 0.5
    period_s: tuple[float, float] = (300.0, 900.0)


class Crystals:
    """`hosts` clocks over `seconds` of true time (and a margin of 20 s on either side)."""

    MARGIN_S = 20

    def __init__(self, rng: np.random.Generator, hosts: int, seconds: float, wander: Wander, days_up: float = 3.0):
        grid = int(seconds) + 2 * self.MARGIN_S + 2
        at = np.arange(grid, dtype=np.float64) - self.MARGIN_S
        rate = rng.uniform(-1, 1, (hosts, 1)) * wander.drift_ppm * 1e-6
        rate = rate + np.cumsum(rng.standard_normal((hosts, grid)) * wander.walk, axis=1)
        period = rng.uniform(*wander.period_s, (hosts, 1))
        rate += wander.swing_ppm * 1e-6 * np.sin(2 * np.pi * (at / period + rng.uniform(0, 1, (hosts, 1))))
        self.rate: Floats = rate
        self.start: Int64s = rng.integers(0, max(1, int(days_up * 86_400 * SECOND)), hosts) + 1_000 * SECOND
        self._settle()

    def step_rate(self, host: int, at_s: float, ppm: float) -> None:
        self.rate[host, int(at_s) + self.MARGIN_S :] += ppm * 1e-6
        self._settle()

    def step(self, host: int, at_s: float, ns: float) -> None:
        """A jump at a grid point: takes one grid interval of 1 s less than any other, as a rate nobody believes."""
        self.jumps.append((host, int(at_s * SECOND), int(ns)))

    def _settle(self) -> None:
        self.jumps: list[tuple[int, int, int]] = getattr(self, "jumps", [])
        phase = np.zeros_like(self.rate)
        np.cumsum(self.rate[:, :-1] * SECOND, axis=1, out=phase[:, 1:])
        self.phase: Floats = phase - phase[:, self.MARGIN_S : self.MARGIN_S + 1]

    def ahead(self, host: Int64s, true_ns: Int64s) -> Floats:
        """ns that clocks show more than have passed since true time 0."""
        # Beyond the grid a clock goes on at its last rate.
        whole = np.clip(true_ns // SECOND, -self.MARGIN_S, self.rate.shape[1] - self.MARGIN_S - 1)
        part = (true_ns - whole * SECOND).astype(np.float64)
        index = whole + self.MARGIN_S
        ahead = self.phase[host, index] + self.rate[host, index] * part
        for jumper, at, size in self.jumps:
            ahead = ahead + np.where((host == jumper) & (true_ns >= at), float(size), 0.0)
        return ahead

    def read(self, host: Int64s, true_ns: Int64s) -> Int64s:
        return self.start[host] + true_ns + np.rint(self.ahead(host, true_ns)).astype(np.int64)

    def true(self, host: Int64s, reading: Int64s) -> Int64s:
        """When a clock showed that. Of a jump forward over the reading: shortly before or after."""
        true_ns = reading - self.start[host]
        for _ in range(5):
            true_ns = reading - self.start[host] - np.rint(self.ahead(host, true_ns)).astype(np.int64)
        return true_ns
