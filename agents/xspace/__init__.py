"""Profiler captures (XSpace) as spans: one table per device, host threads, op tables, and a report of the capture's
own view.
"""

from fleetscope.agents.xspace.capture import Capture, convert, read_xspace
from fleetscope.agents.xspace.declared import programs_of
from fleetscope.agents.xspace.device import DeviceSpans
from fleetscope.agents.xspace.host import HostSpans
from fleetscope.agents.xspace.optables import OpTables
from fleetscope.agents.xspace.session import Session

__all__ = ["Capture", "DeviceSpans", "HostSpans", "OpTables", "Session", "convert", "programs_of", "read_xspace"]
