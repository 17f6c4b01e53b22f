"""Which batch is new: numbers of one source against what was taken before. Pure, no I/O.

A batch at or above `next` is taken and what it jumps over becomes an open gap; inside an open gap it is taken and
the gap shrinks; anything else was taken before and is a duplicate (DESIGN 3.5). Numbers count batches *and* events,
so each is checked against the other: a batch whose two numbers cannot both be true is refused, and stays a gap.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fleetscope.pipelines.header import ROWS_LIMIT
from fleetscope.schema.errors import NumberingContradiction

GAP_AGE_NS = 24 * 3_600_000_000_000
"""The log keeps a day: what is missing for longer cannot arrive any more."""

GAP_LIMIT = 1000
"""A source that loses every second batch would otherwise grow the carried state without bound."""

EVENT_LIMIT = 1 << 62


class Outcome(Enum):
    TAKEN = "taken"
    FILLED = "filled"
    DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Gap:
    """Missing batches, inclusive; their events are [first_event, end_event), empty if only rows = 0 batches are
    missing.
    """

    first_batch: int
    last_batch: int
    first_event: int
    end_event: int
    opened_ns: int

    @property
    def events(self) -> int:
        return self.end_event - self.first_event


@dataclass(slots=True)
class SourceState:
    """What one source still owes: its next numbers, open gaps in order, and gaps closed as lost in this epoch."""

    next_batch: int = 0
    next_event: int = 0
    gaps: list[Gap] = field(default_factory=list)
    lost_events: int = 0
    lost: list[Gap] = field(default_factory=list)

    @property
    def gap_events(self) -> int:
        return sum(gap.events for gap in self.gaps)

    def admit(self, batch: int, first_event: int, rows: int, now_ns: int) -> Outcome:
        """Take note of a batch. NumberingContradiction if its numbers cannot be true; the state is then as before."""
        end_event = first_event + rows
        if batch >= EVENT_LIMIT or end_event > EVENT_LIMIT:
            raise NumberingContradiction(f"batch_number {batch}, first_event {first_event}: numbers end at 2^62")
        if batch >= self.next_batch:
            return self._take_next(batch, first_event, end_event, now_ns)
        index = bisect_right(self.gaps, batch, key=lambda gap: gap.first_batch) - 1
        if index >= 0 and batch <= self.gaps[index].last_batch:
            self._fill(index, batch, first_event, end_event)
            return Outcome.FILLED
        if end_event > self.next_event:
            raise NumberingContradiction(
                f"batch_number {batch} was taken before, but its events [{first_event}, {end_event}) end beyond "
                f"{self.next_event}, the last taken"
            )
        return Outcome.DUPLICATE

    def _take_next(self, batch: int, first_event: int, end_event: int, now_ns: int) -> Outcome:
        if first_event < self.next_event or (batch == self.next_batch and first_event != self.next_event):
            raise NumberingContradiction(
                f"batch_number {batch} begins at first_event {first_event}; next are batch {self.next_batch}, "
                f"event {self.next_event}"
            )
        # A gap of three batches cannot lack a billion events.
        missing, lacking = batch - self.next_batch, first_event - self.next_event
        if lacking > missing * ROWS_LIMIT:
            raise NumberingContradiction(
                f"batch_number {batch} begins at first_event {first_event}: {lacking} events in {missing} batches that "
                "are missing"
            )
        if batch > self.next_batch:
            self.gaps.append(Gap(self.next_batch, batch - 1, self.next_event, first_event, now_ns))
        self.next_batch, self.next_event = batch + 1, end_event
        if len(self.gaps) > GAP_LIMIT:
            self._close(0)
        return Outcome.TAKEN

    def _fill(self, index: int, batch: int, first_event: int, end_event: int) -> None:
        gap = self.gaps[index]
        begins_right = first_event == gap.first_event if batch == gap.first_batch else first_event >= gap.first_event
        ends_right = end_event == gap.end_event if batch == gap.last_batch else end_event <= gap.end_event
        if not begins_right or not ends_right:
            raise NumberingContradiction(
                f"batch_number {batch} has events [{first_event}, {end_event}); missing are batches "
                f"{gap.first_batch}..{gap.last_batch} with events [{gap.first_event}, {gap.end_event})"
            )
        parts = []
        if batch > gap.first_batch:
            parts.append(Gap(gap.first_batch, batch - 1, gap.first_event, first_event, gap.opened_ns))
        if batch < gap.last_batch:
            parts.append(Gap(batch + 1, gap.last_batch, end_event, gap.end_event, gap.opened_ns))
        self.gaps[index : index + 1] = parts

    def _close(self, index: int) -> None:
        gap = self.gaps.pop(index)
        self.lost_events += gap.events
        self.lost.append(gap)

    def expire(self, now_ns: int) -> None:
        """Close as lost what has been open for more than a day."""
        for index in reversed(range(len(self.gaps))):
            if now_ns - self.gaps[index].opened_ns > GAP_AGE_NS:
                self._close(index)

    def to_json(self) -> list[Any]:
        """[next batch, next event, lost events, [gap...]]: gaps closed in this epoch are told once, not carried."""
        gaps = [[g.first_batch, g.last_batch, g.first_event, g.end_event, g.opened_ns] for g in self.gaps]
        return [self.next_batch, self.next_event, self.lost_events, gaps]

    @classmethod
    def from_json(cls, value: list[Any]) -> "SourceState":
        next_batch, next_event, lost_events, gaps = value
        return cls(next_batch, next_event, [Gap(*gap) for gap in gaps], lost_events)
