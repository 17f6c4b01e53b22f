"""Which span lies inside which: parent, depth and child time per (device, line), level by level, without a Python step
per row.

Rows of a line come in order (start, -dur), so the parent of a row is the last earlier row of its line that ends at
or after it; ends are compared in ticks. The rows of one level are the records of a running maximum of ends, and the
rows between two of them belong to the former: the next level is the same question inside each of those groups.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.block import Block
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]

SAFE = 1 << 62


@dataclass(frozen=True, slots=True)
class Nested:
    """Arrays over rows. parent: row of the enclosing span, -1 none; size: how many rows lie inside it, at any depth;
    overlaps: the row begins inside an earlier sibling and ends after it; covered_to: for those rows, the tick up to
    which earlier siblings last, else 0. Rows with negative duration have no relatives, nor have QUEUE spans: waiting
    executions are no stack."""

    parent: Int64s
    depth: NDArray[np.int16]
    child_ns: Int64s
    size: Int64s
    overlaps: NDArray[np.bool_]
    covered_to: Int64s


def nest(block: Block, dur_ns: Int64s) -> Nested:
    """Nesting of all rows of a block. `dur_ns` as placed."""
    rows = block.rows
    parent = np.full(rows, -1, np.int64)
    depth = np.zeros(rows, np.int16)
    child_ns = np.zeros(rows, np.int64)
    size = np.zeros(rows, np.int64)
    overlaps = np.zeros(rows, np.bool_)
    nested = Nested(parent, depth, child_ns, size, overlaps, np.zeros(rows, np.int64))
    if not rows:
        return nested
    first = np.flatnonzero(line_heads(block))
    group = np.repeat(np.arange(len(first)), np.diff(first, append=rows))
    start, dur = block.start, block.dur
    index: Int64s | None = None
    queued = block.kind == np.uint8(Kind.QUEUE)
    if int(dur.min()) < 0 or queued.any():
        index = np.flatnonzero((dur >= 0) & ~queued)
        if not len(index):
            return nested
        start, dur, group, dur_ns = start[index], dur[index], group[index], dur_ns[index]
        first = np.flatnonzero(np.concatenate(([True], group[1:] != group[:-1])))
    ticks, near, far, limit = _comparable(start, dur, np.repeat(start[first], np.diff(first, append=len(start))))
    _levels(nested, index, near, far, limit, group, dur_ns, ticks)
    return nested


Ticks = Callable[[Int64s, Int64s], Int64s]
"""(comparable value, row) -> ticks."""


def _comparable(start: Int64s, dur: Int64s, base: Int64s) -> tuple[Ticks, Int64s, Int64s, Int64s]:
    """(back to ticks, start, end, limit): the latter compare inside a group as ticks do and are small, as group * span
    must not overflow.

    A row holds another if its end reaches the other's limit: its end, or one tick more for an empty one at the very
    end.
    """
    near = start - base
    far = near + dur
    limit = np.maximum(far, near + 1)
    if (int(limit.max()) + 1) * (len(start) + 1) < SAFE:
        return (lambda value, row: value + base[row]), near, far, limit
    end = start + dur
    values, ranks = np.unique(np.concatenate((start, end, np.maximum(end, start + 1))), return_inverse=True)
    near, far, limit = (part.astype(np.int64) for part in np.split(ranks, 3))
    return (lambda value, row: values[value]), near, far, limit


def _levels(
    nested: Nested,
    rows: Int64s | None,
    start: Int64s,
    end: Int64s,
    limit: Int64s,
    group: Int64s,
    dur_ns: Int64s,
    ticks: Ticks,
) -> None:
    span = int(limit.max()) + 1
    local = np.arange(len(end))
    owner: Int64s | None = None
    level = 0
    while True:
        shift = group * span
        before = np.empty(len(end), np.int64)
        before[0] = -1
        np.maximum.accumulate((end + shift)[:-1], out=before[1:])
        top = before < limit + shift
        at = np.flatnonzero(top)
        name = at if rows is None else rows[at]
        nested.size[name] = np.diff(at, append=len(end)) - 1
        crossing = before[at] > start[at] + shift[at]
        if crossing.any():
            nested.overlaps[name[crossing]] = True
            late = at[crossing]
            nested.covered_to[name[crossing]] = ticks(before[late] - shift[late], local[late])
        if owner is not None:
            above = owner[group[at]]
            nested.parent[name] = above
            nested.depth[name] = level
            np.add.at(nested.child_ns, above, dur_ns[at])
        if len(at) == len(end):
            return
        inner = np.flatnonzero(~top)
        group = (np.cumsum(top) - 1)[inner]
        rows = inner if rows is None else rows[inner]
        start, end, limit, dur_ns, local = start[inner], end[inner], limit[inner], dur_ns[inner], local[inner]
        owner = name
        level += 1


def line_heads(block: Block) -> NDArray[np.bool_]:
    """True at the first row of each (batch, line)."""
    heads = np.empty(block.rows, np.bool_)
    heads[0] = True
    np.not_equal(block.line[1:], block.line[:-1], out=heads[1:])
    inner = block.offsets[1:-1]
    heads[inner[inner < block.rows]] = True
    return heads
