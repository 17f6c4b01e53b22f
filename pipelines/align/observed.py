"""What hosts told since the last hop that was solved, as arrays: exchanges, ranks of collectives, wall clocks."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.constraints import Entries
from fleetscope.pipelines.align.kalman import UNKNOWN_NS2, Knot

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NO_STAMPS = np.empty((0, 4), np.int64)
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Wall:
    """A host's wall clock showed `realtime_ns` +- half_ns at `raw_ns`, and UTC is within `max_error_ns` of it; -1: it
    is not synchronized, and says nothing of UTC."""

    node: int
    raw_ns: int
    realtime_ns: int
    half_ns: int
    max_error_ns: int


class Observed:
    """Buffers between two hops. Order does not matter, but for walls: the newest of a host counts."""

    def __init__(self) -> None:
        self.walls: dict[int, Wall] = {}
        self._blocks: list[tuple[Int64s, Int64s, Int64s]] = []
        self._ends, self._stamps = array("q"), array("q")
        """Exchanges that came one by one, not yet a block."""
        self._ranks: list[Int64s] = []

    def take_exchanges(self, a: Int64s | int, b: Int64s | int, stamps: Int64s) -> None:
        """int64[n, 4] t1..t4 of exchanges in which node `a` asked node `b`; one node for all, or one each."""
        count = len(stamps)
        self._blocks.append((np.broadcast_to(a, count), np.broadcast_to(b, count), stamps))

    def take_stamps(self, a: int, b: int, stamps: Sequence[int]) -> None:
        """The same of a few: t1..t4 of one after the other."""
        self._ends.extend((a, b) * (len(stamps) // 4))
        self._stamps.extend(stamps)

    def take_collective(
        self, group: Int64s | int, sequence: Int64s | int, node: Int64s | int, start: Int64s | int, end: Int64s | int,
        err: Int64s | int,
    ) -> None:  # fmt: skip
        """Ranks of barrier-like collectives: raw ns of `node`, true within `err`. One, or arrays of one length."""
        rows = np.stack(np.broadcast_arrays(*(np.atleast_1d(v) for v in (group, sequence, node, start, end, err))))
        self._ranks.append(rows)

    def take_wall(self, wall: Wall) -> None:
        before = self.walls.get(wall.node)
        if before is None or before.raw_ns < wall.raw_ns:
            self.walls[wall.node] = wall

    def exchanges(self) -> tuple[Int64s, Int64s, Int64s]:
        """(a, b, stamps) of all."""
        if self._ends:
            ends, stamps = (np.array(values, np.int64) for values in (self._ends, self._stamps))
            self._blocks.append((ends[0::2], ends[1::2], stamps.reshape(-1, 4)))
            self._ends, self._stamps = array("q"), array("q")
        if len(self._blocks) != 1:
            joined = [np.concatenate(column) for column in zip(*self._blocks, strict=True)] if self._blocks else []
            self._blocks = [(joined[0], joined[1], joined[2])] if joined else [(_NONE, _NONE, _NO_STAMPS)]
        return self._blocks[0]

    def keep(self, kept: Bools) -> None:
        """Of exchanges(), for hops to come."""
        a, b, stamps = self.exchanges()
        self._blocks = [(a[kept], b[kept], stamps[kept])] if kept.any() else []

    def entries(self, knot: Knot, hop_ns: int) -> tuple[Entries, int]:
        """(ranks of this hop's collectives in stated times, how many collectives). Ranks that come late are left out. A
        collective belongs to the hop in which its first rank entered; one of a single rank says nothing."""
        rows = np.concatenate(self._ranks, axis=1) if self._ranks else np.empty((6, 0), np.int64)
        group, sequence, node, start, end, err = rows
        known = knot.p00[node] < UNKNOWN_NS2
        p = np.stack([knot.stated(node, start) - err, knot.stated(node, end) + err])
        later = (p[0] >= hop_ns / 2) | ~known
        inside = ~later & (p[0] >= -hop_ns / 2)
        self._ranks = [rows[:, later]] if later.any() else []
        names, which = np.unique(np.stack([group, sequence])[:, inside], axis=1, return_inverse=True)
        return Entries(which.reshape(-1), node[inside], p[0, inside], p[1, inside]), names.shape[1]
