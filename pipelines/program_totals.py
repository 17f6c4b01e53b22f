"""A program's sums over profiler windows: rows of OP_10S under op PROGRAM_TOTAL.

Rows of single ops cannot be added to an interval for their program, because their spreads are not independent. Its
busy time and its whole executions are summed here by window, and device by device.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import added, combined, compact, ranks
from fleetscope.pipelines.merge import histogram_lists
from fleetscope.pipelines.nest import Nested
from fleetscope.pipelines.sampled import last_slots, moments, overlapped, weighted_share, whole_share
from fleetscope.pipelines.whole import Whole, units, whole_executions
from fleetscope.pipelines.windows import Slots
from fleetscope.schema.tables import OP_10S, PROGRAM_TOTAL
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]


def program_rollup(block: Block, placed: Placed, nested: Nested, slots: Slots, whole: Whole | None = None) -> pa.Table:
    """OP_10S rows, one a (window, program), not merged.

    A program's time is the union of its ops' intervals: their self time, by the share of it that is left in each window
    where lines hide each other. `whole` is `whole_executions`, where the caller needs it too.
    """
    batch = block.batch
    looked = units(block) & (block.of_batches("device") != 0)
    rows = np.flatnonzero(looked[batch] & block.work & placed.counts & (block.weight == 0))
    if not len(rows):
        return OP_10S.empty_table()
    own = np.maximum(placed.dur_ns - nested.child_ns, 0)
    whole = whole_executions(block) if whole is None else whole
    owner = np.concatenate((batch[rows], whole.unit))
    code, size = combined([ranks(owner), ranks(np.concatenate((block.program[rows], whole.program)))])
    entry, distinct = compact(code, size)
    example = np.empty(len(distinct), np.int64)
    example[entry] = np.arange(len(entry))
    unit = owner[example]
    of_row, of_execution = entry[: len(rows)], entry[len(rows) :]
    busy = block.in_ns(_union(of_row, block.start[rows], block.dur[rows], len(distinct)), unit)
    all_own = added(of_row, own[rows], len(distinct))
    duty = added(of_row, weighted_share(block, placed, own, rows, batch[rows]), len(distinct))
    inside = added(of_row, whole_share(whole, rows, own[rows]), len(distinct))
    duty, inside = overlapped(duty, busy, all_own), overlapped(inside, busy, all_own)
    rate = added(of_execution, whole.rate_uhz, len(distinct))
    last = last_slots(block, slots)[unit]
    columns: dict[str, NDArray[Any]] = {
        "t_ns": slots.t_ns[last],
        "program": np.concatenate((block.program[rows], whole.program))[example],
        "kind": np.full(len(distinct), int(Kind.MODULE)),
        "op": np.full(len(distinct), PROGRAM_TOTAL),
        "windows": np.ones(len(distinct), np.int64),
        "executions": np.bincount(of_execution, minlength=len(distinct)),
        "duty_q30": duty,
        "rate_uhz": rate,
    }
    columns |= {name: block.of_batches(name)[unit] for name in ("host", "process", "device")}
    columns |= moments(duty, rate, inside, rate)
    nothing = np.zeros(0, np.int64)
    lists = histogram_lists(nothing, nothing, nothing, len(distinct))
    arrays = {
        field.name: pa.array(columns.get(field.name, np.zeros(len(distinct), np.int64)), pa.int64()).cast(field.type)
        for field in OP_10S
        if not field.name.startswith("hist_")
    }
    arrays["hist_index"], arrays["hist_count"] = lists
    return pa.table(arrays, schema=OP_10S).filter(pa.array(last >= 0))


def _union(group: Int64s, start: Int64s, dur: Int64s, groups: int) -> Int64s:
    """int64[groups]: length of the union of each group's intervals."""
    order = np.lexsort((start, group))
    group, start, dur = group[order], start[order], dur[order]
    heads = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    low = np.repeat(start[heads], np.diff(heads, append=len(group)))
    end = start + dur - low
    # Groups one after the other, so that a running maximum never reaches into the next.
    size = np.maximum.reduceat(end, heads) + 1
    shift = np.repeat(np.cumsum(size) - size, np.diff(heads, append=len(group)))
    covered = np.maximum.accumulate(end + shift) - shift
    before = np.concatenate(([0], covered[:-1]))
    before[heads] = 0
    return added(group, np.maximum(end - np.maximum(start - low, before), 0), groups)
