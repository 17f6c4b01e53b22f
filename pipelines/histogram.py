"""Base-2 exponential buckets, 32 an octave: bucket i holds (2^(i/32), 2^((i+1)/32)] ns; zero has its own. Integers
only.

A duration d > 0 lies in bucket i exactly if T(i) < d <= T(i + 1) with T(i) = floor(2^(i/32)): both sides are
integers.
"""

from math import ceil, isqrt

import numpy as np
from numpy.typing import NDArray

BUCKETS_AN_OCTAVE = 32
ZERO_BUCKET = -32768
"""hist_index of durations of 0 ns."""

_CELL_BITS = 8
_INT64_MAX = np.iinfo(np.int64).max


def threshold(index: int) -> int:
    """floor(2^(index / 32)) for index >= 0. A 32nd root is five square roots, and floors of floors of roots are
    exact."""
    value = 1 << index
    for _ in range(5):
        value = isqrt(value)
    return value


THRESHOLDS: NDArray[np.int64] = np.array([threshold(i) for i in range(63 * BUCKETS_AN_OCTAVE)], np.int64)
"""Upper ends of buckets -1, 0, 1, ..."""


def _cells() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each of the 256 equal parts of an octave: bucket of its smallest integer, and the last duration still in that
    bucket.

    A part is 0.4 % wide at most and a bucket 2.2 %, so no part meets more than two buckets.
    """
    octave, part = np.divmod(np.arange(53 << _CELL_BITS), 1 << _CELL_BITS)
    low = ((1 << _CELL_BITS) + part).astype(object) << octave.astype(object)
    smallest = np.array([-(-value >> _CELL_BITS) for value in low], np.int64)
    bucket = np.searchsorted(THRESHOLDS, smallest, side="left") - 1
    return bucket, THRESHOLDS[bucket + 1]


_CELL_BUCKET, _CELL_LAST = _cells()
_ONE = np.float64(1).view(np.int64) >> (52 - _CELL_BITS)


def bucket_index(dur_ns: NDArray[np.int64]) -> NDArray[np.int16]:
    """Bucket of each duration in [0, 2^53)."""
    cell = dur_ns.astype(np.float64).view(np.int64)
    cell >>= 52 - _CELL_BITS
    cell -= _ONE
    zero = dur_ns == 0
    some = bool(zero.any())
    if some:
        cell[zero] = 0
    index = _CELL_BUCKET[cell] + (dur_ns > _CELL_LAST[cell])
    if some:
        index[zero] = ZERO_BUCKET
    return index.astype(np.int16)


def bounds_of(index: int) -> tuple[int, int]:
    """(lowest, highest) integer duration of a bucket, ns; empty buckets of small durations give highest < lowest."""
    if index == ZERO_BUCKET:
        return 0, 0
    return (threshold(index) + 1 if index >= 0 else 1), threshold(index + 1)


def quantile(index: list[int], count: list[int], share: float, shortest: int, longest: int) -> tuple[int, int]:
    """(low, high) ns between which the quantile lies: bounds of the bucket of the ceil(share * n)-th smallest, cut by
    the extremes.

    2.2 % wide; raises ValueError for an empty histogram.
    """
    total = sum(count)
    if not total:
        raise ValueError("an empty histogram has no quantiles")
    rank = min(max(ceil(share * total), 1), total)
    for bucket, number in zip(index, count, strict=True):
        rank -= number
        if rank <= 0:
            low, high = bounds_of(bucket)
            return max(low, shortest), min(high, longest)
    raise ValueError("histogram counts changed while being read")
