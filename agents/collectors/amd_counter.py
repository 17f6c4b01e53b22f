"""The counter of an AMD GPU, by amdgpu's own question to its render node (linux/amdgpu_drm.h, AMDGPU_INFO_TIMESTAMP).

It is the clock that queues stamp kernels with: 64 bits, at the rate that the driver says (100 MHz on most). Reading it
needs the render node and nothing of the GPU's.
"""

import ctypes
import fcntl
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from math import gcd
from pathlib import Path

from fleetscope.agents.clocks import DeviceClock, Register

INFO = 0x40206445
"""_IOW('d', DRM_COMMAND_BASE + DRM_AMDGPU_INFO, struct drm_amdgpu_info)"""
TIMESTAMP, DEVICE = 0x05, 0x16
_REQUEST = struct.Struct("@QII16x")
_FREQUENCY_AT, _DEVICE_BYTES = 28, 512
NODES = Path("/dev/dri/by-path")

Ioctl = Callable[[int, int, bytes], object]


class AmdCounter:
    """One GPU's render node, open. Raises OSError where it is not there or may not be opened."""

    def __init__(self, bdf: str, ioctl: Ioctl = fcntl.ioctl, nodes: Path = NODES) -> None:
        self._ioctl = ioctl
        self._descriptor = os.open(nodes / f"pci-{bdf.lower()}-render", os.O_RDWR | os.O_CLOEXEC)
        self._value = ctypes.c_uint64()
        self._request = _REQUEST.pack(ctypes.addressof(self._value), ctypes.sizeof(self._value), TIMESTAMP)
        try:
            self._khz = self._frequency_khz()
        except OSError:
            self.close()
            raise

    def _frequency_khz(self) -> int:
        about = ctypes.create_string_buffer(_DEVICE_BYTES)
        self._ioctl(self._descriptor, INFO, _REQUEST.pack(ctypes.addressof(about), _DEVICE_BYTES, DEVICE))
        khz = int.from_bytes(about.raw[_FREQUENCY_AT : _FREQUENCY_AT + 4], "little")
        if not khz:
            raise OSError("the driver does not say how fast its counter runs")
        return khz

    def clock(self, device: str) -> DeviceClock:
        """As a collector hands it out; `device`: its natural key."""
        divisor = gcd(1_000_000, self._khz)
        register = Register(1 << 64, 1_000_000 // divisor, self._khz // divisor)
        return DeviceClock("amdgpu", device, register, self.read)

    def read(self) -> int:
        """The counter now."""
        self._ioctl(self._descriptor, INFO, self._request)
        return self._value.value

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._descriptor)
