"""Placed and nested rows -> rows of the raw tables."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.nest import Nested
from fleetscope.schema.tables import SPAN_ARGS, SPANS
from fleetscope.schema.vocabulary import SpanFlag

Int64s = NDArray[np.int64]


def span_table(
    batches: list[BatchMeta], block: Block, columns: dict[str, NDArray[Any]], placed: Placed, nested: Nested
) -> pa.Table:
    """SPANS rows in the order of the block: arrival order compresses as well as sorted order."""
    flags = placed.flags
    if nested.overlaps.any():
        flags = flags | np.where(nested.overlaps, np.uint32(SpanFlag.OVERLAPS), np.uint32(0))
    found = {
        "t_ns": placed.t_ns,
        "t_sub": placed.t_sub,
        "dur_ns": placed.dur_ns,
        "dur_sub": placed.dur_sub,
        "child_ns": nested.child_ns,
        "map": placed.map,
        "host": of_rows(block, "host"),
        "process": of_rows(block, "process"),
        "device": of_rows(block, "device"),
        "line": block.line,
        "depth": nested.depth,
        "kind": block.kind,
        "program": block.program,
        "exec": block.exec,
        "op": block.op,
        "step": columns["step"],
        "flow": columns["flow"],
        "weight": block.weight,
        "flags": flags,
        "seq": sequence([batch.first_event for batch in batches], block.offsets),
        "capture": of_rows(block, "window"),
    }
    return pa.Table.from_arrays([pa.array(found[name]) for name in SPANS.names], schema=SPANS)


def args_table(table: pa.Table, args: pa.ChunkedArray) -> pa.Table:
    """SPAN_ARGS rows of the spans that have arguments. `table`: SPANS rows, `args`: a text or null for each."""
    if args.null_count == len(args):
        return SPAN_ARGS.empty_table()
    given = args.is_valid()
    return pa.Table.from_arrays(
        [table.column(name).filter(given) for name in ("t_ns", "process", "seq")] + [args.filter(given)],
        schema=SPAN_ARGS,
    )


def sample_table(batches: list[BatchMeta], rows: pa.Table, offsets: Int64s, t_ns: Int64s, maps: Int64s) -> pa.Table:
    """SAMPLES rows."""
    return pa.table(
        {
            "t_ns": t_ns,
            "map": maps,
            "host": repeat([batch.info.host for batch in batches], offsets),
            "process": repeat([batch.info.process for batch in batches], offsets),
            "device": rows.column("device"),
            "series": rows.column("series"),
            "value_int": rows.column("value_int"),
            "value_float": rows.column("value_float"),
            "flags": rows.column("flags"),
            "seq": sequence([batch.first_event for batch in batches], offsets),
        }
    )


def of_rows(block: Block, name: str) -> Int64s:
    """A field of BatchInfo for each row."""
    return np.repeat(block.of_batches(name), np.diff(block.offsets))


def repeat(values: list[int], offsets: Int64s) -> Int64s:
    return np.repeat(np.array(values, np.int64), np.diff(offsets))


def sequence(firsts: list[int], offsets: Int64s) -> Int64s:
    """Sequence number of each row: first_event of its batch + its place in it."""
    starts = np.array(firsts, np.int64) - offsets[:-1]
    return np.arange(offsets[-1], dtype=np.int64) + np.repeat(starts, np.diff(offsets))
