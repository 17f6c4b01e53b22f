"""The segment files of one partition, and the place in them where reading stands."""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from fleetscope.transport.embedded.scan import Scan
from fleetscope.transport.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_segment_header,
    live_bases,
    salt_of,
    segment_path,
)

_INDEX_EVERY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartitionFiles:
    """Segment files of one partition, by the offset they begin with."""

    folder: Path
    topic: str
    topic_id: str
    partition: int
    compacted: bool

    def bases(self) -> list[int]:
        """First offsets of all segments, ascending."""
        return live_bases(self.folder, self.compacted)

    def path(self, base_offset: int) -> Path:
        """File of the segment that begins with this offset."""
        return segment_path(self.folder, base_offset)


class OpenSegment:
    """One segment file held open. Files are immutable but for appends at the end of the newest one, and compaction
    replaces them under their name. `inode` tells the versions apart while this is open; `version` always, since the
    number of a deleted inode is given again."""

    __slots__ = ("base_offset", "created_ms", "end_offset", "fd", "inode", "path", "salt", "version")

    def __init__(self, files: PartitionFiles, base_offset: int, writable: bool = False) -> None:
        self.base_offset = base_offset
        self.path = files.path(base_offset)
        self.salt = salt_of(files.topic_id, base_offset)
        self.fd = os.open(self.path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        stat = os.fstat(self.fd)
        self.inode = stat.st_ino
        header: SegmentHeader | None = decode_segment_header(os.pread(self.fd, SEGMENT_HEADER_BYTES, 0))
        self.created_ms = header.created_ms if header else int(stat.st_mtime * 1000)
        self.end_offset = header.end_offset if header else 0
        self.version = (base_offset, self.inode, self.created_ms)

    def scan(self, window_bytes: int, position: int = SEGMENT_HEADER_BYTES, expected: int | None = None) -> Scan:
        return Scan(self.fd, self.salt, position, self.base_offset if expected is None else expected, window_bytes)

    def size_bytes(self) -> int:
        return os.fstat(self.fd).st_size

    def unlinked(self) -> bool:
        """True once retention or compaction took the file away; what was read from it stays true."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        os.close(self.fd)


class SparseIndex:
    """Offset -> file position, for places that were read before: every MiB, and where the last read ended.

    In memory only: a cold start walks headers of one segment once (64 MiB of 60 kB records: ~1 100 reads).
    """

    __slots__ = ("_last", "_places")

    def __init__(self) -> None:
        self._places: dict[tuple[int, int, int], tuple[list[int], list[int]]] = {}
        self._last: tuple[tuple[int, int, int], int, int] | None = None

    def note(self, segment: OpenSegment, offset: int, position: int) -> None:
        """Remember that the record at `position` is the first with an offset >= `offset`."""
        self._last = (segment.version, offset, position)
        offsets, positions = self._places.setdefault(segment.version, ([], []))
        if position >= (positions[-1] if positions else SEGMENT_HEADER_BYTES) + _INDEX_EVERY_BYTES:
            offsets.append(offset)
            positions.append(position)

    def nearest(self, segment: OpenSegment, offset: int) -> tuple[int, int]:
        """(position, its offset) of the nearest known place at or before `offset`."""
        best = (SEGMENT_HEADER_BYTES, segment.base_offset)
        offsets, positions = self._places.get(segment.version, ([], []))
        if at := bisect_right(offsets, offset):
            best = (positions[at - 1], offsets[at - 1])
        if self._last is not None:
            version, last_offset, last_position = self._last
            if version == segment.version and best[1] < last_offset <= offset:
                best = (last_position, last_offset)
        return best

    def forget_except(self, bases: list[int]) -> None:
        """Drop what is known of segments that are gone."""
        alive = set(bases)
        for key in [key for key in self._places if key[0] not in alive]:
            del self._places[key]
