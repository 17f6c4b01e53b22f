"""Which program's executions stand for steps in a job of several ranks, and which ranks count them alike.

Ranks count from the beginning of their processes. One that started again, came late or ran the program once more than
the others has the same numbers for other executions, and a window there would be at another place. It is found by
marks: every rank says which execution was the first to end after the same moment, and how long after it. In a job whose
ranks wait for each other the positions (execution less time in periods) then agree within the skew of the ranks and
their hosts' clocks. Who is not clearly with the others takes no windows.
"""

import collections
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import life_id

MARKS_KEPT = 8
MARKS_NEEDED = 3
MARK_AGE_NS = 120_000_000_000
"""Marks come every 5 s. Older ones may be of a stretch in which a rank counted otherwise."""
APART = 0.25
"""Executions that a rank's median position may be from the others': at half it could be the neighbour's number."""
SCATTER = 0.5
"""The middle half of its positions must lie so close together, or nothing is known of it."""
TIMES_BUSIER = 2.0
"""A program that has taken so many times the device time of the one in force takes its place."""

Marks = Mapping[int, float]
"""Positions by moment (ns), of one life."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Ranks by what their marks say."""

    alike: frozenset[int]
    otherwise: frozenset[int]
    """Clearly: by an execution or more. Who is neither is left out of what is decided next."""
    unheard: frozenset[int]
    """They have not said enough."""


def life(report: wire.RankReport) -> int:
    source = report.source
    return life_id(source.boot_id, source.pid, source.start_ticks, source.rank)


def with_mark(marks: Marks, followed: wire.RankReport.Followed) -> Marks:
    """The newest marks and that of a report. A moment's position: executions, in periods of the rank."""
    if followed.marked < 0 or not followed.mark_ns or not followed.period_ns:
        return marks
    position = followed.marked - followed.after_ns / followed.period_ns
    kept = {at: where for at, where in marks.items() if 0 <= followed.mark_ns - at < MARK_AGE_NS}
    kept[followed.mark_ns] = position
    return {at: kept[at] for at in sorted(kept)[-MARKS_KEPT:]}


def agreement(marks: Mapping[int, Marks]) -> Agreement:
    """Of ranks by number. Those alike are more than half of those that can be judged, or none are."""
    newest = max((max(of) for of in marks.values() if of), default=0)
    apart: dict[int, list[float]] = {rank: [] for rank in marks}
    for moment in {at for of in marks.values() for at in of if newest - at < MARK_AGE_NS}:
        places = {rank: of[moment] for rank, of in marks.items() if moment in of}
        if len(places) > 1:
            middle = statistics.median_low(places.values())
            for rank, place in places.items():
                apart[rank].append(place - middle)
    unheard = frozenset(rank for rank, found in apart.items() if len(found) < MARKS_NEEDED)
    distance = {rank: _distance(found) for rank, found in apart.items() if rank not in unheard}
    alike = frozenset(rank for rank, far in distance.items() if far is not None and far <= APART)
    if 2 * len(alike) <= len(distance):
        alike = frozenset()
    otherwise = frozenset(rank for rank, far in distance.items() if far is not None and far >= 1 - APART)
    return Agreement(alike, otherwise, unheard)


def _distance(apart: Sequence[float]) -> float | None:
    """Executions from the others; None where the marks contradict each other."""
    low, middle, high = statistics.quantiles(apart, n=4, method="inclusive")
    return abs(middle) if high - low <= SCATTER else None


def busiest(reports: Sequence[wire.RankReport], current: str, least: int) -> str:
    """The program that took most device time among those that more than half of the ranks have run `least` times; ""
    when there is none. `current` stays until another has taken clearly more."""
    ranks: collections.Counter[str] = collections.Counter()
    busy: collections.Counter[str] = collections.Counter()
    for ran in (ran for report in reports for ran in report.ran if ran.program and ran.executions >= least):
        ranks[ran.program] += 1
        busy[ran.program] += ran.busy_ns
    common = [name for name, count in ranks.items() if 2 * count > len(reports)]
    if not common:
        return current
    # Of equals the first by name: two coordinators say the same.
    best = min(common, key=lambda name: (-busy[name], name))
    return current if current and busy[best] < TIMES_BUSIER * busy[current] else best
