"""Payload bytes -> Arrow rows, and the checks of rows that a later stage could not survive.

Each batch is opened alone; rows are checked over many batches at once (real hosts send 1-2 k events a batch, and a
check of one batch costs ~100 us whatever its size). A fault condemns the whole batch: its rows cannot be trusted one
by one, and its numbers then stay together in one dead letter.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.claims import check_claims
from fleetscope.pipelines.header import TICK_LIMIT
from fleetscope.schema.errors import (
    FleetscopeError,
    PayloadMismatch,
    PayloadUnreadable,
    RowOutsideRange,
    RowsOutOfOrder,
    TextInvalid,
    TimeOverflow,
)
from fleetscope.schema.vocabulary import Kind

INT64_MAX = (1 << 63) - 1

_ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)
"""Handing each small buffer to a pool costs half as much CPU again: 203 -> 131 ns an event at 1.5 k events a batch."""

LONGEST_HOST_SPAN_NS = 30 * 86_400_000_000_000
"""A host annotation may last for days (a whole run), but one that began in 1970 is a defect."""

CLOSING_SLACK_NS = 1_000_000_000
"""A host span may be recorded a little after the range was read: threads go on while the ring is drained."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one batch's rows must respect. `whole`: a device batch, every row inside [tick_from, tick_to)."""

    tick_from: int
    tick_to: int
    period_num: int
    period_den: int
    whole: bool
    cut: bool


def read_rows(payload: bytes, schema: pa.Schema, rows: int) -> pa.Table:
    """The rows of one payload in `schema`'s columns. PayloadUnreadable, PayloadMismatch or TextInvalid."""
    if not payload and rows == 0:
        return schema.empty_table()
    check_claims(payload, rows)
    try:
        with pa.ipc.open_stream(payload, options=_ONE_THREAD) as stream:
            if not stream.schema.equals(schema, check_metadata=False):
                raise PayloadMismatch(f"payload has columns {_describe(stream.schema)}, not {_describe(schema)}")
            table = stream.read_all()
        # Buffers may be shorter than their columns: without this the first copy of them fails, far from here.
        table.validate()
    except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
        raise PayloadUnreadable(f"payload of {len(payload)} bytes: {error}") from error
    if table.num_rows != rows:
        raise PayloadMismatch(f"header says {rows} rows, payload has {table.num_rows}")
    for index, (field, column) in enumerate(zip(schema, table.columns, strict=True)):
        if not field.nullable and column.null_count:
            raise PayloadMismatch(f"column {field.name!r} has {column.null_count} nulls")
        if pa.types.is_string(field.type):
            if column.null_count == rows:
                # The offsets of texts that are not there were not looked at, and are copied all the same.
                table = table.set_column(index, field, pa.nulls(rows, field.type))
            else:
                _check_text(field.name, column)
    return table


def _check_text(name: str, column: pa.ChunkedArray) -> None:
    try:
        column.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise TextInvalid(f"column {name!r}: {error}") from error


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}:{field.type}{'?' if field.nullable else ''}" for field in schema)


def span_faults(
    start: NDArray[np.int64],
    dur: NDArray[np.int64],
    line: NDArray[np.int32],
    rows: NDArray[np.int64],
    bounds: list[Bounds],
    kind: NDArray[np.uint8] | None = None,
) -> Iterator[tuple[int, FleetscopeError]]:
    """(index of batch, what is wrong with it) for concatenated rows of several batches; `rows[i]` > 0 of batch i.

    Only the first fault of a batch is told. Overflow is looked for first, because the other checks subtract. A QUEUE
    span lies in its batch by its end alone: an execution may have been enqueued long before the range began.
    """
    edges = np.concatenate(([0], np.cumsum(rows)))
    heads = edges[:-1]
    low, high = np.minimum.reduceat(start, heads), np.maximum.reduceat(start, heads)
    shortest, longest = np.minimum.reduceat(dur, heads), np.maximum.reduceat(dur, heads)
    wild: set[int] = set()
    for index, bound in enumerate(bounds):
        limit = min(TICK_LIMIT, INT64_MAX // 2 * bound.period_den // bound.period_num)
        worst = max(abs(int(low[index])), abs(int(high[index])), abs(int(shortest[index])), abs(int(longest[index])))
        if worst > limit:
            wild.add(index)
            yield index, TimeOverflow(f"column 'start' or 'dur' reaches {worst} ticks, beyond {limit}")
    with np.errstate(over="ignore"):
        end = start + np.maximum(dur, 0)
        unordered = _unordered(start, dur, line, edges)
    first_end, last_end = np.minimum.reduceat(end, heads), np.maximum.reduceat(end, heads)
    queued = None if kind is None else kind == np.uint8(Kind.QUEUE)
    if queued is not None and queued.any():
        low = np.minimum.reduceat(np.where(queued, end, start), heads)
    for index, bound in enumerate(bounds):
        if index in wild:
            continue
        fault = _range_fault(bound, int(low[index]), int(first_end[index]), int(last_end[index]))
        if fault is not None:
            yield index, fault
        elif index in unordered:
            yield index, RowsOutOfOrder(f"row {unordered[index]} is not in order (line, start, -dur)")


def _range_fault(bound: Bounds, low: int, first_end: int, last_end: int) -> FleetscopeError | None:
    if bound.whole:
        if low < bound.tick_from or (last_end > bound.tick_to and not bound.cut):
            return RowOutsideRange(f"rows span [{low}, {last_end}), observed is [{bound.tick_from}, {bound.tick_to})")
        return None
    longest = LONGEST_HOST_SPAN_NS * bound.period_den // bound.period_num
    slack = CLOSING_SLACK_NS * bound.period_den // bound.period_num
    if low < bound.tick_from - longest or first_end < bound.tick_from - slack or last_end > bound.tick_to + slack:
        return RowOutsideRange(
            f"rows begin at {low} and end in [{first_end}, {last_end}], "
            f"observed is [{bound.tick_from}, {bound.tick_to})"
        )
    return None


def _unordered(
    start: NDArray[np.int64], dur: NDArray[np.int64], line: NDArray[np.int32], edges: NDArray[np.int64]
) -> dict[int, int]:
    """Batch -> its first row (counted inside the batch) that comes before its predecessor."""
    if len(start) < 2:
        return {}
    later = start[1:] > start[:-1]
    same = (start[1:] == start[:-1]) & (dur[1:] <= dur[:-1])
    right = (line[1:] > line[:-1]) | ((line[1:] == line[:-1]) & (later | same))
    right[edges[1:-1] - 1] = True
    wrong = np.flatnonzero(~right) + 1
    found: dict[int, int] = {}
    if len(wrong):
        owner = np.searchsorted(edges, wrong, side="right") - 1
        for index, row in zip(owner.tolist(), wrong.tolist(), strict=True):
            found.setdefault(index, row - int(edges[index]))
    return found


def sample_faults(
    tick: NDArray[np.int64], rows: NDArray[np.int64], bounds: list[Bounds]
) -> Iterator[tuple[int, FleetscopeError]]:
    """As `span_faults`, for samples: ticks that overflow or lie outside the observed range (a second of slack)."""
    heads = np.concatenate(([0], np.cumsum(rows)))[:-1]
    low, high = np.minimum.reduceat(tick, heads), np.maximum.reduceat(tick, heads)
    for index, bound in enumerate(bounds):
        first, last = int(low[index]), int(high[index])
        limit = min(TICK_LIMIT, INT64_MAX // 2 * bound.period_den // bound.period_num)
        slack = CLOSING_SLACK_NS * bound.period_den // bound.period_num
        if max(abs(first), abs(last)) > limit:
            yield index, TimeOverflow(f"column 'tick' reaches {max(abs(first), abs(last))}, beyond {limit}")
        elif first < bound.tick_from - slack or last > bound.tick_to + slack:
            yield (
                index,
                RowOutsideRange(f"samples in [{first}, {last}], observed is [{bound.tick_from}, {bound.tick_to})"),
            )
