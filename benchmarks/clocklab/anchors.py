"""How others place a device's ticks, on the same reads: (ticks of the reads, before, after, ticks asked) -> ns."""

from collections.abc import Callable

import numpy as np

from clocklab.counters import Shape
from clocklab.oscillator import Floats, Int64s

Anchor = Callable[[Shape, Int64s, Int64s, Int64s, Int64s], Int64s]


def _line(x: Int64s, x0: int, y0: int, rate: float) -> Int64s:
    return y0 + np.rint((x - x0) * rate).astype(np.int64)


def _nominal(shape: Shape) -> float:
    return shape.period_num / shape.period_den


def single_anchor(shape: Shape, tick: Int64s, before: Int64s, after: Int64s, asked: Int64s) -> Int64s:
    """XLA's GPU collector: one pair of reads at the start, and the nominal rate."""
    return _line(asked, int(tick[0]), int(before[0] + after[0]) // 2, _nominal(shape))


def mean_of_midpoints(shape: Shape, tick: Int64s, before: Int64s, after: Int64s, asked: Int64s) -> Int64s:
    """Perfetto's RemoteClockSync: the offset is the mean over all rounds, one constant."""
    middle = (before + after) // 2
    offset: Floats = (middle - middle[0]) - (tick - tick[0]) * _nominal(shape)
    return _line(asked, int(tick[0]), int(middle[0] + round(float(offset.mean()))), _nominal(shape))


def first_and_last(shape: Shape, tick: Int64s, before: Int64s, after: Int64s, asked: Int64s) -> Int64s:
    """A sync at the start and one at the end (Intel Trace Collector): the line through both."""
    middle = (before + after) // 2
    rate = float(middle[-1] - middle[0]) / float(tick[-1] - tick[0])
    return _line(asked, int(tick[0]), int(middle[0]), rate)


ANCHORS: dict[str, Anchor] = {
    "single anchor": single_anchor,
    "mean of midpoints": mean_of_midpoints,
    "first and last": first_and_last,
}
