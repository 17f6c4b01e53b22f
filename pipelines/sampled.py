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
from fleetscope.pipelines.grouping import added, combined, compact, ranks
from fleetscope.pipelines.squares import LIMIT, product, square
from fleetscope.pipelines.whole import NEAREST, Whole, units, whole_executions, window_lengths
from fleetscope.pipelines.windows import Slots
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]

NEAR = 4
"""Spans longer than W (1 - 1/4) are so often cut that an op which has them has others, longer than W, that no window
shows: its estimate would be that of its short spans."""

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
    "rate_sq_hi",
    "rate_sq_lo",
    "whole_q30",
    "whole_sq_hi",
    "whole_sq_lo",
    "whole_rate_hi",
    "whole_rate_lo",
    "near_q30",
)
"""Estimator columns of OP_10S; DEVICE_10S has windows, duty_* and busy_sq_*."""


@dataclass(frozen=True, slots=True)
class Entries:
    """One per (unit, op): `slot` in which the unit ends, `name` of the op, and what it adds to each of COLUMNS."""

    slot: Int64s
    name: Int64s
    columns: dict[str, Int64s]


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


def unit_entries(
    block: Block, placed: Placed, slots: Slots, rows: Int64s, name: Int64s, names: int, whole: Whole | None = None
) -> Entries | None:
    """Entries of all units, or None if there are none. `rows`: rows that count, `name` their op in [0, names)."""
    is_unit = units(block)
    if not is_unit.any():
        return None
    batch = block.batch[rows]
    chosen = np.flatnonzero(is_unit[batch] & (block.weight[rows] == 0))
    if not len(chosen):
        return None
    rows, name, batch = rows[chosen], name[chosen], batch[chosen]
    entry, distinct = compact(batch * names + name, len(block.infos) * names)
    whole = whole_executions(block) if whole is None else whole
    dur = placed.dur_ns[rows]
    length = window_lengths(block)[batch]
    seen = dur < length - length // NEAREST
    rest = np.where(seen, length - dur, 1)
    share = np.where(seen, share_q30(np.where(seen, dur, 0), rest), 0)
    rate = np.where(seen, 10**15 // rest, 0)
    # At least W / 64, so that a span as long as its window counts too.
    near = np.where(
        dur > length - length // NEAR, share_q30(np.maximum(dur, 0), np.maximum(rest, length // NEAREST)), 0
    )
    parts = (dur, share, rate, near, whole_share(whole, rows, dur))
    time, duty, often, close, inside = (added(entry, values, len(distinct)) for values in parts)
    unit, op = np.divmod(distinct, names)
    example = np.empty(len(distinct), np.int64)
    example[entry] = rows
    program = block.program[example]
    ran = _executions(block, unit, program)
    columns = {"windows": np.ones(len(distinct), np.int64), "executions": ran, "time_exec": time * ran}
    columns |= {"duty_q30": duty, "rate_uhz": often, "exec_sq": ran * ran, "near_q30": close}
    columns["time_sq_hi"], columns["time_sq_lo"] = square(time)
    columns |= moments(duty, often, inside, whole_rates(whole, unit, program))
    return Entries(last_slots(block, slots)[unit], op, columns)


def moments(duty: Int64s, rate: Int64s, whole: Int64s, executions: Int64s) -> dict[str, Int64s]:
    """What each unit adds to the sums of squares and products. `executions`: 1e-6 / s of the program, whole ones."""
    columns: dict[str, Int64s] = {"whole_q30": whole}
    for name, (hi, lo) in (
        ("duty_sq", square(duty)),
        ("rate_sq", square(np.minimum(rate, LIMIT - 1))),
        ("whole_sq", square(whole)),
        ("whole_rate", product(whole, np.minimum(executions, LIMIT - 1))),
    ):
        columns[f"{name}_hi"], columns[f"{name}_lo"] = hi, lo
    return columns


def whole_share(whole: Whole, rows: Int64s, time_ns: Int64s) -> Int64s:
    """2^30 t / (W - c) of rows in whole executions, each of length c; 0 of others."""
    at = whole.of_row[rows]
    inside = at >= 0
    rest = whole.rest_ns[at[inside]]
    share = np.zeros(len(rows), np.int64)
    share[inside] = share_q30(np.maximum(time_ns[inside], 0), rest)
    return share


def whole_rates(whole: Whole, unit: Int64s, program: Int64s) -> Int64s:
    """1e-6 / s of whole executions of each (unit, program)."""
    ids, programs = ranks(np.concatenate((whole.program, program)))
    owner = np.concatenate((whole.unit, unit))
    code, distinct = compact(*combined([ranks(owner), (ids, programs)]))
    total = added(code[: len(whole.unit)], whole.rate_uhz, len(distinct))
    found: Int64s = total[code[len(whole.unit) :]]
    return found


def _executions(block: Block, unit: Int64s, program: Int64s) -> Int64s:
    """Executions of each (unit, program) in it: its module spans, else its distinct execution numbers, else the
    header's."""
    batch = block.batch
    modules = np.flatnonzero(block.kind == np.uint8(Kind.MODULE))
    told = np.flatnonzero(block.exec >= 0)
    code, _ = combined([ranks(batch[told]), ranks(block.program[told]), ranks(block.exec[told])])
    told = told[np.unique(code, return_index=True)[1]]
    ids = ranks(np.concatenate((program, block.program[modules], block.program[told])))
    owner = ranks(np.concatenate((unit, batch[modules], batch[told])))
    code, distinct = compact(*combined([owner, ids]))
    wanted, last = code[: len(unit)], len(unit) + len(modules)
    spans = np.bincount(code[len(unit) : last], minlength=len(distinct))[wanted]
    runs = np.bincount(code[last:], minlength=len(distinct))[wanted]
    header = np.fromiter((info.executions for info in block.infos), np.int64)[unit]
    found: Int64s = np.where(spans > 0, spans, np.where(runs > 0, runs, header))
    return found


def unit_duty(block: Block, placed: Placed, self_ns: Int64s, work: NDArray[np.bool_], busy_ns: Int64s) -> Int64s:
    """duty_q30 int64[B] of each unit: its busy time, each instant weighted by the mean 1 / (W - d) of the ops' own
    time; 0 else.

    On one line this is the sum of self / (W - d); across lines, where ops hide each other, busy time replaces their
    sum.
    """
    is_unit = units(block)
    batch = block.batch
    rows = np.flatnonzero(work & is_unit[batch])
    weighted = added(batch[rows], weighted_share(block, placed, self_ns, rows, batch[rows]), len(block.infos))
    own = added(batch[rows], np.maximum(self_ns[rows], 0), len(block.infos))
    return overlapped(weighted, busy_ns, own)


def weighted_share(block: Block, placed: Placed, self_ns: Int64s, rows: Int64s, batch: Int64s) -> Int64s:
    """2^30 self / (W - d) of rows; 0 of those too near the window's length."""
    length = window_lengths(block)[batch]
    dur = placed.dur_ns[rows]
    seen = dur < length - length // NEAREST
    share = np.zeros(len(rows), np.int64)
    share[seen] = share_q30(np.maximum(self_ns[rows][seen], 0), (length - dur)[seen])
    return share


def overlapped(share: Int64s, busy_ns: Int64s, own_ns: Int64s) -> Int64s:
    """share x busy / own, exact: their product needs more than 63 bits."""
    parts = zip(share.tolist(), busy_ns.tolist(), own_ns.tolist(), strict=True)
    return np.fromiter((part * busy // max(own, 1) for part, busy, own in parts), np.int64, len(share))
