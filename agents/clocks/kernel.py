"""What the kernel says of its clocks: adjtimex, clocksource, how long the machine was suspended."""

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

STA_UNSYNC = 0x0040
LEAP_STATES = frozenset({1, 2, 3, 4})
"""TIME_INS, TIME_DEL, TIME_OOP, TIME_WAIT: a leap second is announced, in progress, or just over."""
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h> where long has 64 bits."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time_s", ctypes.c_long),
        ("time_us", ctypes.c_long),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("padding", ctypes.c_int * 11),
    )


_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class KernelClock:
    """adjtimex(2). `state`: TIME_OK, TIME_INS, ... TIME_ERROR; errors in ns as the kernel states them; `tai_s` 0: not
    known to the kernel, so its CLOCK_TAI is CLOCK_REALTIME."""

    state: int
    status: int
    max_error_ns: int
    est_error_ns: int
    frequency_ppb: int
    tai_s: int

    @property
    def synchronized(self) -> bool:
        """Somebody disciplines the clock and says so. TIME_ERROR alone may be a PPS signal that is away."""
        return not self.status & STA_UNSYNC

    @property
    def leaping(self) -> bool:
        """A leap second is announced, in progress, or just over."""
        return self.state in LEAP_STATES


def read_kernel_clock() -> KernelClock:
    """Reads only: needs no right. Raises OSError where the call is refused (seccomp)."""
    buffer = _Timex(modes=0)
    state = int(_libc.adjtimex(ctypes.byref(buffer)))
    if state < 0:
        error = ctypes.get_errno()
        raise OSError(error, "adjtimex")
    return KernelClock(
        state=state,
        status=buffer.status,
        max_error_ns=buffer.maxerror * 1000,
        est_error_ns=buffer.esterror * 1000,
        # in units of 2^-16 ppm
        frequency_ppb=round(buffer.freq * 1000 / 65536),
        tai_s=buffer.tai,
    )


def clock_source(path: Path = CLOCK_SOURCE) -> str:
    """What the kernel keeps time by. Raises OSError."""
    return path.read_text().strip()[:32]


def suspended_ns() -> int:
    """BOOTTIME - MONOTONIC: how long this boot was suspended, to within the time of two reads (~0.2 us)."""
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return boot - (before + after) // 2
