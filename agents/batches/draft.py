"""A batch before it has numbers: what a producer knows, in the order and types of the wire."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.payloads import WIRE_SAMPLES, WIRE_SPANS
from fleetscope.schema.vocabulary import SpanFlag


def _bare(schema: pa.Schema) -> pa.Schema:
    """Without field metadata: unit and meaning of every column would add 1.3 kB to each batch."""
    return pa.schema([pa.field(column.name, column.type, column.nullable) for column in schema])


SPAN_ROWS = _bare(WIRE_SPANS)
SAMPLE_ROWS = _bare(WIRE_SAMPLES)

# pyarrow answers this through pandas, which agents do not have.
_DTYPES: dict[pa.DataType, Any] = {
    pa.int64(): np.int64,
    pa.int32(): np.int32,
    pa.uint32(): np.uint32,
    pa.uint8(): np.uint8,
}


@dataclass(frozen=True, slots=True)
class Draft:
    """One observation of one device (all its lines), of a process' host threads, or of a host's counters.

    `source` carries no incarnation: whoever numbers it writes that. All ticks are of `clock`; rows lie in
    [tick_from, tick_to): wholly for a device, by their end for host threads. `lost` are events lost since the previous
    draft of this source and before they had numbers, by reason of schema.vocabulary.DROP_REASONS. `mark` is kept
    with the source's numbers (see SourceState) and never sent.
    """

    source: wire.Source
    tick_from: int = 0
    tick_to: int = 0
    clock: wire.ClockEpoch | None = None
    device: wire.Device | None = None
    rows: pa.RecordBatch | None = None
    window: wire.Window | None = None
    snapshots: Sequence[wire.ClockSnapshot] = ()
    announcements: Sequence[wire.Announcement] = ()
    lost: Mapping[str, int] = field(default_factory=dict)
    flags: int = 0
    mark: str = ""

    @property
    def payload_kind(self) -> wire.Payload:
        if self.rows is None:
            return wire.PAYLOAD_NONE
        return wire.PAYLOAD_SPANS if "start" in self.rows.schema.names else wire.PAYLOAD_SAMPLES

    @property
    def row_count(self) -> int:
        return 0 if self.rows is None else int(self.rows.num_rows)


def _column(values: ArrayLike, kind: pa.DataType, rows: int) -> NDArray[Any]:
    array = np.asarray(values, dtype=_DTYPES[kind])
    return np.broadcast_to(array, rows) if array.ndim == 0 else array


def span_rows(
    *,
    start: ArrayLike,
    dur: ArrayLike,
    line: ArrayLike,
    kind: ArrayLike,
    program: ArrayLike = 0,
    op: ArrayLike = 0,
    exec: ArrayLike = -1,
    step: ArrayLike = -1,
    flow: ArrayLike = 0,
    weight: ArrayLike = 1,
    flags: ArrayLike = 0,
    args: Sequence[str | None] | pa.Array | Mapping[int, str] | None = None,
) -> pa.RecordBatch:
    """Rows of schema.payloads.WIRE_SPANS, sorted by (line, start, -dur); scalars are repeated. start and dur in ticks.

    `args`: one text a row, or a mapping from the rows that have one. Negative durations are kept and flagged
    NEGATIVE_DURATION.
    """
    starts = np.asarray(start, dtype=np.int64)
    rows = len(starts)
    given = {"start": starts, "dur": dur, "line": line, "kind": kind, "program": program, "op": op}
    given |= {"exec": exec, "step": step, "flow": flow, "weight": weight, "flags": flags}
    columns = {name: _column(values, SPAN_ROWS.field(name).type, rows) for name, values in given.items()}
    negative = columns["dur"] < 0
    if negative.any():
        columns["flags"] = np.where(negative, columns["flags"] | SpanFlag.NEGATIVE_DURATION, columns["flags"])
        columns["flags"] = columns["flags"].astype(np.uint32)
    order = np.lexsort((-columns["dur"], columns["start"], columns["line"]))
    sorted_already = bool((order == np.arange(rows)).all())
    arrays = [pa.array(columns[name] if sorted_already else columns[name][order]) for name in SPAN_ROWS.names[:-1]]
    arrays.append(_texts(args, order))
    return pa.RecordBatch.from_arrays(arrays, schema=SPAN_ROWS)


def _texts(args: Sequence[str | None] | pa.Array | Mapping[int, str] | None, order: NDArray[np.int64]) -> pa.Array:
    """The arguments in the order of the rows. Few rows have any, so the array is made of its buffers: a list with an
    entry for every row costs more than all other columns together."""
    rows = len(order)
    if args is None or not len(args):
        return pa.nulls(rows, pa.string())
    if not isinstance(args, Mapping):
        listed = args.to_pylist() if isinstance(args, pa.Array) else args
        args = {row: text for row, text in enumerate(listed) if text is not None}
    place = np.empty(rows, np.int64)
    place[order] = np.arange(rows)
    given = sorted((int(place[row]), text.encode()) for row, text in args.items())
    there = np.fromiter((row for row, _ in given), np.int64, len(given))
    lengths, valid = np.zeros(rows + 1, np.int32), np.zeros(rows, np.bool_)
    lengths[there + 1] = np.fromiter((len(text) for _, text in given), np.int32, len(given))
    valid[there] = True
    buffers = (np.packbits(valid, bitorder="little"), np.cumsum(lengths, dtype=np.int32))
    data = b"".join(text for _, text in given)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(buffers[1]), pa.py_buffer(data), pa.py_buffer(buffers[0]))


def sample_rows(
    *,
    tick: ArrayLike,
    series: ArrayLike,
    values: Sequence[int | float],
    device: ArrayLike = 0,
    flags: ArrayLike = 0,
) -> pa.RecordBatch:
    """Rows of schema.payloads.WIRE_SAMPLES in the order given. An int goes to value_int, a float to value_float."""
    rows = len(values)
    arrays = [
        pa.array(_column(tick, pa.int64(), rows)),
        pa.array(_column(device, pa.int64(), rows)),
        pa.array(_column(series, pa.int64(), rows)),
        pa.array([value if isinstance(value, int) else None for value in values], pa.int64()),
        pa.array([None if isinstance(value, int) else value for value in values], pa.float64()),
        pa.array(_column(flags, pa.uint32(), rows)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SAMPLE_ROWS)
