"""Bytes of a spool segment: a header with the numbering state of all sources, then records. Everything has a checksum.

Segment:  magic, segment number, incarnation, length and CRC of the state; the state (JSON, see `state`).
Record:   the fixed head below; note (JSON: the source's numbering state after this record, or of several); key; value.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

MAGIC = b"FSSPOOL1"
SEGMENT_HEAD = struct.Struct("<8sQQII")
_HEAD = struct.Struct("<IBBBxHIIqQQI")
# crc | kind | topic | more | key bytes | note bytes | value bytes | source | batch number | first event | rows
HEAD_BYTES = _HEAD.size
MAX_RECORD_BYTES = 64 << 20
"""Beyond this a length is damage, not a record: the log takes 8 MiB."""


class Topic(IntEnum):
    """Which topic a record goes to."""

    TELEMETRY = 0
    CLOCKS = 1
    PROGRAMS = 2
    REPORTS = 3
    PEERS = 4


_NEWEST_TOPIC = max(Topic)


class RecordKind(IntEnum):
    MESSAGE = 1
    """Goes to the log."""
    STATE = 2
    """Only its note counts: numbering states that changed without a message (losses)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `source_id` 0: a message without numbers (clocks, programs)."""

    kind: RecordKind
    topic: Topic
    source_id: int
    batch_number: int
    first_event: int
    rows: int
    note: bytes
    key: bytes
    value: bytes
    more: bool = False
    """The next record belongs to the same entry: both are there or neither is."""

    @property
    def size_bytes(self) -> int:
        return HEAD_BYTES + len(self.note) + len(self.key) + len(self.value)

    def encode(self) -> bytes:
        tail = b"".join((self.note, self.key, self.value))
        head = _HEAD.pack(
            0,
            self.kind,
            self.topic,
            self.more,
            len(self.key),
            len(self.note),
            len(self.value),
            self.source_id,
            self.batch_number,
            self.first_event,
            self.rows,
        )
        return crc32(tail, crc32(head[4:])).to_bytes(4, "little") + head[4:] + tail


@dataclass(frozen=True, slots=True)
class Head:
    """The fixed part of a record, its lengths believed only as far as they fit."""

    crc: int
    record: Record
    key_bytes: int
    note_bytes: int
    value_bytes: int

    @property
    def tail_bytes(self) -> int:
        return self.key_bytes + self.note_bytes + self.value_bytes


def decode_head(data: bytes) -> Head | None:
    """None if these bytes are no head."""
    crc, kind, topic, more, key_bytes, note_bytes, value_bytes, source, number, first, rows = _HEAD.unpack(data)
    if kind not in (1, 2) or topic > _NEWEST_TOPIC or note_bytes + value_bytes > MAX_RECORD_BYTES:
        return None
    record = Record(RecordKind(kind), Topic(topic), source, number, first, rows, b"", b"", b"", more == 1)
    return Head(crc, record, key_bytes, note_bytes, value_bytes)


def decode_tail(head_bytes: bytes, head: Head, tail: bytes) -> Record | None:
    """The whole record; None if its checksum is wrong."""
    if crc32(tail, crc32(head_bytes[4:])) != head.crc:
        return None
    note_end = head.note_bytes
    key_end = note_end + head.key_bytes
    known = head.record
    return Record(
        known.kind,
        known.topic,
        known.source_id,
        known.batch_number,
        known.first_event,
        known.rows,
        tail[:note_end],
        tail[note_end:key_end],
        tail[key_end:],
        known.more,
    )


def encode_segment_head(number: int, incarnation: int, state: bytes) -> bytes:
    fields = SEGMENT_HEAD.pack(MAGIC, number, incarnation, len(state), 0)[:-4]
    return fields + crc32(state, crc32(fields)).to_bytes(4, "little") + state


def decode_segment_head(data: bytes) -> tuple[int, int, int, int] | None:
    """(segment number, incarnation, state bytes, CRC) of the first SEGMENT_HEAD.size bytes; None if they are none."""
    if len(data) < SEGMENT_HEAD.size:
        return None
    magic, number, incarnation, state_bytes, crc = SEGMENT_HEAD.unpack(data[: SEGMENT_HEAD.size])
    return (number, incarnation, state_bytes, crc) if magic == MAGIC and state_bytes <= MAX_RECORD_BYTES else None


def segment_head_is_whole(data: bytes, state: bytes, crc: int) -> bool:
    return crc32(state, crc32(data[: SEGMENT_HEAD.size - 4])) == crc
