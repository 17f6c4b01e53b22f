"""Clocks of a host: registers that wrap, brackets, steps of the wall clock (reference: DESIGN 3.3)."""

from fleetscope.agents.clocks.kept import HostReading, KeptEpochs
from fleetscope.agents.clocks.snapshots import MONOTONIC_RAW, DeviceClock, HostClocks, RegisterRead
from fleetscope.agents.clocks.sources import ClockSources, Readers
from fleetscope.agents.clocks.unwrap import Reading, Register, Unwrapper, near

__all__ = [
    "MONOTONIC_RAW",
    "ClockSources",
    "DeviceClock",
    "HostClocks",
    "HostReading",
    "KeptEpochs",
    "Readers",
    "Reading",
    "Register",
    "RegisterRead",
    "Unwrapper",
    "near",
]
