"""Map segments applied to rows of many batches at once, and durations by each clock's own period."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.segment import Placement
from fleetscope.pipelines.block import Block
from fleetscope.schema.durations import nominal_ns, smallest_ticks
from fleetscope.schema.rational import apply, first_ticks
from fleetscope.schema.vocabulary import SpanFlag

Int64s = NDArray[np.int64]

LONGEST_NS = (1 << 47) - 1
"""39 h. A longer span is kept but enters no rollup: the square of its duration >> 32 would not fit int64."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Arrays over rows, columns of SPANS; `err_ns` over batches, the worst of its segments (-1 unknown)."""

    t_ns: Int64s
    t_sub: NDArray[np.int32]
    dur_ns: Int64s
    dur_sub: NDArray[np.int32]
    map: Int64s
    flags: NDArray[np.uint32]
    err_ns: Int64s
    counts: NDArray[np.bool_]
    """Rows that enter rollups: neither negative nor beyond LONGEST_NS, nor what its process ended in."""


@dataclass(frozen=True, slots=True)
class _Segments:
    """All segments of all batches as arrays; those of batch b are first[b]:first[b + 1]."""

    first: Int64s
    map: Int64s
    x0: Int64s
    y0: Int64s
    n: Int64s
    d: Int64s
    valid_from: Int64s
    flags: NDArray[np.uint32]


def _gather(placements: Sequence[Placement]) -> _Segments:
    first = np.zeros(len(placements) + 1, np.int64)
    np.cumsum([len(p) for p in placements], out=first[1:])
    table = np.array(
        [(s.map, s.x0, s.y0, s.n, s.d, s.valid_from, int(s.flags)) for p in placements for s in p], np.int64
    ).reshape(-1, 7)
    columns = [np.ascontiguousarray(table[:, i]) for i in range(7)]
    name, x0, y0, n, d, valid_from, flags = columns
    return _Segments(first, name, x0, y0, n, d, valid_from, flags.astype(np.uint32))


def _which(segments: _Segments, offsets: Int64s, ticks: Int64s) -> Int64s:
    """Index of each tick's segment: the last of its batch that begins at or before it, the first for ticks before
    all."""
    which = np.repeat(segments.first[:-1], np.diff(offsets))
    for batch in np.flatnonzero(np.diff(segments.first) > 1).tolist():
        rows = slice(int(offsets[batch]), int(offsets[batch + 1]))
        begins = segments.valid_from[segments.first[batch] + 1 : segments.first[batch + 1]]
        which[rows] += np.searchsorted(begins, ticks[rows], side="right")
    return which


def place_ticks(
    offsets: Int64s, ticks: Int64s, placements: Sequence[Placement]
) -> tuple[Int64s, Int64s, NDArray[np.uint32]]:
    """(t_ns, map, flags) of ticks; those of batch b are offsets[b]:offsets[b + 1]. For samples, and for ends of
    spans."""
    segments = _gather(placements)
    which = _which(segments, offsets, ticks)
    t = apply(ticks, segments.x0[which], segments.y0[which], segments.n[which], segments.d[which])
    return t, segments.map[which], segments.flags[which]


def place_rows(block: Block) -> Placed:
    """Where every row goes in fleet time. t_sub and dur_sub recover the ticks exactly (DESIGN 3.3)."""
    segments = _gather(block.placements)
    which = _which(segments, block.offsets, block.start)
    x0, y0, n, d = (values[which] for values in (segments.x0, segments.y0, segments.n, segments.d))
    t_ns = apply(block.start, x0, y0, n, d)
    t_sub = np.zeros(block.rows, np.int32)
    if (segments.n < segments.d).any():
        t_sub = (block.start - first_ticks(t_ns, x0, y0, n, d)).astype(np.int32)
    dur_ns, dur_sub = _durations(block)
    flags = block.flags | segments.flags[which]
    wild = (dur_ns < 0) | (dur_ns > LONGEST_NS)
    if wild.any():
        flags = flags | np.where(dur_ns > LONGEST_NS, np.uint32(SpanFlag.OUT_OF_RANGE_TIME), np.uint32(0))
        flags = flags | np.where(block.dur < 0, np.uint32(SpanFlag.NEGATIVE_DURATION), np.uint32(0))
    err = [-1 if any(s.err_ns < 0 for s in p) else max(s.err_ns for s in p) for p in block.placements]
    # Executions of the shim and regions of a host: what was under way when the process died has no duration.
    watched = np.fromiter((info.watched or info.device == 0 for info in block.infos), bool, len(block.infos))
    cut_off = block.over_rows(watched) & (block.flags & np.uint32(SpanFlag.TRUNCATED) != 0)
    counts = (flags & np.uint32(SpanFlag.NEGATIVE_DURATION | SpanFlag.OUT_OF_RANGE_TIME) == 0) & ~cut_off
    return Placed(t_ns, t_sub, dur_ns, dur_sub, segments.map[which], flags, np.asarray(err, np.int64), counts)


def _durations(block: Block) -> tuple[Int64s, NDArray[np.int32]]:
    dur_ns = np.empty(block.rows, np.int64)
    dur_sub = np.zeros(block.rows, np.int32)
    for (num, den), rows in by_period(block):
        ticks = block.dur[rows]
        dur_ns[rows] = nominal_ns(ticks, num, den)
        if num < den:
            dur_sub[rows] = ticks - smallest_ticks(dur_ns[rows], num, den)
    return dur_ns, dur_sub


def by_period(block: Block) -> list[tuple[tuple[int, int], slice | NDArray[np.bool_]]]:
    """Nominal periods in a block with the rows they hold for: usually one, then a slice and no copies."""
    num, den = block.of_batches("period_num"), block.of_batches("period_den")
    periods = sorted(set(zip(num.tolist(), den.tolist(), strict=True)))
    if len(periods) == 1:
        return [(periods[0], slice(None))]
    return [(period, block.over_rows((num == period[0]) & (den == period[1]))) for period in periods]
