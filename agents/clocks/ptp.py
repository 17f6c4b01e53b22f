"""PTP hardware clocks: /dev/ptpN read against MONOTONIC_RAW, by the best of what the driver offers.

PRECISE is one moment on both clocks (the hardware latches them). EXTENDED brackets the device's register alone, without
the system call, in MONOTONIC_RAW since Linux 6.13. What has neither is read as a POSIX clock between two reads.
"""

import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fleetscope.native import recorder

PRECISE, EXTENDED = 0xC0403D08, 0xC4C03D09
_TIME = struct.Struct("@qII")
SAMPLES, MOST_SAMPLES = 5, 25
_MONOTONIC_RAW = 4
_PRECISE_BYTES = 3 * _TIME.size + 16
_EXTENDED_BYTES = 16 + MOST_SAMPLES * 3 * _TIME.size
DEVICES = Path("/dev")

Ioctl = Callable[[int, int, bytearray], int]
Bracket = tuple[int, int, int]
"""(MONOTONIC_RAW before, clock, MONOTONIC_RAW after), ns."""


def _ioctl(descriptor: int, code: int, buffer: bytearray) -> int:
    return int(fcntl.ioctl(descriptor, code, buffer, True))


def _posix(descriptor: int) -> Bracket:
    """FD_TO_CLOCKID of linux/posix-timers.h."""
    return recorder.read_clock((~descriptor << 3) | 3, SAMPLES)


def _ns(buffer: bytearray, at: int) -> int:
    seconds, ns, _ = _TIME.unpack_from(buffer, at)
    return int(seconds * 1_000_000_000 + ns)


@dataclass(frozen=True, slots=True)
class Found:
    """One read. `width`: of the bracket; `how`: "precise", "extended" or "posix"."""

    name: str
    bracket: Bracket
    how: str


class HardwareClock:
    """One device, open. `name` as in /dev."""

    def __init__(self, path: Path, ioctl: Ioctl = _ioctl, posix: Callable[[int], Bracket] = _posix) -> None:
        """Raises OSError."""
        self.name = path.name
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._ioctl = ioctl
        self._ways: list[tuple[str, Callable[[], Bracket]]] = [
            ("precise", self._precise),
            ("extended", self._extended),
            ("posix", lambda: posix(self._descriptor)),
        ]

    def read(self) -> Found:
        """Raises OSError when no way works any more; a way that fails once is not tried again."""
        while True:
            how, way = self._ways[0]
            try:
                return Found(self.name, way(), how)
            except OSError:
                if len(self._ways) == 1:
                    raise
                del self._ways[0]

    def _precise(self) -> Bracket:
        buffer = bytearray(_PRECISE_BYTES)
        self._ioctl(self._descriptor, PRECISE, buffer)
        device, raw = _ns(buffer, 0), _ns(buffer, 2 * _TIME.size)
        return raw, device, raw

    def _extended(self) -> Bracket:
        buffer = bytearray(_EXTENDED_BYTES)
        struct.pack_into("@Ii", buffer, 0, SAMPLES, _MONOTONIC_RAW)
        self._ioctl(self._descriptor, EXTENDED, buffer)
        found = []
        for sample in range(SAMPLES):
            at = 16 + sample * 3 * _TIME.size
            found.append((_ns(buffer, at), _ns(buffer, at + _TIME.size), _ns(buffer, at + 2 * _TIME.size)))
        return min(found, key=lambda bracket: bracket[2] - bracket[0])

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)


def hardware_clocks(folder: Path = DEVICES) -> tuple[list[HardwareClock], dict[str, str]]:
    """Those that this user may open, and why not the others, by name."""
    clocks, refused = [], {}
    for path in sorted(folder.glob("ptp[0-9]*")):
        try:
            clocks.append(HardwareClock(path))
        except OSError as error:
            refused[path.name] = error.strerror or str(error)
    return clocks, refused
