"""Sums of squares that stay exact in int64: sum of (x^2 >> 32) and sum of (x^2 mod 2^32), added apart and never
carried."""

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

WIDE = 3_037_000_500
"""From here x^2 needs more than 63 bits: 3.037 s in ns."""

LIMIT = 1 << 47
_LOW32 = (1 << 32) - 1


def square(x: Int64s) -> tuple[Int64s, Int64s]:
    """(x^2 >> 32, x^2 mod 2^32) for 0 <= x < 2^47, exact."""
    wide = x >= WIDE
    if not wide.any():
        whole = x * x
        return whole >> 32, whole & _LOW32
    # x = a 2^24 + b: x^2 = a^2 2^48 + 2ab 2^24 + b^2, whose parts below 2^32 are at most 2^32 + 2^48.
    a, b = x >> 24, x & 0xFFFFFF
    cross = 2 * a * b
    rest = ((cross & 0xFF) << 24) + b * b
    return (a * a << 16) + (cross >> 8) + (rest >> 32), rest & _LOW32
