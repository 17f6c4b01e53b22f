"""What the PJRT shim says of a device: when a program occupied it, how deep its queue was, and where it was idle.

A completion is all a runtime reports, so an execution's begin is inferred (docs/design/0011-executions.md). Its time is
occupancy, an upper bound of busy, and never added to it: batches of executions alone observe no op.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed, place_ticks
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import pairs
from fleetscope.pipelines.whole import units
from fleetscope.pipelines.windows import Slots
from fleetscope.schema.vocabulary import Kind, SpanFlag

Int64s = NDArray[np.int64]

SHORTEST_NS = 20_000
"""Gaps between ops that are asked for a cause. Between two ops of a step there are a thousand shorter ones, which no
host caused; they stay `unknown`. Between executions every gap is asked."""

GAPS = pa.schema(
    [(name, pa.int64()) for name in ("process", "host", "device", "weight", "t_ns", "epoch")]
    + [(name, pa.int64()) for name in ("from_n", "to_n", "from_ns", "to_ns")]
)
"""An idle stretch of a device inside one window: in ns of its own clock (N of its ticks) and in fleet time."""


def watched(block: Block) -> NDArray[np.bool_]:
    """bool[B]: batches of executions alone."""
    return np.fromiter((info.watched for info in block.infos), bool, len(block.infos))


def occupying(block: Block) -> Int64s:
    """Rows that occupy a device: executions the shim told, those cut off by the end of their process too."""
    rows: Int64s = np.flatnonzero(
        block.over_rows(watched(block))
        & (block.kind == np.uint8(Kind.MODULE))
        & (block.flags & np.uint32(SpanFlag.INFERRED_BEGIN) != 0)
        & (block.dur >= 0)
    )
    return rows


def run_ahead(block: Block, placed: Placed) -> tuple[Int64s, Int64s]:
    """(rows, depth): executions and how many were enqueued and not complete when they were, themselves included.

    A QUEUE span's `exec` is the number of executions that were complete at its enqueue; its execution has its `flow`.
    """
    modules, queued, found = _queued(block, placed)
    depth = np.ones(len(modules), np.int64)
    np.maximum.at(depth, found, block.exec[modules[found]] - block.exec[queued] + 1)
    return modules, depth


def queued_ns(block: Block, placed: Placed, rows: Int64s) -> Int64s:
    """int64[rows]: how long each of these executions waited in the queue of its device; `rows` in any order."""
    modules, queued, found = _queued(block, placed)
    waited = np.zeros(block.rows, np.int64)
    waited[modules[found]] = placed.dur_ns[queued]
    return waited[rows]


def _queued(block: Block, placed: Placed) -> tuple[Int64s, Int64s, Int64s]:
    """(executions the shim told, queue spans that belong to one, index of that one among the executions)."""
    mine = block.over_rows(watched(block)) & placed.counts
    modules = np.flatnonzero(mine & (block.kind == np.uint8(Kind.MODULE)))
    queued = np.flatnonzero(mine & (block.kind == np.uint8(Kind.QUEUE)))
    if not len(modules) or not len(queued):
        return modules, queued[:0], queued[:0]
    batch = block.batch
    order = np.lexsort((block.flow[modules], batch[modules]))
    by_flow = modules[order]
    place = np.searchsorted(pairs(batch[by_flow], block.flow[by_flow]), pairs(batch[queued], block.flow[queued]))
    place = np.minimum(place, len(by_flow) - 1)
    same = (batch[by_flow[place]] == batch[queued]) & (block.flow[by_flow[place]] == block.flow[queued])
    return modules, queued[same], order[place[same]]


@dataclass(frozen=True, slots=True)
class Stretches:
    """Idle stretches in ticks, each inside one slot."""

    slot: Int64s
    batch: Int64s
    begin: Int64s
    end: Int64s

    def of(self, batches: NDArray[np.bool_]) -> "Stretches":
        """Those of some batches."""
        kept = batches[self.batch]
        return Stretches(self.slot[kept], self.batch[kept], self.begin[kept], self.end[kept])


def gap_table(block: Block, slots: Slots, found: Sequence[Stretches], alone: NDArray[np.bool_]) -> pa.Table:
    """GAPS of idle stretches. Whatever of a range lies in none was busy (`alone`: occupied), or shorter than
    SHORTEST_NS between ops."""
    slot, batch, begin, end = (
        np.concatenate([getattr(part, name) for part in found]) if found else np.zeros(0, np.int64)
        for name in ("slot", "batch", "begin", "end")
    )
    from_n, to_n = block.in_ns(begin, batch), block.in_ns(end, batch)
    kept = np.flatnonzero(to_n - from_n >= np.where(alone[batch], 1, SHORTEST_NS))
    kept = kept[np.argsort(batch[kept], kind="stable")]
    slot, batch, begin, end, from_n, to_n = (part[kept] for part in (slot, batch, begin, end, from_n, to_n))
    offsets = np.searchsorted(batch, np.arange(len(block.infos) + 1))
    fleet = [place_ticks(offsets, ticks, block.placements)[0] for ticks in (begin, end)]
    columns = {name: block.of_batches(name)[batch] for name in ("process", "host", "device", "epoch")}
    columns |= {"weight": np.where(units(block)[batch], 0, 1), "t_ns": slots.t_ns[slot]}
    columns |= {"from_n": from_n, "to_n": to_n, "from_ns": fleet[0], "to_ns": fleet[1]}
    return pa.table({name: columns[name].astype(np.int64) for name in GAPS.names}, schema=GAPS)
