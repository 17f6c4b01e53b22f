"""What is remembered of each pair of hosts: its quickest round trip, and how far its path leans to one side.

The lean is what a pair says beyond what all pairs together say: half of forward minus backward delay, as far as it can
be seen (what leans around no loop of the graph is taken for the clocks). Read as a whole it is a map of the network.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

SLOWEST = 1 / 30
"""A lean is the mean of a pair's first 30 hops and follows slowly then."""
LEAST_HOPS = 6
"""A path that was met less often says nothing yet."""
FORGET_HOPS = 60
PURGE_HOPS = 30
RELAX = 0.1
"""A quickest round trip that is not met again gives way by so much of the difference a hop: routes change."""
SHIFT = 1 << 31


@dataclass(frozen=True, slots=True)
class Asymmetry:
    """Forward (a to b) minus backward delay, ns, of `hops` hops; a < b are nodes."""

    a: Int64s
    b: Int64s
    ns: Floats
    hops: Int64s
    round_trip_ns: Floats

    def worst(self, most: int) -> "Asymmetry":
        """Of those that something is known of, the paths that lean the most, the worst first."""
        known = np.flatnonzero((self.hops >= LEAST_HOPS) & np.isfinite(self.ns) & np.isfinite(self.round_trip_ns))
        chosen = known[np.argsort(-np.abs(self.ns[known]), kind="stable")][:most]
        return Asymmetry(*(getattr(self, name)[chosen] for name in self.__slots__))


class Pairs:
    """Arrays over pairs, by key a * 2^31 + b, ascending."""

    def __init__(self) -> None:
        self._key = np.empty(0, np.int64)
        self._quickest = np.empty(0)
        self._lean = np.empty(0)
        self._hops = np.empty(0, np.int64)
        self._seen = np.empty(0, np.int64)
        self._purged = 0

    def __len__(self) -> int:
        return len(self._key)

    def see(self, a: Int64s, b: Int64s, number: int) -> None:
        """Makes room for pairs of this hop; those not met for long are forgotten."""
        key = a * SHIFT + b
        at = np.searchsorted(self._key, key)
        new = key[(at == len(self._key)) | (self._key[np.minimum(at, len(self._key) - 1)] != key)] if len(self) else key
        if number - self._purged >= PURGE_HOPS:
            self._keep(self._seen >= number - FORGET_HOPS)
            self._purged = number
        if len(new):
            joined = np.concatenate([self._key, new])
            order = np.argsort(joined, kind="stable")
            count = len(new)
            self._key = joined[order]
            self._quickest = np.concatenate([self._quickest, np.full(count, np.inf)])[order]
            self._lean = np.concatenate([self._lean, np.zeros(count)])[order]
            self._hops = np.concatenate([self._hops, np.zeros(count, np.int64)])[order]
            self._seen = np.concatenate([self._seen, np.full(count, number)])[order]
        self._seen[np.searchsorted(self._key, key)] = number

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        for name in ("_key", "_quickest", "_lean", "_hops", "_seen"):
            setattr(self, name, getattr(self, name)[kept])

    def quickest(self, a: Int64s, b: Int64s) -> Floats:
        """ns, inf of a pair that is new."""
        return self._quickest[np.searchsorted(self._key, a * SHIFT + b)]

    def learn(self, a: Int64s, b: Int64s, residual: Floats, quickest: Floats) -> None:
        """`residual`: by how much the pair's z is beyond what the solution says."""
        at = np.searchsorted(self._key, a * SHIFT + b)
        self._hops[at] += 1
        gain = np.maximum(1 / self._hops[at], SLOWEST)
        self._lean[at] += gain * (residual - self._lean[at])
        before = self._quickest[at]
        self._quickest[at] = np.where(quickest < before, quickest, (1 - RELAX) * before + RELAX * quickest)

    def asymmetry(self) -> Asymmetry:
        """Of all pairs known now. z is ahead by half of what b heard too late."""
        return Asymmetry(self._key // SHIFT, self._key % SHIFT, 2 * self._lean, self._hops, self._quickest)
