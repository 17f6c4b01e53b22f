"""The line two clocks share when half of the readings are displaced: where most points lie, not where they lie on
average.

In the v6e sample 51 % of ops are displaced by up to 198 ms from a clean 15.04 ppm line (xprof.md 5.3), nearly all
upwards. Least squares and Theil-Sen (breakdown point 29 %) both miss it; the densest band does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.xspace.views import Ints

BAND_PS = 60_000_000
"""Width of the band that is searched for: clean ops of the sample lie within 18 us of their line."""
LIMIT_PPM = 200.0
"""Drift assumed possible; Sundial (OSDI 2020) assumes the same in production."""
SEARCH_PS = 100e12
_FIT_POINTS = 4096


@dataclass(frozen=True, slots=True)
class Line:
    """aligned - raw = intercept_ps + slope * raw, over ops whose residual is within half a band."""

    slope: float
    intercept_ps: float
    inliers: int

    def residual_ps(self, raw_ps: Ints, aligned_ps: Ints) -> NDArray[np.float64]:
        """Differences stay far below 2^53 ps = 2.5 h, so floats lose nothing here; no timestamp is made of them."""
        return (aligned_ps - raw_ps).astype(np.float64) - self.intercept_ps - self.slope * raw_ps

    @property
    def ppm(self) -> float:
        return self.slope * 1e6


def fit_line(raw_ps: Ints, aligned_ps: Ints) -> Line:
    """The line with most points within BAND_PS, refined by least squares on them. Needs at least one point.

    A slope is searched where points are densest, over SEARCH_PS: there a grid of 667 slopes cannot miss the band.
    Then the stretch is doubled until it holds every point, and the slope refined to match.
    """
    order = np.argsort(raw_ps, kind="stable")[:: max(1, len(raw_ps) // _FIT_POINTS)]
    x = raw_ps[order].astype(np.float64)
    y = (aligned_ps - raw_ps)[order].astype(np.float64)
    held = np.searchsorted(x, x + SEARCH_PS, side="right") - np.arange(len(x))
    first = int(held.argmax())
    begin, end = x[first], x[first + int(held[first]) - 1]
    limit = LIMIT_PPM * 1e-6
    step = min(BAND_PS / max(end - begin, 1.0), limit)
    slopes = np.arange(-limit, limit + step, step)
    while True:
        inside = (x >= begin) & (x <= end)
        _, slope, low = _densest(x[inside], y[inside], slopes)
        _, slope, low = _densest(x[inside], y[inside], slope + step / 8 * np.arange(-8, 9))
        if inside.all():
            break
        length = max(end - begin, SEARCH_PS)
        begin, end = begin - length / 2, end + length / 2
        step = BAND_PS / (2 * length)
        slopes = slope + step * np.arange(-8, 9)
    near = np.abs(y - slope * x - (low + BAND_PS / 2)) <= BAND_PS / 2
    if np.count_nonzero(near) >= 2 and np.ptp(x[near]) > 0:
        centre = x[near].mean()
        fitted, level = np.polyfit(x[near] - centre, y[near], 1)
        return Line(float(fitted), float(level - fitted * centre), int(near.sum()))
    return Line(float(slope), float(low + BAND_PS / 2), int(near.sum()))


def _densest(x: NDArray[np.float64], y: NDArray[np.float64], slopes: Iterable[float]) -> tuple[int, float, float]:
    """(points, slope, lower edge) of the fullest band of BAND_PS."""
    best = (0, 0.0, 0.0)
    for slope in slopes:
        residual = np.sort(y - slope * x)
        counts = np.searchsorted(residual, residual + BAND_PS, side="right") - np.arange(len(residual))
        at = int(counts.argmax())
        if counts[at] > best[0]:
            best = (int(counts[at]), float(slope), float(residual[at]))
    return best
