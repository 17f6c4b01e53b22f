"""Sums of squares and products that stay exact in int64: sum of (x y >> 32) and sum of (x y mod 2^32), added apart
and never carried."""

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
    return product(x, x)


def product(x: Int64s, y: Int64s) -> tuple[Int64s, Int64s]:
    """(x y >> 32, x y mod 2^32) for 0 <= x, y < 2^47, exact."""
    # x = a 2^24 + b, y = c 2^24 + d: x y = ac 2^48 + (ad + bc) 2^24 + bd, whose parts below 2^32 are at most
    # 2^32 + 2^48.
    a, b, c, d = x >> 24, x & 0xFFFFFF, y >> 24, y & 0xFFFFFF
    cross = a * d + b * c
    rest = ((cross & 0xFF) << 24) + b * d
    return (a * c << 16) + (cross >> 8) + (rest >> 32), rest & _LOW32
