"""Busy time of devices by class and 10 s window: unions in ticks, nanoseconds by N(b) - N(a), so that any split adds
up.

The class of an instant is that of the innermost op of each line, then compute > sparse core > collective > copy >
infeed > outfeed > other across lines. One sweep over all begins and ends does it: where a span begins, its class gains
a line and the class of its parent loses one; where it ends, the other way round. Counters of all classes share one
int64, so a single running sum tells them all.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import added
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.nest import Nested, line_heads
from fleetscope.pipelines.occupancy import Stretches, gap_table, occupying, run_ahead, watched
from fleetscope.pipelines.sampled import last_slots, unit_duty
from fleetscope.pipelines.squares import square
from fleetscope.pipelines.whole import units
from fleetscope.pipelines.windows import Slots, row_slots, slots_of
from fleetscope.schema.rational import apply
from fleetscope.schema.tables import DEVICE_10S
from fleetscope.schema.vocabulary import DEVICE_WORK, Kind, SpanFlag

Int64s = NDArray[np.int64]
Codes = NDArray[np.uint8]

CLASSES = 8
IDLE, OTHER, OUTFEED, INFEED, COPY, COLLECTIVE, SPARSE_CORE, COMPUTE = range(CLASSES)
"""Classes in ascending priority."""

FIELD_BITS = 9
FIELD_LIMIT = (1 << FIELD_BITS) - 24
"""Lines of one batch that may be in one class at once before their counter runs into the next; beyond, classes are
counted apart."""

PACKED_TICKS = 1 << 55
"""Ticks of all batches of a block together that leave 7 bits for a code beside a sign; more (65 days at 78 ps) are
sorted the slow way."""

_CLASS_OF_KIND = np.zeros(256, np.uint8)
for _kind in DEVICE_WORK:
    _CLASS_OF_KIND[_kind] = OTHER
_CLASS_OF_KIND[[Kind.OUTFEED, Kind.INFEED, Kind.COPY, Kind.COLLECTIVE, Kind.SPARSE_CORE, Kind.COMPUTE]] = [
    OUTFEED,
    INFEED,
    COPY,
    COLLECTIVE,
    SPARSE_CORE,
    COMPUTE,
]


def _steps() -> NDArray[np.int64]:
    """int64[class, 128]: what an event (class << 4 | parent's class << 1 | is end) adds to the number of lines in a
    class."""
    code = np.arange(128)
    own, above, sign = code >> 4, (code >> 1) & 7, 1 - 2 * (code & 1)
    table = np.zeros((CLASSES, 128), np.int64)
    for number in range(OTHER, CLASSES):
        table[number] = ((own == number).astype(np.int64) - (above == number)) * sign
    return table


_STEPS = _steps()
_PACKED = (_STEPS[OTHER:] << (FIELD_BITS * np.arange(CLASSES - 1))[:, None]).sum(axis=0)
_FLOORS = [1 << (FIELD_BITS * number) for number in range(CLASSES - 1)]
_OPENS = COMPUTE << 4 | COMPUTE << 1
"""An event that only opens the next slot: no row begins inside its own class, so nothing else has this code."""


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Slots of devices, and how ticks of all their batches are put one after the other."""

    opened: Int64s
    """Slots in order."""
    tick: Int64s
    """Where each begins; the first of a batch before all its rows."""
    batch: Int64s
    shift: Int64s
    """int64[B]: added to ticks of a batch, makes the ranges of batches disjoint and ascending."""
    packs: bool
    """Shifted ticks leave room for the code in an int64."""
    num: Int64s
    den: Int64s
    slots: int
    low: Int64s
    high: Int64s
    """int64[B]: the range that was looked at."""


def _bounds(block: Block, slots: Slots) -> _Bounds:
    used = np.diff(slots.first) > 0
    used &= block.of_batches("device") != 0
    low, high = block.of_batches("tick_from"), block.of_batches("tick_to")
    held = np.flatnonzero(np.diff(block.offsets))
    if len(held):
        heads = block.offsets[held]
        low[held] = np.minimum(low[held], np.minimum.reduceat(block.start, heads))
        high[held] = np.maximum(high[held], np.maximum.reduceat(block.start + np.maximum(block.dur, 0), heads))
    length = np.where(used, high - low, 0)
    shift = np.cumsum(length + 1) - (length + 1) - low
    batch = slots.batch
    tick = slots.tick.copy()
    tick[slots.first[:-1][np.diff(slots.first) > 0]] = low[np.diff(slots.first) > 0]
    opened = np.flatnonzero(used[batch])
    batch = batch[opened]
    num, den = block.of_batches("period_num")[batch], block.of_batches("period_den")[batch]
    total = sum(length.tolist()) + len(length)
    looked = block.of_batches("tick_from"), block.of_batches("tick_to")
    return _Bounds(opened, tick[opened], batch, shift, total < PACKED_TICKS, num, den, len(slots.tick), *looked)


def _sweep(
    bounds: _Bounds,
    begin: Int64s,
    end: Int64s,
    code: Codes,
    batch: Int64s,
    wide: bool,
    idle: list[Stretches] | None = None,
) -> Int64s:
    """int64[slots, CLASSES]: ns by class. `code` is that of the begin; the end has the next one. `idle` gets the
    stretches in which nothing ran."""
    busy = np.zeros(bounds.slots * CLASSES, np.int64)
    if len(begin) or (idle is not None and len(bounds.tick)):
        tick, code, shift = _in_order(bounds, begin, end, code, batch)
        state = _classes(code, wide)
        opens = code == _OPENS
        changes = opens.copy()
        changes[1:] |= state[1:] != state[:-1]
        at = np.flatnonzero(changes)
        state, tick, slot = state[at], tick[at], np.cumsum(opens[at]) - 1
        if idle is not None:
            idle.append(_idle(bounds, state, tick, slot, shift))
        here = np.flatnonzero(state[:-1])
        slot = slot[here]
        shift = shift[bounds.batch[slot]]
        num, den = _terms(bounds.num, slot), _terms(bounds.den, slot)
        lasted = apply(tick[here + 1] - shift, 0, 0, num, den) - apply(tick[here] - shift, 0, 0, num, den)
        np.add.at(busy, bounds.opened[slot] * CLASSES + state[here], lasted)
    return busy.reshape(-1, CLASSES)


def _idle(bounds: _Bounds, state: Codes, tick: Int64s, slot: Int64s, shift: Int64s) -> Stretches:
    at = np.flatnonzero((state == IDLE) & (slot >= 0))
    following = np.minimum(at + 1, len(slot) - 1)
    batch = bounds.batch[slot[at]]
    # The last stretch of a batch ends with its range.
    last = (at == len(slot) - 1) | (bounds.batch[slot[following]] != batch)
    begin = np.maximum(tick[at] - shift[batch], bounds.low[batch])
    end = np.where(last, bounds.high[batch], np.minimum(tick[following] - shift[batch], bounds.high[batch]))
    some = end > begin
    return Stretches(bounds.opened[slot[at][some]], batch[some], begin[some], end[some])


def _terms(values: Int64s, slot: Int64s) -> Int64s | int:
    return int(values[0]) if (values == values[0]).all() else values[slot]


def _in_order(bounds: _Bounds, begin: Int64s, end: Int64s, code: Codes, batch: Int64s) -> tuple[Int64s, Codes, Int64s]:
    """(ticks shifted by their batch, codes) of all events and boundaries in order, and the shift of each batch."""
    if not bounds.packs:
        ticks = np.concatenate((begin, end, bounds.tick))
        codes = np.concatenate((code, code + 1, np.full(len(bounds.tick), _OPENS, dtype=np.uint8)))
        order = np.lexsort((codes, ticks, np.concatenate((batch, batch, bounds.batch))))
        return ticks[order], codes[order], np.zeros_like(bounds.shift)
    count = 2 * len(begin)
    keys = np.empty(count + len(bounds.tick), np.int64)
    shift = bounds.shift[batch]
    # Begin and end side by side are nearly in order on a line, so the merge sort finds a few runs a batch: 4 ns a key,
    # not 44.
    for first, ticks, codes in ((0, begin, code), (1, end, code + 1)):
        key = ticks + shift
        key <<= 7
        key |= codes
        keys[first:count:2] = key
    keys[count:] = (bounds.tick + bounds.shift[bounds.batch]) << 7 | _OPENS
    keys.sort(kind="stable")
    codes = keys.astype(np.uint8) & np.uint8(127)
    keys >>= 7
    return keys, codes, bounds.shift


def _classes(code: Codes, wide: bool) -> Codes:
    """Class of the instants after each event. Between events of one tick it may be wrong, for no time."""
    state = np.zeros(len(code), np.uint8)
    if wide:
        for number in range(OTHER, CLASSES):
            state[np.cumsum(_STEPS[number][code]) > 0] = number
        return state
    lines = np.cumsum(_PACKED[code])
    for floor in _FLOORS:
        state += (lines >= floor).view(np.uint8)
    return state


def busy_by_slot(
    block: Block, nested: Nested, slots: Slots, idle: list[Stretches] | None = None
) -> tuple[Int64s, Int64s, Int64s]:
    """(busy int64[slots, CLASSES] by class, union of collectives int64[slots], union of copies int64[slots]), ns; 0 for
    host threads. `idle` gets the stretches in which no op ran, in batches of executions alone too."""
    kinds = _CLASS_OF_KIND[block.kind]
    own = _inherited(block, nested, kinds)
    inside = np.flatnonzero(nested.parent >= 0)
    above = np.zeros(block.rows, np.uint8)
    above[inside] = own[nested.parent[inside]]
    bounds = _bounds(block, slots)
    used = np.zeros(len(block.infos), np.bool_)
    used[bounds.batch] = True
    usable = block.over_rows(used) & (block.dur > 0)
    batch = block.batch
    wide = _crowded(block, nested)
    overlapping = bool(nested.overlaps.any())
    changing = own != above
    rows = np.flatnonzero(usable & (changing | nested.overlaps if overlapping else changing))
    begin, owner = block.start[rows], batch[rows]
    end = begin + block.dur[rows]
    code: Codes = own[rows] << np.uint8(4) | above[rows] << np.uint8(1)
    if overlapping:
        # Where siblings overlap their parent loses its line only once: from where the earlier ones have ended.
        code = np.where(nested.overlaps[rows], code & np.uint8(0x70), code)
        late = rows[nested.overlaps[rows] & (above[rows] != IDLE)]
        begin = np.concatenate((begin, nested.covered_to[late]))
        end = np.concatenate((end, block.start[late] + block.dur[late]))
        code, owner = np.concatenate((code, above[late] << np.uint8(1))), np.concatenate((owner, batch[late]))
    busy = _sweep(bounds, begin, end, code, owner, wide, idle)
    unions = []
    for number in (COLLECTIVE, COPY):
        rows = np.flatnonzero(usable & (kinds == number))
        begin = block.start[rows]
        kind = np.full(len(rows), number << 4, dtype=np.uint8)
        unions.append(_sweep(bounds, begin, begin + block.dur[rows], kind, batch[rows], wide)[:, number])
    return busy, unions[0], unions[1]


def _inherited(block: Block, nested: Nested, kinds: Codes) -> Codes:
    """Class of each row; a step or module inside an op leaves its instants to that op."""
    rows = np.flatnonzero(~block.work & (nested.parent >= 0))
    if not len(rows):
        return kinds
    own = kinds.copy()
    for depth in np.unique(nested.depth[rows]).tolist():
        level = rows[nested.depth[rows] == depth]
        own[level] = own[nested.parent[level]]
    return own


def _crowded(block: Block, nested: Nested) -> bool:
    """More spans of one batch may run at once than a counter field holds: lines, siblings that overlap."""
    if not block.rows:
        return False
    heads = np.add.reduceat(line_heads(block).astype(np.int64), block.offsets[:-1][np.diff(block.offsets) > 0])
    return int(heads.max()) + int(nested.overlaps.sum()) > FIELD_LIMIT


def union_by_slot(block: Block, slots: Slots, rows: Int64s, idle: list[Stretches] | None = None) -> Int64s:
    """int64[slots]: ns of the union of these rows' intervals in each slot. `idle` gets the stretches outside of it."""
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    begin = block.start[rows]
    code = np.full(len(rows), OTHER << 4, dtype=np.uint8)
    end = begin + np.maximum(block.dur[rows], 0)
    return _sweep(_bounds(block, slots), begin, end, code, batch, len(rows) > FIELD_LIMIT, idle)[:, OTHER]


def observed_by_slot(block: Block, slots: Slots) -> Int64s:
    """int64[slots]: ns of the observed range [tick_from, tick_to) inside each slot."""
    batch = slots.batch
    low, high = block.of_batches("tick_from")[batch], block.of_batches("tick_to")[batch]
    begin, end = slots.tick.copy(), np.empty_like(slots.tick)
    end[:-1] = slots.tick[1:]
    used = np.diff(slots.first) > 0
    begin[slots.first[:-1][used]] = low[slots.first[:-1][used]]
    end[slots.first[1:][used] - 1] = high[slots.first[1:][used] - 1]
    num, den = block.of_batches("period_num")[batch], block.of_batches("period_den")[batch]
    begin, end = np.clip(begin, low, high), np.clip(end, low, high)
    return apply(end, 0, 0, num, den) - apply(begin, 0, 0, num, den)


def idle_gaps(block: Block, slots: Slots, by_ops: list[Stretches]) -> pa.Table:
    """GAPS of all device batches; `by_ops`: what busy_by_slot of the same slots found."""
    alone = watched(block)
    found = [part.of(~alone) for part in by_ops]
    if alone.any():
        by_executions: list[Stretches] = []
        union_by_slot(block, slots, occupying(block), by_executions)
        found += [part.of(alone) for part in by_executions]
    return gap_table(block, slots, found, alone)


class Costs(Protocol):
    """int64[R] each, of one occurrence; -1 unknown."""

    @property
    def flops(self) -> Int64s: ...
    @property
    def model_flops(self) -> Int64s: ...
    @property
    def bytes_hbm(self) -> Int64s: ...


def device_rollup(
    block: Block,
    placed: Placed,
    nested: Nested,
    slots: Slots | None = None,
    costs: Costs | None = None,
    swept: tuple[Int64s, Int64s, Int64s] | None = None,
) -> pa.Table:
    """DEVICE_10S rows, one a key, of all device batches. Peaks are 0: they are not in spans; dropped stays so.

    Idle time is `idle_unknown_ns` until `idle` finds its causes.

    `slots` may be finer than windows; `swept` is `busy_by_slot` of the same slots, where the caller needs it too.
    """
    slots = slots_of(block) if slots is None else slots
    busy, collective, copy = busy_by_slot(block, nested, slots) if swept is None else swept
    looked = observed_by_slot(block, slots)
    batch = slots.batch
    only_executions = watched(block)[batch]
    observed = np.where(only_executions, 0, looked)
    # Rows that do not count go to one slot more, which is cut off.
    slot = row_slots(block, slots)
    counted = placed.counts & (slot >= 0)
    at = slot if counted.all() else np.where(counted, slot, len(batch))
    rows_in = _count(at, len(batch))
    # Not UNSYNCED, which every row is that is placed while it is new (0021): of these the wall clock alone is known.
    unsynced = (placed.flags & np.uint32(SpanFlag.NO_DEVICE_CLOCK)) != 0
    device = block.of_batches("device")[batch]
    sampled = units(block)
    work = block.work & placed.counts
    own = placed.dur_ns - nested.child_ns
    columns: dict[str, NDArray[Any]] = {
        "t_ns": slots.t_ns,
        "host": block.of_batches("host")[batch],
        "process": block.of_batches("process")[batch],
        "device": device,
        "weight": np.where(sampled[batch], 0, 1),
        "busy_ns": busy.sum(axis=1),
        "observed_ns": observed,
        "collective_total_ns": collective,
        "copy_total_ns": copy,
        "watched_ns": np.where(only_executions, looked, 0),
        "executions": _count(at[block.kind == Kind.MODULE], len(batch)),
        "op_ns": _by_slot(at, np.where(work, own, 0), len(batch)),
        "err_ns": placed.err_ns[batch],
        "unsynced": rows_in if unsynced.all() else _count(at[unsynced], len(batch)),
    }
    for name, number in _CLASS_COLUMNS:
        columns[name] = busy[:, number]
    if costs is not None:
        columns |= _worked(costs, work, own, at, len(batch))
    if only_executions.any():
        columns |= waited(block, placed, slots, at)
    columns["idle_unknown_ns"] = looked - columns["busy_ns"] - columns.get("occupancy_ns", 0)
    if sampled.any():
        columns |= _unit_columns(block, placed, slots, own, work, busy)
    chosen = np.flatnonzero((device != 0) & ((looked != 0) | (columns["busy_ns"] != 0) | (rows_in != 0)))
    rows = {
        field.name: pa.array(columns[field.name][chosen], field.type)
        if field.name in columns
        else pa.array(np.zeros(len(chosen), np.int64), field.type)
        for field in DEVICE_10S
    }
    return merge("device_10s", [pa.table(rows, schema=DEVICE_10S)])


def waited(block: Block, placed: Placed, slots: Slots, at: Int64s) -> dict[str, NDArray[Any]]:
    """Columns of the shim's executions; `at`: slot in which each row ends."""
    count = len(slots.tick)
    queued = np.flatnonzero((block.kind == np.uint8(Kind.QUEUE)) & placed.counts)
    rows, depth = run_ahead(block, placed)
    deepest = np.zeros(count + 1, np.int64)
    np.maximum.at(deepest, at[rows], depth)
    return {
        "occupancy_ns": union_by_slot(block, slots, occupying(block)),
        "queue_ns": _by_slot(at[queued], placed.dur_ns[queued], count),
        "run_ahead_max": deepest[:count],
    }


_CLASS_COLUMNS = (
    ("compute_ns", COMPUTE),
    ("collective_ns", COLLECTIVE),
    ("copy_ns", COPY),
    ("sparse_core_ns", SPARSE_CORE),
    ("infeed_ns", INFEED),
    ("outfeed_ns", OUTFEED),
    ("other_ns", OTHER),
)


def _count(slot: Int64s, slots: int) -> Int64s:
    return np.bincount(slot, minlength=slots + 1)[:slots]


def _by_slot(slot: Int64s, values: Int64s, slots: int) -> Int64s:
    return added(slot, values, slots + 1)[:slots]


def _worked(costs: Costs, work: NDArray[np.bool_], own: Int64s, slot: Int64s, slots: int) -> dict[str, NDArray[Any]]:
    """What the ops that end in a slot did, where known; an op's cost includes none of the ops nested in it."""
    told: dict[str, NDArray[Any]] = {}
    for name, values in (("flops", costs.flops), ("model_flops", costs.model_flops), ("bytes_hbm", costs.bytes_hbm)):
        known = values >= 0
        if not known.any():
            continue
        known &= work
        told[name] = _by_slot(slot, np.where(known, values, 0), slots)
        if name == "flops":
            told["flops_known_ns"] = _by_slot(slot, np.where(known, own, 0), slots)
    return told


def _unit_columns(
    block: Block, placed: Placed, slots: Slots, own: Int64s, work: NDArray[np.bool_], busy: Int64s
) -> dict[str, NDArray[Any]]:
    """Sums between profiler windows: each window once, in the slot it ends in."""
    total = added(slots.batch, busy.sum(axis=1), len(block.infos))
    last = last_slots(block, slots)
    chosen = np.flatnonzero(units(block) & (last >= 0) & (block.of_batches("device") != 0))
    duty = unit_duty(block, placed, own, work, total)[chosen]
    columns: dict[str, NDArray[Any]] = {}
    hi, lo = square(total[chosen])
    duty_hi, duty_lo = square(duty)
    for name, values in (
        ("windows", np.ones(len(chosen), np.int64)),
        ("busy_sq_hi", hi),
        ("busy_sq_lo", lo),
        ("duty_q30", duty),
        ("duty_sq_hi", duty_hi),
        ("duty_sq_lo", duty_lo),
    ):
        column = np.zeros(len(slots.tick), np.int64)
        column[last[chosen]] = values
        columns[name] = column
    return columns
