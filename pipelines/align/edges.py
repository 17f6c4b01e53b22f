"""Exchanges of all pairs of hosts in one hop: how far two stated times are apart, and within what that is proved.

An exchange t1 -> t2, t3 -> t4 between a and b, its stamps already turned into stated fleet time p1..p4, measures
z = ((p2 - p1) + (p3 - p4)) / 2, by how much b's map is ahead of a's, and proves p3 - p4 <= e_b - e_a <= p2 - p1,
whatever the network did (native-clock.md B3). For queues that are exponential the error of z is uniform within half of
what the round trip took longer than it must, so a sample weighs 1 / (sigma^2 + excess^2 / 12): the low-RTT line without
a cut.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

STAMP_SIGMA_NS = 300.0
"""Of a software stamp, interrupts aside."""
HUBER = 3.0
ROUNDS = 3
GRID_S = 1.0
"""Bounds are worked out once a second, and widened to hold between."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Exchanges of one hop, sorted by pair; stated times in ns from the middle of the hop. a < b."""

    a: Int64s
    b: Int64s
    first: Int64s
    """Index of the first sample of each pair."""
    pair: Int64s
    """Pair of each sample."""
    at: Floats
    z: Floats
    upper: Floats
    upper_at: Floats
    lower: Floats
    lower_at: Floats
    round_trip: Floats

    @property
    def pairs(self) -> int:
        return len(self.first)


def samples(a: Int64s, b: Int64s, p: Floats) -> Samples:
    """From stated times p[n, 4] of exchanges in which `a` asked `b`, in any order."""
    ahead_there, ahead_back = p[:, 1] - p[:, 0], p[:, 2] - p[:, 3]
    z, round_trip = (ahead_there + ahead_back) / 2, ahead_there - ahead_back
    turned = a > b
    low, high = np.where(turned, b, a), np.where(turned, a, b)
    order = np.lexsort((p[:, 0], high, low))
    low, high, turned = low[order], high[order], turned[order]
    new = np.ones(len(low), bool)
    new[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    first = np.flatnonzero(new)
    there, back = ahead_there[order], ahead_back[order]
    asked, heard = p[order, 0], p[order, 3]
    return Samples(
        low[first],
        high[first],
        first,
        np.cumsum(new) - 1,
        (asked + heard) / 2,
        np.where(turned, -z[order], z[order]),
        np.where(turned, -back, there),
        np.where(turned, heard, asked),
        np.where(turned, -there, back),
        np.where(turned, asked, heard),
        round_trip[order],
    )


@dataclass(frozen=True, slots=True)
class Fits:
    """One line a pair: e_b - e_a = offset + slope * t, t in s from the middle of the hop; ns and ppb."""

    offset: Floats
    slope: Floats
    sigma: Floats
    slope_sigma: Floats
    count: Int64s
    quickest: Floats
    """Round trip of the quickest exchange of this hop, ns."""


def fit(found: Samples, slope_prior: Floats, quickest_before: Floats) -> Fits:
    """Robust lines; `slope_prior`: one sigma of each pair's slope around 0, ppb. `quickest_before`: the pair's shortest
    round trip of late, inf where it is new."""
    if not found.pairs:
        none = np.empty(0)
        return Fits(none, none, none, none, np.empty(0, np.int64), none)
    quickest = np.minimum.reduceat(found.round_trip, found.first)
    least = np.minimum(quickest, quickest_before)
    excess = found.round_trip - least[found.pair]
    # A half of the excess of the quickest sample is its error too: it is not known to have waited for nothing.
    variance = STAMP_SIGMA_NS**2 + excess**2 / 12
    t = found.at / 1e9
    robust = np.ones(len(t))
    offset = slope = np.zeros(found.pairs)
    w = sw = swt = swtt = determinant = offset
    for _ in range(ROUNDS):
        w = robust / variance
        sw, swt, swtt, swz, swtz = (
            np.add.reduceat(w * factor, found.first) for factor in (1.0, t, t * t, found.z, t * found.z)
        )
        swtt = swtt + 1 / slope_prior**2
        determinant = sw * swtt - swt * swt
        offset = (swtt * swz - swt * swtz) / determinant
        slope = (sw * swtz - swt * swz) / determinant
        off = np.abs(found.z - offset[found.pair] - slope[found.pair] * t) / np.sqrt(variance)
        robust = np.minimum(1.0, HUBER / np.maximum(off, 1e-9))
    counts = np.diff(np.append(found.first, len(t)))
    return Fits(offset, slope, np.sqrt(swtt / determinant), np.sqrt(sw / determinant), counts, quickest)


def grid(hop_ns: int) -> Floats:
    """Moments (ns from the middle of the hop) at which bounds are worked out; each stands for what is around it. As
    many before the middle as after: stretches of maps begin and end there."""
    count = 2 * max(1, round(hop_ns / 2e9 / GRID_S))
    return ((np.arange(count) + 0.5) / count - 0.5) * hop_ns


def envelopes(found: Samples, hop_ns: int, slew: Floats) -> tuple[Floats, Floats]:
    """(upper, lower)[grid, pair]: e_b - e_a lies within them for all t around each grid point.

    `slew` (ratios): by how much the rate between the two clocks of a pair may differ from the stated one at any moment.
    """
    moments = grid(hop_ns)
    upper = np.empty((len(moments), found.pairs))
    lower = np.empty_like(upper)
    reach = slew * (hop_ns / len(moments) / 2)
    if not found.pairs:
        return upper, lower
    each = slew[found.pair]
    for index, moment in enumerate(moments):
        upper[index] = np.minimum.reduceat(found.upper + each * np.abs(found.upper_at - moment), found.first)
        lower[index] = np.maximum.reduceat(found.lower - each * np.abs(found.lower_at - moment), found.first)
    return upper + reach, lower - reach
