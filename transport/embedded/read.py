"""Read a planned range of one partition, across segments, compaction, retention and damage. Takes no lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Lock

from fleetscope.transport.embedded.end import EndOfPartition
from fleetscope.transport.embedded.files import OpenSegment, PartitionFiles, SparseIndex
from fleetscope.transport.embedded.record import TOMBSTONE, RecordHeader, decode_body
from fleetscope.transport.embedded.scan import READ_WINDOW_BYTES, WALK_WINDOW_BYTES, Damage, Scan
from fleetscope.transport.embedded.segment import base_holding
from fleetscope.transport.errors import OffsetOutOfRange, UnreadableRecord
from fleetscope.transport.log import Message

# A body read while an appender cuts and overwrites a torn tail can be a mixture; damage on disk stays when read again.
_REREADS = 2


class PartitionReader:
    """Thread-safe: every `read` has its own file position; the index and the known end are shared."""

    def __init__(self, files: PartitionFiles) -> None:
        self.files = files
        self.unreadable = 0
        self._mutex = Lock()
        self._index = SparseIndex()
        self._end: EndOfPartition | None = None

    def start_offset(self) -> int:
        bases = self.files.bases()
        with self._mutex:
            self._index.forget_except(bases)
        return bases[0]

    def end_offset(self, sync: bool) -> int:
        with self._mutex:
            if self._end is None:
                self._end = EndOfPartition(self.files)
            offset = self._end.refresh()
            if sync:
                self._end.sync()
            return offset

    def close(self) -> None:
        with self._mutex:
            if self._end is not None:
                self._end.close()
                self._end = None

    def read(self, start: int, end: int) -> Iterator[Message]:
        """Messages of [start, end); one with `unreadable` set for each offset whose record is damaged."""
        log_end = self.end_offset(sync=False)
        if start > log_end or end > log_end:
            raise OffsetOutOfRange(f"{self._name()}: [{start}, {end}) asked, the log ends at {log_end}")
        at = start
        while at < end:
            segment = self._open_holding(at)
            try:
                scan = self._scan_from(segment, at)
                for message in self._read_segment(segment, scan, at, end):
                    at = message.offset + 1
                    yield message
                following = min(self._following(segment, at), end)
                # What a compacted topic lacks was compacted away. Elsewhere it was there, below the end, and is lost.
                if not self.files.compacted:
                    for offset in range(at, following):
                        yield self._lost(offset, segment, scan.position)
                at = following
            finally:
                segment.close()

    def _read_segment(self, segment: OpenSegment, scan: Scan, at: int, end: int) -> Iterator[Message]:
        size_bytes = segment.size_bytes()
        while scan.expected < end:
            place, expected = scan.position, scan.expected
            step = scan.step(size_bytes, end)
            if step is None:
                break
            if isinstance(step, Damage):
                # How many records of a compacted topic the bytes held cannot be told: one stands for all.
                until = expected + 1 if self.files.compacted else step.next_offset
                for offset in range(max(at, expected), until):
                    yield self._lost(offset, segment, place, step.raw if offset == expected else b"")
                scan.expected = step.next_offset
            elif step.offset >= end:
                break
            elif step.offset >= at:
                yield self._message(scan, step, segment, place)
                with self._mutex:
                    self._index.note(segment, scan.expected, scan.position)

    def _scan_from(self, segment: OpenSegment, offset: int) -> Scan:
        with self._mutex:
            position, known = self._index.nearest(segment, offset)
        walk = segment.scan(WALK_WINDOW_BYTES, position, known)
        place, expected = walk.position, walk.expected
        while walk.expected < offset:
            step = walk.step(segment.size_bytes())
            if step is None or (isinstance(step, RecordHeader) and step.offset >= offset):
                break
            if isinstance(step, RecordHeader):
                place, expected = walk.position, walk.expected
        return segment.scan(READ_WINDOW_BYTES, place, expected)

    def _message(self, scan: Scan, header: RecordHeader, segment: OpenSegment, place: int) -> Message:
        for attempt in range(1 + _REREADS):
            body = scan.body(header, reread=attempt > 0)
            parts = decode_body(header, body)
            if parts is not None:
                key, headers, value = parts
                return Message(
                    self.files.topic,
                    self.files.partition,
                    header.offset,
                    key,
                    value,
                    headers,
                    header.timestamp_ms,
                    bool(header.attributes & TOMBSTONE),
                )
        return self._lost(header.offset, segment, place, bytes(body))

    def _lost(self, offset: int, segment: OpenSegment, position: int, raw: bytes = b"") -> Message:
        self.unreadable += 1
        error = UnreadableRecord(f"{self._name()}, offset {offset}: {segment.path} is damaged at byte {position}")
        return Message(self.files.topic, self.files.partition, offset, b"", b"", (), 0, unreadable=error, raw=raw)

    def _open_holding(self, offset: int) -> OpenSegment:
        """The segment to find `offset` in; it may be replaced or deleted while we look."""
        while True:
            bases = self.files.bases()
            base = base_holding(bases, offset)
            if base is None:
                raise OffsetOutOfRange(f"{self._name()}: offset {offset} asked, the log starts at {bases[0]}")
            try:
                return OpenSegment(self.files, base)
            except FileNotFoundError:
                continue

    def _following(self, segment: OpenSegment, at: int) -> int:
        """Where to go on after `segment` gave all it has below `at`: `at` itself if another file holds it by now (the
        next one, or the product of a compaction), else the beginning of the next segment."""
        if at != segment.base_offset and self.files.path(at).exists():
            return at
        bases = self.files.bases()
        base = base_holding(bases, at)
        try:
            if base != segment.base_offset or self.files.path(base).stat().st_ino != segment.inode:
                return at
        except FileNotFoundError:
            return at
        return next((other for other in bases if other > base), sys.maxsize)

    def _name(self) -> str:
        return f"{self.files.topic}/{self.files.partition}"
