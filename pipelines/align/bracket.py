"""A clock against its reference by a line through brackets, with a bound that is proved, not estimated.

A bracket says: at tick x the reference stood in [lo, hi] ns. The slopes of all lines through every bracket of a window
are exactly [max (lo_j - hi_i) / (x_j - x_i), min (hi_j - lo_i) / (x_j - x_i)] over i < j (the stabbing lines of
O'Rourke, CACM 24(9), 1981; here the window is capped, so all pairs with the newest bracket are looked at and no hull is
kept). A slow read has a wide bracket and binds nothing, so no outlier rule is needed.

The bound holds for *any* stated line y under one assumption, A: inside a window and two snapshot gaps beyond it, the
rate at an instant differs from its mean over any part of the window by at most `slew_ppb`. The mean rate between two
brackets lies in the slope interval above, so the rate lies within rho = slew + distance of y's slope to the far end
of that interval. From each bracket j the truth then leaves y by at most w_j + rho * |t - t_j|, w_j = max(y - lo_j,
hi_j - y); the bound is the lowest of these cones. All of it is Python integers: floats would lose the nanosecond
after 104 days of uptime.
"""

from dataclasses import replace
from typing import Any

from fleetscope.pipelines.align.piece import (
    BILLION,
    Behaviour,
    Bracket,
    Outcome,
    Piece,
    Slope,
    Turn,
    difference_ppb,
    grid,
    less,
    widen,
)
from fleetscope.pipelines.align.rational import round_ratio

WINDOW_BRACKETS = 12
"""Brackets a line is drawn through. 80 instead of 12 gain 3 % in error at 0.2 ppm wander and cost 8 times the time
[measured]."""

PIECES_KEPT = 4
"""Published pieces that late rows can still be placed by exactly; older ones by extrapolation with an honest error."""

TURNS_KEPT = 4
"""Jumps behind which late rows are still placed by the line of their own time; of older ones only the sizes are kept,
as error."""


class BracketLine:
    """State of one clock epoch: a window of brackets, suspects, and the pieces published last. Same input, same
    state."""

    __slots__ = (
        "_middle",
        "behaviour",
        "den",
        "forgotten",
        "kink_ppb",
        "late",
        "num",
        "oldest",
        "pieces",
        "shallowest",
        "steepest",
        "suspects",
        "turns",
        "window",
    )

    def __init__(self, period_num: int, period_den: int, behaviour: Behaviour) -> None:
        self.num, self.den = period_num, period_den
        self.behaviour = behaviour
        self.window: list[Bracket] = []
        self.suspects: list[Bracket] = []
        self.late: list[Bracket] = []
        self.pieces: list[Piece] = []
        self.turns: list[Turn] = []
        self.forgotten = (0, 0)
        """(tick, ns) of turns no longer kept: before the tick a line may be off by that much."""
        self.kink_ppb = 0
        self.oldest = 0
        """Tick of the first bracket ever, once there is one."""
        self._middle: Slope | None = None
        self._refit()

    # -- reading ---------------------------------------------------------------------------------------------------

    def add(self, bracket: Bracket) -> Outcome:
        """Take note of a bracket, in the order they were read."""
        if not self.window:
            self.window.append(bracket)
            self.oldest = bracket.x
            return Outcome.TAKEN
        last = self.window[-1]
        if bracket.x < last.x if self.behaviour.steps else bracket.lo < last.lo:
            # Late batches bring snapshots that are older than those of other batches: true, but told before.
            return self._late(bracket)
        if bracket.x == last.x:
            # A register that is read twice inside one tick (or a saturated sub-tick field) gives the same value again.
            if bracket.lo <= last.hi + 2 * self.num // self.den + 2:
                return Outcome.EQUAL
            return Outcome.STUCK
        if bracket.x < last.x:
            # A tick would mean two times: only a new epoch (`resets`) can say which. Until then the line is not to be
            # trusted.
            self.suspects = [*self.suspects[-2:], bracket]
            if len(self.window) == 1 and len(self.suspects) == 3 and self._agree(*self.suspects):
                # Three against one: the very first read was the false one.
                return self._begin_again(self.suspects)
            return Outcome.BACKWARD
        if not self._plausible(last, bracket):
            return self._suspect(bracket)
        self.suspects.clear()
        self.late.clear()
        self._append(bracket)
        return Outcome.TAKEN

    def _late(self, bracket: Bracket) -> Outcome:
        """A late batch lags by seconds. Reads in a row that agree among themselves and lag by minutes say that the
        newest one was false: else one read of a day to come would be the last that is listened to."""
        newest, limit = self.window[-1], self._ticks(LATE_NS)
        if newest.x - bracket.x < limit and newest.lo - bracket.lo < LATE_NS:
            return Outcome.LATE
        self.late = [*self.late[-2:], bracket]
        if len(self.late) == 3 and self._agree(*self.late):
            return self._begin_again(self.late)
        return Outcome.LATE

    def _begin_again(self, brackets: list[Bracket]) -> Outcome:
        """The line as if these had been the first: what false reads made of it goes."""
        self.window, self.suspects, self.late = list(brackets), [], []
        self.oldest = self.window[0].x
        self.pieces = [piece for piece in self.pieces if piece.end <= self.window[0].x]
        self.turns = [turn for turn in self.turns if turn.at <= self.window[0].x]
        self.kink_ppb = 0
        self._refit()
        return Outcome.RESTART

    def _plausible(self, last: Bracket, bracket: Bracket) -> bool:
        """Rate since the last bracket within drift_ppb of the rate known so far (nominal before there are two)."""
        num, den = self.slope()
        dx, drift = bracket.x - last.x, self.behaviour.drift_ppb
        slowest = dx * num * (BILLION - drift)
        fastest = dx * num * (BILLION + drift)
        return (bracket.lo - last.hi) * den * BILLION <= fastest and (bracket.hi - last.lo) * den * BILLION >= slowest

    def _suspect(self, bracket: Bracket) -> Outcome:
        self.suspects.append(bracket)
        if self.behaviour.steps:
            forward = bracket.lo > self._predict(bracket.x)
            self._restart()
            return Outcome.STEP_FORWARD if forward else Outcome.STEP_BACK
        del self.suspects[:-3]
        if len(self.suspects) == 3 and self.suspects[0].x > self.window[-1].x and self._agree(*self.suspects):
            self._restart()
            return Outcome.RESTART
        return Outcome.SUSPECT

    def _agree(self, a: Bracket, b: Bracket, c: Bracket) -> bool:
        """Three rejected reads tell one story: rising, at one rate (within drift), between half and twice nominal."""
        if not (a.x < b.x < c.x and a.lo < b.hi and b.lo < c.hi):
            return False
        drift = self.behaviour.drift_ppb
        first, second = b.x - a.x, c.x - b.x
        if (c.hi - a.lo) * 2 * self.den < (c.x - a.x) * self.num or (c.lo - a.hi) * self.den > 2 * (
            c.x - a.x
        ) * self.num:
            return False
        low = (b.lo - a.hi) * second * (BILLION - drift) <= (c.hi - b.lo) * first * BILLION
        high = (b.hi - a.lo) * second * (BILLION + drift) >= (c.lo - b.hi) * first * BILLION
        return low and high

    def _restart(self) -> None:
        """Go on from the suspects. What lies before them keeps the old line, its error widened by the jump."""
        self._end_line(self.suspects[0])
        slope = self.slope()
        self.window = list(self.suspects)
        self.suspects.clear()
        self._refit()
        if len(self.window) == 1:
            # A clock that was set goes on at the rate it had.
            self.shallowest, self.steepest = widen(slope, self.behaviour.slew_ppb)
            self._middle = None
        self.kink_ppb = 0

    def _end_line(self, newer: Bracket) -> None:
        """Publish the line as far as `newer`, which contradicts it and is a suspect, so that the piece's error has the
        jump; and remember it."""
        begin = newer.x
        if not self.pieces:
            self._first(self.window[0].x, max(self.window[-1].x, self.window[0].x + 1))
        elif self.pieces[-1].end < self.window[-1].x:
            # What was read before keeps its small error.
            suspects, self.suspects = self.suspects, []
            self._publish(self.window[-1].x)
            self.suspects = suspects
        if self.pieces[-1].end < begin:
            self._publish(begin)
        self._turn(newer)

    def _turn(self, newer: Bracket) -> None:
        """Remember the line that ends: rows of its time may come late, and by the new one they would be off by the
        jump."""
        at, last = newer.x, self.window[-1]
        x0, y0, n, d = self._centre()
        begin, end = self.window[0].x, self.window[-1].x + 1
        size = self.bound(x0, y0, n, d, end - 1, at)
        suspects, self.suspects = self.suspects, []
        before = Piece(x0, y0, n, d, begin, end, grid(self.bound(x0, y0, n, d, begin, end)))
        self.suspects = suspects
        self.turns.append(Turn(before, at, size, max(newer.hi - newer.lo, last.hi - last.lo)))
        if len(self.turns) > TURNS_KEPT:
            oldest = self.turns.pop(0)
            self.forgotten = (oldest.at, self.forgotten[1] + oldest.size)

    def _append(self, bracket: Bracket) -> None:
        before = self.slope()
        self.kink_ppb = 0
        strays = self.behaviour.steps and self._strays(bracket)
        known = (self.shallowest, self.steepest)
        self.window.append(bracket)
        self._tighten(bracket, self.window[:-1])
        bent = less(self.steepest, self.shallowest)
        if self.behaviour.steps and (bent or strays):
            self.window.pop()
            (self.shallowest, self.steepest), self._middle = known, None
            self._bend(bracket)
            self.window.append(bracket)
            self._refit()
        if bent:
            while len(self.window) > 2 and less(self.steepest, self.shallowest):
                del self.window[0]
                self._refit()
            self.kink_ppb = difference_ppb(before, self.slope())
        elif len(self.window) > WINDOW_BRACKETS:
            old = self.window[: WINDOW_BRACKETS // 2]
            del self.window[max(range(len(old)), key=lambda i: (old[i].hi - old[i].lo, -i))]

    def _strays(self, bracket: Bracket) -> bool:
        """Whether a clock that may be set is further from where it should be than a change of rate explains, though it
        meets some line: through few brackets, or such as lie close together, goes a line for any jump. Should be: by
        the possible rate that is nearest to the nominal one."""
        low, high = self._slopes()
        nominal = (self.num, self.den)
        n, d = low if less(nominal, low) else high if less(high, nominal) else nominal
        last = self.window[-1]
        rise = (bracket.x - last.x) * n // d
        return bracket.lo - last.hi - rise > STEP_NS or rise - (bracket.hi - last.lo) > STEP_NS

    def _bend(self, bracket: Bracket) -> None:
        """The newest bracket, not yet in the window, says that the clock is slewed from here on, or was set by little:
        the rate since the last is a possible one. The stretch between them is published with what that may cost."""
        self.suspects = [bracket]
        x0, y0, n, d = self._centre()
        if self.bound(x0, y0, n, d, bracket.x - 1, bracket.x) > STEP_NS:
            self._end_line(bracket)
        elif self.pieces and self.pieces[-1].end < bracket.x:
            self._publish(bracket.x)
        self.suspects = []

    def _tighten(self, newest: Bracket, others: list[Bracket]) -> None:
        """Slopes that also meet `newest`, which lies after all `others`."""
        (low, low_dx), (high, high_dx) = self.shallowest, self.steepest
        for other in others:
            dx = newest.x - other.x
            rise = newest.lo - other.hi
            if low * dx < rise * low_dx:
                low, low_dx = rise, dx
            rise = newest.hi - other.lo
            if rise * high_dx < high * dx:
                high, high_dx = rise, dx
        self.shallowest, self.steepest = (low, low_dx), (high, high_dx)
        self._middle = None

    def _refit(self) -> None:
        self.shallowest, self.steepest = (self.num, 4 * self.den), (4 * self.num, self.den)
        self._middle = None
        for index in range(1, len(self.window)):
            self._tighten(self.window[index], self.window[:index])

    # -- the line --------------------------------------------------------------------------------------------------

    def slope(self) -> Slope:
        """Middle of the slopes that meet every bracket."""
        if self._middle is None:
            (a, b), (c, d) = self._slopes()
            self._middle = round_ratio(a * d + c * b, 2 * b * d)
        return self._middle

    def _slopes(self) -> tuple[Slope, Slope]:
        """Slopes that meet every bracket, those within drift_ppb of nominal if there are such: a nominal rate may be
        wrong."""
        low, high = widen((self.num, self.den), self.behaviour.drift_ppb)
        low = low if less(self.shallowest, low) else self.shallowest
        high = high if less(high, self.steepest) else self.steepest
        return (self.shallowest, self.steepest) if less(high, low) else (low, high)

    def _predict(self, x: int) -> int:
        last = self.window[-1]
        n, d = self.slope()
        return (last.lo + last.hi) // 2 + (x - last.x) * n // d

    def _centre(self) -> tuple[int, int, int, int]:
        """(x0, y0, n, d): the middle line among those with the middle slope, at the newest bracket."""
        n, d = self.slope()
        x = self.window[-1].x
        low = max(b.lo * d + (x - b.x) * n for b in self.window)
        high = min(b.hi * d + (x - b.x) * n for b in self.window)
        return x, (low + high) // (2 * d), n, d

    def bound(self, x0: int, y0: int, n: int, d: int, begin: int, end: int) -> int:
        """max over [begin, end] of |truth - (y0 + (x - x0) n / d)| in ns, rounded up, under assumption A."""
        shallow, steep = self._slopes()
        rho = self.behaviour.slew_ppb + max(difference_ppb((n, d), shallow), difference_ppb((n, d), steep))
        # Everything over the denominator d * 1e9, rounded up once at the end.
        unit, growth = d * BILLION, n * rho
        # Lowest of all cones at each bracket: by a sweep from either side.
        cones: list[tuple[int, int]] = []
        for b in self.window:
            above = (b.x - x0) * n + (y0 - b.lo) * d
            wide = max(above, (b.hi - b.lo) * d - above) * BILLION
            if cones:
                wide = min(wide, cones[-1][1] + (b.x - cones[-1][0]) * growth)
            cones.append((b.x, wide))
        for k in range(len(cones) - 2, -1, -1):
            x, wide = cones[k]
            reached = cones[k + 1][1] + (cones[k + 1][0] - x) * growth
            if reached < wide:
                cones[k] = (x, reached)
        points = [(begin, min([w + abs(begin - at) * growth for at, w in cones]))]
        points += [cone for cone in cones if begin < cone[0] < end]
        points.append((end, min([w + abs(end - at) * growth for at, w in cones])))
        (before, low), highest = points[0], 2 * points[0][1]
        for x, after in points[1:]:
            # Two cones of one slope meet at most here between the points they are lowest at.
            highest = max(highest, low + after + growth * (x - before))
            before, low = x, after
        worst = -(-highest // (2 * unit))
        if self.kink_ppb and len(self.window) > 1 and begin < self.window[-1].x:
            gap = self.window[-1].x - self.window[-2].x
            worst += -(-gap * n * self.kink_ppb // (d * BILLION))
        for b in (*self.suspects, *self.late):
            line = y0 + (b.x - x0) * n // d
            worst = max(worst, line - b.lo, b.hi - line)
        return worst

    # -- publishing ------------------------------------------------------------------------------------------------

    def reach(self, begin: int, end: int) -> list[Piece]:
        """Pieces that cover [begin, end), publishing what is missing. Needs one bracket at least."""
        # Up to the newest bracket at once: batches of other devices ask for the same stretch of the wall clock again.
        # But never far beyond what was read: one batch that says "until the year 9999" would fix the map until then.
        # A clock that may be set is promised as far as it was read, and no further: the next read may tell of a jump.
        oldest, newest = self.window[0].x, self.window[-1].x
        reserve = 0 if self.behaviour.steps else self._ticks(AHEAD_NS)
        last = max(min(end, newest + reserve), newest)
        if not self.pieces:
            if self.behaviour.steps and oldest == newest:
                x0, y0, n, d = self._centre()
                return [Piece(x0, y0, n, d, begin, end, grid(self.bound(x0, y0, n, d, begin, end)), blind=True)]
            first = min(max(begin, oldest - reserve), oldest)
            self._first(first, max(last, first + 1))
        elif last > self.pieces[-1].end:
            if begin > self.pieces[-1].end + self._ticks(GAP_NS):
                self._publish(min(begin, last))
            if last > self.pieces[-1].end:
                self._publish(last)
        found = [p for p in self.pieces if p.begin < end and p.end > begin]
        first, last = self.pieces[0].begin, self.pieces[-1].end
        edge = self._ticks(EDGE_NS) if self.behaviour.steps and found else 0
        if first - edge <= begin < first == self.oldest:
            found[0] = replace(found[0], begin=begin)
        elif begin < first:
            found = [*self._earlier(begin, min(end, first)), *found]
        if end <= last:
            return found
        if end - last <= edge:
            return [*found[:-1], replace(found[-1], end=end)]
        return [*found, self._beyond(max(begin, last), end)]

    def about(self, x: int) -> int:
        """Reference ns near tick x, by the middle line."""
        return self._predict(x)

    def sees(self, x: int) -> bool:
        """Whether rows up to tick x are placed between reads, or as good as."""
        return self.window[-1].x + self._ticks(EDGE_NS) >= x

    def _beyond(self, begin: int, end: int) -> Piece:
        p = self.pieces[-1]
        err = self.bound(p.x0, p.y0, p.n, p.d, begin, end)
        x0, y0, n, d = self._centre()
        least = self.bound(x0, y0, n, d, begin, end)
        if err > KEEP_ERROR * least:
            # the last piece ends at a jump
            return Piece(x0, y0, n, d, begin, end, grid(least), self.behaviour.steps)
        return Piece(p.x0, p.y0, p.n, p.d, begin, end, grid(err), self.behaviour.steps)

    def jumps(self, begin: int, end: int, margin_ns: int) -> list[tuple[int, int, int]]:
        """(from tick, to tick, ns): where in [begin, end) a clock that was set may stand on either side of the jump,
        for ticks known within `margin_ns`."""
        found = []
        for turn in self.turns:
            margin = self._ticks(margin_ns + turn.slack) + 1
            low, high = turn.before.end - 1 - margin, turn.at + margin
            if low < end and high > begin and self.behaviour.steps:
                found.append((low, high, turn.size))
        return found

    def _ticks(self, ns: int) -> int:
        return ns * self.den // self.num

    def _first(self, begin: int, end: int) -> None:
        x0, y0, n, d = self._centre()
        self.pieces.append(Piece(x0, y0, n, d, begin, end, grid(self.bound(x0, y0, n, d, begin, end))))

    def _publish(self, end: int) -> None:
        last = self.pieces[-1]
        begin = last.end
        x0, y0, n, d = self._centre()
        lost = self._one_lost()
        # From the read before the newest: right at a read the bound is only that read's width.
        since = min(begin, self.window[-2].x) if lost else begin
        bound = self.bound(last.x0, last.y0, last.n, last.d, since, end)
        if bound <= last.err <= (2 * (bound + lost) if lost else KEEP_ERROR * bound) and self._met(last):
            self.pieces[-1] = Piece(last.x0, last.y0, last.n, last.d, last.begin, end, last.err)
            return
        now, target = last.ceil_at(begin), y0 + (begin - x0) * n // d
        if now > target:
            x0, y0, n, d = self._catch_up(begin, now, end, (x0, y0, n, d))
        err = self.bound(x0, y0, n, d, begin, end) + lost
        self.pieces.append(Piece(x0, y0, n, d, begin, end, grid(err)))
        del self.pieces[:-PIECES_KEPT]

    def _one_lost(self) -> int:
        """What a read that fails, or takes long, adds to the bound: promised at once, or each would make a piece.
        Wall clocks are read in one go."""
        if len(self.window) < 3 or self.behaviour.steps:
            return 0
        first, second, third = (b.x for b in self.window[-3:])
        gap = min(second - first, third - second)
        return gap * self.num * self.behaviour.slew_ppb // (2 * self.den * BILLION)

    def _met(self, piece: Piece) -> bool:
        """Whether a published line still meets the newest brackets, or misses them by little; it met those before when
        it was published or extended."""
        for b in self.window[-NEWEST:]:
            if b.x >= piece.begin:
                slack, y = max(self.behaviour.keep_ns, (b.hi - b.lo) // KEEP_PART), piece.floor_at(b.x)
                if not b.lo - slack <= y <= b.hi + slack:
                    return False
        return True

    def _catch_up(self, begin: int, now: int, end: int, line: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """The line from where the last piece ended to where `line` will be, so that order is kept; `line` itself if
        that is too far."""
        x0, y0, n, d = line
        ahead = max(end - begin, self._ticks(CATCH_UP_NS))
        rise = y0 + (begin + ahead - x0) * n // d - now
        if rise * d * 1000 < ahead * n * 999:
            return line
        return begin, now, *round_ratio(rise, ahead)

    def _earlier(self, begin: int, end: int) -> list[Piece]:
        """[begin, end), which lies before everything that is kept: by the line that held then, its error grown by
        twice the drift outside of what was proved."""
        made = []
        if self.behaviour.steps and begin < self.oldest:
            line = self.turns[0].before if self.turns else self.pieces[0]
            made.append(replace(self._extended(line, begin, min(end, self.oldest), 0), blind=True))
            begin = min(end, self.oldest)
        for turn in self.turns:
            if begin < min(turn.at, end):
                proved = min(max(turn.before.end, begin), end)
                if proved > begin:
                    made.append(self._extended(turn.before, begin, proved, 0))
                begin = min(turn.at, end)
                if begin > proved:
                    made.append(self._extended(turn.before, proved, begin, turn.size))
        if end > begin:
            made.append(self._extended(self.pieces[0], begin, end, 0))
        return made

    def _extended(self, line: Piece, begin: int, end: int, size: int) -> Piece:
        ticks = max(line.begin - begin, 0)
        err = max(line.err, size) + -(-ticks * line.n * 2 * self.behaviour.drift_ppb // (line.d * BILLION))
        if begin < self.forgotten[0]:
            err += self.forgotten[1]
        return Piece(line.x0, line.y0, line.n, line.d, begin, end, err)

    # -- state -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Integers only, relative to the first bracket and the nominal rate: ~20 digits a bracket, ~50 a piece."""
        if not self.window:
            return []
        x, y = self.window[0].x, self.window[0].lo
        brackets = [[self._flat(b.x, b.lo, x, y), b.hi - b.lo] for b in (*self.window, *self.suspects)]
        pieces = [self._piece(p, x, y) for p in self.pieces]
        turns = [[self._piece(turn.before, x, y), turn.at - x, turn.size, turn.slack] for turn in self.turns]
        late = [[self._flat(b.x, b.lo, x, y), b.hi - b.lo] for b in self.late]
        return [
            *[x, y, len(self.window), brackets, pieces, self.kink_ppb, self.shallowest, self.steepest],
            *([turns, self.forgotten, late, self.oldest - x] if turns or late or self.behaviour.steps else []),
        ]

    def _piece(self, p: Piece, x: int, y: int) -> list[Any]:
        return [self._flat(p.x0, p.y0, x, y), p.n, p.d, p.begin - x, p.end - p.begin, p.err]

    def _flat(self, x: int, y: int, base_x: int, base_y: int) -> list[int]:
        dx = x - base_x
        return [dx, y - base_y - dx * self.num // self.den]

    @classmethod
    def load(cls, period_num: int, period_den: int, behaviour: Behaviour, value: list[Any]) -> "BracketLine":
        line = cls(period_num, period_den, behaviour)
        if not value:
            return line
        x, y, count, brackets, pieces, line.kink_ppb, low, high, *turned = value

        def point(flat: list[int]) -> tuple[int, int]:
            return x + flat[0], y + flat[1] + flat[0] * period_num // period_den

        def bracket(packed: list[Any]) -> Bracket:
            flat, width = packed
            return Bracket(*point(flat), point(flat)[1] + width)

        read = [bracket(packed) for packed in brackets]
        line.window, line.suspects = read[:count], read[count:]

        def piece(packed: list[Any]) -> Piece:
            flat, n, d, begin, length, err = packed
            return Piece(*point(flat), n, d, x + begin, x + begin + length, err)

        line.pieces = [piece(packed) for packed in pieces]
        line.oldest = x
        if turned:
            # states of the first version had neither slack nor the oldest tick
            line.turns = [Turn(piece(packed), x + at, size, *(slack or [0])) for packed, at, size, *slack in turned[0]]
            line.forgotten = (turned[1][0], turned[1][1])
            line.late = [bracket(packed) for packed in turned[2]]
            line.oldest = x + (turned[3] if len(turned) > 3 else 0)
        line.shallowest, line.steepest = (low[0], low[1]), (high[0], high[1])
        return line


GAP_NS = 5_000_000_000
"""A longer stretch without rows is a piece of its own: its error would be that of the rows after it otherwise."""

NEWEST = 4
"""Brackets that may have come since a line was extended. Of a longer row the newest tell."""

AHEAD_NS = 20_000_000_000
"""Rows this far from any bracket are placed by the line, but the map is not published for them."""

LATE_NS = 600_000_000_000
"""A snapshot that comes later than this after newer ones is more likely the only true one."""

KEEP_PART = 2
"""A published line is kept until it misses a bracket by half the bracket's width: 66 segments an hour at 1 Hz and 2 us,
p99 1.2 us. Without that slack 340 an hour and 0.6 us, at the whole width 47 and 1.9 us [measured]. The final map
(line.py) is where precision comes from."""

KEEP_ERROR = 8
"""Nor is it kept when it promises this many times less than is known by now: the error of a jump would never end."""

STEP_NS = 100_000
"""A wall clock that is off its line by more was set. Below, its rate may have changed, and the error of the stretch in
which it did is enough."""

EDGE_NS = 10_000
"""A batch that begins with the first or ends with the last read of the wall clock does so this close to it: not worth
a segment of its own."""

CATCH_UP_NS = 10_000_000_000
"""A correction backwards is spread over this much at least: 1 us over it is a rate of 4 ppm."""
