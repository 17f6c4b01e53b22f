"""When a capture was taken, and the clocks its times are in.

Absolute host time of an event = session start + line timestamp_ns + offset_ps / 1000 (xprof.md 5.1). Session start is
stat profile_start_time of the plane "Task Environment"; captures of 2020 have none, so a caller may name it.
"""

from dataclasses import dataclass

import numpy as np

from fleetscope.agents.xspace.planes import plane_stats
from fleetscope.agents.xspace.views import Ints
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
        if names[row] == "Task Environment" and "profile_start_time" in stats:
            return Session(int(stats["profile_start_time"]), int(stats.get("profile_stop_time") or 0), True)
    return Session(start_ns or 0, 0, False)


def host_ticks(offset_ps: Ints, dur_ps: Ints, base_ns: Ints, session: Session) -> tuple[Clock, Ints, Ints]:
    """(clock, start, duration) of events whose lines begin at `base_ns`. Whole nanoseconds become Unix time exactly."""
    if not (np.any(offset_ps % 1000) or np.any(dur_ps % 1000)):
        start = np.where(base_ns >= _ABSOLUTE_NS, base_ns, base_ns + session.start_ns) + offset_ps // 1000
        return REALTIME, start, dur_ps // 1000
    relative = np.where(base_ns >= _ABSOLUTE_NS, base_ns - session.start_ns, base_ns)
    return SESSION_PS, relative * 1000 + offset_ps, dur_ps
