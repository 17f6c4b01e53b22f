"""Executions wholly inside a profiler window, and what an execution of such a length stands for.

Only they can be divided by exact counts of executions: what a window cut off at its edges is missing in the op times,
and time over *begun* executions errs by up to a quarter at four executions a window. An execution of length c is
wholly inside a window of length W with a chance that grows with W - c, so it weighs 1 / (W - c), like a span
(reference/window-estimators.md); what is left of the spread is that of the execution's own time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.block import Block
from fleetscope.pipelines.grouping import combined, compact, ranks
from fleetscope.schema.vocabulary import Kind, SpanFlag

Int64s = NDArray[np.int64]

NEAREST = 64
"""Spans and executions longer than W (1 - 1/64) are unobservable: one that is barely kept would stand for thousands
that were not."""


@dataclass(frozen=True, slots=True)
class Whole:
    """Executions wholly inside their unit and shorter than it (NEAREST)."""

    unit: Int64s
    """int64[E]: batch."""
    program: Int64s
    rest_ns: Int64s
    """int64[E]: W - c."""
    of_row: Int64s
    """int64[R]: execution a row runs in; -1 none, or one that is not whole."""

    @property
    def rate_uhz(self) -> Int64s:
        """int64[E]: 1 / (W - c): what one adds to executions a second."""
        return 10**15 // self.rest_ns


def units(block: Block) -> NDArray[np.bool_]:
    """bool[B]: batches that are incomplete profiler windows."""
    return np.fromiter((info.window != 0 and not info.complete and info.window_ticks > 0 for info in block.infos), bool)


def window_lengths(block: Block) -> Int64s:
    """int64[B]: W in ns of the batch's own clock."""
    return block.in_ns(block.of_batches("window_ticks"), np.arange(len(block.infos)))


def whole_executions(block: Block) -> Whole:
    """By module spans, which the profiler keeps only when whole; where a program has none in its unit (built-in CPU),
    by execution numbers: those that begin after another one did and end before another one begins.

    Execution numbers cannot tell a whole execution from one that the window cut at its first op, so the outermost are
    left out (reference/inprocess-dryrun.md).
    """
    batch = block.batch
    looked = (units(block) & (block.of_batches("device") != 0))[batch]
    rows = np.flatnonzero(looked & (block.weight == 0) & (block.dur >= 0))
    program, programs = ranks(block.program[rows])
    owner = batch[rows]
    group, distinct = compact(*combined([(owner, max(len(block.infos), 1)), (program, programs)]))
    module = block.kind[rows] == np.uint8(Kind.MODULE)
    named = np.zeros(max(len(distinct), 1), np.bool_)
    named[group[module]] = True
    kept = module & ((block.flags[rows] & np.uint32(SpanFlag.TRUNCATED)) == 0)
    start, end = block.start[rows], block.start[rows] + block.dur[rows]
    spans = np.flatnonzero(kept)
    inside = np.flatnonzero(named[group] & ~module) if len(spans) else np.zeros(0, np.int64)
    within = _enclosing(group, start, end, spans, inside)
    numbered = np.flatnonzero(~named[group] & (block.exec[rows] >= 0))
    told, begin, stop, whole = _numbered(
        group[numbered], block.exec[rows][numbered], owner[numbered], start, end, numbered
    )
    # Executions: module spans first, then numbered ones; those that are not whole or too long fall out.
    unit = np.concatenate((owner[spans], owner[numbered][told.example]))
    ids = np.concatenate((block.program[rows][spans], block.program[rows][numbered][told.example]))
    ticks = np.concatenate((end[spans] - start[spans], stop - begin))
    good = np.concatenate((np.ones(len(spans), np.bool_), whole))
    lasted = block.in_ns(ticks, unit)
    length = window_lengths(block)[unit]
    good &= lasted < length - length // NEAREST
    number = np.where(good, np.cumsum(good) - 1, -1)
    of_row = np.full(block.rows, -1, np.int64)
    of_row[rows[spans]] = number[: len(spans)]
    of_row[rows[inside[within >= 0]]] = number[within[within >= 0]]
    of_row[rows[numbered]] = number[len(spans) + told.of_row]
    return Whole(unit[good], ids[good], (length - lasted)[good], of_row)


@dataclass(frozen=True, slots=True)
class _Told:
    of_row: Int64s
    example: Int64s


def _numbered(
    group: Int64s, number: Int64s, owner: Int64s, start: Int64s, end: Int64s, rows: Int64s
) -> tuple[_Told, Int64s, Int64s, NDArray[np.bool_]]:
    """Executions by number: (which one each row is in, begin, end, whether it is whole)."""
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return _Told(nothing, nothing), nothing, nothing, np.zeros(0, np.bool_)
    execution, distinct = compact(*combined([ranks(group), ranks(number)]))
    example = np.empty(len(distinct), np.int64)
    example[execution] = np.arange(len(execution))
    begin = np.full(len(distinct), np.iinfo(np.int64).max)
    stop = np.full(len(distinct), np.iinfo(np.int64).min)
    np.minimum.at(begin, execution, start[rows])
    np.maximum.at(stop, execution, end[rows])
    unit = owner[example]
    earliest = np.full(int(unit.max()) + 1, np.iinfo(np.int64).max)
    latest = np.full(int(unit.max()) + 1, np.iinfo(np.int64).min)
    np.minimum.at(earliest, unit, begin)
    np.maximum.at(latest, unit, begin)
    return _Told(execution, example), begin, stop, (begin > earliest[unit]) & (latest[unit] >= stop)


def _enclosing(group: Int64s, start: Int64s, end: Int64s, spans: Int64s, inside: Int64s) -> Int64s:
    """int64[inside]: index into `spans` of the one of the same group that encloses each row; -1 none."""
    both = np.concatenate((spans, inside))
    is_row = np.arange(len(both)) >= len(spans)
    order = np.lexsort((is_row, start[both], group[both]))
    latest = np.maximum.accumulate(np.where(~is_row[order], np.arange(len(order)), -1))
    found = np.full(len(both), -1, np.int64)
    found[order] = np.where(latest >= 0, order[np.maximum(latest, 0)], -1)
    found = found[len(spans) :]
    if not len(found):
        return found
    around = spans[np.maximum(found, 0)]
    fits = (found >= 0) & (group[around] == group[inside]) & (end[around] >= end[inside])
    return np.where(fits, found, -1)
