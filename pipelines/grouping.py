"""Numbers for groups of rows, without a sort where values are dense or come in stretches (a sort costs 44 ns a row,
this 2-10)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

DENSE = 1 << 22
"""Tables of this many cells are made rather than sorting: 4 MB of presence bits, ~1 ms."""


def ranks(values: NDArray[Any]) -> tuple[Int64s, int]:
    """(rank of each value, number of ranks): ranks order as values do; some may be unused."""
    if not len(values):
        return np.zeros(0, np.int64), 1
    low, high = int(values.min()), int(values.max())
    if high - low < max(len(values), 4096):
        return values.astype(np.int64) - low, high - low + 1
    heads = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1])))
    distinct, inverse = np.unique(values[heads], return_inverse=True)
    return np.repeat(inverse.astype(np.int64), np.diff(heads, append=len(values))), len(distinct)


def combined(parts: list[tuple[Int64s, int]]) -> tuple[Int64s, int]:
    """One code of several ranks, the first most significant."""
    code, size = parts[0]
    for more, width in parts[1:]:
        if size * width >= 1 << 62:
            code, size = ranks_of_codes(code)
        code = code * width + more
        size *= width
    return code, size


def ranks_of_codes(code: Int64s) -> tuple[Int64s, int]:
    distinct, inverse = np.unique(code, return_inverse=True)
    return inverse.astype(np.int64), len(distinct)


def added(group: Int64s, values: Int64s, groups: int) -> Int64s:
    """int64[groups]: sum of the values of each group, exact."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, values)
    return total


def pairs(first: Int64s, second: Int64s) -> np.ndarray:
    """(first, second) as values that compare in that order: two int64 as one structured value."""
    found = np.empty(len(first), np.dtype([("first", np.int64), ("second", np.int64)]))
    found["first"], found["second"] = first, second
    return found


def compact(code: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """(group of each row, code of each group): groups ascending by code, none empty. Codes in [0, size)."""
    if size > max(DENSE, 4 * len(code)):
        distinct, inverse = np.unique(code, return_inverse=True)
        return inverse.astype(np.int64), distinct
    present = np.zeros(size, np.bool_)
    present[code] = True
    distinct = np.flatnonzero(present)
    number = np.empty(size, np.int64)
    number[distinct] = np.arange(len(distinct))
    return number[code], distinct
