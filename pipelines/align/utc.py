"""UTC as one more node below a fleet that is already solved.

Each synchronized host says: UTC is within max_error of my wall clock. Its wall clock was read at a moment whose fleet
time is known, so fleet - UTC lies in an interval. Where most of them overlap is taken (Marzullo 1984, as NTP does);
of hosts whose interval lies elsewhere the wall clock, or what they say of it, is false: they are outvoted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEAD_S = 1_000.0
"""An offset to UTC is led back over so long, at most by the slew that is allowed."""


@dataclass(frozen=True, slots=True)
class Offset:
    """fleet - UTC in [lo, hi] ns, by what `agreeing` hosts (indices) say."""

    lo_ns: float
    hi_ns: float
    agreeing: tuple[int, ...]

    @property
    def middle_ns(self) -> float:
        return (self.lo_ns + self.hi_ns) / 2


def agree(low: Floats, high: Floats) -> Offset | None:
    """Where most of the intervals overlap; None if no more than half of them do."""
    if not len(low):
        return None
    ends = np.concatenate([low, high])
    kind = np.concatenate([np.zeros(len(low)), np.ones(len(high))])
    order = np.lexsort((kind, ends))
    depth = np.cumsum(np.where(kind[order] == 0, 1, -1))
    best = int(np.argmax(depth))
    if 2 * int(depth[best]) <= len(low):
        return None
    lo, hi = float(ends[order[best]]), float(ends[order[best + 1]])
    inside = (low <= hi) & (high >= lo)
    return Offset(lo, hi, tuple(np.flatnonzero(inside).tolist()))


def slew(offset: Offset | None, now_ppb: float, limit_ppb: float) -> float:
    """Rate (ppb) at which fleet time shall leave its own pace to come nearer to UTC: 0 within the interval."""
    if offset is None:
        return now_ppb / 2 if abs(now_ppb) > 1 else 0.0
    away = offset.lo_ns if offset.lo_ns > 0 else offset.hi_ns if offset.hi_ns < 0 else 0.0
    return float(np.clip(-away / LEAD_S, -limit_ppb, limit_ppb))
