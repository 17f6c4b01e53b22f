"""Where the bytes of a spool are: a folder, or memory for tests and benchmarks. Same methods."""

import errno
import fcntl
import os
import struct
from pathlib import Path
from typing import Protocol
from zlib import crc32

from fleetscope.schema.errors import AgentRunning

RESERVE_SLOT_BYTES = 256 << 10
_SLOT = struct.Struct("<QII")
_SENT = struct.Struct("<QQQQI")
Position = tuple[int, int]
"""(segment number, offset)"""

LOST: Position = (1 << 62, 0)
"""`given` when nobody knows it: anything may have been sent."""


class Segment(Protocol):
    """An append-only run of bytes."""

    @property
    def number(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def append(self, data: bytes) -> None:
        """All of it or nothing: an OSError leaves the segment as it was."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end."""

    def truncate(self, size: int) -> None: ...

    def delete(self) -> None: ...

    def close(self) -> None: ...


class Store(Protocol):
    def segments(self) -> list[Segment]:
        """What is there, by number. Called once, at open."""

    def create(self, number: int, head: bytes) -> Segment:
        """Raises OSError and leaves nothing behind."""

    def write_reserve(self, data: bytes) -> bool:
        """Keep `data` in space that was taken at open, so that it works on a full disk. False if it does not fit."""

    def read_reserve(self) -> bytes: ...

    def write_sent(self, done: Position, given: Position) -> None:
        """The log has everything before `done`; before `given` it may."""

    def read_sent(self) -> tuple[Position, Position]:
        """What `write_sent` last kept; ((0, 0), LOST) if there is none."""

    def close(self) -> None: ...


class DiskSegment:
    """A file. No fsync: numbers are only reused after a power loss, and then the boot id, so every source, is new."""

    def __init__(self, path: Path, number: int, fd: int) -> None:
        self.path = path
        self.number = number
        self.size_bytes = os.fstat(fd).st_size
        self._fd = fd

    def append(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                count = os.pwrite(self._fd, memoryview(data)[written:], self.size_bytes + written)
                if count == 0:
                    raise OSError(errno.ENOSPC, "nothing was written", str(self.path))
                written += count
        except OSError:
            os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += written

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, max(0, min(size, self.size_bytes - offset)), offset)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size_bytes = size

    def delete(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class DiskStore:
    """A folder: `lock`, `reserve`, `sent` and `<number>.spool`. AgentRunning (FS3101) while another process has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "another process"
            os.close(self._lock)
            raise AgentRunning(f"spool {folder} belongs to {holder}: one agent a host and spool") from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"pid {os.getpid()}\n".encode(), 0)
        self._reserve = self._preallocated("reserve", 2 * RESERVE_SLOT_BYTES)
        self._sent = self._preallocated("sent", _SENT.size)
        self._slot = self._newest_slot()[0]

    def _preallocated(self, name: str, size: int) -> int:
        fd = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        missing = size - os.fstat(fd).st_size
        if missing > 0:
            try:
                # Zeros, not a hole: the blocks must be there when the disk is full.
                os.pwrite(fd, bytes(missing), size - missing)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
        return fd

    def segments(self) -> list[Segment]:
        found: list[Segment] = []
        for path in self._folder.glob("*.spool"):
            if path.stem.isdecimal():
                found.append(DiskSegment(path, int(path.stem), os.open(path, os.O_RDWR | os.O_CLOEXEC)))
        return sorted(found, key=lambda segment: segment.number)

    def create(self, number: int, head: bytes) -> Segment:
        path = self._folder / f"{number:012d}.spool"
        segment = DiskSegment(path, number, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        try:
            segment.append(head)
        except OSError:
            segment.delete()
            raise
        return segment

    def _newest_slot(self) -> tuple[int, int, bytes]:
        """(slot, its turn, its data)"""
        newest = (1, 0, b"")
        for slot in range(2):
            base = slot * RESERVE_SLOT_BYTES
            head = os.pread(self._reserve, _SLOT.size, base)
            if len(head) < _SLOT.size:
                continue
            turn, size, crc = _SLOT.unpack(head)
            data = os.pread(self._reserve, min(size, RESERVE_SLOT_BYTES), base + _SLOT.size)
            if turn > newest[1] and len(data) == size and crc32(data, turn & 0xFFFFFFFF) == crc:
                newest = (slot, turn, data)
        return newest

    def write_reserve(self, data: bytes) -> bool:
        if len(data) > RESERVE_SLOT_BYTES - _SLOT.size:
            return False
        slot, turn, _ = self._newest_slot()
        turn += 1
        head = _SLOT.pack(turn, len(data), crc32(data, turn & 0xFFFFFFFF))
        try:
            os.pwrite(self._reserve, head + data, (1 - slot) * RESERVE_SLOT_BYTES)
        except OSError:
            return False
        return True

    def read_reserve(self) -> bytes:
        return self._newest_slot()[2]

    def write_sent(self, done: Position, given: Position) -> None:
        head = _SENT.pack(*done, *given, 0)[:-4]
        try:
            os.pwrite(self._sent, head + crc32(head).to_bytes(4, "little"), 0)
        except OSError:
            return  # sending again after a restart is all that this costs

    def read_sent(self) -> tuple[Position, Position]:
        data = os.pread(self._sent, _SENT.size, 0)
        if len(data) < _SENT.size or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return (0, 0), LOST
        done_segment, done_offset, given_segment, given_offset, _ = _SENT.unpack(data)
        return (done_segment, done_offset), (given_segment, given_offset)

    def close(self) -> None:
        for fd in (self._reserve, self._sent, self._lock):
            os.close(fd)


class MemorySegment:
    def __init__(self, number: int, head: bytes) -> None:
        self.number = number
        self._data = bytearray(head)

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def truncate(self, size: int) -> None:
        del self._data[size:]

    def delete(self) -> None:
        self._data = bytearray()

    def close(self) -> None:
        pass


class MemoryStore:
    """Nothing survives the process."""

    def __init__(self) -> None:
        self._reserve = b""
        self._sent: tuple[Position, Position] = ((0, 0), (0, 0))

    def segments(self) -> list[Segment]:
        return []

    def create(self, number: int, head: bytes) -> Segment:
        return MemorySegment(number, head)

    def write_reserve(self, data: bytes) -> bool:
        self._reserve = data
        return True

    def read_reserve(self) -> bytes:
        return self._reserve

    def write_sent(self, done: Position, given: Position) -> None:
        self._sent = (done, given)

    def read_sent(self) -> tuple[Position, Position]:
        return self._sent

    def close(self) -> None:
        pass
