"""Drafts to payloads of bounded size."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches.cut import choose_cuts, quiet_points
from fleetscope.agents.batches.draft import Draft
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import BatchFlag, SpanFlag

SOFT_BYTES = 1 << 20
"""Batches are cut above this where nothing is open."""
HARD_BYTES = (8 << 20) - (256 << 10)
"""Of a payload: the log takes values up to 8 MiB, and header, snapshots and announcements come on top."""

ROWS_LIMIT = 1 << 20
"""Rows of a batch: whoever reads it holds all of them in memory, however well they compress."""

ZSTD_LEVEL = 6
"""On the pinned generator (7 steps): level 3 gives 6.0 B/event, 6 gives 5.8, 9 gives 5.7 at twice the CPU of 6."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", ZSTD_LEVEL), use_threads=False)


@dataclass(frozen=True, slots=True)
class Packed:
    """A draft with its encoded payload (b"" without rows)."""

    draft: Draft
    payload: bytes


def encode_rows(rows: pa.RecordBatch) -> bytes:
    """One Arrow IPC stream, buffers compressed with zstd."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
        stream.write_batch(rows)
    return bytes(sink.getvalue())


def pack(draft: Draft, soft_bytes: int = SOFT_BYTES, hard_bytes: int = HARD_BYTES) -> list[Packed]:
    """The draft as one or several payloads, in time order; losses, snapshots and announcements go with the first.

    A sampled window of one device stays one batch up to `hard_bytes`, because moments between windows are computed
    inside a batch. What still exceeds `hard_bytes` or ROWS_LIMIT where no cut is legal is cut in the middle and flagged
    FORCED_CUT, its rows CUT_BATCH. A single row beyond `hard_bytes` loses its args; that is the only thing this drops.
    """
    if draft.rows is None:
        return [Packed(draft, b"")]
    sampled = draft.window is not None and not draft.window.complete
    limit = hard_bytes if sampled else min(soft_bytes, hard_bytes)
    parts = list(_divide(draft, limit, hard_bytes))
    if len(parts) == 1:
        return parts
    first = replace(parts[0].draft, lost=draft.lost, snapshots=draft.snapshots, announcements=draft.announcements)
    last = replace(parts[-1].draft, mark=draft.mark)
    return [Packed(first, parts[0].payload), *parts[1:-1], Packed(last, parts[-1].payload)]


def _divide(draft: Draft, limit: int, hard: int) -> Iterator[Packed]:
    assert draft.rows is not None
    payload = encode_rows(draft.rows)
    rows = draft.row_count
    if (len(payload) <= limit and rows <= ROWS_LIMIT) or rows == 0:
        yield Packed(draft, payload)
        return
    if rows == 1:
        yield from _shrink(draft, payload, hard)
        return
    parts = max(2, ceil(len(payload) / limit * 1.1), ceil(rows / ROWS_LIMIT))
    if draft.payload_kind == wire.PAYLOAD_SAMPLES:
        start = draft.rows.column("tick").to_numpy()
        dur = np.zeros(rows, np.int64)
    else:
        start = draft.rows.column("start").to_numpy()
        dur = draft.rows.column("dur").to_numpy()
    counts, ticks = quiet_points(start, dur)
    if len(counts):
        chosen = choose_cuts(counts, rows, parts)
        for piece in _split(draft, start, ticks[chosen], forced=False):
            yield from _divide(piece, limit, hard)
    elif len(payload) <= hard and rows <= ROWS_LIMIT:
        yield Packed(draft, payload)
    else:
        # No quiet point at all: any start but the first divides the rows, and both sides say that they were cut.
        distinct = np.unique(start)
        if len(distinct) < 2:
            yield from _shrink(draft, payload, hard)
            return
        steps = np.linspace(0, len(distinct), parts + 1).astype(int)[1:-1]
        middle = np.unique(distinct[np.clip(steps, 1, None)])
        for piece in _split(draft, start, middle, forced=True):
            yield from _divide(piece, limit, hard)


def _split(draft: Draft, start: NDArray[np.int64], ticks: NDArray[np.int64], *, forced: bool) -> Iterator[Draft]:
    assert draft.rows is not None
    part = np.searchsorted(ticks, start, side="right")
    edges = [draft.tick_from, *(int(tick) for tick in ticks), draft.tick_to]
    rows, flags = draft.rows, draft.flags
    if forced:
        flags |= BatchFlag.FORCED_CUT
        marked = rows.column("flags").to_numpy() | np.uint32(SpanFlag.CUT_BATCH)
        rows = rows.set_column(rows.schema.get_field_index("flags"), rows.schema.field("flags"), pa.array(marked))
    for index in range(len(edges) - 1):
        taken = rows.take(pa.array(np.flatnonzero(part == index)))
        yield replace(
            draft,
            rows=taken,
            tick_from=edges[index],
            tick_to=edges[index + 1],
            flags=flags,
            lost={},
            snapshots=(),
            announcements=(),
            mark="",
        )


def _shrink(draft: Draft, payload: bytes, hard: int) -> Iterator[Packed]:
    """Rows that share one start cannot be told apart in time: without their args they fit (a row is < 100 bytes)."""
    assert draft.rows is not None
    if len(payload) <= hard or "args" not in draft.rows.schema.names:
        yield Packed(draft, payload)
        return
    index = draft.rows.schema.get_field_index("args")
    rows = draft.rows.set_column(index, draft.rows.schema.field(index), pa.nulls(draft.row_count, pa.string()))
    yield Packed(replace(draft, rows=rows, flags=draft.flags | BatchFlag.FORCED_CUT), encode_rows(rows))
