"""All lines through a row of brackets, kept exactly in the few points that bind them.

A bracket says: at tick x the reference stood in [lo, hi] ns. A slope a belongs to some line through all brackets iff
(lo_j - hi_i) / (x_j - x_i) <= a <= (hi_j - lo_i) / (x_j - x_i) for all i < j (O'Rourke, CACM 24(9), 1981). For a
bracket that comes last, the tightest of these are tangents from its two ends to the lower convex hull of the upper ends
("roof") and the upper convex hull of the lower ends ("floor"). A vertex whose tangents all have slopes outside of what
is still possible can bind nothing any more and is dropped, so a few points stay of hundreds of brackets. A slow read
has a wide bracket and touches no hull, so no outlier rule is needed. All of it is Python integers.
"""

import itertools

from fleetscope.pipelines.align.piece import Bracket, Slope, less
from fleetscope.pipelines.align.rational import round_ratio

Point = tuple[int, int]

ANY: tuple[Slope, Slope] = ((0, 1), (1, 0))
"""Slopes from nothing to beyond all."""


class Lines:
    """Lines y(x) = a x + b that meet every bracket added. Feed ascending ticks; `add` refuses one that leaves none."""

    __slots__ = ("count", "first", "floor", "last", "roof", "shallowest", "steepest")

    def __init__(self, shallowest: Slope = ANY[0], steepest: Slope = ANY[1]) -> None:
        """Slopes are sought within [shallowest, steepest] from the beginning."""
        self.shallowest, self.steepest = shallowest, steepest
        self.roof: list[Point] = []
        self.floor: list[Point] = []
        self.first = self.last = 0
        self.count = 0

    def add(self, bracket: Bracket) -> bool:
        """False, and nothing changed, where no line through all of them is left. ValueError if ticks do not rise."""
        if self.count and bracket.x <= self.last:
            raise ValueError(f"tick {bracket.x} after {self.last}")
        low, high = self.slopes_with(bracket)
        if less(high, low):
            return False
        self.shallowest, self.steepest = low, high
        self._cover(bracket)
        self.first = self.first if self.count else bracket.x
        self.last = bracket.x
        self.count += 1
        return True

    def slopes_with(self, bracket: Bracket) -> tuple[Slope, Slope]:
        """(shallowest, steepest) of the lines that meet `bracket` as well, which lies behind all others; the first is
        greater than the second where there are none."""
        (low, low_dx), (high, high_dx) = self.shallowest, self.steepest
        for x, y in self.roof:
            rise, dx = bracket.lo - y, bracket.x - x
            if low * dx < rise * low_dx:
                low, low_dx = rise, dx
        for x, y in self.floor:
            rise, dx = bracket.hi - y, bracket.x - x
            if rise * high_dx < high * dx:
                high, high_dx = rise, dx
        return (low, low_dx), (high, high_dx)

    def _cover(self, bracket: Bracket) -> None:
        """Put the newest bracket's ends on the hulls, and drop what cannot bind any more."""
        roof, floor = self.roof, self.floor
        if not roof or not _rises_above(roof[-1], (bracket.x, bracket.hi), self.steepest):
            while len(roof) > 1 and _turns_left(roof[-2], roof[-1], (bracket.x, bracket.hi)) <= 0:
                roof.pop()
            roof.append((bracket.x, bracket.hi))
        if not floor or not _rises_below(floor[-1], (bracket.x, bracket.lo), self.shallowest):
            while len(floor) > 1 and _turns_left(floor[-2], floor[-1], (bracket.x, bracket.lo)) >= 0:
                floor.pop()
            floor.append((bracket.x, bracket.lo))
        while len(roof) > 1 and _rises_below(roof[0], roof[1], self.shallowest):
            del roof[0]
        while len(floor) > 1 and _rises_above(floor[0], floor[1], self.steepest):
            del floor[0]

    def middle(self) -> tuple[int, int, int, int]:
        """(x0, y0, n, d): of the lines with the middle slope the middle one, anchored at the last tick.

        Needs two brackets, or bounds of the slope from the beginning. n, d < 2^31 and y0 whole: the line leaves the
        exact middle by up to 1 ns.
        """
        (a, b), (c, d) = self.shallowest, self.steepest
        n, d = round_ratio(a * d + c * b, 2 * b * d)
        low, high = self.room(n, d, self.last)
        return self.last, (low + high) // (2 * d), n, d

    def spread(self, x: int) -> tuple[int, int]:
        """Lowest and highest y at tick `x` of any of the lines, to the ns outwards."""
        low: list[int] = []
        high: list[int] = []
        # Over slopes the highest y is concave, piecewise linear, and bends where a side of the hull has that slope.
        for hull, found in ((self.floor, low), (self.roof, high)):
            sides = [(b[1] - a[1], b[0] - a[0]) for a, b in itertools.pairwise(hull)]
            for n, d in (self.shallowest, self.steepest, *sides):
                if not (less((n, d), self.shallowest) or less(self.steepest, (n, d))):
                    room = self.room(n, d, x)
                    found.append(room[0] // d if hull is self.floor else -(-room[1] // d))
        return min(low), max(high)

    def room(self, n: int, d: int, x: int) -> tuple[int, int]:
        """d times the lowest and the highest y at tick `x` of lines with slope n / d through all brackets."""
        low = max(y * d + (x - at) * n for at, y in self.floor)
        high = min(y * d + (x - at) * n for at, y in self.roof)
        return low, high


def _turns_left(a: Point, b: Point, c: Point) -> int:
    """> 0 where the way a -> b -> c turns left, that is, grows steeper."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _rises_above(a: Point, b: Point, slope: Slope) -> bool:
    """Whether a -> b is as steep as `slope` or steeper."""
    return (b[1] - a[1]) * slope[1] >= slope[0] * (b[0] - a[0])


def _rises_below(a: Point, b: Point, slope: Slope) -> bool:
    return (b[1] - a[1]) * slope[1] <= slope[0] * (b[0] - a[0])
