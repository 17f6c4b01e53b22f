"""XSpace -> spans per device and spans of the host's threads: the whole conversion, pure but for what OpTables
remembers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fleetscope.agents.xspace.cpu import cpu_spans, device_ops
from fleetscope.agents.xspace.device import DeviceSpans
from fleetscope.agents.xspace.events import events_of
from fleetscope.agents.xspace.gpu import gpu_spans
from fleetscope.agents.xspace.host import HostSpans, host_spans
from fleetscope.agents.xspace.optables import OpTables
from fleetscope.agents.xspace.planes import device_planes, host_planes, lines_by_plane
from fleetscope.agents.xspace.session import Session, find_session
from fleetscope.agents.xspace.threads import ThreadNumbers
from fleetscope.agents.xspace.tpu import tpu_spans
from fleetscope.native import xspace
from fleetscope.schema.errors import XSpaceUnreadable


@dataclass(frozen=True, slots=True)
class Capture:
    """What one XSpace says. `host` is None where it was not asked for or there are no host events."""

    session: Session
    devices: Sequence[DeviceSpans]
    host: HostSpans | None
    hostnames: Sequence[str]


def read_xspace(data: bytes | bytearray | memoryview, origin: str) -> xspace.XSpace:
    """Decoded bytes. Raises XSpaceUnreadable naming `origin` (a file, a process) and the byte at which it stopped."""
    try:
        return xspace.decode(data)
    except xspace.XSpaceError as error:
        raise XSpaceUnreadable(f"{origin}: {error}") from error


def convert(space: xspace.XSpace, tables: OpTables, *, start_ns: int | None = None, host: bool = True) -> Capture:
    """Spans of every device of the capture, and of host threads if `host`.

    `tables` resolves ops; see declared.programs_of for the programs a capture brings itself. `start_ns` is the
    session's begin in Unix ns for captures that do not tell.
    """
    session = find_session(space, start_ns)
    planes = device_planes(space)
    devices: list[DeviceSpans] = []
    for plane in planes:
        # A plane whose ops have raw device time is a TPU's; streams and plain op lines are in host time.
        spans = tpu_spans if plane.platform == "tpu" else gpu_spans
        found = spans(space, plane, session, tables)
        if found is not None:
            devices.append(found)
    by_plane = lines_by_plane(space)
    lines = [line for plane in host_planes(space) for line in by_plane.get(plane, [])]
    events = events_of(space, lines)
    threads = ThreadNumbers(lines)
    on_cpu = device_ops(events, accelerators=bool(planes))
    if len(on_cpu):
        devices.extend(cpu_spans(events.select(on_cpu), session, tables, threads))
    threads_spans = None
    if host and len(on_cpu) < len(events.rows):
        rest = np.ones(len(events.rows), np.bool_)
        rest[on_cpu] = False
        threads_spans = host_spans(events.select(np.flatnonzero(rest)), session, threads)
    return Capture(session, devices, threads_spans, space.hostnames)
