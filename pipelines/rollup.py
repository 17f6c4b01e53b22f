"""Rows of a chunk -> raw rows and partial rollups: the kernels in order, over all batches of the chunk at once."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed, place_rows
from fleetscope.pipelines.block import Block, block_of
from fleetscope.pipelines.busy import busy_by_slot, device_rollup, idle_gaps
from fleetscope.pipelines.dtypes import dtype_rows
from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.executions import cut_at, executions, module_rows, ran
from fleetscope.pipelines.flops import OpTables, row_costs
from fleetscope.pipelines.idle import causes
from fleetscope.pipelines.links import without_links
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import Nested, nest
from fleetscope.pipelines.occupancy import Stretches
from fleetscope.pipelines.peaks import peaks_of, with_peaks
from fleetscope.pipelines.program_totals import program_rollup
from fleetscope.pipelines.rows import args_table, span_table
from fleetscope.pipelines.seen import completeness, coverage, host_steps
from fleetscope.pipelines.whole import Whole, units, whole_executions
from fleetscope.pipelines.windows import Slots, slots_of
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake.segment import EARLIEST_NS

FUTURE_NS = 86_400_000_000_000
"""A clock may be a day ahead; a batch from 2100 is kept and flagged, but no window is made for it."""


@dataclass(slots=True)
class Rolled:
    """`raw`: rows to be written as they are; `partial`: rows of rollups, to be merged by key."""

    raw: dict[str, pa.Table] = field(default_factory=dict)
    partial: dict[str, pa.Table] = field(default_factory=dict)


def plausible(batch: BatchMeta, now_ns: int) -> bool:
    """Its observed range lies between 2000 and tomorrow."""
    first, last = batch.placement[0].at(batch.info.tick_from), batch.placement[-1].at(batch.info.tick_to)
    return first >= EARLIEST_NS and last <= now_ns + FUTURE_NS


def block_from(batches: list[BatchMeta], columns: dict[str, NDArray[Any]]) -> Block:
    return block_of(
        [batch.info for batch in batches],
        [batch.placement for batch in batches],
        [batch.rows for batch in batches],
        columns,
    )


def roll_up(
    batches: list[BatchMeta], columns: dict[str, NDArray[Any]], args: pa.ChunkedArray, ops: OpTables, now_ns: int
) -> Rolled:
    """`columns`: WIRE_SPANS columns of all batches one after another; `args` likewise.

    Batches whose times cannot be are stored and flagged OUT_OF_RANGE_TIME, and enter no rollup.
    """
    sane = np.array([plausible(batch, now_ns) for batch in batches])
    if sane.all():
        return _sane(batches, columns, args, ops)
    row_sane = np.repeat(sane, [batch.rows for batch in batches])
    rolled = _sane(
        [batch for batch, good in zip(batches, sane, strict=True) if good],
        {name: column[row_sane] for name, column in columns.items()},
        args.filter(pa.array(row_sane)),
        ops,
    )
    wild = _wild(
        [batch for batch, good in zip(batches, sane, strict=True) if not good],
        {name: column[~row_sane] for name, column in columns.items()},
        args.filter(pa.array(~row_sane)),
    )
    for name, table in wild.raw.items():
        rolled.raw[name] = pa.concat_tables([rolled.raw[name], table]) if name in rolled.raw else table
    return rolled


def _wild(batches: list[BatchMeta], columns: dict[str, NDArray[Any]], args: pa.ChunkedArray) -> Rolled:
    flagged = {**columns, "flags": columns["flags"] | np.uint32(SpanFlag.OUT_OF_RANGE_TIME)}
    block = block_from(batches, flagged)
    placed = place_rows(block)
    return _raw(batches, block, flagged, args, placed, nest(block, placed.dur_ns))


def _raw(
    batches: list[BatchMeta],
    block: Block,
    columns: dict[str, NDArray[Any]],
    args: pa.ChunkedArray,
    placed: Placed,
    nested: Nested,
) -> Rolled:
    spans = span_table(batches, block, columns, placed, nested)
    args, links = without_links(spans, args)
    return Rolled({"spans": spans, "span_args": args_table(spans, args), "links": links})


def _sane(batches: list[BatchMeta], columns: dict[str, NDArray[Any]], args: pa.ChunkedArray, ops: OpTables) -> Rolled:
    if not batches:
        return Rolled()
    block = block_from(batches, columns)
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    rolled = _raw(batches, block, columns, args, placed, nested)
    rolled.partial["completeness"] = completeness(batches, placed.err_ns)
    slots = slots_of(block)
    whole = whole_executions(block) if units(block).any() else None
    rolled.partial["op_10s"] = op_rollup(block, placed, nested, slots, whole)
    if any(batch.info.device for batch in batches):
        rolled.partial |= _devices(batches, block, placed, nested, slots, ops, rolled.partial["op_10s"], whole)
    if any(not batch.info.device for batch in batches):
        rolled.partial |= host_steps(batches, block, placed, columns["step"])
        rolled.partial["causes"] = causes(block, placed)
    return rolled


def _devices(
    batches: list[BatchMeta],
    block: Block,
    placed: Placed,
    nested: Nested,
    slots: Slots,
    ops: OpTables,
    op_10s: pa.Table,
    whole: Whole | None,
) -> dict[str, pa.Table]:
    modules = module_rows(block)
    told = ran(block, placed, slots, modules)
    if len(modules):
        slots = cut_at(slots, block, modules)
    idle: list[Stretches] = []
    swept = busy_by_slot(block, nested, slots, idle)
    costs = row_costs(ops, block.program, block.op, placed.dur_ns)
    if costs is not None:
        held = np.flatnonzero((block.kind == np.uint8(Kind.CONTAINER)) & (nested.child_ns > 0))
        for values in (costs.flops, costs.model_flops, costs.bytes_hbm):
            # What runs inside a loop or a call was seen and counts by itself.
            values[held] = 0
    device_10s = device_rollup(block, placed, nested, slots, costs, swept)
    programs = program_rollup(block, placed, nested, slots, whole)
    dtypes = {} if costs is None else {"dtypes": dtype_rows(block, placed.counts, units(block), costs)}
    return {
        **dtypes,
        "ran": told,
        "op_10s": pa.concat_tables([op_10s, programs]) if programs.num_rows else op_10s,
        "device_10s": with_peaks(device_10s, peaks_of(batches, block, ops)),
        "executions": executions(block, placed, slots, swept[0], modules),
        "coverage": coverage(batches),
        "gaps": idle_gaps(block, slots, idle),
    }
