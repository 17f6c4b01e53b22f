"""AMD GPUs through amd-smi's Python library. No driver, no library: no GPUs."""

import importlib.util
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleetscope.agents.batches import clean_text
from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.amd_counter import AmdCounter
from fleetscope.agents.collectors.collector import Reading, Sample, Series
from fleetscope.agents.collectors.named import chip, throttle_seconds, throttled
from fleetscope.agents.collectors.sentinels import Counters, clean, scaled
from fleetscope.schema import wire_pb2 as wire

log = logging.getLogger(__name__)

VIOLATIONS = {
    "prochot_thrm": "thermal",
    "socket_thrm": "thermal",
    "vr_thrm": "thermal",
    "hbm_thrm": "thermal",
    "ppt_pwr": "power",
}
"""What amdsmi_get_violation_status counts -> our reason. Clocks below the host's limit are of these causes again."""
NOT_SUPPORTED = frozenset({2, 3, 49})
"""AMDSMI_STATUS_NOT_SUPPORTED, _NOT_YET_IMPLEMENTED, _NO_HSMP_MSG_SUP"""
ABSENT = 0xFFFFFFFF
MIB, KIB = 1 << 20, 1024

Values = Iterator[tuple[Series, tuple[int | float | None, str]]]


@dataclass(slots=True)
class _Gpu:
    """One GPU, or one partition of it; `whole`: values of the socket are read of it."""

    device: wire.Device
    handle: Any
    whole: bool
    parts: list[Any] = field(default_factory=list)
    """Handles of all partitions, of a whole chip in several."""
    unsupported: set[str] = field(default_factory=set)
    counters: Counters = field(default_factory=Counters)
    throttled_s: dict[str, float] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    """The last violation status."""


class AmdCollector:
    """Every GPU by UUID, and its partitions (CPX, DPX, ...) as devices of their own."""

    name = "amd"
    period_s = 0.0

    def __init__(self, library: Any = None, counter: Callable[[str], AmdCounter] = AmdCounter) -> None:
        """`library`: the amdsmi module, or one that behaves like it. `counter`: opens that of a PCI address."""
        self._smi = library
        self._counter = counter
        self._clocks: dict[str, tuple[AmdCounter, DeviceClock] | None] = {}
        """By key of a whole GPU; None: it cannot be read."""
        self._ready = False
        self._gpus: dict[str, _Gpu] = {}
        self._errors: Counter[str] = Counter()

    # ---- which there are

    def inventory(self) -> list[wire.Device]:
        if not self._start():
            return []
        groups: dict[str, list[tuple[int, Any, str]]] = defaultdict(list)
        try:
            handles = self._smi.amdsmi_get_processor_handles()
        except Exception as error:
            self._failed(error)
            return [gpu.device for gpu in self._gpus.values()]
        for handle in handles:
            try:
                uuid = str(self._smi.amdsmi_get_gpu_device_uuid(handle))
                if not uuid.strip("0-"):
                    # AMD exporter 233: a virtual function's UUID of zeros; two of them would become one device.
                    self._errors["zero_uuid"] += 1
                    continue
                groups[self._socket(handle)].append((self._partition(handle), handle, uuid))
            except Exception as error:
                self._failed(error)
        found: dict[str, _Gpu] = {}
        for ordinal, members in enumerate(groups.values()):
            for gpu in self._describe(ordinal, sorted(members, key=lambda member: (member[0], member[2]))):
                key = gpu.device.key
                known = self._gpus.get(key)
                if known is not None:
                    known.device, known.handle, known.parts = gpu.device, gpu.handle, gpu.parts
                found[key] = known or gpu
        self._gpus = found
        return [gpu.device for gpu in found.values()]

    def _start(self) -> bool:
        if self._ready:
            return True
        if self._smi is None:
            if importlib.util.find_spec("amdsmi") is None:
                return False
            import amdsmi

            self._smi = amdsmi
        try:
            self._smi.amdsmi_init()
        except Exception as error:
            if _status(error) not in (34, 35):  # no driver, or no device of it
                self._failed(error)
            return False
        self._ready = True
        return True

    def _socket(self, handle: Any) -> str:
        """Partitions are functions of one PCI device."""
        return str(self._smi.amdsmi_get_gpu_device_bdf(handle)).rpartition(".")[0]

    def _partition(self, handle: Any) -> int:
        try:
            raw = self._smi.amdsmi_get_gpu_kfd_info(handle).get("current_partition_id")
        except Exception as error:
            if _status(error) not in NOT_SUPPORTED:
                self._failed(error)
            return 0
        if raw == ABSENT:
            self._errors["partition_id"] += 1
        return raw if isinstance(raw, int) and 0 <= raw < ABSENT else 0

    def _describe(self, ordinal: int, members: list[tuple[int, Any, str]]) -> Iterator[_Gpu]:
        _, first, uuid = members[0]
        sku = self._sku(first)
        bdf = str(self._smi.amdsmi_get_gpu_device_bdf(first))
        parts = [handle for _, handle, _ in members]
        device = wire.Device(key=uuid, platform="gpu", sku=sku, local_name=bdf, local_ordinal=ordinal)
        yield _Gpu(device, first, whole=True, parts=parts)
        if len(members) == 1:
            return
        told: set[int] = set()
        for number, handle, _ in members:
            if number in told:
                # Two with one number: which is which nobody can say, and twice is worse than once.
                self._errors["same_partition"] += 1
                continue
            told.add(number)
            part = wire.Device(
                key=f"{uuid}/{number}", platform="gpu", sku=sku, partition=f"{uuid}/{number}", local_ordinal=ordinal,
                local_name="" if handle is first else str(self._smi.amdsmi_get_gpu_device_bdf(handle)),
            )  # fmt: skip
            yield _Gpu(part, handle, whole=False, parts=[handle])

    def _sku(self, handle: Any) -> str:
        try:
            return clean_text(str(self._smi.amdsmi_get_gpu_asic_info(handle)["market_name"]), 128)
        except Exception as error:
            self._failed(error)
            return ""

    def _failed(self, error: Exception) -> None:
        status = _status(error)
        self._errors[type(error).__name__ if status is None else f"status_{status}"] += 1

    # ---- one read

    def read(self, deadline_s: float) -> Reading:
        if not self._gpus:
            return Reading((), {}, self._take_errors())
        samples: list[Sample] = []
        refused: Counter[str] = Counter()
        holders: dict[str, frozenset[int]] = {}
        for gpu in self._gpus.values():
            for call in _CALLS if gpu.whole else _PARTITION_CALLS:
                if time.monotonic() > deadline_s:
                    self._errors["deadline"] += 1
                    return Reading(samples, refused, self._take_errors(), holders=holders)
                if call.__name__ in gpu.unsupported:
                    continue
                told = False
                try:
                    for series, (value, why) in call(self._smi, gpu):
                        told = True
                        if value is not None:
                            samples.append(Sample(series, value, gpu.device.key))
                        elif why != "missing":  # a field the chip does not have is "N/A", and nothing that was lost
                            refused[why] += 1
                except Exception as error:  # the library raises its own kinds, and UnicodeDecodeError for a name
                    if _status(error) not in NOT_SUPPORTED:
                        self._failed(error)
                    elif not told:  # else its other values would go with the one the chip does not have
                        gpu.unsupported.add(call.__name__)
            self._hold(gpu, holders)
        return Reading(samples, refused, self._take_errors(), holders=holders)

    def _hold(self, gpu: _Gpu, holders: dict[str, frozenset[int]]) -> None:
        pids: set[int] = set()
        try:
            for handle in gpu.parts:
                pids |= {int(process["pid"]) for process in self._smi.amdsmi_get_gpu_process_list(handle)}
            pids.discard(os.getpid())  # it has the render node open, for its counter
        except Exception as error:
            if _status(error) not in NOT_SUPPORTED:
                self._failed(error)
            return
        holders[gpu.device.key] = frozenset(pids)

    def _take_errors(self) -> Counter[str]:
        errors, self._errors = self._errors, Counter()
        return errors

    def clocks(self) -> list[DeviceClock]:
        """The counter of each whole GPU whose render node may be opened."""
        for gpu in self._gpus.values():
            key = gpu.device.key
            if gpu.whole and key not in self._clocks:
                try:
                    opened = self._counter(gpu.device.local_name)
                    self._clocks[key] = (opened, opened.clock(key))
                except OSError as error:
                    self._clocks[key] = None
                    log.info("no counter of %s: %s", gpu.device.local_name, error)
        return [found[1] for key, found in self._clocks.items() if found is not None and key in self._gpus]

    def close(self) -> None:
        """The library keeps /dev/kfd open until then: an upgrade of the driver waits for it."""
        for opened in filter(None, self._clocks.values()):
            opened[0].close()
        self._clocks.clear()
        if self._ready:
            self._ready = False
            try:
                self._smi.amdsmi_shut_down()
            except Exception as error:
                self._failed(error)


def _status(error: Exception) -> int | None:
    """Number of an AmdSmiLibraryException, None of anything else."""
    code = getattr(error, "get_error_code", None)
    return int(code()) if callable(code) else None


_POWER, _POWER_LIMIT, _ENERGY = chip("power_watts"), chip("power_limit_watts"), chip("energy_joules_total")
_JUNCTION, _HBM = (chip("temperature_celsius", sensor=sensor) for sensor in ("junction", "memory"))
_MARGIN = chip("temperature_margin_celsius")
_GFX_CLOCK, _MEM_CLOCK = (chip("clock_hertz", clock=clock) for clock in ("gfx", "memory"))
_USED, _TOTAL = chip("memory_used_bytes"), chip("memory_total_bytes")
_UTILIZATION = chip("utilization_ratio")
_UNITS = {
    "umc_activity": chip("unit_active_ratio", unit="memory"),
    "mm_activity": chip("unit_active_ratio", unit="media"),
}
_ECC = {
    "correctable_count": chip("ecc_errors_total", severity="corrected"),
    "uncorrectable_count": chip("ecc_errors_total", severity="uncorrected"),
}
_XGMI = {
    "read": chip("link_bytes_total", link="xgmi", direction="receive"),
    "write": chip("link_bytes_total", link="xgmi", direction="transmit"),
}
_LINK_STATES = {"U": chip("links", link="xgmi", state="up"), "D": chip("links", link="xgmi", state="down")}
_THROTTLED = {name: throttled(reason, name) for name, reason in VIOLATIONS.items()}
_THROTTLE_TIME = {name: throttle_seconds(reason, name) for name, reason in VIOLATIONS.items()}


def _power(smi: Any, gpu: _Gpu) -> Values:
    """Newer chips tell the present power, older a mean; what a chip has not is N/A."""
    found = smi.amdsmi_get_power_info(gpu.handle)
    names = ("socket_power", "current_socket_power", "average_socket_power")
    yield _POWER, next((told for name in names if (told := clean(found.get(name)))[1] != "missing"), (None, "missing"))


def _power_limit(smi: Any, gpu: _Gpu) -> Values:
    yield _POWER_LIMIT, scaled(smi.amdsmi_get_power_cap_info(gpu.handle).get("power_cap"), 1e-6)


def _temperature(smi: Any, gpu: _Gpu) -> Values:
    """Of the junction, the hottest place; it slows itself down at the critical temperature."""
    kinds, metrics = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric
    now, why = clean(smi.amdsmi_get_temp_metric(gpu.handle, kinds.JUNCTION, metrics.CURRENT))
    yield _JUNCTION, (now, why)
    limit, why_not = clean(smi.amdsmi_get_temp_metric(gpu.handle, kinds.JUNCTION, metrics.CRITICAL))
    yield _MARGIN, (None, why or why_not) if now is None or limit is None else (limit - now, "")


def _memory_temperature(smi: Any, gpu: _Gpu) -> Values:
    kind, metric = smi.AmdSmiTemperatureType.VRAM, smi.AmdSmiTemperatureMetric.CURRENT
    yield _HBM, clean(smi.amdsmi_get_temp_metric(gpu.handle, kind, metric))


def _clocks(smi: Any, gpu: _Gpu) -> Values:
    for series, kind in ((_GFX_CLOCK, smi.AmdSmiClkType.GFX), (_MEM_CLOCK, smi.AmdSmiClkType.MEM)):
        yield series, scaled(smi.amdsmi_get_clock_info(gpu.handle, kind).get("clk"), 1e6)


def _memory(smi: Any, gpu: _Gpu) -> Values:
    found = smi.amdsmi_get_gpu_vram_usage(gpu.handle)
    yield _USED, scaled(found.get("vram_used"), MIB)
    yield _TOTAL, scaled(found.get("vram_total"), MIB)


def _activity(smi: Any, gpu: _Gpu) -> Values:
    found = smi.amdsmi_get_gpu_activity(gpu.handle)
    yield _UTILIZATION, scaled(found.get("gfx_activity"), 0.01)
    for name, series in _UNITS.items():
        yield series, scaled(found.get(name), 0.01)


def _energy(smi: Any, gpu: _Gpu) -> Values:
    """Releases before 6.2 call the accumulator power."""
    found = smi.amdsmi_get_energy_count(gpu.handle)
    raw = found.get("energy_accumulator", found.get("power"))
    yield _ENERGY, gpu.counters.counted("energy", raw, float(found["counter_resolution"]) * 1e-6)


def _ecc(smi: Any, gpu: _Gpu) -> Values:
    found = smi.amdsmi_get_gpu_total_ecc_count(gpu.handle)
    for name, series in _ECC.items():
        yield series, gpu.counters.counted(name, found.get(name))


def _xgmi(smi: Any, gpu: _Gpu) -> Values:
    """PCIe traffic is not asked for: that call takes a second a GPU (AMD exporter 1.5.2)."""
    links = smi.amdsmi_get_link_metrics(gpu.handle)["links"]
    for name, series in _XGMI.items():
        told = [value for link in links if (value := clean(link.get(name))[0]) is not None]
        yield series, gpu.counters.counted(f"xgmi {name}", sum(told), KIB) if told else (None, "missing")


def _xgmi_states(smi: Any, gpu: _Gpu) -> Values:
    """A link that is switched off ("X") is none."""
    states = smi.amdsmi_get_gpu_xgmi_link_status(gpu.handle)["status"]
    for letter, series in _LINK_STATES.items():
        yield series, (states.count(letter), "")


def _violations(smi: Any, gpu: _Gpu) -> Values:
    """Residencies: of the counts of the power firmware since the last read, the share in violation, times that time."""
    found = smi.amdsmi_get_violation_status(gpu.handle)
    before, gpu.before = gpu.before, found
    steps = _difference(before, found, "acc_counter")
    passed_us = _difference(before, found, "reference_timestamp")
    for name, series in _THROTTLED.items():
        active, why = clean(found.get(f"per_{name}"))
        yield series, (None, why) if active is None else (int(active > 0), "")
        over = _difference(before, found, f"acc_{name}")
        if over is not None and steps and passed_us:
            gpu.throttled_s[name] = gpu.throttled_s.get(name, 0.0) + min(over / steps, 1.0) * passed_us * 1e-6
        if name in gpu.throttled_s or over is not None:
            yield _THROTTLE_TIME[name], (gpu.throttled_s.setdefault(name, 0.0), "")


def _difference(before: dict[str, Any], now: dict[str, Any], name: str) -> int | None:
    """None where it is not told, or fell: a counter that was reset has no difference to what it was."""
    old, new = clean(before.get(name))[0], clean(now.get(name))[0]
    return None if old is None or new is None or new < old else int(new - old)


_CALLS: tuple[Callable[[Any, _Gpu], Values], ...] = (
    _power,
    _power_limit,
    _temperature,
    _memory_temperature,
    _clocks,
    _memory,
    _activity,
    _energy,
    _ecc,
    _xgmi,
    _xgmi_states,
    _violations,
)
_PARTITION_CALLS = (_memory, _activity)
