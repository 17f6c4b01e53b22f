"""Rows of many batches side by side: what the kernels work on.

Real hosts send 1-2 k events a batch, and a numpy call costs about a microsecond before it touches a row: a kernel
run per batch would spend more on calls than on events. So rows are concatenated; what is constant in a batch is an
array over batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align.segment import Placement
from fleetscope.schema.durations import nominal_ns
from fleetscope.schema.vocabulary import DEVICE_WORK

Int64s = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)

_WORK = np.zeros(256, np.bool_)
_WORK[list(DEVICE_WORK)] = True


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """Header of one batch of spans, as far as kernels look at it. Ids as in schema.identity; device 0: host threads.

    `window` is 0 for batches that are no profiler window; `complete`: nothing was sampled away in it. `watched`:
    program executions alone, by the PJRT shim; no op was looked at. `epoch`: the clock epoch of its ticks.
    """

    host: int
    process: int
    device: int
    tick_from: int
    tick_to: int
    period_num: int
    period_den: int
    window: int = 0
    window_ticks: int = 0
    executions: int = 0
    complete: bool = True
    watched: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """B batches with R rows. Rows of batch b are offsets[b]:offsets[b + 1], in order (line, start, -dur), WIRE_SPANS
    columns.

    `placements[b]` are the map segments of batch b.
    """

    infos: tuple[BatchInfo, ...]
    placements: tuple[Placement, ...]
    offsets: Int64s
    start: Int64s
    dur: Int64s
    line: NDArray[np.int32]
    kind: NDArray[np.uint8]
    program: Int64s
    op: NDArray[np.int32]
    exec: Int64s
    weight: NDArray[np.int32]
    flags: NDArray[np.uint32]
    flow: Int64s

    @property
    def rows(self) -> int:
        return len(self.start)

    @property
    def batch(self) -> Int64s:
        """int64[R]: the batch of each row."""
        return self.over_rows(np.arange(len(self.infos)))

    @property
    def work(self) -> NDArray[np.bool_]:
        """bool[R]: rows whose intervals make a device busy."""
        return _WORK[self.kind]

    def of_batches(self, name: str) -> Int64s:
        """int64[B]: a field of BatchInfo over the batches."""
        return np.fromiter((getattr(info, name) for info in self.infos), np.int64, len(self.infos))

    def over_rows(self, values: NDArray[_T]) -> NDArray[_T]:
        """[B] -> [R]: the value of each row's batch."""
        return np.repeat(values, np.diff(self.offsets))

    def in_ns(self, ticks: Int64s, batch: Int64s) -> Int64s:
        """N(ticks) by the clock of each one's batch."""
        num, den = self.of_batches("period_num"), self.of_batches("period_den")
        periods = set(zip(num.tolist(), den.tolist(), strict=True))
        if len(periods) == 1:
            return nominal_ns(ticks, *periods.pop())
        out = np.zeros(len(ticks), np.int64)
        for period in periods:
            same = ((num == period[0]) & (den == period[1]))[batch]
            out[same] = nominal_ns(ticks[same], *period)
        return out


def block_of(
    infos: Sequence[BatchInfo], placements: Sequence[Placement], rows: Sequence[int], columns: dict[str, NDArray[Any]]
) -> Block:
    """From concatenated WIRE_SPANS columns (numpy) and the number of rows of each batch (0 allowed)."""
    offsets = np.zeros(len(infos) + 1, np.int64)
    np.cumsum(np.asarray(rows, np.int64), out=offsets[1:])
    names = ("start", "dur", "line", "kind", "program", "op", "exec", "weight", "flags")
    found = {name: columns[name] for name in names}
    flow = columns.get("flow", np.zeros(len(found["start"]), np.int64))
    return Block(tuple(infos), tuple(placements), offsets, **found, flow=flow)
