"""floor(x * n / d) on int64 arrays without leaving int64: durations by a period, and map segments (DESIGN 3.3).

A plain product x * n overflows int64 for timestamps; splitting x = q*d + r keeps every intermediate below 2^63
when n, d < 2^31 and the result does.
"""

from math import gcd

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Terms = Int64s | int
"""One value for all rows, or one a row."""

TERM_LIMIT = 1 << 31
"""n and d of a map or period are below this: r * n then fits in 62 bits."""


def floor_mul(x: NDArray[np.int64], n: int, d: int) -> NDArray[np.int64]:
    """floor(x * n / d) elementwise. 0 < n, d; both below 2^31 after reduction, else ValueError."""
    if n <= 0 or d <= 0:
        raise ValueError(f"ratio {n}/{d} must be positive")
    common = gcd(n, d)
    n, d = n // common, d // common
    if n >= TERM_LIMIT or d >= TERM_LIMIT:
        raise ValueError(f"ratio {n}/{d} has a term of 2^31 or more")
    if d == 1:
        return x * n if n != 1 else x.copy()
    q = x // d  # by a scalar it takes an eighth of np.divmod's time
    result: NDArray[np.int64] = q * n + ((x - q * d) * n) // d
    return result


def apply(x: Int64s, x0: Terms, y0: Terms, n: Terms, d: Terms) -> Int64s:
    """y0 + floor((x - x0) * n / d) elementwise; 0 < n, d < 2^31. Exact while the result fits int64."""
    shifted = x - x0
    q = shifted // d
    shifted -= q * d
    shifted *= n
    shifted //= d
    q *= n
    q += shifted
    q += y0
    return q


def first_ticks(t: Int64s, x0: Terms, y0: Terms, n: Terms, d: Terms) -> Int64s:
    """The smallest x whose image is >= t, elementwise: x0 + ceil((t - y0) * d / n)."""
    return np.negative(apply(np.negative(t), np.negative(y0), np.negative(x0), d, n))
