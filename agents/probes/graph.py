"""Whom a host probes: a random graph that every host derives from the same list, and that changes slowly.

Each of `degree` rings orders all hosts by a hash of its own; a host probes its successor in each. So every host probes
and is probed by as many, nobody coordinates, and the graph is connected as rings are. One ring is drawn anew every
PERIOD_S / degree: lines fitted over a minute keep their edges. Every second ring is of the host's own group (rack or
slice), where paths are short, the others of all. Hosts whose wall clocks disagree are at different drawings for a
while, which is harmless: whoever is in the list is answered.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERIOD_S = 600
GROUP_LEAST = 4
"""A ring of fewer tells nothing that the ring of all does not."""


def _mixed(ids: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """splitmix64's finaliser of id + salt * golden ratio: a permutation of 64-bit numbers for each salt."""
    value = ids + np.uint64(salt * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def successor(ids: NDArray[np.uint64], me: int, salt: int) -> int | None:
    """Index of the id that follows `me` in the ring of `salt`; None if there is no other."""
    others = np.flatnonzero(ids != np.uint64(me))
    if not len(others):
        return None
    own = _mixed(np.array([me], np.uint64), salt)[0]
    # Distances around the ring of 64-bit numbers wrap by themselves.
    return int(others[np.argmin(_mixed(ids[others], salt) - own)])


def peers(ids: Sequence[int], groups: Sequence[str], me: int, group: str, degree: int, now_s: float) -> list[int]:
    """Indices into `ids` (unsigned 64-bit) of at most `degree` distinct hosts that `me` probes at `now_s` (Unix)."""
    every = np.array(ids, np.uint64)
    near = np.flatnonzero(np.array([name == group for name in groups], bool)) if group else np.empty(0, np.int64)
    found: dict[int, None] = {}
    for ring in range(degree):
        drawing = int((now_s + ring * PERIOD_S / degree) // PERIOD_S)
        salt = drawing * degree + ring
        if ring % 2 and len(near) >= GROUP_LEAST:
            index = successor(every[near], me, salt)
            index = None if index is None else int(near[index])
        else:
            index = successor(every, me, salt)
        if index is not None:
            found[index] = None
    return list(found)
