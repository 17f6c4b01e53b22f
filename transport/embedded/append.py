"""Append to one partition, one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import dataclass
from threading import Lock

from fleetscope.transport.embedded.end import EndOfPartition
from fleetscope.transport.embedded.files import OpenSegment, PartitionFiles
from fleetscope.transport.embedded.record import HEADER_BYTES, decode_header, encode_record
from fleetscope.transport.embedded.scan import WALK_WINDOW_BYTES
from fleetscope.transport.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    create_segment,
    write_all,
)
from fleetscope.transport.errors import DiskFull, LockBusy, LogDamaged

# EFBIG is what a file size limit (ulimit -f) gives; for the caller it is the same as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_LOCK_POLL_S = 0.0002
_QUEUE_S = 0.05
_ZEROS_WINDOW_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Appended:
    """`rolled`: a new segment was begun, so that older ones may be due for retention or compaction."""

    offset: int
    size_bytes: int
    rolled: bool


class PartitionAppender:
    """Thread-safe. The file lock is held for one message at a time, so processes take turns at message boundaries."""

    def __init__(self, files: PartitionFiles, segment_bytes: int, roll_ms: int | None) -> None:
        self._files = files
        self._segment_bytes = segment_bytes
        self._roll_ms = roll_ms
        self._mutex = Lock()
        # flock, not POSIX record locks: those vanish when *any* fd of the file is closed in the process.
        self._lock_fd = os.open(files.folder / "append.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._queue_fd = os.open(files.folder / "queue.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._end = EndOfPartition(files, writable=True)
        self.torn_tails = 0
        self.damaged_tails = 0

    def append(self, key: bytes, headers: bytes, value: bytes | None, timestamp_ms: int, block_s: float) -> Appended:
        """LockBusy after `block_s`, DiskFull if it does not fit: nothing of the message stays."""
        deadline = time.monotonic() + block_s
        if not self._mutex.acquire(timeout=block_s):
            raise LockBusy(f"{self._files.topic}/{self._files.partition}: another thread appends for {block_s} s")
        try:
            self._take_file_lock(deadline, block_s)
            try:
                return self._append_locked(key, headers, value, timestamp_ms)
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)
        finally:
            self._mutex.release()

    def roll_if_older(self, than_ms: int) -> bool:
        """Begin a new segment if the present one has records and its last write is older, so that retention by age
        reaches a topic nobody writes to any more. Does nothing while somebody appends."""
        with self._mutex:
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            try:
                self._end.refresh()
                idle_ms = int(time.time() * 1000) - int(os.fstat(self._end.segment.fd).st_mtime * 1000)
                if idle_ms <= than_ms or self._end.scan.position == SEGMENT_HEADER_BYTES:
                    return False
                self._repair_tail()
                self._roll(int(time.time() * 1000))
                return True
            finally:
                fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def sync(self) -> None:
        """Make everything appended so far durable."""
        with self._mutex:
            fd = os.dup(self._end.segment.fd)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Give the partition free for another appender."""
        with self._mutex:
            self._end.close()
            os.close(self._lock_fd)
            os.close(self._queue_fd)

    def _take_file_lock(self, deadline: float, block_s: float) -> None:
        # A process that appends in a loop gives the lock back for microseconds only, which one that polls for it never
        # hits. So whoever waits holds the queue lock, and everybody passes through that first: but not for long, since
        # it is courtesy, and a process that was stopped while it waited must not stop the others.
        queued = self._poll_lock(self._queue_fd, min(deadline, time.monotonic() + _QUEUE_S))
        try:
            if not self._poll_lock(self._lock_fd, deadline):
                where = f"{self._files.topic}/{self._files.partition}"
                raise LockBusy(f"{where}: another process holds the append lock for {block_s} s")
        finally:
            if queued:
                fcntl.flock(self._queue_fd, fcntl.LOCK_UN)

    def _poll_lock(self, fd: int, deadline: float) -> bool:
        pause_s = _LOCK_POLL_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 10 * _LOCK_POLL_S)

    def _append_locked(self, key: bytes, headers: bytes, value: bytes | None, timestamp_ms: int) -> Appended:
        offset = self._end.refresh()
        offset = self._repair_tail()
        size_bytes = HEADER_BYTES + len(key) + len(headers) + len(value or b"")
        begin = self._end.scan.position
        try:
            rolled = begin > SEGMENT_HEADER_BYTES and (
                begin + size_bytes > self._segment_bytes
                or (self._roll_ms is not None and timestamp_ms - self._end.segment.created_ms > self._roll_ms)
            )
            if rolled:
                self._roll(timestamp_ms)
                begin = self._end.scan.position
            segment = self._end.segment
            record = encode_record(offset, timestamp_ms, key, headers, value, segment.salt)
            try:
                end = write_all(segment.fd, record, begin)
            except OSError:
                os.ftruncate(segment.fd, begin)
                raise
        except OSError as error:
            if error.errno in _FULL:
                raise DiskFull(f"{self._files.folder}: {os.strerror(error.errno)}") from error
            raise LogDamaged(f"{self._files.folder}: {error}") from error
        self._end.scan.position = end
        self._end.scan.expected = offset + 1
        return Appended(offset, size_bytes, rolled)

    def _repair_tail(self) -> int:
        """Cut off what a killed appender left half-written; returns the next offset.

        Only what cannot have been a message is cut: a record that its file does not hold to the end, or zeros (a file
        system that grew the file but lost the pages). Anything else at the end was once a record some reader may have
        seen: it is stepped over at the price of one offset, because an offset must never be given twice.
        """
        scan, segment = self._end.scan, self._end.segment
        size_bytes = segment.size_bytes()
        if scan.position == size_bytes:
            return scan.expected
        rest = os.pread(segment.fd, HEADER_BYTES, scan.position)
        header = decode_header(rest, 0, segment.salt) if len(rest) == HEADER_BYTES else None
        begun = len(rest) < HEADER_BYTES or (header is not None and scan.position + header.size_bytes > size_bytes)
        if begun or self._only_zeros(scan.position, size_bytes):
            os.ftruncate(segment.fd, scan.position)
            self.torn_tails += 1
        else:
            self._end.scan = segment.scan(WALK_WINDOW_BYTES, size_bytes, scan.expected + 1)
            self.damaged_tails += 1
        return self._end.scan.expected

    def _only_zeros(self, position: int, end: int) -> bool:
        while position < end:
            chunk = os.pread(self._end.segment.fd, min(_ZEROS_WINDOW_BYTES, end - position), position)
            if chunk.count(0) != len(chunk):
                return False
            position += len(chunk)
        return True

    def _roll(self, now_ms: int) -> None:
        os.fdatasync(self._end.segment.fd)
        files, base = self._files, self._end.scan.expected
        header = SegmentHeader(base, files.topic_id, files.partition, now_ms)
        os.close(create_segment(files.folder, header))
        self._end.switch_to(OpenSegment(files, base, writable=True))
