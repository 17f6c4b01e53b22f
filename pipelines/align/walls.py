"""Wall clocks beside the fleet: UTC by what most of them say, and hosts that have nothing but theirs."""

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align import kalman, utc
from fleetscope.pipelines.align.kalman import Knot
from fleetscope.pipelines.align.observed import Wall

Floats = NDArray[np.float64]

WALL_HOPS = 3
"""A wall clock read longer ago says nothing of now."""
LEAST_NS = 1_000
"""At least so wrong is a wall clock taken to be, whatever it says of itself."""


def _ahead(knot: Knot, middle: int, walls: list[Wall]) -> Floats:
    """Stated fleet time minus what each wall clock showed."""
    nodes, raws = np.array([wall.node for wall in walls]), np.array([wall.raw_ns for wall in walls])
    shown = np.array([wall.realtime_ns - middle for wall in walls], np.float64)
    return np.asarray(knot.stated(nodes, raws) - shown, np.float64)


def fresh(knot: Knot, walls: list[Wall], hop_ns: int) -> list[Wall]:
    """Those read in this hop, or shortly before or after."""
    nodes, raws = (np.array(values, np.int64) for values in ([w.node for w in walls], [w.raw_ns for w in walls]))
    near = np.abs(knot.stated(nodes, raws)) < WALL_HOPS * hop_ns
    return [wall for wall, kept in zip(walls, near.tolist(), strict=True) if kept]


def follow(knot: Knot, middle: int, walls: list[Wall]) -> Knot:
    """Hosts led by their wall clocks, each within what it says of itself."""
    if not walls:
        return knot
    off, sigma, measured = (np.zeros(len(knot.x)) for _ in range(3))
    for wall, ahead in zip(walls, _ahead(knot, middle, walls).tolist(), strict=True):
        off[wall.node], sigma[wall.node], measured[wall.node] = ahead, max(wall.max_error_ns, LEAST_NS) / 2, 1
    return kalman.update(knot, off, sigma, measured > 0)


def offset(knot: Knot, middle: int, walls: list[Wall], lo: Floats, hi: Floats) -> utc.Offset | None:
    """fleet - UTC by hosts whose maps are ahead of the fleet by [lo, hi] each; hosts by node."""
    if not walls:
        return None
    ahead = _ahead(knot, middle, walls)
    within = np.array([wall.max_error_ns + wall.half_ns for wall in walls], float)
    nodes = [wall.node for wall in walls]
    found = utc.agree(ahead - within - hi[nodes], ahead + within - lo[nodes])
    if found is None:
        return None
    return utc.Offset(found.lo_ns, found.hi_ns, tuple(nodes[i] for i in found.agreeing))
