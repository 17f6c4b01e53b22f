"""Profiler windows as sampling units: what a window says about totals it did not see whole
(reference/window-estimators.md).

The profiler keeps a span only if it lies wholly inside the window of length W, so a kept span of length d stands for
1 / (W - d) occurrences per unit of time. A unit is one batch: one window of one device.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import combined, compact, ranks
from fleetscope.pipelines.squares import square
from fleetscope.pipelines.windows import Slots
from fleetscope.schema.durations import nominal_ns
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]

NEAREST = 64
"""Spans longer than W (1 - 1/64) are unobservable: one that is barely kept would stand for thousands that were not."""

COLUMNS = (
    "windows",
    "executions",
    "duty_q30",
    "duty_sq_hi",
    "duty_sq_lo",
    "rate_uhz",
    "time_sq_hi",
    "time_sq_lo",
    "time_exec",
    "exec_sq",
)
"""Estimator columns of OP_10S; DEVICE_10S has windows, duty_* and busy_sq_*."""


@dataclass(frozen=True, slots=True)
class Entries:
    """One per (unit, op): `slot` in which the unit ends, `name` of the op, and what it adds to each of COLUMNS."""

    slot: Int64s
    name: Int64s
    columns: dict[str, Int64s]


def units(block: Block) -> NDArray[np.bool_]:
    """bool[B]: batches that are incomplete profiler windows."""
    return np.fromiter((info.window != 0 and not info.complete and info.window_ticks > 0 for info in block.infos), bool)


def last_slots(block: Block, slots: Slots) -> Int64s:
    """int64[B]: the slot that holds the last observed tick of a batch; -1 where it has no slots."""
    found = np.full(len(block.infos), -1, np.int64)
    for batch, info in enumerate(block.infos):
        low, high = int(slots.first[batch]), int(slots.first[batch + 1])
        if high > low:
            inside = np.searchsorted(slots.tick[low + 1 : high], max(info.tick_to - 1, info.tick_from), side="right")
            found[batch] = low + int(inside)
    return found


def share_q30(dur_ns: Int64s, rest_ns: Int64s) -> Int64s:
    """floor(2^30 d / (W - d)) for 0 <= d < 2^47, 0 < W - d < 2^47, by long division in two digits of 15 bits."""
    whole, left = np.divmod(dur_ns, rest_ns)
    high, left = np.divmod(left << 15, rest_ns)
    share: Int64s = (whole << 30) + (high << 15) + (left << 15) // rest_ns
    return share


def window_lengths(block: Block) -> Int64s:
    """int64[B]: W in ns of the batch's own clock."""
    ticks, num, den = (block.of_batches(name) for name in ("window_ticks", "period_num", "period_den"))
    out = np.zeros(len(ticks), np.int64)
    for period in set(zip(num.tolist(), den.tolist(), strict=True)):
        same = (num == period[0]) & (den == period[1])
        out[same] = nominal_ns(ticks[same], *period)
    return out


def unit_entries(block: Block, placed: Placed, slots: Slots, rows: Int64s, name: Int64s, names: int) -> Entries | None:
    """Entries of all units, or None if there are none. `rows`: rows that count, `name` their op in [0, names)."""
    is_unit = units(block)
    if not is_unit.any():
        return None
    batch = np.repeat(np.arange(len(block.infos)), np.diff(block.offsets))[rows]
    chosen = np.flatnonzero(is_unit[batch] & (block.weight[rows] == 0))
    if not len(chosen):
        return None
    rows, name, batch = rows[chosen], name[chosen], batch[chosen]
    entry, distinct = compact(batch * names + name, len(block.infos) * names)
    dur = placed.dur_ns[rows]
    length = window_lengths(block)[batch]
    seen = dur < length - length // NEAREST
    rest = np.where(seen, length - dur, 1)
    share = np.where(seen, share_q30(np.where(seen, dur, 0), rest), 0)
    rate = np.where(seen, 10**15 // rest, 0)
    totals = []
    for values in (dur, share, rate):
        total = np.zeros(len(distinct), np.int64)
        np.add.at(total, entry, values)
        totals.append(total)
    time, duty, often = totals
    unit, op = np.divmod(distinct, names)
    example = np.empty(len(distinct), np.int64)
    example[entry] = rows
    ran = _executions(block, unit, block.program[example])
    duty_hi, duty_lo = square(duty)
    time_hi, time_lo = square(time)
    columns = {
        "windows": np.ones(len(distinct), np.int64),
        "executions": ran,
        "duty_q30": duty,
        "duty_sq_hi": duty_hi,
        "duty_sq_lo": duty_lo,
        "rate_uhz": often,
        "time_sq_hi": time_hi,
        "time_sq_lo": time_lo,
        "time_exec": time * ran,
        "exec_sq": ran * ran,
    }
    return Entries(last_slots(block, slots)[unit], op, columns)


def _executions(block: Block, unit: Int64s, program: Int64s) -> Int64s:
    """Executions of each (unit, program) wholly inside: its module spans, else its distinct execution numbers, else
    the header's."""
    counted = np.fromiter((info.executions for info in block.infos), np.int64)[unit]
    for batch in np.unique(unit).tolist():
        rows = slice(int(block.offsets[batch]), int(block.offsets[batch + 1]))
        modules = block.program[rows][block.kind[rows] == Kind.MODULE]
        told = block.exec[rows] >= 0
        pair, _ = combined([ranks(block.program[rows][told]), ranks(block.exec[rows][told])])
        runs = block.program[rows][told][np.unique(pair, return_index=True)[1]]
        for number in np.flatnonzero(unit == batch).tolist():
            name = program[number]
            counted[number] = int((modules == name).sum()) or int((runs == name).sum()) or counted[number]
    return counted


def unit_duty(block: Block, placed: Placed, self_ns: Int64s, work: NDArray[np.bool_], busy_ns: Int64s) -> Int64s:
    """duty_q30 int64[B] of each unit: its busy time, each instant weighted by the mean 1 / (W - d) of the ops' own
    time; 0 else.

    On one line this is the sum of self / (W - d); across lines, where ops hide each other, busy time replaces their
    sum.
    """
    duty = np.zeros(len(block.infos), np.int64)
    length = window_lengths(block)
    for batch in np.flatnonzero(units(block)).tolist():
        rows = slice(int(block.offsets[batch]), int(block.offsets[batch + 1]))
        own, dur = self_ns[rows][work[rows]], placed.dur_ns[rows][work[rows]]
        own = np.maximum(own, 0)
        seen = dur < length[batch] - length[batch] // NEAREST
        weighted = int(share_q30(own[seen], length[batch] - dur[seen]).sum())
        duty[batch] = weighted * int(busy_ns[batch]) // max(int(own.sum()), 1)
    return duty
