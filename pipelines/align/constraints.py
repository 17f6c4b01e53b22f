"""What is proved between hosts: difference constraints, shortest paths, and negative cycles.

Every fact is e_b - e_a <= w, with e_h by how much the map of host h is ahead. Then e_h - e_ref <= the shortest path
from ref to h, and >= minus the one back: the tightest interval there is (a simple temporal network; native-clock.md
B3). A cycle of negative length says e_h < e_h: some input of it is false. Many moments (grid points) are solved at
once.

A collective that no rank leaves before all have entered is one node V: start_j - e_j <= V <= end_i - e_i, 2 N edges
for N ranks instead of N^2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_ROUNDS = 256
"""Of relaxation. Paths of a fleet have some ten edges; one that goes on beyond this is going round a cycle."""
NEGATIVE_NS = 1.0
"""A cycle must be this much below zero: stated times are rounded."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """e_target - e_source <= width[grid, edge], ns."""

    source: Int64s
    target: Int64s
    width: Floats

    def plus(self, other: "Constraints") -> "Constraints":
        return Constraints(
            np.concatenate([self.source, other.source]),
            np.concatenate([self.target, other.target]),
            np.concatenate([self.width, other.width], axis=1),
        )


@dataclass(frozen=True, slots=True)
class Bounds:
    """lo <= e_h - e_ref <= hi; [grid, host], -inf and inf where nothing ties a host to the reference."""

    lo: Floats
    hi: Floats


@dataclass(frozen=True, slots=True)
class Cycle:
    """Hosts of a contradiction in the order of its facts, and by how much it cannot be."""

    nodes: tuple[int, ...]
    grid: int
    short_ns: float


def between(a: Int64s, b: Int64s, upper: Floats, lower: Floats) -> Constraints:
    """lower <= e_b - e_a <= upper, [grid, pair], as constraints."""
    return Constraints(np.concatenate([a, b]), np.concatenate([b, a]), np.concatenate([upper, -lower], axis=1))


def bounds(nodes: int, constraints: Constraints, reference: int) -> Bounds | Cycle:
    """Intervals of all nodes, or a contradiction."""
    there = _paths(nodes, constraints.source, constraints.target, constraints.width, reference)
    if isinstance(there, Cycle):
        return there
    back = _paths(nodes, constraints.target, constraints.source, constraints.width, reference)
    if isinstance(back, Cycle):
        return back
    return Bounds(-back, there)


def central(nodes: int, constraints: Constraints, candidates: list[int]) -> int:
    """The candidate that ties most nodes, of these the one with the narrowest intervals; -1 without candidates."""
    middle = constraints.width[[len(constraints.width) // 2]]
    facts = Constraints(constraints.source, constraints.target, middle)
    best, chosen = (-1, 0.0), -1
    for candidate in candidates:
        found = bounds(nodes, facts, candidate)
        if isinstance(found, Cycle):
            continue
        width = (found.hi - found.lo)[0]
        tied = np.isfinite(width)
        score = (int(tied.sum()), -float(np.median(width[tied])))
        if score > best:
            best, chosen = score, candidate
    return chosen


def _paths(nodes: int, source: Int64s, target: Int64s, width: Floats, reference: int) -> Floats | Cycle:
    """Bellman-Ford, all targets of a round at once; only edges out of nodes that came nearer are looked at."""
    order = np.argsort(target, kind="stable")
    source, target, width = source[order], target[order], np.ascontiguousarray(width[:, order])
    distance = np.full((width.shape[0], nodes), np.inf)
    distance[:, reference] = 0
    changed = np.zeros(nodes, bool)
    changed[reference] = True
    for _ in range(min(nodes, MOST_ROUNDS) + 1):
        active = np.flatnonzero(changed[source])
        if not len(active):
            return distance
        reached = target[active]
        first = np.flatnonzero(np.concatenate([[True], reached[1:] != reached[:-1]]))
        best = np.minimum.reduceat(distance[:, source[active]] + width[:, active], first, axis=1)
        ends = reached[first]
        nearer = (best < distance[:, ends] - 1e-6).any(axis=0)
        distance[:, ends] = np.minimum(distance[:, ends], best)
        if (distance[:, reference] < -NEGATIVE_NS).any():
            break
        changed[:] = False
        changed[ends[nearer]] = True
    return _cycle(nodes, source, target, width, distance)


def _cycle(nodes: int, source: Int64s, target: Int64s, width: Floats, distance: Floats) -> Cycle:
    """The contradiction that relaxation ran into: Bellman-Ford with predecessors on the moment that shows it, from all
    nodes at once."""
    moment = int(np.argmin(distance.min(axis=1)))
    reach = np.zeros(nodes)
    before = np.full(nodes, -1)
    costs = width[moment]
    last = -1
    for _ in range(nodes + 1):
        candidate = reach[source] + costs
        order = np.lexsort((candidate, target))
        ends, first = np.unique(target[order], return_index=True)
        chosen = order[first]
        nearer = candidate[chosen] < reach[ends] - 1e-6
        if not nearer.any():
            break
        reach[ends[nearer]] = candidate[chosen][nearer]
        before[ends[nearer]] = source[chosen][nearer]
        last = int(ends[nearer][0])
        found = _loop(before, last)
        if found:
            length = _length(found, source, target, costs)
            if length < -NEGATIVE_NS:
                return Cycle(found, moment, -length)
    return Cycle((last,) if last >= 0 else (), moment, 0.0)


def _loop(before: Int64s, start: int) -> tuple[int, ...]:
    seen: dict[int, int] = {}
    path: list[int] = []
    at = start
    while at >= 0 and at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = int(before[at])
    return tuple(reversed(path[seen[at] :])) if at >= 0 else ()


def _length(nodes: tuple[int, ...], source: Int64s, target: Int64s, costs: Floats) -> float:
    total = 0.0
    for one, two in zip(nodes, (*nodes[1:], nodes[0]), strict=True):
        total += float(np.min(costs[(source == one) & (target == two)], initial=np.inf))
    return total


@dataclass(frozen=True, slots=True)
class Entries:
    """Ranks of collectives of one hop: `which` numbers collectives from 0; stated times from the middle of the hop, ns,
    widened by their own error."""

    which: Int64s
    host: Int64s
    start: Floats
    end: Floats

    def only(self, kept: NDArray[np.bool_]) -> "Entries":
        return Entries(self.which[kept], self.host[kept], self.start[kept], self.end[kept])


def impossible_by(entries: Entries, count: int, lo: Floats, hi: Floats) -> Floats:
    """By how many ns each collective cannot have been: a rank left so long before another can have entered, by bounds
    that hold without them; negative where it can. `lo`, `hi`: of each host over the whole hop."""
    earliest = np.full(count, -np.inf)
    latest = np.full(count, np.inf)
    np.maximum.at(earliest, entries.which, entries.start - hi[entries.host])
    np.minimum.at(latest, entries.which, entries.end - lo[entries.host])
    return np.asarray(earliest - latest - NEGATIVE_NS, np.float64)


def through_collectives(
    entries: Entries, first_node: int, moments: Floats, reach_ns: float, apart: Floats
) -> Constraints:
    """Constraints of nodes `first_node` + which (they hold -V): e_i <= end_i + V', V' <= e_j - start_j. `apart`, a
    rank: by how much its host's clock may leave its stated rate."""
    into = -entries.start + apart * (np.abs(moments[:, None] - entries.start) + reach_ns)
    out = entries.end + apart * (np.abs(moments[:, None] - entries.end) + reach_ns)
    node = entries.which + first_node
    return Constraints(
        np.concatenate([entries.host, node]), np.concatenate([node, entries.host]), np.concatenate([into, out], axis=1)
    )
