"""One segment of a clock map, and what a batch needs of it.

t = y0 + floor((x - x0) * n / d) for x in [valid_from, valid_to), ticks to fleet nanoseconds, with |true - t| <= err_ns.
Rows outside the valid range of every segment take the nearest one.
"""

from dataclasses import dataclass

from fleetscope.schema.identity import key_hash

GUARANTEED = "guaranteed"
UNSYNCED = "unsynced"
UNKNOWN_ERROR = -1
"""err_ns when nothing bounds the error: the reference was never read."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`flags` are the SpanFlag bits every row placed by it carries; `map` is a hash of the content, so a retry names it alike."""

    map: int
    x0: int
    y0: int
    n: int
    d: int
    valid_from: int
    valid_to: int
    err_ns: int
    quality: str
    flags: int

    def at(self, x: int) -> int:
        """Fleet nanoseconds of tick x."""
        return self.y0 + (x - self.x0) * self.n // self.d

    def first_tick(self, t: int) -> int:
        """The smallest tick whose image is >= t."""
        return self.x0 - (self.y0 - t) * self.d // self.n


Placement = tuple[Segment, ...]
"""Segments of one batch, ascending by valid_from, without gaps; at least one."""


def map_id(epoch: int, version: int, x0: int, y0: int, n: int, d: int) -> int:
    return key_hash("map", epoch, version, x0, y0, n, d)
