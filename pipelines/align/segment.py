"""One segment of a clock map, and what a batch needs of it.

t = y0 + floor((x - x0) * n / d) for x in [valid_from, valid_to), ticks to fleet nanoseconds, with |true - t| <= err_ns.
Rows outside the valid range of every segment take the nearest one.
"""

from dataclasses import dataclass

from fleetscope.pipelines.align.piece import Piece
from fleetscope.pipelines.align.rational import ratio_error, round_ratio
from fleetscope.schema.identity import key_hash
from fleetscope.schema.vocabulary import WRITTEN

UNKNOWN_ERROR = -1
"""err_ns when nothing bounds the error: the reference was never read."""
ERROR_LIMIT_NS = 366 * 86_400_000_000_000
"""A bound of a year bounds nothing, and one nonsensical snapshot can make bounds that do not fit int64."""

SPAN_TICKS = 1 << 40
"""Ticks over which rounding a slope is charged to the bound: 23 minutes of 1.25 ns ticks; longer segments are
charged their length."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`flags` are the SpanFlag bits every row placed by it carries; `map` is a hash of the content, so a retry names
    it alike."""

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
        """The smallest tick whose image is >= t: the tick at which a window that begins at t begins."""
        return self.x0 - (self.y0 - t) * self.d // self.n


Placement = tuple[Segment, ...]
"""Segments of one batch, ascending by valid_from, without gaps; at least one."""


def segment(
    epoch: int, line: tuple[int, int, int, int], valid: tuple[int, int], err_ns: int, quality: str, flags: int
) -> Segment:
    """From line (x0, y0, n, d). The id is a hash of what a row needs to be placed again, and of what was promised."""
    x0, y0, n, d = line
    if err_ns > ERROR_LIMIT_NS:
        err_ns = UNKNOWN_ERROR
    name = key_hash("map", epoch, WRITTEN, x0, y0, n, d, err_ns, quality)
    return Segment(name, x0, y0, n, d, valid[0], valid[1], err_ns, quality, flags)


def compose(first: Piece, second: Piece, begin: int, end: int) -> tuple[tuple[int, int, int, int], int]:
    """second(first(x)) for x in [begin, end) as one line (x0, y0, n, d), and its error in ns.

    Anchored at `begin`, rounded up there and with a slope never above the exact one: the exact image f then
    satisfies f - 1 - slope error <= stated < f + 1, and where pieces join without going back the stated times never
    go back either.
    """
    num, den = first.n * second.n, first.d * second.d
    # f(begin) = second.y0 + ((begin - x0) * n / d + y0 - second.x0) * second.n / second.d, over the denominator d *
    # second.d
    exact = ((begin - first.x0) * first.n + (first.y0 - second.x0) * first.d) * second.n
    y0 = second.y0 - (-exact // den)
    n, d = round_ratio(num, den, below=True)
    span = max(end - begin, SPAN_TICKS)
    err = -(-first.err * second.n // second.d) + second.err + 1 + ratio_error(num, den, n, d, span)
    return (begin, y0, n, d), err
