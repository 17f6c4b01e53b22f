"""Counters of the host itself, by psutil, /proc/pressure and /sys."""

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
_NET, _INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
_NODES = Path("/sys/devices/system/node")
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


def _nics() -> Iterator[tuple[Series, object]]:
    """Network cards that are hardware; not the pair of interfaces that every pod has."""
    for name, told in psutil.net_io_counters(pernic=True).items():
        if (_NET / name / "device").exists():
            yield _series("nic_receive_bytes_total", nic=name), told.bytes_recv
            yield _series("nic_transmit_bytes_total", nic=name), told.bytes_sent
            yield _series("nic_errors_total", nic=name, direction="receive"), told.errin + told.dropin
            yield _series("nic_errors_total", nic=name, direction="transmit"), told.errout + told.dropout


_IB_WORD_BYTES = 4
"""port_rcv_data and port_xmit_data count words, whatever the width of the link."""


def _infiniband() -> Iterator[tuple[Series, object]]:
    """Ports of InfiniBand and RoCE cards: what they carry past the kernel is in no interface's counters."""
    for port in sorted(_INFINIBAND.glob("*/ports/*/counters")):
        nic = f"{port.parts[-4]}/{port.parts[-2]}"
        counters = {
            name: int(text)
            for name in ("port_rcv_data", "port_xmit_data", "port_rcv_errors", "port_xmit_discards")
            # "N/A (no PMA)" is said of ports without counters (node_exporter issue 966).
            if (port / name).exists() and (text := (port / name).read_text().strip()).isdecimal()
        }
        for name, direction in (("port_rcv_data", "receive"), ("port_xmit_data", "transmit")):
            if name in counters:
                yield _series(f"nic_{direction}_bytes_total", nic=nic), counters[name] * _IB_WORD_BYTES
        for name, direction in (("port_rcv_errors", "receive"), ("port_xmit_discards", "transmit")):
            if name in counters:
                yield _series("nic_errors_total", nic=nic, direction=direction), counters[name]


def _numa() -> Iterator[tuple[Series, object]]:
    """Memory of each node, and how often another had to give it: a host that feeds chips across sockets shows here."""
    for node in sorted(_NODES.glob("node[0-9]*")):
        number = node.name.removeprefix("node")
        for line in (node / "meminfo").read_text().splitlines():
            words = line.split()  # Node 0 MemTotal:  263769352 kB
            if words[2] in ("MemTotal:", "MemFree:"):
                kind = "total" if words[2] == "MemTotal:" else "free"
                yield _series(f"numa_memory_{kind}_bytes", node=number), int(words[3]) * 1024
        told = dict(line.split() for line in (node / "numastat").read_text().splitlines())
        yield _series("numa_misses_total", node=number), int(told["numa_miss"])


_SOURCES: dict[str, Callable[[], Iterator[tuple[Series, object]]]] = {
    "cpu": lambda: _attributes(psutil.cpu_times(), _CPU),
    "memory": lambda: _attributes(psutil.virtual_memory(), _MEMORY),
    "network": lambda: _attributes(psutil.net_io_counters(), _NETWORK),
    "disk": lambda: _attributes(psutil.disk_io_counters(), _DISK),
    "pressure": _pressure,
    "nics": _nics,
    "infiniband": _infiniband,
    "numa": _numa,
}


class HostCollector:
    """CPU, memory, network, disk, pressure, network cards, NUMA nodes. A host that does not offer one (containers do
    not) has no such series."""

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
