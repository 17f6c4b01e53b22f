"""When a capture was taken, and the clocks its times are in.

Absolute host time of an event = session start + line timestamp_ns + offset_ps / 1000 (xprof.md 5.1). Session start is
stat profile_start_time of the plane "Task Environment"; captures of 2020 have none, so a caller may name it.
"""

from dataclasses import dataclass

import numpy as np

from fleetscope.agents.xspace.events import Events
from fleetscope.agents.xspace.planes import plane_stats
from fleetscope.agents.xspace.views import Ints, ints
from fleetscope.native.xspace import XSpace

_ABSOLUTE_NS = 10**17
"""Line timestamps above are Unix time already (1973): XLA subtracts the start only where it ran its post-processing."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Unit of a device's ticks: `period_num / period_den` ns. `realtime` ticks are Unix ns; others start with the
    session.
    """

    name: str
    period_num: int
    period_den: int

    @property
    def absolute(self) -> bool:
        return self.name == "realtime"


REALTIME = Clock("realtime", 1, 1)
SESSION_PS = Clock("xspace_session", 1, 1000)
"""Host time since the session's start, for producers that give picoseconds."""
TPU_RAW = Clock("tpu_raw", 5, 4)
"""Raw device time: every value of the v6e sample is a multiple of 1 250 ps, an 800 MHz counter."""
TPU_RAW_PS = Clock("tpu_raw", 1, 1000)


LATEST_NS = 42 * 10**17
"""2103. A start beyond is garbage; ticks up to 2^62 are what the wire carries."""
LONGEST_PS = 2 * 10**18
"""23 days. An event that lies or lasts longer than that from its session's start cannot be true."""


@dataclass(frozen=True, slots=True)
class Session:
    """Unix ns. `stated`: the capture says so itself; else start is what the caller said, or 0."""

    start_ns: int
    stop_ns: int
    stated: bool


def find_session(space: XSpace, start_ns: int | None = None) -> Session:
    """`start_ns` is used where the capture does not say when it began. `stop_ns` 0: unknown."""
    names = space.planes.column("name").to_pylist()
    for row, stats in plane_stats(space).items():
        begin, end = stats.get("profile_start_time"), stats.get("profile_stop_time")
        if names[row] == "Task Environment" and isinstance(begin, int) and 0 < begin < LATEST_NS:
            if not (isinstance(end, int) and begin < end < begin + LONGEST_PS // 1000):
                end = 0
            return Session(begin, end, True)
    if not start_ns:
        lines = ints(space.lines.column("timestamp_ns"))
        start_ns = int(min(lines[(lines >= _ABSOLUTE_NS) & (lines < LATEST_NS)], default=0))
    return Session(start_ns, 0, False)


@dataclass(frozen=True, slots=True)
class Timed:
    """Events with begin and duration; `impossible`: how many were left out because their times cannot be true."""

    events: Events
    begin: Ints
    dur: Ints
    impossible: int


def in_session(events: Events, session: Session, *others: str) -> Timed:
    """Times of events in ps since the session began. An event goes whose times, or `others` (columns in ps), reach
    beyond LONGEST_PS: no session is that long, and sums of such values would leave int64.
    """
    offset, dur, base = events.ints("offset_ps"), events.ints("duration_ps"), events.base_ns
    relative = np.where(base >= _ABSOLUTE_NS, base - session.start_ns, base)
    kept = (relative > -LONGEST_PS // 1000) & (relative < LONGEST_PS // 1000)
    for values in (offset, dur, *(events.ints(name) for name in others)):
        kept &= (values > -LONGEST_PS) & (values < LONGEST_PS)
    at = np.flatnonzero(kept)
    if len(at) < len(kept):
        events, offset, dur, relative = events.select(at), offset[at], dur[at], relative[at]
    return Timed(events, relative * 1000 + offset, dur, len(kept) - len(at))


def host_clock(timed: Timed, session: Session) -> tuple[Clock, Ints, Ints]:
    """(clock, start, duration) in ticks. Whole nanoseconds become Unix time exactly."""
    if np.any(timed.begin % 1000) or np.any(timed.dur % 1000):
        return SESSION_PS, timed.begin, timed.dur
    return REALTIME, session.start_ns + timed.begin // 1000, timed.dur // 1000


def impossible_count(timed: Timed) -> dict[str, int]:
    """As an entry of DeviceSpans.skipped."""
    return {"impossible times": timed.impossible} if timed.impossible else {}
