"""Where a stretch of device time may be cut into two batches: only where no op of any line is open (DESIGN 3.1)."""

import numpy as np
from numpy.typing import NDArray


def quiet_points(start: NDArray[np.int64], dur: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(row counts, ticks): cutting at ticks[i] puts exactly counts[i] rows (they start before it) in the first part.

    At such a tick no span is open: a span that ends there lies before it, one that starts there after it. Spans of
    negative duration count as points. Ticks ascend; the ends of the whole stretch are not among them.
    """
    order = np.argsort(start, kind="stable")
    starts = start[order]
    ends = starts + np.maximum(dur[order], 0)
    if len(starts) < 2:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    latest = np.maximum.accumulate(ends)
    # Equal starts belong together, so only a later start than its predecessor's opens a new part.
    quiet = np.flatnonzero((starts[1:] >= latest[:-1]) & (starts[1:] > starts[:-1])) + 1
    return quiet, starts[quiet]


def choose_cuts(counts: NDArray[np.int64], total: int, parts: int) -> NDArray[np.intp]:
    """Indices into `counts` of the at most parts - 1 points that divide `total` rows most evenly."""
    wanted = np.arange(1, parts) * (total / parts)
    right = np.clip(np.searchsorted(counts, wanted), 0, len(counts) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.where(np.abs(counts[left] - wanted) <= np.abs(counts[right] - wanted), left, right)
    return np.unique(nearer)
