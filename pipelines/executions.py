"""Executions of programs on devices, with the device's time by class: the device's share of a step.

The busy sweep is cut at every begin of a program as well as at window edges, so one sweep serves both.
"""

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.busy import COLLECTIVE, COMPUTE, COPY, SPARSE_CORE, Int64s
from fleetscope.pipelines.grouping import added, pairs
from fleetscope.pipelines.occupancy import queued_ns, watched
from fleetscope.pipelines.step import EXECUTIONS
from fleetscope.pipelines.windows import Slots, row_slots
from fleetscope.schema.vocabulary import Kind

RAN = pa.schema(
    [(name, pa.int64()) for name in ("process", "host", "device", "t_ns", "program", "executions", "dur_ns")]
)
"""Executions the shim told, by program and the 10 s window in which they end."""


def module_rows(block: Block) -> Int64s:
    """Rows that are executions of a program on a device."""
    rows = np.flatnonzero(block.kind == np.uint8(Kind.MODULE))
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    found: Int64s = rows[block.of_batches("device")[batch] != 0]
    return found


def cut_at(slots: Slots, block: Block, rows: Int64s) -> Slots:
    """`slots` with further ones that begin where these rows begin; each stays in its window."""
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    covered = np.diff(slots.first)[batch] > 0
    batch, tick = batch[covered], block.start[rows][covered]
    owner = np.concatenate((slots.batch, batch))
    ticks = np.concatenate((slots.tick, tick))
    # The windows' own edges come first among equals, so an edge keeps its window.
    order = np.lexsort((np.arange(len(owner)), ticks, owner))
    owner, ticks = owner[order], ticks[order]
    origin = np.where(order < len(slots.tick), order, -1)
    kept = np.concatenate(([True], (owner[1:] != owner[:-1]) | (ticks[1:] != ticks[:-1])))
    latest = np.maximum.accumulate(np.where(origin >= 0, np.arange(len(origin)), -1))
    window = slots.t_ns[origin[latest]]
    # A row that begins before its batch's first edge would steal the first slot's role of holding what is earlier.
    kept &= (origin >= 0) | (ticks > slots.tick[slots.first[owner]])
    owner, ticks, window = owner[kept], ticks[kept], window[kept]
    first = np.zeros(len(slots.first), np.int64)
    np.cumsum(np.bincount(owner, minlength=len(slots.first) - 1), out=first[1:])
    return Slots(first, ticks, window, slots.refused)


def executions(block: Block, placed: Placed, slots: Slots, busy: Int64s, rows: Int64s) -> pa.Table:
    """EXECUTIONS of `rows`, but for those cut off by the end of their process.

    Device time from the begin of one to the begin of the next belongs to the first of them.
    """
    rows = rows[placed.counts[rows]]
    if not len(rows):
        return EXECUTIONS.empty_table()
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    order = np.lexsort((block.start[rows], batch))
    rows, batch = rows[order], batch[order]
    key = np.searchsorted(pairs(batch, block.start[rows]), pairs(slots.batch, slots.tick), side="right") - 1
    inside = (key >= 0) & (batch[np.maximum(key, 0)] == slots.batch)
    columns = {
        "process": block.of_batches("process")[batch],
        "device": block.of_batches("device")[batch],
        "program": block.program[rows],
        "window": block.of_batches("window")[batch],
        "begin_ns": placed.t_ns[rows],
        "dur_ns": placed.dur_ns[rows],
        "queue_ns": queued_ns(block, placed, rows),
        "watched": watched(block)[batch].astype(np.int64),
        "launch": np.where(watched(block)[batch], block.flow[rows], 0),
    }
    for name, number in (
        ("compute_ns", COMPUTE),
        ("collective_ns", COLLECTIVE),
        ("copy_ns", COPY),
        ("sparse_core_ns", SPARSE_CORE),
    ):
        columns[name] = added(key[inside], busy[inside, number], len(rows))
    return pa.table({name: columns[name] for name in EXECUTIONS.names}, schema=EXECUTIONS)


def ran(block: Block, placed: Placed, slots: Slots, rows: Int64s) -> pa.Table:
    """RAN of `rows`; without those cut off by the end of their process. `slots`: windows."""
    rows = rows[placed.counts[rows] & block.over_rows(watched(block))[rows]]
    if not len(rows):
        return RAN.empty_table()
    slot = row_slots(block, slots)[rows]
    rows, slot = rows[slot >= 0], slot[slot >= 0]
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    keys = ["process", "host", "device", "t_ns", "program"]
    told = pa.table(
        {
            **{name: block.of_batches(name)[batch] for name in keys[:3]},
            "t_ns": slots.t_ns[slot],
            "program": block.program[rows],
            "executions": np.ones(len(rows), np.int64),
            "dur_ns": placed.dur_ns[rows],
        },
        schema=RAN,
    )
    summed = told.group_by(keys, use_threads=False).aggregate([("executions", "sum"), ("dur_ns", "sum")])
    return summed.rename_columns(RAN.names)
