"""Durations in the clock's own time: N(x) = floor(x * nominal period), DESIGN 3.3.

Ends are compared in ticks; nanoseconds of a duration never depend on a clock map. Because busy time of
[a, b) is N(b) - N(a), it adds up under any split of the interval.
"""

import numpy as np
from numpy.typing import NDArray

from fleetscope.schema.rational import floor_mul


def nominal_ns(ticks: NDArray[np.int64], period_num: int, period_den: int) -> NDArray[np.int64]:
    """N(ticks) in ns, exact for |result| < 2^63. Raises OverflowError beyond."""
    return floor_mul(ticks, period_num, period_den)


def smallest_ticks(ns: NDArray[np.int64], period_num: int, period_den: int) -> NDArray[np.int64]:
    """The smallest x with N(x) >= ns, that is ceil(ns * den / num). N of it is ns for every ns that N can give."""
    return -floor_mul(-ns, period_den, period_num)
