"""The kernel's software time stamps of a UDP socket, in MONOTONIC_RAW.

The kernel stamps in REALTIME. Two brackets of (MONOTONIC_RAW, REALTIME), one taken before and one after, carry a stamp
over: the offset between the clocks lay between theirs, because it moves one way in between, and not further from the
later one's than a slew of SLEW_PPM takes it. A wall clock that stepped in between makes the brackets contradict each
other: the stamp is not used then. The result is an interval; who uses it takes the end that keeps bounds true.
"""

import socket
import struct
from dataclasses import dataclass

from fleetscope.agents.clocks.kept import HostReading
from fleetscope.agents.clocks.snapshots import SLEW_PPM, STEP_NS

SO_TIMESTAMPING = 37
_TX_SOFTWARE, _RX_SOFTWARE, _SOFTWARE, _OPT_ID, _OPT_TSONLY = 1 << 1, 1 << 3, 1 << 4, 1 << 7, 1 << 11
_IP_RECVERR, _IPV6_RECVERR = 11, 25
_ORIGIN_TIMESTAMPING = 4
_TIMES = struct.Struct("@6q")
_ERROR = struct.Struct("@IBBBBII")
ANCILLARY_BYTES = 512
MSG_ERRQUEUE = 0x2000


def ask_for_stamps(port: socket.socket) -> bool:
    """Both directions; False where the kernel does not give them."""
    flags = _TX_SOFTWARE | _RX_SOFTWARE | _SOFTWARE | _OPT_ID | _OPT_TSONLY
    try:
        port.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)
    except OSError:
        return False
    return True


def stamp_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """REALTIME ns of the kernel's software stamp in the control messages of a datagram; 0: none."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING and len(data) >= _TIMES.size:
            seconds, ns = _TIMES.unpack_from(data)[:2]
            return int(seconds * 1_000_000_000 + ns)
    return 0


def sent_number(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Which datagram of the socket, counted from 0, a message of the error queue is about."""
    for level, kind, data in ancillary:
        mine = (level, kind) in ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR))
        if mine and len(data) >= _ERROR.size:
            fields = _ERROR.unpack_from(data)
            if fields[1] == _ORIGIN_TIMESTAMPING:
                return int(fields[6])
    return None


@dataclass(frozen=True, slots=True)
class Interval:
    """MONOTONIC_RAW ns: something happened within it."""

    low: int
    high: int


def carried_over(stamp: int, before: HostReading, after: HostReading) -> Interval | None:
    """A stamp of REALTIME between two brackets as an interval of MONOTONIC_RAW; None if they contradict each other or
    it lies outside of them."""
    first = (before.realtime_ns - before.raw_after_ns, before.realtime_ns - before.raw_before_ns)
    last = (after.realtime_ns - after.raw_after_ns, after.realtime_ns - after.raw_before_ns)
    passed = after.raw_after_ns - before.raw_before_ns
    if passed < 0 or max(abs(last[0] - first[1]), abs(last[1] - first[0])) > STEP_NS + passed * SLEW_PPM // 1_000_000:
        return None
    slewed = max(0, after.realtime_ns - stamp) * SLEW_PPM // 1_000_000 + 1
    low = max(min(first[0], last[0]), last[0] - slewed)
    high = min(max(first[1], last[1]), last[1] + slewed)
    found = Interval(stamp - high, stamp - low)
    inside = before.raw_before_ns <= found.high and found.low <= after.raw_after_ns
    return found if low <= high and inside else None
