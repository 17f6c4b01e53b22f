"""Segment files of one partition: their names, their header, and which one holds an offset."""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

SEGMENT_HEADER = struct.Struct("<8sHHIQQq16sII")
SEGMENT_HEADER_BYTES = SEGMENT_HEADER.size
SEGMENT_MAGIC = b"FSLOG\r\n\x01"
VERSION = 1
COMPACTED = 1

_SUFFIX = ".seg"
_IOV_MAX = 1024


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """`end_offset` is 0 in a segment written by appends (its end is where its records end); a compacted one states it,
    because the records that ended it may be gone."""

    base_offset: int
    topic_id: str
    partition: int
    created_ms: int
    flags: int = 0
    end_offset: int = 0

    def encode(self) -> bytes:
        """As it stands at the begin of a segment file."""
        topic_id = bytes.fromhex(self.topic_id)
        fields = (SEGMENT_MAGIC, VERSION, self.flags, 0, self.base_offset, self.end_offset, self.created_ms, topic_id)
        unsigned = SEGMENT_HEADER.pack(*fields, self.partition, 0)
        return SEGMENT_HEADER.pack(*fields, self.partition, crc32c(unsigned[:-4]))


def decode_segment_header(raw: bytes) -> SegmentHeader | None:
    """None if the bytes are damaged or of another version. Records are still readable then: their salt needs only the
    topic id and the base offset, which the path gives."""
    if len(raw) < SEGMENT_HEADER_BYTES:
        return None
    magic, version, flags, _, base, end, created_ms, topic_id, partition, crc = SEGMENT_HEADER.unpack_from(raw)
    if magic != SEGMENT_MAGIC or version != VERSION or crc32c(raw[: SEGMENT_HEADER_BYTES - 4]) != crc:
        return None
    return SegmentHeader(base, topic_id.hex(), partition, created_ms, flags, end)


def salt_of(topic_id: str, base_offset: int) -> int:
    """Seed of the record headers' checksums in this segment."""
    return crc32c(bytes.fromhex(topic_id) + base_offset.to_bytes(8, "little"))


def segment_path(folder: Path, base_offset: int) -> Path:
    """File of a segment in its partition's folder."""
    return folder / f"{base_offset:020d}{_SUFFIX}"


def create_segment(folder: Path, header: SegmentHeader) -> int:
    """Make the file whole or not at all; returns an fd open for reading and writing.

    Written under another name first: a process killed between creation and header would otherwise leave a file the next
    appender cannot tell from a damaged one.
    """
    path = segment_path(folder, header.base_offset)
    draft = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}.tmp")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, [header.encode()], 0)
        os.rename(draft, path)
        sync_folder(folder)
    except OSError:
        os.close(fd)
        draft.unlink(missing_ok=True)
        raise
    return fd


def write_all(fd: int, buffers: Sequence[bytes], position: int) -> int:
    """Write at `position`, going on after short writes (a disk that fills up gives one first). Returns the end."""
    pending = [buffer for buffer in buffers if buffer]
    while pending:
        written = os.pwritev(fd, pending[:_IOV_MAX], position)
        position += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
    return position


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def list_bases(folder: Path) -> list[int]:
    """Base offsets of all segment files, ascending."""
    return sorted(int(entry[: -len(_SUFFIX)]) for entry in os.listdir(folder) if entry.endswith(_SUFFIX))


def live_bases(folder: Path, compacted: bool) -> list[int]:
    """As `list_bases`, without files a compacted segment before them already covers (a compaction that was killed
    between its rename and its unlinks leaves such files; reading them too would give records twice)."""
    bases = list_bases(folder)
    return split_dead(folder, bases)[0] if compacted else bases


def split_dead(folder: Path, bases: list[int]) -> tuple[list[int], list[int]]:
    """(live, dead) of one listing. Two listings must not be compared: a segment begun in between looks dead."""
    live: list[int] = []
    dead: list[int] = []
    covered_to = 0
    for base in bases:
        if base < covered_to:
            dead.append(base)
            continue
        live.append(base)
        header = read_segment_header(segment_path(folder, base))
        covered_to = header.end_offset if header else 0
    return live, dead


def read_segment_header(path: Path) -> SegmentHeader | None:
    """Header of a segment file. Raises LogDamaged."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        return decode_segment_header(os.pread(fd, SEGMENT_HEADER_BYTES, 0))
    finally:
        os.close(fd)


def base_holding(bases: list[int], offset: int) -> int | None:
    """The segment an offset lies in: the last that does not begin after it."""
    at = bisect_right(bases, offset)
    return bases[at - 1] if at else None
