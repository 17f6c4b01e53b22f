"""Step over the records of one segment file, past damage if need be."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fleetscope.transport.embedded.record import (
    HEADER_BYTES,
    MAGIC_BYTES,
    RecordHeader,
    decode_header,
)

# A step that needs only headers reads this much at once: 8 headers of 500-byte records, 1 of a 60 kB one.
WALK_WINDOW_BYTES = 4096
READ_WINDOW_BYTES = 1024 * 1024
_SEARCH_BYTES = 1024 * 1024
_KEEP_RAW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [position, end) are no records; the record at `end` has `next_offset`. `raw`: at most 64 kiB of them."""

    position: int
    end: int
    next_offset: int
    raw: bytes


class Scan:
    """`position` and `expected` (a lower bound of the next offset) always stand at a record boundary."""

    __slots__ = ("_at", "_buffer", "_salt", "_window", "expected", "fd", "position")

    def __init__(self, fd: int, salt: int, position: int, expected: int, window_bytes: int) -> None:
        self.fd = fd
        self.position = position
        self.expected = expected
        self._salt = salt
        self._window = window_bytes
        self._buffer = b""
        self._at = 0

    def step(self, size_bytes: int, offset_limit: int | None = None) -> RecordHeader | Damage | None:
        """Go over the next record that lies wholly below `size_bytes`; None if there is no such record (yet).

        Where no record begins, the next one with a believable offset (>= expected, < offset_limit) is looked for.
        """
        step = self._step(size_bytes, offset_limit)
        if step is None:
            # What was read ahead here may be a torn record that an appender is about to replace. Its header, kept, gave
            # a wrong length for the one written in its place.
            self._buffer = b""
        return step

    def _step(self, size_bytes: int, offset_limit: int | None) -> RecordHeader | Damage | None:
        if self.position + HEADER_BYTES > size_bytes:
            return None
        at = self._hold(self.position, HEADER_BYTES)
        if at is None:
            return None
        header = decode_header(self._buffer, at, self._salt)
        if header is None or header.offset < self.expected:
            found = self._find_record(self.position + 1, size_bytes, offset_limit)
            if found is None:
                return None
            position, (self.position, next_offset) = self.position, found
            return Damage(position, self.position, next_offset, self._raw(position, self.position))
        if self.position + header.size_bytes > size_bytes:
            return None
        self.position += header.size_bytes
        self.expected = header.offset + 1
        return header

    def body(self, header: RecordHeader, reread: bool = False) -> memoryview:
        """Key, headers and value bytes of the record last stepped over; shorter if the file has shrunk meanwhile."""
        body_bytes = header.size_bytes - HEADER_BYTES
        position = self.position - body_bytes
        if reread:
            self._buffer = b""
        at = self._hold(position, body_bytes)
        return memoryview(b"" if at is None else self._buffer)[at or 0 :][:body_bytes]

    def _hold(self, position: int, need_bytes: int) -> int | None:
        at = position - self._at
        if at < 0 or at + need_bytes > len(self._buffer):
            # A record that ends just past the window must not be read twice for every window: read it whole at once.
            self._buffer = os.pread(self.fd, max(self._window, need_bytes), position)
            self._at, at = position, 0
            if need_bytes > len(self._buffer):
                return None
        return at

    def _find_record(self, position: int, size_bytes: int, offset_limit: int | None) -> tuple[int, int] | None:
        while position + HEADER_BYTES <= size_bytes:
            chunk = os.pread(self.fd, min(_SEARCH_BYTES, size_bytes - position), position)
            at = chunk.find(MAGIC_BYTES)
            while at >= 0 and at + HEADER_BYTES <= len(chunk):
                header = decode_header(chunk, at, self._salt)
                if (
                    header is not None
                    and header.offset >= self.expected
                    and (offset_limit is None or header.offset < offset_limit)
                ):
                    return position + at, header.offset
                at = chunk.find(MAGIC_BYTES, at + 1)
            if len(chunk) < HEADER_BYTES:
                return None
            # Overlap by less than a header, so that one across the chunk's edge is seen whole in the next.
            position += len(chunk) - HEADER_BYTES + 1
        return None

    def _raw(self, position: int, end: int) -> bytes:
        return os.pread(self.fd, min(end - position, _KEEP_RAW_BYTES), position)
