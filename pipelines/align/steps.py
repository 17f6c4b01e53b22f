"""Who stepped, and who lies.

A host that stepped is off by the same on all its edges; the graph then puts all of it on that host, and what was
predicted of it is missed by more than noise explains. A host that lies (or whose path is broken both ways) contradicts
itself: its edges cannot all be true. The fewest hosts that explain all contradictions are named, greedily.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

SIGMAS = 6.0
"""1e-9 a host and hop, were noise normal."""
LEAST_PEERS = 2
"""With one edge, a step cannot be told from the peer's."""


class Kind(Enum):
    """Of a verdict."""

    STEP = "step"
    CONTRADICTION = "contradiction"
    INCONSISTENT = "inconsistent"
    """What its peers say of it differs by more than paths explain: it, or its network, tells each something else."""
    COLLECTIVE = "collective"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A host between two moments of fleet time; `proof`: hosts of the negative cycle, where there is one."""

    node: int
    kind: Kind
    size_ns: float
    from_ns: int
    to_ns: int
    proof: tuple[int, ...] = ()


def stepped(off: Floats, sigma: Floats, peers: Int64s, known: NDArray[np.bool_], least_ns: float) -> NDArray[np.bool_]:
    """Hosts missed by more than `least_ns` and more than noise explains. `off` is taken from its median: what all are
    off by together is the axis, not a step."""
    judged = known & (peers >= LEAST_PEERS)
    if not judged.any():
        return judged
    apart = np.abs(off - np.median(off[judged]))
    return judged & (apart > np.maximum(least_ns, SIGMAS * sigma))


def medians(node: Int64s, values: Floats, hosts: int, share: float = 0.5) -> Floats:
    """Of the values of each node, or what that share of them lies below; 0 where it has none."""
    order = np.lexsort((values, node))
    count = np.bincount(node, minlength=hosts)
    first = np.cumsum(count) - count
    found = np.zeros(hosts)
    some = count > 0
    found[some] = values[order][(first + (share * (count - 1)).astype(np.int64))[some]]
    return found


def leaps(a: Int64s, b: Int64s, z: Floats, hosts: int, least_ns: float) -> Floats:
    """By how much each host seems to have left its map, by most of its pairs; 0 below `least_ns`. One host that leapt
    is one pair of each of its peers: their medians do not see it."""
    found = medians(np.concatenate([b, a]), np.concatenate([z, -z]), hosts)
    return np.where(np.abs(found) > least_ns, found, 0.0)


def inconsistent(
    a: Int64s, b: Int64s, residual: Floats, lean_ns: float, hosts: int, least_ns: float
) -> NDArray[np.bool_]:
    """Hosts of which more than a third of all pairs are off the solution by more than paths lean."""
    ends = np.concatenate([a, b])
    typical = medians(ends, np.abs(np.concatenate([residual, residual])), hosts, 0.67)
    enough = np.bincount(ends, minlength=hosts) > LEAST_PEERS
    return np.asarray(enough & (typical > max(least_ns, SIGMAS * lean_ns)), bool)


def culprits(a: Int64s, b: Int64s, contradicts: NDArray[np.bool_], leapt: NDArray[np.bool_]) -> list[int]:
    """The fewest hosts that touch every pair that contradicts itself: again and again the one with the most, of equals
    the one with the larger share of its pairs. Of a single pair that is left it is the one that leapt; where nothing
    says which, it is both."""
    hosts = len(leapt)
    left = contradicts.copy()
    degree = np.bincount(a, minlength=hosts) + np.bincount(b, minlength=hosts)
    named: list[int] = []
    while left.any():
        count = np.bincount(a[left], minlength=hosts) + np.bincount(b[left], minlength=hosts)
        most = int(np.argmax(count + count / np.maximum(degree, 1) / 2))
        if count[most] == 1:
            one, two = (int(ends[left][0]) for ends in (a, b))
            named += [node for node in (one, two) if leapt[node]] if leapt[one] != leapt[two] else [one, two]
            left[np.flatnonzero(left)[0]] = False
            continue
        named.append(most)
        left &= (a != most) & (b != most)
    return named
