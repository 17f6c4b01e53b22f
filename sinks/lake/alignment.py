"""Rows on the fleet's one axis: what was placed by a host's wall clock is placed again by the newest maps there are.

A row keeps the segment it was written with, so its ticks are known exactly. From ticks the way goes over at most two
maps, a device's to its host (`ref` names the host's clock) and the host's to the fleet (`ref` 0, version above 1). What
no map covers stays as it was written. Durations are of a clock alone and are never touched.

Maps come from other machines: one that cannot be is left out and counted with its reason, never repaired.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.schema.rational import TERM_LIMIT, Int64s, apply, first_ticks
from fleetscope.schema.vocabulary import MAP_QUALITIES, WRITTEN

Bools = NDArray[np.bool_]
Columns = dict[str, Int64s]

VERSION_LIMIT = 1 << 40
"""Hops since 1970: of 10 s, 350 000 years."""
TIME_LIMIT_NS = float(1 << 62)
RATE_LIMIT = 0.01
"""A clock of ns that gains or loses a hundredth is broken: crystals keep 1e-4, the fleet's slew 1e-6."""
BENT_NS = 1_000_000_000
"""10 ppm for a day."""
LEAST = -(1 << 62)
GUARANTEED = MAP_QUALITIES.index("guaranteed")
UNSYNCED = MAP_QUALITIES.index("unsynced")

_NUMBERS = (
    "map", "epoch", "version", "x0", "y0", "n", "d", "valid_from", "valid_to", "err_ns", "ref", "lo_ns", "hi_ns",
    "sigma_ns", "seen_ns",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aligned:
    """Arrays over rows. `moved`: a map of the host says so; else t_ns is as written and all else of its segment.

    true - t_ns is in [lo_ns, hi_ns] where quality is GUARANTEED (of a fleet's map: relative to its reference host; of
    one as written: to the host's own wall clock), `sigma_ns` one sigma, 0 unknown. `quality` indexes MAP_QUALITIES;
    `version` is of the host's map, 1 where none.
    """

    t_ns: Int64s
    lo_ns: Int64s
    hi_ns: Int64s
    sigma_ns: Int64s
    quality: Int64s
    version: Int64s
    moved: Bools


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Disjoint pieces, sorted by epoch and begin; those of epochs[i] are first[i]:first[i + 1]."""

    epochs: Int64s
    first: Int64s
    begin: Int64s
    end: Int64s
    columns: Columns

    def find(self, epoch: Int64s, x: Int64s) -> Int64s:
        """Index of the piece that covers x, -1 where none does. A bisection for all rows at once: a query asks about
        2 048 rows of as many hosts, and going through hosts one by one took most of its time."""
        if not len(self.epochs) or not len(x):
            return np.full(len(x), -1, np.int64)
        place = np.minimum(np.searchsorted(self.epochs, epoch), len(self.epochs) - 1)
        first = self.first[place]
        low, high = first.copy(), np.where(self.epochs[place] == epoch, self.first[place + 1], first)
        for _ in range(int((high - low).max()).bit_length()):
            middle = (low + high) >> 1
            behind = (self.begin[np.minimum(middle, len(self.begin) - 1)] <= x) & (low < high)
            low, high = np.where(behind, middle + 1, low), np.where(behind, high, middle)
        index = low - 1
        covered = (index >= first) & (x < self.end[np.maximum(index, 0)])
        return np.where(covered, index, -1)

    def number(self, name: str, index: Int64s) -> Int64s:
        return self.columns[name][index]

    def at(self, index: Int64s, x: Int64s) -> Int64s:
        return apply(x, *(self.number(name, index) for name in ("x0", "y0", "n", "d")))


class Alignment:
    """Maps of one version. Make it with `of`; false where no clock of a fleet was ever solved: rows stay then."""

    def __init__(self, written: Columns, hosts: _Pieces, devices: _Pieces) -> None:
        self._written = written
        self._hosts, self._devices = hosts, devices
        self.refused: Counter[str] = Counter()
        """Rows of clock_maps left out, by reason."""
        self._widest: int | None = None

    def __bool__(self) -> bool:
        return bool(len(self._hosts.begin))

    @classmethod
    def of(cls, rows: pa.Table, pinned: int | None = None) -> "Alignment":
        """From rows of clock_maps, one a key. `pinned`: maps solved later do not count; 0: none does."""
        columns = columns_of(rows)
        refused, kept = impossible(columns)
        limit = VERSION_LIMIT if pinned is None else pinned
        version, ref = columns["version"], columns["ref"]
        host = kept & (ref == 0) & (version > WRITTEN) & (version <= limit)
        device = kept & (ref != 0) & (version <= limit)
        written = _only(columns, kept & (ref == 0) & (version == WRITTEN))
        made = cls(
            _only(written, np.argsort(written["map"], kind="stable")),
            _flat(columns, host),
            _flat(columns, device),
        )
        made.refused = refused
        return made

    def place(self, names: Int64s, t_ns: Int64s, t_sub: Int64s | int) -> Aligned:
        """Rows by the segment they were written with (`map`), its time and the ticks beyond it."""
        count, written = len(t_ns), self._written
        at = np.minimum(np.searchsorted(written["map"], names), max(len(written["map"]) - 1, 0))
        known = written["map"][at] == names if len(written["map"]) else np.zeros(count, bool)
        at = np.where(known, at, 0)
        if not known.any():
            nothing = np.zeros(count, np.int64)
            quality = np.full(count, UNSYNCED)
            return Aligned(t_ns, nothing, nothing, nothing, quality, np.ones(count, np.int64), np.zeros(count, bool))
        line = [written[name][at] for name in ("x0", "y0", "n", "d")]
        ticks = first_ticks(t_ns, *line) + t_sub
        epoch = written["epoch"][at]
        over = np.where(known, self._devices.find(epoch, ticks), -1)
        step = over >= 0
        raw, host_epoch = ticks, epoch
        if step.any():
            raw = np.where(step, self._devices.at(over, ticks), ticks)
            host_epoch = np.where(step, self._devices.number("ref", over), epoch)
        on = np.where(known, self._hosts.find(host_epoch, raw), -1)
        moved = on >= 0
        err = written["err_ns"][at]
        bound = np.where(known & (err >= 0), err, 0)
        quality = np.where(known, written["quality"][at], UNSYNCED)
        out = Aligned(
            np.array(t_ns, np.int64), -bound, bound.copy(), np.zeros(count, np.int64), quality,
            np.ones(count, np.int64), moved,
        )  # fmt: skip
        if moved.any():
            self._move(out, on[moved], over[moved], raw[moved])
        return out

    def _move(self, out: Aligned, on: Int64s, over: Int64s, raw: Int64s) -> None:
        hosts, devices, moved, step = self._hosts, self._devices, out.moved, over >= 0
        out.t_ns[moved] = hosts.at(on, raw)
        lo, hi, sigma = (hosts.number(name, on) for name in ("lo_ns", "hi_ns", "sigma_ns"))
        quality = hosts.columns["quality"][on]
        if step.any():
            # What the device's map is off by passes through the host's slope, which is 1 but for RATE_LIMIT at most;
            # 1 ns more for the floor between the two.
            mine = [np.where(step, devices.number(name, over), 0) for name in ("lo_ns", "hi_ns", "sigma_ns")]
            lo, hi = (end + part + part // 100 + sign for end, part, sign in ((lo, mine[0], -1), (hi, mine[1], 1)))
            sigma = np.hypot(sigma, mine[2]).astype(np.int64)
            # MAP_QUALITIES begins with the best: a way is as good as its worst part.
            quality = np.where(step, np.maximum(quality, devices.columns["quality"][over]), quality)
        proved = quality == GUARANTEED
        out.lo_ns[moved], out.hi_ns[moved] = np.where(proved, lo, 0), np.where(proved, hi, 0)
        out.sigma_ns[moved], out.quality[moved] = sigma, quality
        out.version[moved] = hosts.number("version", on)

    def moved(self, rows: pa.Table) -> pa.Table:
        """Rows of a raw table with t_ns by this alignment."""
        names, t_ns = (rows.column(name).to_numpy() for name in ("map", "t_ns"))
        t_sub = rows.column("t_sub").to_numpy() if "t_sub" in rows.column_names else 0
        index = rows.schema.get_field_index("t_ns")
        return rows.set_column(index, rows.schema.field(index), pa.array(self.place(names, t_ns, t_sub).t_ns))

    @property
    def widest_ns(self) -> int:
        """No row is moved by more: of every segment rows were written with, where it begins, where the next one of its
        clock does and where maps end; between these both are nearly straight, and BENT_NS is for what they are not."""
        if self._widest is None:
            self._widest = self._correction()
        return self._widest

    def _correction(self) -> int:
        written = self._written
        if not self or not len(written["map"]):
            return 0
        order = np.lexsort((written["valid_from"], written["epoch"]))
        epoch = written["epoch"][order]
        begin = written["valid_from"][order]
        following = np.append(begin[1:], begin[-1:])
        following = np.where(np.append(epoch[1:] == epoch[:-1], False), following, begin)
        rows = np.tile(order, 3)
        ticks = np.concatenate([begin, following, np.maximum(self._last_tick(epoch), begin)])
        line = [written[name][rows] for name in ("x0", "y0", "n", "d")]
        t_ns = apply(ticks, *line)
        placed = self.place(written["map"][rows], t_ns, ticks - first_ticks(t_ns, *line))
        moved = int(np.abs(placed.t_ns - t_ns).max())
        return moved + BENT_NS if moved else 0

    def _last_tick(self, epoch: Int64s) -> Int64s:
        """The last tick of each epoch that goes all the way to the fleet; the least there is where none does."""
        hosts, devices = self._hosts, self._devices
        ends = dict(zip(hosts.epochs.tolist(), (hosts.end[hosts.first[1:] - 1] - 1).tolist(), strict=True))
        last = devices.first[1:] - 1
        line = [devices.number(name, last) for name in ("x0", "y0", "n", "d")]
        raw = np.array([ends.get(ref, LEAST) for ref in devices.number("ref", last).tolist()], np.int64)
        reached = np.where(raw == LEAST, LEAST, np.minimum(first_ticks(raw, *line), devices.end[last] - 1))
        ends |= dict(zip(devices.epochs.tolist(), reached.tolist(), strict=True))
        return np.array([ends.get(name, LEAST) for name in epoch.tolist()], np.int64)


def columns_of(rows: pa.Table) -> Columns:
    """Rows of clock_maps as arrays; a quality that is no word is -1."""
    columns: Columns = {name: rows.column(name).to_numpy() for name in _NUMBERS}
    columns["final"] = rows.column("final").to_numpy(zero_copy_only=False).astype(np.int64)
    words = {word: place for place, word in enumerate(MAP_QUALITIES)}
    columns["quality"] = np.array([words.get(word, -1) for word in rows.column("quality").to_pylist()], np.int64)
    return columns


def superseded(rows: pa.Table) -> Bools:
    """Rows of clock_maps that a final map of the same ticks has replaced: no reader without a pin uses them."""
    columns = columns_of(rows)
    solved = (columns["ref"] == 0) & (columns["version"] > WRITTEN)
    finals = _flat(columns, solved & (columns["final"] == 1) & (columns["valid_from"] < columns["valid_to"]))
    first = finals.find(columns["epoch"], columns["valid_from"]) >= 0
    last = finals.find(columns["epoch"], columns["valid_to"] - 1) >= 0
    return np.asarray(solved & (columns["final"] == 0) & first & last, bool)


def impossible(columns: Columns) -> tuple[Counter[str], Bools]:
    """(how many rows of clock_maps cannot be, by reason; which can). A row is counted under its first reason."""
    n, d, ref = columns["n"], columns["d"], columns["ref"]
    solved = (ref == 0) & (columns["version"] > WRITTEN)
    slopes = (n > 0) & (d > 0) & (n < TERM_LIMIT) & (d < TERM_LIMIT)
    rate = n / np.where(d > 0, d, 1)
    ends = [
        np.abs((columns[x].astype(float) - columns["x0"]) * rate + columns["y0"]) for x in ("valid_from", "valid_to")
    ]
    wrong = {
        "slope": ~slopes,
        "range": columns["valid_to"] <= columns["valid_from"],
        "time": (ends[0] >= TIME_LIMIT_NS) | (ends[1] >= TIME_LIMIT_NS),
        "version": (columns["version"] < WRITTEN) | (columns["version"] >= VERSION_LIMIT),
        "quality": columns["quality"] < 0,
        "interval": columns["lo_ns"] > columns["hi_ns"],
        "sigma": columns["sigma_ns"] < 0,
        "itself": ref == columns["epoch"],
        "rate": solved & slopes & (np.abs(rate - 1) > RATE_LIMIT),
    }
    kept = np.ones(len(n), bool)
    refused: Counter[str] = Counter()
    for reason, bad in wrong.items():
        if found := int((bad & kept).sum()):
            refused[reason] = found
        kept &= ~bad
    return refused, kept


def _only(columns: Columns, chosen: Bools | Int64s) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _flat(columns: Columns, chosen: Bools) -> _Pieces:
    """The chosen rows as disjoint pieces: of those that cover the same ticks the one with the highest version, of
    equals the final one, then the one seen last."""
    mine = _only(columns, chosen)
    count = len(mine["epoch"])
    nothing = np.empty(0, np.int64)
    if not count:
        return _Pieces(nothing, np.zeros(1, np.int64), nothing, nothing, mine)
    names, rank = np.unique(mine["epoch"], return_inverse=True)
    ranks = np.concatenate([rank, rank])
    ticks = np.concatenate([mine["valid_from"], mine["valid_to"]])
    order = np.lexsort((ticks, ranks))
    fresh = np.ones(2 * count, bool)
    fresh[1:] = (np.diff(ranks[order]) != 0) | (np.diff(ticks[order]) != 0)
    place = np.empty(2 * count, np.int64)
    place[order] = np.cumsum(fresh) - 1
    borders, first, last = ticks[order][fresh], place[:count], place[count:]
    # Every row, once for each stretch between two borders that it covers.
    spans = last - first
    row = np.repeat(np.arange(count), spans)
    stretch = np.arange(len(row)) - np.repeat(np.cumsum(spans) - spans, spans) + first[row]
    best = np.lexsort((mine["seen_ns"][row], mine["final"][row], mine["version"][row], stretch))
    top = np.ones(len(best), bool)
    top[:-1] = np.diff(stretch[best]) != 0
    row, stretch = row[best][top], stretch[best][top]
    begins = np.ones(len(row), bool)
    begins[1:] = (np.diff(row) != 0) | (np.diff(stretch) != 1)
    ends = np.append(begins[1:], True)
    owner = row[begins]
    at = np.searchsorted(rank[owner], np.arange(len(names) + 1))
    return _Pieces(names, at, borders[stretch[begins]], borders[stretch[ends] + 1], _only(mine, owner))
