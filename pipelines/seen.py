"""What was looked at: the completeness partials of hosts, and the stretches in which devices were observed."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import Placed, place_ticks
from fleetscope.pipelines.block import Block
from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.step import COVERAGE, MARKS, PARTS
from fleetscope.schema.tables import COMPLETENESS
from fleetscope.schema.vocabulary import WINDOW_NS, Kind


def completeness(batches: list[BatchMeta], err_ns: NDArray[np.int64]) -> pa.Table:
    """One row per (window of a batch's end, host)."""
    ends = [batch.placement[-1].at(batch.info.tick_to) // WINDOW_NS * WINDOW_NS for batch in batches]
    rows = pa.table(
        {
            "t_ns": ends,
            "host": [batch.info.host for batch in batches],
            "observed": [1] * len(batches),
            "events": [batch.rows for batch in batches],
            "lost": [batch.dropped for batch in batches],
            "late": [batch.rows if batch.late else 0 for batch in batches],
            "err_ns": err_ns,
        },
        schema=COMPLETENESS,
    )
    return merge("completeness", [rows])


def coverage(batches: list[BatchMeta]) -> pa.Table:
    """A stretch per device batch."""
    seen = [batch for batch in batches if batch.info.device and batch.info.tick_to > batch.info.tick_from]
    return pa.table(
        {
            "process": [batch.info.process for batch in seen],
            "host": [batch.info.host for batch in seen],
            "run": [batch.run for batch in seen],
            "attempt": [batch.attempt for batch in seen],
            "rank": [batch.rank for batch in seen],
            "begin_ns": [batch.placement[0].at(batch.info.tick_from) for batch in seen],
            "end_ns": [batch.placement[-1].at(batch.info.tick_to) for batch in seen],
            "watched": [int(batch.info.watched) for batch in seen],
        },
        schema=COVERAGE,
    )


_HOST_PARTS = {
    Kind.DATA_WAIT: "data_wait_ns",
    Kind.COPY: "h2d_ns",
    Kind.INFEED: "h2d_ns",
    Kind.COMPILE: "compile_ns",
    Kind.CHECKPOINT: "checkpoint_ns",
    Kind.DISPATCH: "dispatch_ns",
    Kind.H2D: "h2d_ns",
    Kind.D2H: "d2h_ns",
}
_PART_KINDS = np.array([int(kind) for kind in _HOST_PARTS], np.uint8)


def host_steps(batches: list[BatchMeta], block: Block, placed: Placed, step: NDArray[np.int64]) -> dict[str, pa.Table]:
    """Step annotations of host threads, and host spans that count into a step, without those inside another one of
    their kind and line. Lengths are in fleet time, as steps are: by a clock that is off by 20 ppm a wait of a second
    would reach 20 us into the next step."""
    wanted = np.isin(block.kind, _PART_KINDS) | (block.kind == np.uint8(Kind.STEP))
    rows = np.flatnonzero(wanted & placed.counts)
    batch = np.searchsorted(block.offsets, rows, side="right") - 1
    host = block.of_batches("device")[batch] == 0
    rows, batch = rows[host], batch[host]
    offsets = np.searchsorted(batch, np.arange(len(batches) + 1))
    stops, _, _ = place_ticks(offsets, block.start[rows] + block.dur[rows], block.placements)
    marks: list[dict[str, int]] = []
    parts: list[dict[str, object]] = []
    until: dict[tuple[int, int, int], int] = {}
    for row, index, stop_ns in zip(rows.tolist(), batch.tolist(), stops.tolist(), strict=True):
        info, kind = batches[index].info, int(block.kind[row])
        begin, dur = int(block.start[row]), int(block.dur[row])
        lane = (index, int(block.line[row]), kind)
        known = until.get(lane, begin)
        if known > begin and begin + dur <= known:
            continue
        until[lane] = begin + dur
        begin_ns = int(placed.t_ns[row])
        timed = {"process": info.process, "begin_ns": begin_ns, "dur_ns": stop_ns - begin_ns}
        if kind == Kind.STEP:
            who = batches[index]
            owner = {"host": info.host, "run": who.run, "attempt": who.attempt, "rank": who.rank}
            marks.append({**timed, **owner, "step": int(step[row])})
        else:
            parts.append({**timed, "column": _HOST_PARTS[Kind(kind)]})
    return {"marks": pa.Table.from_pylist(marks, schema=MARKS), "parts": pa.Table.from_pylist(parts, schema=PARTS)}
