"""Counters of the host itself, by psutil and /proc/pressure."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.collector import Reading, Sample, Series
from fleetscope.agents.collectors.named import named
from fleetscope.agents.collectors.sentinels import clean
from fleetscope.schema import wire_pb2 as wire

_PRESSURE = Path("/proc/pressure")
_CPU_MODES = ("user", "system", "idle", "iowait", "steal")


def _series(name: str, **labels: str) -> Series:
    return named(f"fleetscope_host_{name}", **labels)


_CPU = {mode: _series("cpu_seconds_total", mode=mode) for mode in _CPU_MODES}
_MEMORY = {"total": _series("memory_total_bytes"), "available": _series("memory_available_bytes")}
_NETWORK = {
    "bytes_recv": _series("network_receive_bytes_total"),
    "bytes_sent": _series("network_transmit_bytes_total"),
}
_DISK = {
    "read_bytes": _series("disk_read_bytes_total"),
    "write_bytes": _series("disk_written_bytes_total"),
}


def _attributes(found: Any, wanted: dict[str, Series]) -> Iterator[tuple[Series, object]]:
    for attribute, series in wanted.items():
        if hasattr(found, attribute):
            yield series, getattr(found, attribute)


def _pressure() -> Iterator[tuple[Series, object]]:
    """Seconds in which some or all tasks waited for a resource (Linux PSI); absent on kernels without it."""
    for path in sorted(_PRESSURE.iterdir()) if _PRESSURE.is_dir() else ():
        for line in path.read_text().splitlines():
            kind, *fields = line.split()
            total = dict(field.split("=", 1) for field in fields).get("total")
            if total is not None:
                series = _series("pressure_seconds_total", resource=path.name, kind=kind)
                yield series, int(total) / 1e6


_SOURCES: dict[str, Callable[[], Iterator[tuple[Series, object]]]] = {
    "cpu": lambda: _attributes(psutil.cpu_times(), _CPU),
    "memory": lambda: _attributes(psutil.virtual_memory(), _MEMORY),
    "network": lambda: _attributes(psutil.net_io_counters(), _NETWORK),
    "disk": lambda: _attributes(psutil.disk_io_counters(), _DISK),
    "pressure": _pressure,
}


class HostCollector:
    """CPU, memory, network, disk, pressure. A host that does not offer one (containers do not) has no such series."""

    name = "host"
    period_s = 0.0

    def inventory(self) -> list[wire.Device]:
        return []

    def read(self, deadline_s: float) -> Reading:
        samples: list[Sample] = []
        refused: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for source, read in _SOURCES.items():
            try:
                for series, raw in read():
                    value, why = clean(raw)
                    if value is None:
                        refused[why] += 1
                    else:
                        samples.append(Sample(series, value))
            except (OSError, ValueError, RuntimeError, psutil.Error):
                errors[source] += 1
        return Reading(samples, refused, errors)

    def clocks(self) -> list[DeviceClock]:
        return []

    def close(self) -> None:
        pass
