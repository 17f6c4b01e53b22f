"""Hosts of which nothing is known yet: where their clocks stand, to a millisecond, so that a line can be drawn."""

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.kalman import RATE_UNKNOWN_PPB, UNKNOWN_NS2, Knot
from fleetscope.pipelines.align.observed import Observed, Wall

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

DRIFT_NS = 1_000_000
"""What 100 ppm make of a hop: an exchange may lie so far from its middle."""
WALL_NS = 10_000_000
"""At least so wrong is a wall clock taken to be."""


def place(knot: Knot, observed: Observed, middle: int, rate_ppb: float) -> None:
    """Hosts of which nothing is known, by the quickest exchange with one that is known; the first of those that are
    connected by its wall clock, and where nobody was known before all of them then by what most wall clocks say. What
    has neither stays unknown. `rate_ppb`: at which they are taken to run."""
    unknown = knot.p00 >= UNKNOWN_NS2
    if not unknown.any():
        return
    first = bool(unknown.all())
    a, b, stamps = observed.exchanges()
    count = np.bincount(np.concatenate([a, b]), minlength=len(unknown))
    while unknown.any():
        if _by_peers(knot, a, b, stamps, unknown, rate_ppb):
            continue
        roots = [wall for wall in observed.walls.values() if unknown[wall.node]]
        if not roots:
            break
        root = max(roots, key=lambda wall: (count[wall.node], wall.max_error_ns >= 0, -wall.node))
        _set(knot, root.node, root.raw_ns - (root.realtime_ns - middle), max(root.max_error_ns, WALL_NS), rate_ppb)
        unknown[root.node] = False
    if first:
        _begin_axis(knot, middle, observed.walls)


def _begin_axis(knot: Knot, middle: int, walls: dict[int, Wall]) -> None:
    told = [wall for wall in walls.values() if wall.max_error_ns >= 0] or list(walls.values())
    told = [wall for wall in told if knot.p00[wall.node] < UNKNOWN_NS2]
    if told:
        nodes, raws = np.array([wall.node for wall in told]), np.array([wall.raw_ns for wall in told])
        ahead = knot.stated(nodes, raws) - np.array([wall.realtime_ns - middle for wall in told], float)
        knot.x += round(float(np.median(ahead)))


def _by_peers(knot: Knot, a: Int64s, b: Int64s, stamps: Int64s, unknown: Bools, rate_ppb: float) -> bool:
    one = unknown[a] != unknown[b]
    if not one.any():
        return False
    a, b, stamps = a[one], b[one], stamps[one]
    at_a, at_b = (stamps[:, 0] + stamps[:, 3]) // 2, (stamps[:, 1] + stamps[:, 2]) // 2
    round_trip = (stamps[:, 3] - stamps[:, 0]) - (stamps[:, 2] - stamps[:, 1])
    new = np.where(unknown[a], a, b)
    order = np.lexsort((round_trip, new))
    names, first = np.unique(new[order], return_index=True)
    chosen = order[first]
    old, old_raw, new_raw = (
        np.where(unknown[a], two, one)[chosen] for one, two in ((a, b), (at_a, at_b), (at_b, at_a))
    )
    for name, raw, at, width in zip(names, new_raw, knot.stated(old, old_raw), round_trip[chosen], strict=True):
        _set(knot, int(name), int(raw) - round(float(at)), int(width) + DRIFT_NS, rate_ppb)
    unknown[names] = False
    return True


def _set(knot: Knot, node: int, x: int, sigma_ns: int, rate_ppb: float) -> None:
    knot.x[node], knot.y[node], knot.rate[node] = x, 0.0, rate_ppb
    knot.p00[node], knot.p01[node], knot.p11[node] = float(sigma_ns) ** 2, 0.0, RATE_UNKNOWN_PPB**2
