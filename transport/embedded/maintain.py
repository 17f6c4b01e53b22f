"""Retention and compaction: whole closed segments only, so appenders and readers need not know."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fleetscope.transport.embedded.files import OpenSegment, PartitionFiles
from fleetscope.transport.embedded.record import TOMBSTONE, decode_body, encode_headers, encode_record
from fleetscope.transport.embedded.scan import READ_WINDOW_BYTES, Damage
from fleetscope.transport.embedded.segment import (
    COMPACTED,
    SegmentHeader,
    list_bases,
    salt_of,
    split_dead,
    sync_folder,
    write_all,
)
from fleetscope.transport.log import Headers

# Rewriting is worth it once this share of the closed bytes is new; Kafka's min.cleanable.dirty.ratio has the same 0.5.
_DIRTY_SHARE = 0.5
_WRITE_BYTES = 1024 * 1024
_ABANDONED_S = 3600


def expire(files: PartitionFiles, retention_ms: int | None, retention_bytes: int | None, now_ms: int) -> int:
    """Delete the oldest closed segments beyond the bounds; returns how many. Age is that of the last append (mtime)."""
    with _exclusive(files.folder) as mine:
        if not mine:
            return 0
        bases = files.bases()
        stats = [files.path(base).stat() for base in bases]
        total_bytes = sum(stat.st_size for stat in stats)
        deleted = 0
        for base, stat in zip(bases[:-1], stats[:-1], strict=True):
            too_old = retention_ms is not None and now_ms - stat.st_mtime_ns // 1_000_000 > retention_ms
            too_many = retention_bytes is not None and total_bytes - stat.st_size >= retention_bytes
            if not too_old and not too_many:
                break
            files.path(base).unlink(missing_ok=True)
            total_bytes -= stat.st_size
            deleted += 1
        return deleted


@dataclass(slots=True)
class _Group:
    """Neighbouring segments that become one."""

    bases: list[int] = field(default_factory=list)
    end_offset: int = 0
    kept_bytes: int = 0


def compact(files: PartitionFiles, segment_bytes: int, tombstone_ms: int, now_ms: int) -> int:
    """Rewrite closed segments with only the newest record of each key; returns how many files went.

    A tombstone goes too, `tombstone_ms` after it was written: until then it tells a reader that began before it that
    the key is gone. Damaged records do not survive.
    """
    with _exclusive(files.folder) as mine:
        if not mine:
            return 0
        _sweep(files)
        closed, ends = _closed_segments(files)
        if not _worth_it(files, closed):
            return 0
        newest = _newest_offsets(files, closed)
        deleted = 0
        for group in _groups(files, closed, ends, newest, segment_bytes):
            _rewrite(files, group, newest, now_ms - tombstone_ms, now_ms)
            deleted += len(group.bases) - 1
        return deleted


def _closed_segments(files: PartitionFiles) -> tuple[list[int], dict[int, int]]:
    bases = files.bases()
    return bases[:-1], dict(pairwise(bases))


def _worth_it(files: PartitionFiles, closed: list[int]) -> bool:
    sizes = {True: 0, False: 0}
    for base in closed:
        segment = OpenSegment(files, base)
        sizes[segment.end_offset > 0] += segment.size_bytes()
        segment.close()
    return sizes[False] > 0 and sizes[False] >= _DIRTY_SHARE * (sizes[True] + sizes[False])


@dataclass(frozen=True, slots=True)
class _Stored:
    offset: int
    timestamp_ms: int
    key: bytes
    headers: Headers
    value: bytes | None
    size_bytes: int


def _records(files: PartitionFiles, base: int) -> Iterator[_Stored]:
    segment = OpenSegment(files, base)
    try:
        scan = segment.scan(READ_WINDOW_BYTES)
        size_bytes = segment.size_bytes()
        while (step := scan.step(size_bytes)) is not None:
            if isinstance(step, Damage) or (parts := decode_body(step, scan.body(step))) is None:
                continue
            key, headers, value = parts
            stored = None if step.attributes & TOMBSTONE else value
            yield _Stored(step.offset, step.timestamp_ms, key, headers, stored, step.size_bytes)
    finally:
        segment.close()


def _newest_offsets(files: PartitionFiles, closed: list[int]) -> dict[bytes, int]:
    return {stored.key: stored.offset for base in closed for stored in _records(files, base)}


def _groups(
    files: PartitionFiles, closed: list[int], ends: dict[int, int], newest: dict[bytes, int], segment_bytes: int
) -> list[_Group]:
    groups = [_Group()]
    for base in closed:
        kept = sum(stored.size_bytes for stored in _records(files, base) if newest[stored.key] == stored.offset)
        if groups[-1].bases and groups[-1].kept_bytes + kept > segment_bytes:
            groups.append(_Group())
        group = groups[-1]
        group.bases.append(base)
        group.end_offset = ends[base]
        group.kept_bytes += kept
    return groups


def _rewrite(
    files: PartitionFiles, group: _Group, newest: dict[bytes, int], tombstones_before_ms: int, now_ms: int
) -> None:
    base = group.bases[0]
    salt = salt_of(files.topic_id, base)
    header = SegmentHeader(base, files.topic_id, files.partition, now_ms, COMPACTED, group.end_offset)
    draft = files.path(base).with_suffix(f".{os.getpid()}.compact.tmp")
    fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        position = write_all(fd, [header.encode()], 0)
        pending: list[bytes] = []
        pending_bytes = 0
        for old_base in group.bases:
            for stored in _records(files, old_base):
                if newest[stored.key] != stored.offset:
                    continue
                if stored.value is None and stored.timestamp_ms < tombstones_before_ms:
                    continue
                headers = encode_headers(stored.headers)
                pending += encode_record(stored.offset, stored.timestamp_ms, stored.key, headers, stored.value, salt)
                pending_bytes += stored.size_bytes
                if pending_bytes >= _WRITE_BYTES:
                    position = write_all(fd, pending, position)
                    pending, pending_bytes = [], 0
        write_all(fd, pending, position)
        os.fsync(fd)
        os.rename(draft, files.path(base))
        sync_folder(files.folder)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    for old_base in group.bases[1:]:
        files.path(old_base).unlink(missing_ok=True)


def _sweep(files: PartitionFiles) -> None:
    """Remove what a killed maintenance or roll left behind."""
    for base in split_dead(files.folder, list_bases(files.folder))[1]:
        files.path(base).unlink(missing_ok=True)
    for draft in files.folder.glob("*.tmp"):
        # Ours are dead, since we hold the lock; an appender's may be on its way.
        if draft.match("*.compact.tmp") or time.time() - draft.stat().st_mtime > _ABANDONED_S:
            draft.unlink(missing_ok=True)


@contextmanager
def _exclusive(folder: Path) -> Iterator[bool]:
    """One maintainer per partition over all processes; False if there is another."""
    fd = os.open(folder / "maintain.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
