"""Clocks of one host: snapshots in, map segments out; the state travels in the manifest.

device ticks -> (bracket line) -> monotonic_raw -> (bracket line) -> wall clock, composed into one segment. What was
never read is placed by the wall time its batch was sent at, with unknown error and flagged: unsynced is a stated
quality, never a guess.

Beside the segments that rows are written with, the maps of counters to `monotonic_raw` are told (`ref` names it,
quality guaranteed): the live lines as they are used, and the final ones of `line.py`. Rows that had to be placed before
anything could be proved have no bound; once reads lie on both sides of them the host's wall clock as it was then is
told as a map of the host, over which readers place them again.
"""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.enqueue import PAIRS, WINDOWS, Placed, Slopes, place_window, shared
from fleetscope.pipelines.align.host import WALL, wall_bracket, wall_line
from fleetscope.pipelines.align.line import LongestLine
from fleetscope.pipelines.align.piece import Behaviour, Bracket, Outcome, Piece, widen
from fleetscope.pipelines.align.referred import Referrals
from fleetscope.pipelines.align.segment import (
    SPAN_TICKS,
    UNKNOWN_ERROR,
    Placement,
    Segment,
    compose,
    segment,
)
from fleetscope.schema import identity
from fleetscope.schema.tables import CLOCK_MAPS
from fleetscope.schema.vocabulary import (
    EXTRAPOLATED,
    GUARANTEED,
    HOST_ONLY,
    SETTLED,
    STATISTICAL,
    UNSYNCED,
    WRITTEN,
    ClockFlag,
    SpanFlag,
)
from fleetscope.schema.wire_pb2 import ClockEpoch, ClockSnapshot, Source

WALL_CLOCK = "realtime"
HOP_NS = 10_000_000_000
DEVICE = Behaviour()
COUNTER = Behaviour(slew_ppb=0, keep_ns=0, straight=True)
"""The counter that the kernel computes `monotonic_raw` from, by a constant factor and a shift: the same crystal.
Another clock source begins another epoch."""
COUNTERS = frozenset({"tsc", "cntvct"})
ITSELF = Piece(0, 0, 1, 1, -(1 << 62), 1 << 62, 0)
"""A reference clock to itself: its wall line does the rest."""

CLOCKS_A_HOST = 64
"""Epochs remembered; the one not used for longest goes first. A host has ~9 clocks, resets and reboots add to them."""

NAME_LIMIT = 256
"""A clock's name is carried as long as its state is."""


@lru_cache(maxsize=4096)
def _epoch(cluster: str, host: str, boot_id: str, device: str, clock: str, resets: int) -> int:
    source = Source(cluster=cluster, host=host, boot_id=boot_id)
    return identity.epoch_id(source, ClockEpoch(device=device, clock=clock, resets=resets))


def _epoch_of(source: Source, clock: ClockEpoch) -> int:
    return _epoch(source.cluster, source.host, source.boot_id, clock.device, clock.clock, clock.resets)


IMPOSSIBLE = {
    Outcome.STUCK: "the counter shows what it showed before, though its reference went on",
    Outcome.BACKWARD: "the counter ran backwards without a new epoch",
}


def _refusal(snapshot: ClockSnapshot) -> tuple[str, str]:
    """(counter, why) of one that is not looked at; SUSPECT is its reader's own word."""
    if snapshot.flags & ClockFlag.SUSPECT:
        return "flagged", ""
    if snapshot.ref_after < snapshot.ref_before or not snapshot.ref.clock:
        return "inverted", "the read ended before it began, or names no reference"
    if max(abs(snapshot.value), abs(snapshot.ref_before), abs(snapshot.ref_after)) > 1 << 62:
        return "impossible", "a value beyond 2^62"
    if len(snapshot.clock.clock) > NAME_LIMIT or len(snapshot.ref.clock) > NAME_LIMIT:
        return "misnamed", f"a clock's name of more than {NAME_LIMIT} characters"
    return "", ""


@dataclass(slots=True)
class _Clock:
    """One clock epoch. `line`: to its reference; `wall`: to the wall clock, for a clock others refer to."""

    name: str
    num: int
    den: int
    ref: int = 0
    used: int = 0
    line: BracketLine | None = None
    wall: BracketLine | None = None
    anchor: tuple[int, int] | None = None
    """(tick, wall ns) of the first batch that had to be placed without a snapshot."""
    device: int = 0
    final: LongestLine | None = None
    owed: tuple[int, int] | None = None
    """Ticks [from, to) of rows that were placed without a bound."""
    pairs: list[Bracket] = field(default_factory=list)
    """Of a clock that nobody reads: where its programs began, at the latest and at the earliest."""
    estimated: bool = False
    """Its brackets are a capture's word, no reads."""
    fault: str = ""
    """Why its newest read was none; told once."""

    @property
    def kind(self) -> str:
        """Clocks of one kind may share a rate."""
        return f"{self.name} {self.num}/{self.den}"

    @property
    def behaviour(self) -> Behaviour:
        return COUNTER if self.name in COUNTERS and not self.device else DEVICE


@dataclass(slots=True)
class ClockState:
    """Feed `take` and `place` in the order of the log; the same calls give the same state, maps and segments."""

    counters: Counter[str] = field(default_factory=Counter)
    """Cumulative: taken, equal, stuck, suspect, restart, step_forward, step_back, paired, flagged, inverted,
    impossible, misnamed, without_clock, window_placed, window_contradicted."""
    _clocks: dict[int, _Clock] = field(default_factory=dict)
    _turn: int = 0
    _host: int = 0
    _told: dict[int, tuple[Segment, int, str, int, int, int, int]] = field(default_factory=dict)
    _fresh: dict[int, None] = field(default_factory=dict)
    _referrals: Referrals = field(default_factory=Referrals)
    _about: dict[int, tuple[str, int, int, int, int]] = field(default_factory=dict)
    """Epoch -> (clock, host, device, period), of those placed since the last call of take_maps."""
    _composed: dict[tuple[int, ...], Segment] = field(default_factory=dict)
    _rates: dict[str, list[tuple[int, Slopes]]] = field(default_factory=dict)
    """By kind of a clock that nobody reads: (epoch, what it allows) of the newest windows."""
    _better: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By map: rows of versions above 1 since the last call of take_maps."""

    # -- snapshots -------------------------------------------------------------------------------------------------

    def take(self, source: Source, snapshots: Iterable[ClockSnapshot]) -> list[tuple[ClockSnapshot, str]]:
        """Snapshots of one batch, before its rows are placed. What contradicts is counted, never an error; returns
        those that cannot be, with the reason: of a counter that is wrong over and over only the first."""
        impossible = []
        for snapshot in snapshots:
            name, why = _refusal(snapshot)
            if not name:
                outcome, clock = self._take(source, snapshot)
                name = outcome.value
                if clock is not None and (clock.fault or outcome in IMPOSSIBLE):
                    before, clock.fault = clock.fault, IMPOSSIBLE.get(outcome, "")
                    why = clock.fault if clock.fault != before else ""
            self.counters[name] += 1
            if why:
                impossible.append((snapshot, why))
        return impossible

    def _take(self, source: Source, snapshot: ClockSnapshot) -> tuple[Outcome, _Clock | None]:
        """What became of it, and the clock it is of; None: a wall clock, which may be set."""
        ref = self._clock(source, snapshot.ref)
        before, after = snapshot.ref_before, snapshot.ref_after
        if snapshot.clock.clock == WALL_CLOCK:
            if ref.wall is None:
                ref.wall = wall_line(ref.num, ref.den)
            return ref.wall.add(wall_bracket(snapshot.value, before, after, ref.num, ref.den)), None
        clock = self._clock(source, snapshot.clock)
        if snapshot.flags & ClockFlag.PAIRED:
            clock.ref = _epoch_of(source, snapshot.ref)
            clock.pairs = [*clock.pairs[1 - PAIRS :], Bracket(snapshot.value, before, after)]
            return Outcome.PAIRED, clock
        clock.estimated |= bool(snapshot.flags & ClockFlag.ESTIMATED)
        if clock.line is None or clock.final is None:
            clock.line = clock.line or BracketLine(clock.num, clock.den, clock.behaviour)
            clock.final = LongestLine(clock.num, clock.den, clock.behaviour)
            clock.ref = _epoch_of(source, snapshot.ref)
        # The register holds a value for one period: it became x at most that long before it was read as x.
        bracket = Bracket(snapshot.value, before + clock.num // -clock.den, after)
        outcome = clock.line.add(bracket)
        if not clock.estimated:
            for piece in _complete(clock.line, clock.final, outcome, bracket):
                self._finally(_epoch_of(source, snapshot.clock), clock, piece)
        return outcome, clock

    def _clock(self, source: Source, epoch: ClockEpoch) -> _Clock:
        name = _epoch_of(source, epoch)
        self._host = self._host or identity.host_id(source.cluster, source.host)
        clock = self._clocks.get(name)
        if clock is None:
            device = identity.device_id(epoch.device) if epoch.device else 0
            clock = _Clock(epoch.clock, epoch.period_num or 1, epoch.period_den or 1, device=device)
            self._clocks[name] = clock
            if len(self._clocks) > CLOCKS_A_HOST:
                oldest = min((c.used, key) for key, c in self._clocks.items() if key != name)[1]
                del self._clocks[oldest]
                kinds = {clock.kind for clock in self._clocks.values()}
                self._rates = {kind: rates for kind, rates in self._rates.items() if kind in kinds}
        self._turn += 1
        clock.used = self._turn
        return clock

    # -- maps ------------------------------------------------------------------------------------------------------

    def place(
        self, source: Source, clock: ClockEpoch, tick_from: int, tick_to: int, sent_ns: int, device: int = 0
    ) -> Placement:
        """Segments for ticks [tick_from, tick_to) of a clock epoch; `sent_ns` is used only where nothing was ever
        read."""
        tick_to = max(tick_to, tick_from + 1)
        epoch = _epoch_of(source, clock)
        known = self._clock(source, clock)
        host = self._host
        if clock.clock == WALL_CLOCK:
            line = (0, 0, known.num, known.den)
            made = [segment(epoch, line, (tick_from, tick_to), 0, UNSYNCED, SpanFlag.UNSYNCED)]
        else:
            made = self._through(epoch, known, tick_from, tick_to) or [
                self._anchored(epoch, known, tick_from, tick_to, sent_ns, bool(clock.device))
            ]
            if any(piece.err_ns < 0 for piece in made):
                before = known.owed or (tick_from, tick_to)
                known.owed = (min(before[0], tick_from), max(before[1], tick_to))
        for piece in made:
            self._tell(piece, epoch, clock.clock, host, device, known)
        self._refer(epoch, known, clock.clock == WALL_CLOCK)
        self._about[epoch] = (clock.clock, host, device, known.num, known.den)
        return tuple(made)

    def _refer(self, epoch: int, known: _Clock, wall: bool) -> None:
        if known.line is not None:
            quality = STATISTICAL if known.estimated else GUARANTEED
            self._referrals.tell(epoch, known.ref, known.line.pieces, quality, num=known.num, den=known.den)
        elif wall:
            read = [(clock.used, key) for key, clock in self._clocks.items() if clock.wall and clock.wall.window]
            if read:
                ref = max(read)[1]
                line = self._clocks[ref].wall
                assert line is not None
                self._referrals.of_wall(epoch, ref, line)

    def _through(self, epoch: int, known: _Clock, tick_from: int, tick_to: int) -> list[Segment]:
        """By lines, or nothing where one is missing."""
        if known.wall is not None and known.wall.window:
            return self._over(epoch, ITSELF, known.wall, tick_from, tick_to)
        ref = self._clocks.get(known.ref)
        if ref is None or ref.wall is None or not ref.wall.window:
            return []
        if known.line is None or not known.line.window:
            placed = self._window(epoch, known, tick_from, tick_to) if known.pairs else None
            return self._over(epoch, placed.piece, ref.wall, tick_from, tick_to) if placed else []
        made: list[Segment] = []
        pieces = known.line.reach(tick_from, tick_to)
        for index, piece in enumerate(pieces):
            begin = tick_from if index == 0 else piece.begin
            end = tick_to if index == len(pieces) - 1 else piece.end
            made += self._over(epoch, piece, ref.wall, begin, end)
        return made

    def _window(self, epoch: int, known: _Clock, tick_from: int, tick_to: int) -> Placed | None:
        """By the programs that ran in it: statistical. Its row is told at once, nothing better will come."""
        nominal = widen((known.num, known.den), DEVICE.drift_ppb)
        rates = self._rates.get(known.kind, [])
        others = [slopes for of, slopes in rates if of != epoch]
        begin, end = min(tick_from, known.pairs[0].x), max(tick_to, known.pairs[-1].x)
        placed = place_window(known.pairs, nominal, begin, end, shared(others, nominal) if others else None)
        if placed is None:
            self.counters["window_contradicted"] += 1
            return None
        if all(of != epoch for of, _ in rates):
            self.counters["window_placed"] += 1
            self._rates[known.kind] = [*rates[1 - WINDOWS :], (epoch, placed.slopes)]
        about = (known.name, self._host, known.device, known.num, known.den)
        piece = placed.piece
        name = identity.key_hash("window", epoch, known.ref, piece.x0, piece.y0, piece.n, piece.d, piece.err)
        row = _row((name, epoch, known.ref), about, piece, piece.err, STATISTICAL)
        self._better[name] = row | {"method": "enqueue", "sigma_ns": placed.sigma_ns, "final": True}
        return placed

    def _over(self, epoch: int, piece: Piece, wall: BracketLine, begin: int, end: int) -> list[Segment]:
        low, high = piece.floor_at(begin), piece.ceil_at(end)
        seconds = wall.reach(low, max(high, low + 1))
        made: list[Segment] = []
        for index, second in enumerate(seconds):
            first = max(piece.begin, piece.first_tick(second.begin))
            last = end if index == len(seconds) - 1 else min(piece.first_tick(second.end), end)
            if last > max(first, begin) or (index == len(seconds) - 1 and not made):
                made.append(self._compose(epoch, piece, second, first, max(last, first + 1)))
        jumps = wall.jumps(low - piece.err, high + piece.err, piece.err) if wall.turns else []
        return _doubtful(epoch, piece, made, jumps) if jumps else made

    def _compose(self, epoch: int, first: Piece, second: Piece, begin: int, end: int) -> Segment:
        # Pieces grow with every batch while their lines stay, and rounding a slope costs more than all the rest.
        key = (
            epoch,
            begin,
            first.x0,
            first.y0,
            first.n,
            first.d,
            first.err,
            second.x0,
            second.y0,
            second.n,
            second.d,
            second.err,
            second.blind,
        )
        made = self._composed.get(key)
        if made is None or end - begin > SPAN_TICKS:
            line, err = compose(first, second, begin, end)
            flags = SpanFlag.UNSYNCED | (SpanFlag.EXTRAPOLATED if second.blind else SpanFlag(0))
            quality = EXTRAPOLATED if second.blind else UNSYNCED
            made = segment(epoch, line, (begin, end), UNKNOWN_ERROR if second.blind else err, quality, flags)
            if len(self._composed) >= 16 * CLOCKS_A_HOST:
                self._composed.clear()
            self._composed[key] = made
        return made if made.valid_to == end else replace(made, valid_to=end)

    def _anchored(self, epoch: int, known: _Clock, tick_from: int, tick_to: int, sent_ns: int, device: bool) -> Segment:
        self.counters["without_clock"] += 1
        if known.anchor is None:
            known.anchor = (tick_to, sent_ns)
        flags = SpanFlag.UNSYNCED | (SpanFlag.NO_DEVICE_CLOCK if device else SpanFlag(0))
        line = (*known.anchor, known.num, known.den)
        return segment(epoch, line, (tick_from, tick_to), UNKNOWN_ERROR, UNSYNCED, flags)

    def has_bracket_after(self, source: Source, clock: ClockEpoch, tick: int) -> bool:
        """False: rows that end at `tick` would be placed by extrapolation, and a bracket that follows may still
        come."""
        known = self._clocks.get(_epoch_of(source, clock))
        if clock.clock == WALL_CLOCK:
            return True
        return known is not None and self._follows(known, tick)

    def _follows(self, known: _Clock, tick: int) -> bool:
        if known.pairs and known.line is None:
            ref = self._clocks.get(known.ref)
            return ref is not None and ref.wall is not None and ref.wall.sees(known.pairs[-1].hi)
        line = known.line or known.wall
        if line is None or not line.window or line.window[-1].x < tick:
            return False
        ref = self._clocks.get(known.ref) if known.line is not None else None
        wall = ref.wall if ref is not None else None
        return wall is None or not wall.window or wall.sees(line.about(tick))

    # -- CLOCK_MAPS ------------------------------------------------------------------------------------------------

    def _tell(self, made: Segment, epoch: int, name: str, host: int, device: int, known: _Clock) -> None:
        told = self._told.get(made.map)
        if told is None or told[0].valid_to < made.valid_to:
            if told is None:
                self._fresh[made.map] = None
            self._told[made.map] = (made, epoch, name, host, device, known.num, known.den)
            if len(self._told) > 16 * CLOCKS_A_HOST:
                for old in [key for key in self._told if key not in self._fresh][: 8 * CLOCKS_A_HOST]:
                    del self._told[old]

    def _finally(self, epoch: int, known: _Clock, piece: Piece) -> None:
        """A final piece of a counter's map to its reference."""
        name = identity.key_hash("final", epoch, known.ref, piece.x0, piece.y0, piece.n, piece.d, piece.begin)
        about = (known.name, self._host, known.device, known.num, known.den)
        row = _row((name, epoch, known.ref), about, piece, piece.err, GUARANTEED)
        self._better[name] = row | {"final": True}

    def _settle(self) -> None:
        """Where rows were placed without a bound and reads lie on both sides by now: the host's wall clock as it was
        then, as a map of the host (`host-only`), over which a reader places them again. Any solved map goes before."""
        for epoch, known in self._clocks.items():
            host = epoch if known.wall is not None else known.ref
            clock = self._clocks.get(host)
            if known.owed is None or clock is None or clock.wall is None or not clock.wall.window:
                continue
            if not self._follows(known, known.owed[1]):
                continue
            (begin, end), known.owed = known.owed, None
            pieces = [ITSELF]
            if known.line is not None and known.line.window:
                pieces = known.line.reach(begin, end)
            elif clock is not known:
                placed = self._window(epoch, known, begin, end)
                if placed is None:
                    continue
                pieces = [placed.piece]
            low = pieces[0].floor_at(begin) - pieces[0].err
            high = pieces[-1].ceil_at(end) + pieces[-1].err
            about = (clock.name, self._host, 0, clock.num, clock.den)
            for made in self._over(host, ITSELF, clock.wall, low, high + 1):
                if made.err_ns >= 0:
                    name = identity.key_hash("settled", made.map, made.valid_from)
                    row = _row((name, host, 0), about, made, made.err_ns, HOST_ONLY)
                    self._better[name] = row | {"version": SETTLED}

    def take_maps(self, seen_ns: int) -> pa.Table:
        """CLOCK_MAPS rows of segments first used since the last call, `valid_to` how far rows had come, of the pieces
        they are made of (`ref`), and of what was learned of ticks placed before."""
        rows = [
            _row((made.map, epoch, 0), (name, host, device, num, den), made, made.err_ns, made.quality)
            for made, epoch, name, host, device, num, den in (self._told[key] for key in self._fresh)
        ]
        rows += [
            _row((one.map, one.epoch, one.ref), self._about[one.epoch], one.piece, one.piece.err, one.quality)
            for one in self._referrals.fresh.values()
        ]
        self._settle()
        # Version of what is final: the hop it was made in (docs/design/0021), always above 1.
        hop = max(seen_ns // HOP_NS, SETTLED + 1)
        rows += [row | {"version": hop if row["version"] == WRITTEN else SETTLED} for row in self._better.values()]
        self._fresh.clear()
        self._better.clear()
        self._referrals.fresh.clear()
        self._about.clear()
        return pa.Table.from_pylist([row | {"seen_ns": seen_ns} for row in rows], schema=CLOCK_MAPS)

    # -- state -----------------------------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """JSON-able, the same for the same history; ~300 B a clock."""
        clocks = [[key, _pack_clock(self._clocks[key])] for key in sorted(self._clocks)]
        kept = [self._turn, sorted(self.counters.items()), clocks, sorted(self._rates.items())]
        text = json.dumps(kept, separators=(",", ":"))
        return {"z": base64.b64encode(zlib.compress(text.encode(), 6)).decode()}

    @classmethod
    def load(cls, value: dict[str, Any] | None) -> "ClockState":
        if not value:
            return cls()
        turn, counters, clocks, *rates = json.loads(zlib.decompress(base64.b64decode(value["z"])))
        state = cls(_turn=turn, counters=Counter(dict(counters)))
        state._clocks = {key: _unpack_clock(packed) for key, packed in clocks}
        for name, windows in rates[0] if rates else ():
            state._rates[name] = [(of, ((a, b), (c, d))) for of, ((a, b), (c, d)) in windows]
        return state


def _complete(line: BracketLine, final: LongestLine, outcome: Outcome, bracket: Bracket) -> list[Piece]:
    """Pieces of the final map that are complete by this bracket."""
    if outcome is Outcome.TAKEN:
        return final.add(bracket, line.slope())
    if outcome is not Outcome.RESTART:
        return []
    pieces = final.cut()
    for read in line.window:
        pieces += final.add(read, line.slope())
    return pieces


def _doubtful(epoch: int, piece: Piece, made: list[Segment], jumps: list[tuple[int, int, int]]) -> list[Segment]:
    """Segments cut where the wall clock was set, their error there as large as the jump."""
    for low, high, size in jumps:
        begin, end = piece.first_tick(low), piece.first_tick(high)
        cut: list[Segment] = []
        for part in made:
            inside = (max(begin, part.valid_from), min(end, part.valid_to))
            if inside[0] >= inside[1] or 0 <= size <= part.err_ns // 2 or part.err_ns < 0:
                cut.append(part)
                continue
            line = (part.x0, part.y0, part.n, part.d)
            wide = segment(epoch, line, inside, part.err_ns + size, part.quality, part.flags)
            cut += [replace(part, valid_to=inside[0])] if inside[0] > part.valid_from else []
            cut.append(wide)
            cut += [replace(part, valid_from=inside[1])] if inside[1] < part.valid_to else []
        made = cut
    return made


def _row(
    names: tuple[int, int, int], about: tuple[str, int, int, int, int], made: Segment | Piece, err: int, quality: str
) -> dict[str, Any]:
    """CLOCK_MAPS but for seen_ns; names: map, epoch, ref."""
    clock, host, device, num, den = about
    begin, end = (made.begin, made.end) if isinstance(made, Piece) else (made.valid_from, made.valid_to)
    proved = err if names[2] and quality == GUARANTEED else 0
    return {
        "map": names[0], "epoch": names[1], "host": host, "device": device, "clock": clock, "version": WRITTEN,
        "x0": made.x0, "y0": made.y0, "n": made.n, "d": made.d, "valid_from": begin, "valid_to": end, "err_ns": err,
        "quality": quality, "period_num": num, "period_den": den, "ref": names[2], "lo_ns": -proved, "hi_ns": proved,
        "sigma_ns": 0, "method": "bracket" if names[2] else "wall", "final": False, "reference": 0,
    }  # fmt: skip


def _pack_clock(clock: _Clock) -> list[Any]:
    lines = [line.dump() if line is not None else None for line in (clock.line, clock.wall)]
    final = clock.final.dump() if clock.final is not None else None
    return [
        *[clock.name, clock.num, clock.den, clock.ref, clock.used, *lines, clock.anchor],
        *[clock.device, final, clock.owed, [astuple(pair) for pair in clock.pairs], clock.estimated, clock.fault],
    ]


def _unpack_clock(packed: list[Any]) -> _Clock:
    name, num, den, ref, used, line, wall, anchor, *more = packed
    # States of the first version end here: their lines begin with the next read.
    device, final, owed, pairs, estimated, clock_fault = more or (0, None, None, (), False, "")
    clock = _Clock(name, num, den, ref, used, anchor=(anchor[0], anchor[1]) if anchor else None, device=device)
    clock.line = BracketLine.load(num, den, clock.behaviour, line) if line is not None else None
    clock.wall = BracketLine.load(num, den, WALL, wall) if wall is not None else None
    clock.final = LongestLine.load(num, den, clock.behaviour, final) if final is not None else None
    clock.owed = (owed[0], owed[1]) if owed else None
    clock.pairs, clock.estimated, clock.fault = [Bracket(*pair) for pair in pairs], estimated, clock_fault
    return clock
