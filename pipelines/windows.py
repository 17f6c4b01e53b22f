"""10 s windows in ticks: for each batch, from which tick on an instant belongs to which window of fleet time.

The edge is the smallest tick whose image reaches the window, so that counting in ticks and flooring mapped times
agree to the tick.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.segment import Placement
from fleetscope.pipelines.block import Block
from fleetscope.schema.vocabulary import WINDOW_NS

Int64s = NDArray[np.int64]

WINDOWS_A_BATCH = 10_000
"""28 h. A header may claim any range; its batch is left out of rollups instead of making a row for every 10 s of a
century."""


@dataclass(frozen=True, slots=True)
class Slots:
    """A slot is a (batch, window). Slots of batch b are first[b]:first[b + 1], ascending by `tick`, the tick each
    begins at (the first also holds what is earlier); `t_ns` the begin of its window. `refused`: batches whose range
    is beyond WINDOWS_A_BATCH: no slots."""

    first: Int64s
    tick: Int64s
    t_ns: Int64s
    refused: tuple[int, ...]

    @property
    def batch(self) -> Int64s:
        """Batch of each slot."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


def slots_of(block: Block) -> Slots:
    """Slots that cover the observed range of every batch and the ends of all its rows."""
    low, high = block.of_batches("tick_from"), block.of_batches("tick_to")
    held = np.flatnonzero(np.diff(block.offsets))
    if len(held):
        end = block.start + np.maximum(block.dur, 0)
        heads = block.offsets[held]
        low[held] = np.minimum(low[held], np.minimum.reduceat(end, heads))
        high[held] = np.maximum(high[held], np.maximum.reduceat(end, heads))
    first, ticks, times, refused = [0], [], [], []
    for batch, (begin, stop) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        placement = block.placements[batch]
        found = _edges(placement, begin, stop)
        if found is None:
            refused.append(batch)
        else:
            ticks += [tick for tick, _ in found]
            times += [window * WINDOW_NS for _, window in found]
        first.append(len(ticks))
    return Slots(np.asarray(first, np.int64), np.asarray(ticks, np.int64), np.asarray(times, np.int64), tuple(refused))


def _edges(placement: Placement, begin: int, stop: int) -> list[tuple[int, int]] | None:
    """(tick, window) where the window changes in [begin, stop], the first at `begin`; None if there are too many."""
    found: list[tuple[int, int]] = []
    last = len(placement) - 1
    for index, part in enumerate(placement):
        low = begin if index == 0 else max(part.valid_from, begin)
        high = stop if index == last else min(placement[index + 1].valid_from - 1, stop)
        if low > high:
            continue
        window, final = part.at(low) // WINDOW_NS, part.at(high) // WINDOW_NS
        if final - window > WINDOWS_A_BATCH:
            return None
        if not found or found[-1][1] != window:
            found.append((low, window))
        found += [(part.first_tick(edge * WINDOW_NS), edge) for edge in range(window + 1, final + 1)]
    return found


def row_slots(block: Block, slots: Slots) -> Int64s:
    """int64[R]: slot of each row's end, -1 in refused batches. A span belongs, whole, to the window of its end."""
    count = np.diff(slots.first)
    slot = np.repeat(np.where(count > 0, slots.first[:-1], -1), np.diff(block.offsets))
    for batch in np.flatnonzero(count > 1).tolist():
        rows = slice(int(block.offsets[batch]), int(block.offsets[batch + 1]))
        end = block.start[rows] + np.maximum(block.dur[rows], 0)
        edges = slots.tick[slots.first[batch] + 1 : slots.first[batch + 1]]
        slot[rows] += np.searchsorted(edges, end, side="right")
    return slot
