"""The final map of a clock to its reference: the fewest lines through all brackets, each with a proved error.

Greedy: a line goes on as long as some line meets every bracket since it began; the first bracket that leaves none
begins the next, with as many of those before it as one line can meet, up to OVERLAP. What is stated is the middle of
the lines that are possible in the end. A piece is told when the next line is complete as well, for where they join
depends on both: by a jump forward in the middle of what they share, where they cross if that is near, else by a short
piece of its own. So stated times rise with the ticks, always. At its ends, where few brackets hold it, no line is used.

The error of a piece follows from assumption A of bracket.py: the rate at an instant differs from its mean over any part
of a line's brackets by at most `slew_ppb`. The mean lies between the slopes that are possible, so the truth leaves a
line by at most w + rho * distance from a bracket of width w that the line meets. Between two brackets these cones are
highest where they cross, (w1 + w2 + rho * gap) / 2. A bracket inside of a neighbour's cone adds nothing and is passed
over (`_Cones`); so what is carried is a few numbers, however long a line holds. Of a clock that is `straight` the truth
is one of the lines that are possible: no further from the middle than these.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from fleetscope.pipelines.align.lines import Lines
from fleetscope.pipelines.align.piece import BILLION, Behaviour, Bracket, Piece, Slope, difference_ppb, widen
from fleetscope.pipelines.align.rational import round_ratio

OVERLAP = 15
"""Brackets that a line shares with the one before. Without them the largest error is 1.35 us, not 0.8 [measured]."""

MISS_PART = 10
"""A line may miss a bracket by a tenth of its width: 43 segments an hour at 1 Hz, 2 us brackets and 0.2 ppm wander
instead of 63, p99 0.39 instead of 0.35 us [measured]."""

LONGEST_NS = 120_000_000_000
"""A line that holds for longer is told all the same: rows do not wait for ever for their final map."""

SLOWEST = 999
"""In thousandths of nominal: a connecting piece may be that slow, to keep order."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A complete line but for its ends. It meets every bracket from tick `first` to `last`, where they are so wide, in
    ns; `err`: proved between them; `rho_ppb`: how far the true rate may be from the line's."""

    x0: int
    y0: int
    n: int
    d: int
    first: int
    last: int
    first_width: int
    last_width: int
    err: int
    rho_ppb: int

    def above(self, other: "Stretch", x: int) -> int:
        """By how much this line lies above `other` at tick x, times both denominators."""
        mine = (self.y0 * self.d + (x - self.x0) * self.n) * other.d
        return mine - (other.y0 * other.d + (x - other.x0) * other.n) * self.d

    def piece(self, begin: int, end: int, err: int) -> Piece:
        return Piece(self.x0, self.y0, self.n, self.d, begin, end, err)


@dataclass(slots=True)
class _Cones:
    """How high the cones of a row of brackets cross, added one by one. Heights are for rho = slew; for a larger rho
    they grow with `gap`."""

    slew_ppb: int
    period: Slope
    first: int
    newest: tuple[int, int]
    """(tick, width) of the newest bracket that is in no cone of those before it; the next may still cover it."""
    settled: tuple[int, int] | None = None
    """The one before it."""
    head: int = 0
    """Height at `first`, where the first bracket is covered by another."""
    worst: int = 0
    """Highest crossing, doubled: w1 + w2 + slew * gap."""
    gap: int = 0
    """Longest distance in ticks between two brackets that count."""

    def grown(self, ticks: int, ppb: int | None = None) -> int:
        """ns by which clocks part in that time at a difference of so many ppb of rate, rounded up."""
        num, den = self.period
        return -(-ticks * num * (self.slew_ppb if ppb is None else ppb) // (den * BILLION))

    def add(self, x: int, width: int) -> None:
        at, newest = self.newest
        if width >= newest + self.grown(x - at):
            return
        if newest < width + self.grown(x - at):
            self._settle()
        self.newest = (x, width)

    def _settle(self) -> None:
        x, width = self.newest
        if self.settled is None:
            self.head, self.gap = width + self.grown(x - self.first), x - self.first
        else:
            at, before = self.settled
            self.worst = max(self.worst, before + width + self.grown(x - at), 2 * width)
            self.gap = max(self.gap, x - at)
        self.settled = self.newest

    def close(self, last: int, apart_ppb: int) -> tuple[int, int, int]:
        """(height at the first tick, highest, height at tick `last`), for rates that may be `apart_ppb` further off."""
        self._settle()
        x, width = self.newest
        more = self.grown(self.gap, apart_ppb)
        head, tail = self.head + more, width + self.grown(last - x, self.slew_ppb + apart_ppb)
        return head, max(head, -(-(self.worst + more) // 2), tail), tail


class LongestLine:
    """Feed `add` the brackets that are believed, ascending; it returns the pieces that are final by then."""

    __slots__ = ("_begin", "_behaviour", "_cones", "_done", "_err", "_lines", "_period", "_recent")

    def __init__(self, period_num: int, period_den: int, behaviour: Behaviour) -> None:
        self._period = (period_num, period_den)
        self._behaviour = behaviour
        self._lines = Lines()
        self._recent: list[Bracket] = []
        self._cones = _Cones(behaviour.slew_ppb, self._period, 0, (0, 0))
        self._done: Stretch | None = None
        self._begin = 0
        """Tick at which the piece of `_done` begins."""
        self._err = 0
        """What the join before `_done` adds to its error."""

    def add(self, bracket: Bracket, about: Slope | None = None) -> list[Piece]:
        """`about`: the rate that is known, where the nominal one may be wrong."""
        pieces = self._add(bracket, about)
        self._recent = [*self._recent[1 - OVERLAP :], bracket]
        return pieces

    def _add(self, bracket: Bracket, about: Slope | None) -> list[Piece]:
        if not self._lines.count:
            self._start([bracket], about)
            return []
        far = bracket.x - self._lines.first > LONGEST_NS * self._period[1] // self._period[0]
        if not far and self._lines.add(self._widened(bracket)):
            self._cones.add(bracket.x, _miss(bracket))
            return []
        pieces = self._complete()
        self._start([*self._shared(bracket, about), bracket], about)
        return pieces

    def cut(self) -> list[Piece]:
        """The clock does not go on as it did: what is complete so far, to its last bracket. The next begins anew."""
        pieces = self._complete() if self._lines.count else []
        if self._done is not None and self._done.last >= self._begin:
            pieces.append(self._done.piece(self._begin, self._done.last + 1, max(self._done.err, self._err)))
        self._lines, self._done, self._recent = Lines(), None, []
        return pieces

    # -- the open line ---------------------------------------------------------------------------------------------

    def _start(self, brackets: Sequence[Bracket], about: Slope | None) -> None:
        self._lines = Lines(*self._slopes(about))
        first = brackets[0]
        self._cones = _Cones(self._behaviour.slew_ppb, self._period, first.x, (first.x, _miss(first)))
        for bracket in brackets:
            self._lines.add(self._widened(bracket))
            self._cones.add(bracket.x, _miss(bracket))

    def _widened(self, bracket: Bracket) -> Bracket:
        slack = 0 if self._behaviour.straight else (bracket.hi - bracket.lo) // MISS_PART
        return Bracket(bracket.x, bracket.lo - slack, bracket.hi + slack)

    def _slopes(self, about: Slope | None) -> tuple[Slope, Slope]:
        return widen(about or self._period, self._behaviour.drift_ppb)

    def _shared(self, bracket: Bracket, about: Slope | None) -> list[Bracket]:
        """The longest row of brackets right before `bracket` that one line meets together with it."""
        back = Lines(*self._slopes(about))
        back.add(_turned(self._widened(bracket)))
        shared: list[Bracket] = []
        for other in reversed(self._recent):
            if not back.add(_turned(self._widened(other))):
                break
            shared.append(other)
        return shared[::-1]

    # -- joining ---------------------------------------------------------------------------------------------------

    def _complete(self) -> list[Piece]:
        """Close the open line and join the one before to it."""
        lines = self._lines
        x0, y0, n, d = lines.middle()
        apart = max(difference_ppb((n, d), lines.shallowest), difference_ppb((n, d), lines.steepest))
        if self._behaviour.straight:
            head = err = tail = self._straight(x0, y0, n, d)
        else:
            head, err, tail = self._cones.close(lines.last, apart)
        # + 1: the middle is rounded to whole ns.
        rho = self._behaviour.slew_ppb + apart
        new = Stretch(x0, y0, n, d, lines.first, lines.last, head, tail, err + 1, rho)
        if self._done is None:
            self._done, self._begin, self._err = new, new.first, 0
            return []
        return [piece for piece in self._join(self._done, new) if piece.end > piece.begin]

    def _straight(self, x0: int, y0: int, n: int, d: int) -> int:
        """The error of a line if the truth is one of the lines: at the middle of the brackets, and by the slope to
        their ends."""
        lines = self._lines
        middle = (lines.first + lines.last) // 2
        low, high = lines.spread(middle)
        y = y0 + (middle - x0) * n // d
        steepest = max(
            -(-abs(a * d - n * b) * (lines.last - middle + 1) // (b * d)) for a, b in (lines.shallowest, lines.steepest)
        )
        return max(high - y, y - low) + steepest + 1

    def _join(self, old: Stretch, new: Stretch) -> Iterator[Piece]:
        """The piece of `old`, and one between where they need it; `new` is what waits from then on."""
        low, high = min(new.first, old.last), max(new.first, old.last)
        apart = -(-max(abs(new.above(old, x)) for x in (low, high)) // (old.d * new.d))
        between = 0
        if new.first > old.last:
            gap = self._cones.grown(new.first - old.last, max(old.rho_ppb, new.rho_ppb))
            between = -(-(old.last_width + new.first_width + apart + gap) // 2) + 1
        err, new_err = max(old.err, self._err, between), between
        border = self._border(old, new, (low + high) // 2 + 1)
        if border is None:
            start = max(low, self._begin)
            yield old.piece(self._begin, start, err)
            self._done, self._err = new, new_err
            yield self._between(old, new, start, max(err, new.err) + apart)
            return
        yield old.piece(self._begin, border, err + apart if border > high else err)
        self._done, self._begin = new, border
        self._err = max(new_err, err + apart) if border <= low else new_err

    def _border(self, old: Stretch, new: Stretch, middle: int) -> int | None:
        """The tick from which on `new` holds so that order is kept: `middle`, else near where they cross, between the
        middles of both. None: there is none."""
        middle = max(middle, self._begin)
        height = new.above(old, middle)
        if height >= 0:
            return middle
        grows = new.n * old.d - old.n * new.d
        if grows == 0:
            return None
        # Growing: the first tick at which `new` is not below; shrinking: the last one.
        border = middle - height // grows if grows > 0 else middle + height // -grows
        nearest = max((old.first + old.last) // 2, self._begin)
        return border if nearest <= border <= (new.first + new.last) // 2 else None

    def _between(self, old: Stretch, new: Stretch, start: int, err: int) -> Piece:
        """From a point of `old` to one of `new`, the nearest with which it is not too slow: its middle or its end."""
        num, den = self._period
        y = old.y0 - (old.x0 - start) * old.n // old.d
        for end in (max(new.first, old.last), (new.first + new.last) // 2, new.last, new.last + old.last - old.first):
            rise = new.y0 + (end - new.x0) * new.n // new.d - y
            if end > start and rise * den * 1000 >= (end - start) * num * SLOWEST:
                break
        else:
            rise = max(rise, -(-(end - start) * num // (2 * den)))
            err += abs(rise)
        self._begin, self._err = end, max(self._err, err)
        return Piece(start, y, *round_ratio(rise, end - start, below=True), start, end, err)

    # -- state -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Integers only, relative to the open line's first tick: ~150 digits."""
        lines = self._lines
        if not lines.count:
            return []
        x, y = lines.first, lines.floor[0][1]
        hulls = [[[at - x, self._flat(at - x, ns - y)] for at, ns in hull] for hull in (lines.floor, lines.roof)]
        cones = self._cones
        (at, width), settled = cones.newest, cones.settled
        cone = [at - x, width, cones.head, cones.worst, cones.gap, *((settled[0] - x, settled[1]) if settled else ())]
        done = self._done
        waits = [] if done is None else [
            *(done.x0 - x, self._flat(done.x0 - x, done.y0 - y), done.n, done.d, done.first - x, done.last - x),
            *astuple(done)[6:],
            *(self._begin - x, self._err),
        ]  # fmt: skip
        recent = [[b.x - x, self._flat(b.x - x, b.lo - y), b.hi - b.lo] for b in self._recent]
        return [x, y, lines.count, lines.last - x, lines.shallowest, lines.steepest, *hulls, cone, waits, recent]

    def _flat(self, dx: int, dy: int) -> int:
        return dy - dx * self._period[0] // self._period[1]

    @classmethod
    def load(cls, period_num: int, period_den: int, behaviour: Behaviour, value: list[Any]) -> "LongestLine":
        line = cls(period_num, period_den, behaviour)
        if not value:
            return line
        x, y, count, last, low, high, floor, roof, cone, waits, recent = value

        def points(hull: list[list[int]]) -> list[tuple[int, int]]:
            return [(x + dx, y + dy + dx * period_num // period_den) for dx, dy in hull]

        lines = line._lines = Lines((low[0], low[1]), (high[0], high[1]))
        lines.floor, lines.roof, lines.count, lines.first, lines.last = points(floor), points(roof), count, x, x + last
        at_lo = zip(points([flat[:2] for flat in recent]), (flat[2] for flat in recent), strict=True)
        line._recent = [Bracket(at, lo, lo + width) for (at, lo), width in at_lo]
        at, width, head, worst, gap, *settled = cone
        before = (x + settled[0], settled[1]) if settled else None
        line._cones = _Cones(
            behaviour.slew_ppb, line._period, x, (x + at, width), before, head=head, worst=worst, gap=gap
        )
        if waits:
            ((x0, y0),) = points([waits[:2]])
            n, d, first, end, *rest, begin, line._err = waits[2:]
            line._done, line._begin = Stretch(x0, y0, n, d, x + first, x + end, *rest), x + begin
        return line


def _miss(bracket: Bracket) -> int:
    """How far the truth may be from a line that meets the bracket, or misses it by as much as it may."""
    return bracket.hi - bracket.lo + (bracket.hi - bracket.lo) // MISS_PART


def _turned(bracket: Bracket) -> Bracket:
    """Both axes turned round: slopes stay, and what was newest comes first."""
    return Bracket(-bracket.x, -bracket.hi, -bracket.lo)
