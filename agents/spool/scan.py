"""Walking the records of a segment, and telling a torn tail from damage."""

from collections.abc import Iterator
from enum import Enum

from fleetscope.agents.spool.record import (
    HEAD_BYTES,
    SEGMENT_HEAD,
    Record,
    decode_head,
    decode_segment_head,
    decode_tail,
    segment_head_is_whole,
)
from fleetscope.agents.spool.state import States, decode_states
from fleetscope.agents.spool.store import Segment


class End(Enum):
    """How a segment ends."""

    CLEAN = "clean"
    TORN = "torn"
    """The last write is only partly there: its writer was killed. What it held had not been given to anybody."""
    DAMAGED = "damaged"
    """Bytes that were written whole are not what they were. Numbers beyond may have been sent."""


def read_record(segment: Segment, offset: int) -> Record | End:
    """The record at `offset`, or why there is none."""
    head_bytes = segment.read(offset, HEAD_BYTES)
    if not head_bytes:
        return End.CLEAN
    if len(head_bytes) < HEAD_BYTES:
        return End.TORN
    head = decode_head(head_bytes)
    if head is None:
        # Some file systems leave zeros where data of the last write is missing.
        rest = segment.read(offset, segment.size_bytes - offset)
        return End.TORN if not any(rest) else End.DAMAGED
    tail = segment.read(offset + HEAD_BYTES, head.tail_bytes)
    if len(tail) < head.tail_bytes:
        return End.TORN
    return decode_tail(head_bytes, head, tail) or End.DAMAGED


def read_head(segment: Segment) -> tuple[int, States, int] | None:
    """(incarnation, numbering states, offset of the first record); None if the head is not whole."""
    fixed = segment.read(0, SEGMENT_HEAD.size)
    fields = decode_segment_head(fixed)
    if fields is None:
        return None
    number, incarnation, state_bytes, crc = fields
    state = segment.read(SEGMENT_HEAD.size, state_bytes)
    if number != segment.number or len(state) != state_bytes or not segment_head_is_whole(fixed, state, crc):
        return None
    try:
        return incarnation, decode_states(state), SEGMENT_HEAD.size + state_bytes
    except ValueError:
        return None


def head_is_torn(segment: Segment) -> bool:
    """True if the segment's creation was not finished, so that nothing was ever in it."""
    fixed = segment.read(0, SEGMENT_HEAD.size)
    if len(fixed) < SEGMENT_HEAD.size:
        return True
    fields = decode_segment_head(fixed)
    return fields is not None and segment.size_bytes < SEGMENT_HEAD.size + fields[2]


class Walk(Iterator[tuple[Record, int]]):
    """(record, offset behind it) from `offset` on.

    Afterwards `end` says why it stopped and `whole` is the offset behind the last entry that is complete.
    """

    def __init__(self, segment: Segment, offset: int) -> None:
        self._segment = segment
        self._offset = offset
        self.whole = offset
        self.end = End.CLEAN

    def __next__(self) -> tuple[Record, int]:
        found = read_record(self._segment, self._offset)
        if isinstance(found, End):
            self.end = found
            if found is End.CLEAN and self.whole != self._offset:
                self.end = End.TORN
            raise StopIteration
        self._offset += found.size_bytes
        if not found.more:
            self.whole = self._offset
        return found, self._offset
