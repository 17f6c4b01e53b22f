"""Where a partition ends: found by stepping over what came since the last look."""

from __future__ import annotations

import errno
import os

from fleetscope.transport.embedded.files import OpenSegment, PartitionFiles
from fleetscope.transport.embedded.scan import WALK_WINDOW_BYTES, Scan
from fleetscope.transport.embedded.segment import SEGMENT_HEADER_BYTES

# A read-only or special file system need not know fdatasync; its data is as durable as it gets.
_NO_SYNC = (errno.EROFS, errno.EINVAL, errno.ENOSYS)


class EndOfPartition:
    """Not thread-safe: its owner holds a lock. `refresh` costs O(new records), three system calls if nothing is new."""

    __slots__ = ("_synced_position", "_writable", "files", "scan", "segment")

    def __init__(self, files: PartitionFiles, writable: bool = False) -> None:
        self.files = files
        self._writable = writable
        self.segment = self._open(files.bases()[-1])
        self.scan: Scan = self.segment.scan(WALK_WINDOW_BYTES)
        self._synced_position = SEGMENT_HEADER_BYTES

    def refresh(self) -> int:
        """The offset the next message gets. Torn bytes of a killed appender count as not written."""
        while True:
            size_bytes = self.segment.size_bytes()
            if size_bytes < self.scan.position and not self._writable:
                # Somebody cut the file. A reader must say where it ends now, or whoever waits for more waits for ever;
                # an appender goes on behind what it knows, for an offset is never given twice.
                self.switch_to(self._open(self.segment.base_offset))
                size_bytes = self.segment.size_bytes()
            while self.scan.step(size_bytes) is not None:
                pass
            newest = self._newest_base(size_bytes)
            if newest == self.segment.base_offset:
                return self.scan.expected
            self.switch_to(self._open(newest))

    def switch_to(self, segment: OpenSegment) -> None:
        self.segment.close()
        self.segment = segment
        self.scan = segment.scan(WALK_WINDOW_BYTES)
        self._synced_position = SEGMENT_HEADER_BYTES

    def sync(self) -> None:
        """Make all that `refresh` saw durable, whoever wrote it (a segment is synced by its writer before the next)."""
        if self.scan.position > self._synced_position:
            position = self.scan.position
            try:
                os.fdatasync(self.segment.fd)
            except OSError as error:
                if error.errno not in _NO_SYNC:
                    raise
            self._synced_position = position

    def close(self) -> None:
        self.segment.close()

    def _open(self, base_offset: int) -> OpenSegment:
        return OpenSegment(self.files, base_offset, self._writable)

    def _newest_base(self, size_bytes: int) -> int:
        # A segment is followed by the one named after its end, so one stat finds out. Only if this one ends in damage
        # (its end is then unclear) or is gone, the folder must be listed.
        unclear = self.scan.position != size_bytes or self.segment.unlinked()
        if unclear or (self.scan.expected != self.segment.base_offset and self.files.path(self.scan.expected).exists()):
            return self.files.bases()[-1]
        return self.segment.base_offset
