"""Stretches of host maps between the middles of two hops, with what is proved of them.

A stretch is a line through its two ends, so stretches join and rise. Bounds were worked out for the lines that had been
predicted; a better line is a known distance from those, which moves the bounds and nothing else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.edges import grid
from fleetscope.pipelines.align.kalman import UNKNOWN_NS2, Knot
from fleetscope.pipelines.align.rational import round_ratio

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROUNDING_NS = 3.0
"""Ends are whole ns, slopes are rounded down, images are floored."""
LIVE_HOPS = 3
"""How far the last stretch goes beyond the middle of the newest hop; readers go on along it."""


@dataclass(slots=True)
class Hop:
    """What is kept of a hop until it is final."""

    number: int
    predicted: Knot
    filtered: Knot
    lo: Floats
    hi: Floats
    reference: int
    lean: Floats
    known: Bools
    stepped: Bools


@dataclass(frozen=True, slots=True)
class Pieces:
    """Arrays over stretches: raw ns [x0, x1) of `node` -> fleet ns [y0, y1). true - stated is in [lo, hi] where they
    are finite; `sigma`: one sigma of the stated value."""

    node: Int64s
    x0: Int64s
    y0: Int64s
    x1: Int64s
    y1: Int64s
    lo: Floats
    hi: Floats
    sigma: Floats
    reference: int

    @classmethod
    def none(cls) -> "Pieces":
        ints, floats = np.empty(0, np.int64), np.empty(0)
        return cls(ints, ints, ints, ints, ints, floats, floats, floats, -1)

    @property
    def guaranteed(self) -> Bools:
        return np.isfinite(self.lo) & np.isfinite(self.hi)

    def slope(self, index: int) -> tuple[int, int]:
        """(n, d) < 2^31 of t = y0 + floor((x - x0) * n / d), never beyond the exact line."""
        rise, run = int(self.y1[index] - self.y0[index]), int(self.x1[index] - self.x0[index])
        return round_ratio(rise, run, below=True)


def beyond(hop: Hop, hop_ns: int) -> Pieces:
    """On from the middle of the newest hop along the filtered rates; nothing is proved of it: what a clock did after
    the newest exchanges, nobody has seen."""
    knot = hop.filtered
    middle = hop.number * hop_ns + hop_ns // 2
    used = hop.known & (knot.p00 < UNKNOWN_NS2)
    node = np.flatnonzero(used)
    x0, y0 = knot.x[node], _whole(knot.y, used)[node] + middle
    run = LIVE_HOPS * hop_ns
    sigma = np.sqrt(knot.p00 + hop.lean**2)[node]
    nothing = np.full(len(node), np.inf)
    rise = run + np.rint(run * knot.rate[node] * 1e-9).astype(np.int64)
    return Pieces(node, x0, y0, x0 + run, y0 + rise, -nothing, nothing, sigma, hop.reference)


def pieces_between(begin: Hop, end: Hop, first: Knot, last: Knot, hop_ns: int, after: Hop | None = None) -> Pieces:
    """From the middle of `begin`, stated by `first`, to that of `end`, the next hop, stated by `last`.

    Proved only with the hop `after` them, and only of hosts that did not step in any of the three: a step late in a hop
    shows in the next.
    """
    middle = begin.number * hop_ns + hop_ns // 2
    count = len(begin.known)
    used = begin.known & end.known[:count] & (first.p00[:count] < UNKNOWN_NS2)
    x0, y0 = first.x[:count], _whole(first.y[:count], used) + middle
    sigma = np.sqrt(first.p00[:count] + begin.lean**2)
    x1 = last.x[:count]
    y1 = _whole(last.y[:count], used) + middle + hop_ns
    used &= (x1 > x0) & (y1 > y0)
    gain = np.where(used, (y1 - y0 - (x1 - x0)) / np.maximum(x1 - x0, 1), 0.0)
    moments = grid(hop_ns)
    lo, hi = _moved(begin, moments[moments >= 0], moments >= 0, y0 - middle, gain, count)
    lo_end, hi_end = _moved(end, moments[moments < 0], moments < 0, y1 - middle - hop_ns, gain, count)
    lo, hi = np.minimum(lo, lo_end), np.maximum(hi, hi_end)
    if after is None or begin.reference != end.reference:
        lo, hi = np.full(count, -np.inf), np.full(count, np.inf)
    stepped = end.stepped[:count]
    sigma = np.maximum(sigma, np.sqrt(last.p00[:count] + end.lean[:count] ** 2))
    sigma = np.where(stepped, np.maximum(sigma, np.sqrt(end.predicted.p00[:count])), sigma)
    moved = begin.stepped | stepped if after is None else begin.stepped | stepped | after.stepped[:count]
    moved = moved | moved[[begin.reference]]
    lo, hi = np.where(moved, -np.inf, lo), np.where(moved, np.inf, hi)
    node = np.flatnonzero(used)
    # By how much a map is ahead is by how much the truth is behind.
    return Pieces(
        node, x0[node], y0[node], x1[node], y1[node], -hi[node] - ROUNDING_NS, -lo[node] + ROUNDING_NS, sigma[node],
        begin.reference,
    )  # fmt: skip


def _whole(y: Floats, used: Bools) -> Int64s:
    return np.rint(np.where(used, y, 0.0)).astype(np.int64)


def _moved(hop: Hop, moments: Floats, chosen: Bools, y: Int64s, gain: Floats, count: int) -> tuple[Floats, Floats]:
    """Bounds of the line that states `y` at the hop's middle and gains `gain`, over the chosen moments."""
    if hop.reference < 0 or hop.reference >= count:
        return np.full(count, -np.inf), np.full(count, np.inf)
    predicted = hop.predicted
    offset = y - predicted.y[:count]
    turn = gain - predicted.rate[:count] * 1e-9
    moved = offset + turn * moments[:, None]
    moved = moved - moved[:, [hop.reference]]
    reach = (np.abs(turn) + abs(turn[hop.reference])) * (moments[1] - moments[0] if len(moments) > 1 else 0.0)
    lo = (hop.lo[chosen][:, :count] + moved).min(axis=0) - reach
    hi = (hop.hi[chosen][:, :count] + moved).max(axis=0) + reach
    return lo, hi
