"""vmclock: a page of the hypervisor (linux/vmclock-abi.h) that says when the guest's counter was disrupted.

Its disruption marker changes at live migration and when a VM is restored. Only what tells that is read here; the time
on the page is for a guest without NTP.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

DEVICE = Path("/dev/vmclock0")
MAGIC = 0x4B4C4356
TRIES = 64
_FIXED = struct.Struct("<IIHBB")
_SEQUENCE = struct.Struct("<I")
_MARKER = struct.Struct("<QQ")
_SEQUENCE_AT, _MARKER_AT, _GENERATION_AT = 12, 16, 104
_GENERATION_PRESENT = 1 << 8


@dataclass(frozen=True, slots=True)
class VmClock:
    """`disruption`: marker, another one after each disruption; `generation`: changes when a snapshot is restored, 0
    where the hypervisor does not tell."""

    sequence: int
    disruption: int
    generation: int


def parse(page: bytes | mmap.mmap) -> VmClock | None:
    """None while the hypervisor is writing it. Raises ValueError for a page that is no vmclock of version 1."""
    magic, size, version, _, _ = _FIXED.unpack_from(page)
    if magic != MAGIC or version != 1 or size < _GENERATION_AT:
        raise ValueError("no vmclock of version 1")
    for _ in range(TRIES):
        (before,) = _SEQUENCE.unpack_from(page, _SEQUENCE_AT)
        disruption, flags = _MARKER.unpack_from(page, _MARKER_AT)
        generation = 0
        if flags & _GENERATION_PRESENT and size >= _GENERATION_AT + 8:
            (generation,) = struct.unpack_from("<Q", page, _GENERATION_AT)
        (after,) = _SEQUENCE.unpack_from(page, _SEQUENCE_AT)
        if before == after and not before & 1:
            return VmClock(before, disruption, generation)
    return None


class VmClockPage:
    """The page, mapped. Raises OSError or ValueError where there is none."""

    def __init__(self, path: Path = DEVICE) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._page = mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(descriptor)
        parse(self._page)

    def read(self) -> VmClock | None:
        return parse(self._page)

    def close(self) -> None:
        self._page.close()
