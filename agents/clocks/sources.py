"""Who disciplines this host's clocks, and what else tells of them: looked at once a second, in a thread of its own.

Reads that may take their time (a network card's clock, chronyd) keep nobody waiting: the agent's loop takes what was
found last. A source that is not there says so once, with its reason, and is looked for again every MISSING_S.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from fleetscope.agents.clocks.chrony import Chrony, Tracking
from fleetscope.agents.clocks.kernel import KernelClock, clock_source, read_kernel_clock, suspended_ns
from fleetscope.agents.clocks.ptp import Found, HardwareClock, hardware_clocks
from fleetscope.agents.clocks.vmclock import VmClock, VmClockPage
from fleetscope.schema import wire_pb2 as wire

log = logging.getLogger(__name__)
_T = TypeVar("_T")

PERIOD_S = 1.0
MISSING_S = 300.0
OLD_S = 5.0
"""What was found so long ago is not told any more: its source hangs."""


@dataclass(frozen=True, slots=True)
class Told:
    """What was found in one look; None and "": not known."""

    at_s: float = 0.0
    kernel: KernelClock | None = None
    source: str = ""
    suspended_ns: int = 0
    tracking: Tracking | None = None
    hardware: tuple[Found, ...] = ()
    vm: VmClock | None = None

    def state(self) -> wire.ClockState:
        """As the wire says it. chrony's word goes before the hardware clock's: who has both steers by chrony."""
        state = wire.ClockState(clocksource=self.source, suspended_ns=self.suspended_ns)
        if self.kernel is not None:
            state.synchronized = self.kernel.synchronized
            state.adjtimex_status = self.kernel.status & 0xFFFFFFFF
            state.adjtimex_state = self.kernel.state
            state.max_error_ns = self.kernel.max_error_ns
            state.est_error_ns = self.kernel.est_error_ns
            state.frequency_ppb = self.kernel.frequency_ppb
            state.tai_s = self.kernel.tai_s
            state.sync_source = "ntp" if self.kernel.synchronized else ""
        if self.hardware and state.synchronized:
            state.sync_source = "ptp"
        if self.tracking is not None:
            state.sync_source = "chrony"
            state.synchronized = state.synchronized and self.tracking.synchronized
            state.reference = self.tracking.reference
            state.root_delay_ns = self.tracking.root_delay_ns
            state.root_dispersion_ns = self.tracking.root_dispersion_ns
            state.last_offset_ns = self.tracking.last_offset_ns
        if self.vm is not None:
            state.vm_disruption, state.vm_sequence = self.vm.disruption, self.vm.sequence
        return state


@dataclass(slots=True)
class _Absence:
    """When a source is looked for again, and what was said of it."""

    again_s: float = 0.0
    said: str = ""


@dataclass(slots=True)
class Readers:
    """How each source is opened or read; a test puts its own in."""

    kernel: Callable[[], KernelClock] = read_kernel_clock
    clock_source: Callable[[], str] = clock_source
    suspended_ns: Callable[[], int] = suspended_ns
    chrony: Callable[[], Chrony] = Chrony
    hardware: Callable[[], tuple[list[HardwareClock], dict[str, str]]] = hardware_clocks
    vmclock: Callable[[], VmClockPage] = VmClockPage


@dataclass(slots=True)
class _Open:
    chrony: Chrony | None = None
    hardware: list[HardwareClock] | None = None
    vmclock: VmClockPage | None = None
    absent: dict[str, _Absence] = field(default_factory=dict)


class ClockSources:
    """`told()` is the newest look, from any thread."""

    def __init__(self, readers: Readers | None = None) -> None:
        self._readers = readers or Readers()
        self._open = _Open()
        self._told = Told()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleetscope-clocks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """A source that hangs is left behind: its thread is a daemon."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(1.0)
        if not self._thread.is_alive():
            self.close()

    def told(self) -> Told:
        """The newest look; an empty one when that is old."""
        told = self._told
        return told if time.monotonic() - told.at_s < OLD_S else Told()

    def vm(self) -> VmClock | None:
        """The hypervisor's page now; None where there is none or it is being written."""
        page = self._open.vmclock
        return page.read() if page is not None else None

    def suspended_ns(self) -> int:
        """How long this boot was suspended, now."""
        return self._readers.suspended_ns()

    @property
    def missing(self) -> dict[str, str]:
        """Why each source that is not there is not."""
        return {name: absence.said for name, absence in list(self._open.absent.items())}

    def _run(self) -> None:
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                self.look()
            except Exception:  # a defect in one source's reading must not end the others
                log.exception("clock sources")
            self._stop.wait(max(0.05, begin + PERIOD_S - time.monotonic()))

    def look(self) -> Told:
        """One look at everything that is there."""
        readers = self._readers
        kernel = self._try("adjtimex", readers.kernel)
        source = self._try("clocksource", readers.clock_source) or ""
        told = Told(time.monotonic(), kernel, source, readers.suspended_ns(), vm=self._vm())
        # What may hang comes last: the rest is told meanwhile.
        self._told = replace(told, tracking=self._told.tracking, hardware=self._told.hardware)
        tracking = self._tracking()
        self._told = replace(told, tracking=tracking, hardware=self._told.hardware)
        hardware = self._hardware()
        self._told = replace(told, at_s=time.monotonic(), tracking=tracking, hardware=hardware)
        return self._told

    def _try(self, name: str, read: Callable[[], _T | None]) -> _T | None:
        """What `read` gives; None where it fails, which is said once and not tried again for a while. A read that has
        nothing yet ends no absence."""
        absence = self._open.absent.get(name)
        if absence is not None and time.monotonic() < absence.again_s:
            return None
        try:
            found = read()
        except (OSError, ValueError) as error:
            self._absent(name, str(getattr(error, "strerror", None) or error))
            return None
        if found is not None:
            self._open.absent.pop(name, None)
        return found

    def _absent(self, name: str, why: str) -> None:
        known = self._open.absent.setdefault(name, _Absence())
        known.again_s = time.monotonic() + MISSING_S
        if known.said != why:
            known.said = why
            log.info("no clock source %s: %s", name, why)

    def _tracking(self) -> Tracking | None:
        if self._open.chrony is None:
            self._open.chrony = self._try("chrony", self._readers.chrony)
        opened = self._open.chrony
        if opened is None:
            return None
        answer = self._try("chrony", opened.look)
        return self._told.tracking if answer is None and "chrony" not in self._open.absent else answer

    def _vm(self) -> VmClock | None:
        if self._open.vmclock is None:
            self._open.vmclock = self._try("vmclock", self._readers.vmclock)
        page = self._open.vmclock
        return page.read() or self._told.vm if page is not None else None

    def _hardware(self) -> tuple[Found, ...]:
        if self._open.hardware is None:
            self._open.hardware = self._try("ptp", self._opened)
        found = []
        for clock in self._open.hardware or ():
            try:
                found.append(clock.read())
            except OSError as error:
                self._absent("ptp", f"{clock.name}: {error.strerror or error}")
                self._close_hardware()
                break
        return tuple(found)

    def _opened(self) -> list[HardwareClock]:
        clocks, refused = self._readers.hardware()
        if not clocks:
            raise ValueError("; ".join(f"{name}: {why}" for name, why in refused.items()) or "no /dev/ptp*")
        return clocks

    def _close_hardware(self) -> None:
        for clock in self._open.hardware or ():
            clock.close()
        self._open.hardware = None

    def close(self) -> None:
        """Everything that is open."""
        self._close_hardware()
        if self._open.chrony is not None:
            self._open.chrony.close()
        if self._open.vmclock is not None:
            self._open.vmclock.close()
        self._open = _Open()
