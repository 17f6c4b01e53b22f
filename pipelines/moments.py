"""Ops of many batches -> OP_10S rows: counts, sums, squares, extremes and histograms by key, all in int64.

numpy's add.at on int64 is exact and costs 1.2 ns a row; bincount with weights is float64 and exact below 2^53 only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import added, combined, compact, ranks
from fleetscope.pipelines.histogram import ZERO_BUCKET, bucket_index
from fleetscope.pipelines.merge import histogram_lists
from fleetscope.pipelines.nest import Nested
from fleetscope.pipelines.sampled import COLUMNS, Entries, unit_entries
from fleetscope.pipelines.squares import square
from fleetscope.pipelines.whole import Whole
from fleetscope.pipelines.windows import Slots, row_slots, slots_of
from fleetscope.schema.tables import OP_10S
from fleetscope.schema.vocabulary import PER_DEVICE_ROLLUP

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Cells:
    """A cell is a (window, host, process, device or 0): the part of a key that is constant in a slot."""

    keys: Int64s
    """int64[cells, 4]: t_ns, host, process, device."""
    of_slot: Int64s
    """int64[2, slots]: cell of a slot without its device, and with it."""


def _cells(block: Block, slots: Slots) -> _Cells:
    batch = slots.batch
    columns = [slots.t_ns, *(block.of_batches(name)[batch] for name in ("host", "process", "device"))]
    whole = np.stack(columns, axis=1)
    shared = whole.copy()
    shared[:, 3] = 0
    both = np.concatenate((shared, whole))
    code, size = combined([ranks(np.ascontiguousarray(both[:, i])) for i in range(4)])
    number, distinct = compact(code, size)
    keys = np.empty((len(distinct), 4), np.int64)
    keys[number] = both
    return _Cells(keys, number.reshape(2, -1))


def op_rollup(
    block: Block, placed: Placed, nested: Nested, slots: Slots | None = None, whole: Whole | None = None
) -> pa.Table:
    """OP_10S rows, one a key, of the rows that count (Placed.counts). Unsorted: `merge` sorts.

    A span belongs to the window its end is mapped to; the estimator columns of a profiler window belong, whole, to
    the window in which it ends, so that sums of squares between windows stay those of whole sampling units. `whole` is
    `whole_executions`, where the caller needs it too.
    """
    slots = slots_of(block) if slots is None else slots
    slot = row_slots(block, slots)
    rows = np.flatnonzero(placed.counts & (slot >= 0))
    if not len(rows):
        return OP_10S.empty_table()
    take = slice(None) if len(rows) == block.rows else rows
    program, op, kind, weight = block.program[take], block.op[take], block.kind[take], block.weight[take]
    code, size = combined([ranks(program), ranks(op), ranks(kind), ranks(weight)])
    name, distinct = compact(code, size)
    example = np.empty(len(distinct), np.int64)
    example[name] = np.arange(len(name))
    cells = _cells(block, slots)
    apart = np.isin(kind[example], list(PER_DEVICE_ROLLUP))
    cell = cells.of_slot[0][slot[take]]
    if apart.any():
        cell = np.where(apart[name], cells.of_slot[1][slot[take]], cell)
    names = len(distinct)
    entries = unit_entries(block, placed, slots, rows, name, names, whole)
    codes = cell * names + name
    if entries is not None:
        units = cells.of_slot[np.where(apart[entries.name], 1, 0), entries.slot] * names + entries.name
        group, found = compact(np.concatenate((codes, units)), len(cells.keys) * names)
        group, unit_group = group[: len(codes)], group[len(codes) :]
    else:
        group, found = compact(codes, len(cells.keys) * names)
        unit_group = np.zeros(0, np.int64)
    columns = _sums(placed.dur_ns[take], nested.child_ns[take], group, len(found))
    columns |= _estimators(entries, unit_group, len(found))
    key_cell, key_name = np.divmod(found, names)
    for number, column in enumerate(("t_ns", "host", "process", "device")):
        columns[column] = cells.keys[key_cell, number]
    for column, values in (("kind", kind), ("program", program), ("op", op), ("weight", weight)):
        columns[column] = values[example[key_name]]
    lists = _histograms(placed.dur_ns[take], group, columns)
    arrays = {field.name: pa.array(columns[field.name], field.type) for field in OP_10S if field.name in columns}
    arrays["hist_index"], arrays["hist_count"] = lists
    return pa.table(arrays, schema=OP_10S)


def _sums(dur_ns: Int64s, child_ns: Int64s, group: Int64s, groups: int) -> dict[str, NDArray[Any]]:
    hi, lo = square(dur_ns)
    columns: dict[str, NDArray[Any]] = {"count": np.bincount(group, minlength=groups)}
    for name, values in (("sum_ns", dur_ns), ("child_ns", child_ns), ("sumsq_hi", hi), ("sumsq_lo", lo)):
        columns[name] = added(group, values, groups)
    least, most = np.full(groups, np.iinfo(np.int64).max), np.zeros(groups, np.int64)
    np.minimum.at(least, group, dur_ns)
    np.maximum.at(most, group, dur_ns)
    columns["min_ns"], columns["max_ns"] = np.where(columns["count"] == 0, 0, least), most
    return columns


def _histograms(dur_ns: Int64s, group: Int64s, columns: dict[str, NDArray[Any]]) -> tuple[pa.ListArray, pa.ListArray]:
    """Buckets of each group lie between those of its extremes, so one dense counter over all groups does without a
    sort."""
    groups = len(columns["count"])
    low = _shifted(columns["min_ns"])
    width = np.where(columns["count"] > 0, _shifted(columns["max_ns"]) - low + 1, 0)
    begin = np.cumsum(width) - width
    counts = np.bincount((begin - low)[group] + _shifted(dur_ns), minlength=int(width.sum()))
    cell = np.flatnonzero(counts)
    owner = np.repeat(np.arange(groups), width)[cell]
    index = cell - begin[owner] + low[owner] - 2
    return histogram_lists(owner, np.where(index == -2, ZERO_BUCKET, index), counts[cell], groups)


def _shifted(dur_ns: NDArray[Any]) -> Int64s:
    """Bucket + 2, and 0 for the bucket of zero: -1 is the lowest index else."""
    index = bucket_index(dur_ns.astype(np.int64, copy=False)).astype(np.int64)
    index += 2
    np.maximum(index, 0, out=index)
    return index


def _estimators(entries: Entries | None, group: Int64s, groups: int) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    for name in COLUMNS:
        total = np.zeros(groups, np.int64)
        if entries is not None:
            np.add.at(total, group, entries.columns[name])
        columns[name] = total
    return columns
