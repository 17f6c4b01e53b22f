"""NVIDIA GPUs through NVML. No driver, no library: no GPUs."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.collector import Reading, Sample, Series
from fleetscope.agents.collectors.sentinels import Accumulator, clean, clean_ratio
from fleetscope.schema import wire_pb2 as wire

THROTTLE_BITS = {
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "power_brake": 0x80,
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that mean slower than asked for (idle and user settings do not)."""

_VIOLATIONS = {"power": 0, "thermal": 1}
"""nvmlPerfPolicyType_t; violationTime is in ns."""


def _series(name: str, unit: str, monotonic: bool = False, **labels: str) -> Series:
    return Series(f"fleetscope_chip_{name}", unit, monotonic, tuple(sorted(labels.items())))


@dataclass(slots=True)
class _Gpu:
    """One GPU or MIG instance. `unsupported`: calls its driver does not know are not tried again."""

    device: wire.Device
    handle: Any
    whole: bool
    unsupported: set[str] = field(default_factory=set)
    counters: dict[str, Accumulator] = field(default_factory=dict)


class NvidiaCollector:
    """Power, temperature, clocks, throttling, memory, utilisation and energy of each GPU, by UUID.

    MIG instances are devices of their own (memory); power and clocks belong to the whole chip, listed too.
    """

    name = "nvidia"

    def __init__(self, library: Any = None) -> None:
        """`library`: the pynvml module, or one that behaves like it."""
        self._library = library
        self._ready = False
        self._gpus: dict[str, _Gpu] = {}
        self._errors: Counter[str] = Counter()

    def inventory(self) -> list[wire.Device]:
        if not self._start():
            return []
        found: dict[str, _Gpu] = {}
        try:
            count = self._library.nvmlDeviceGetCount()
        except self._library.NVMLError as error:
            self._failed(error)
            return [gpu.device for gpu in self._gpus.values()]
        for index in range(count):
            try:
                for gpu in self._describe(index):
                    known = self._gpus.get(gpu.device.key)
                    if known is not None:
                        known.handle = gpu.handle
                    found[gpu.device.key] = known or gpu
            except self._library.NVMLError as error:
                self._failed(error)
        self._gpus = found
        return [gpu.device for gpu in found.values()]

    def _start(self) -> bool:
        if self._ready:
            return True
        if self._library is None:
            try:
                import pynvml
            except ImportError:
                return False
            self._library = pynvml
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            absent = ("LibraryNotFound", "DriverNotLoaded", "GpuNotFound", "NotFound")
            if not type(error).__name__.endswith(absent):
                self._failed(error)
            return False
        self._ready = True
        return True

    def _failed(self, error: Exception) -> None:
        self._errors[type(error).__name__.removeprefix("NVMLError_") or "Unknown"] += 1

    def _describe(self, index: int) -> Iterator[_Gpu]:
        nvml = self._library
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, sku = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        if not uuid.strip("GPU-0"):
            # Virtual functions report a UUID of zeros: two of them would become one device.
            self._errors["zero_uuid"] += 1
            return
        device = wire.Device(key=uuid, platform="gpu", sku=sku, local_name=f"/device:GPU:{index}", local_ordinal=index)
        yield _Gpu(device, handle, whole=True)
        try:
            enabled = nvml.nvmlDeviceGetMigMode(handle)[0]
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0
        except nvml.NVMLError:
            return
        for slot in range(slots):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
                key = _text(nvml.nvmlDeviceGetUUID(part))
            except nvml.NVMLError:
                continue
            mig = wire.Device(key=key, platform="gpu", sku=sku, partition=f"{uuid}/{slot}", local_ordinal=index)
            yield _Gpu(mig, part, whole=False)

    def read(self, deadline_s: float) -> Reading:
        if not self._gpus and not self.inventory():
            return Reading((), {}, self._take_errors())
        samples: list[Sample] = []
        refused: Counter[str] = Counter()
        for gpu in self._gpus.values():
            for call in _CALLS if gpu.whole else _MIG_CALLS:
                if time.monotonic() > deadline_s:
                    self._errors["deadline"] += 1
                    return Reading(samples, refused, self._take_errors())
                if call.__name__ in gpu.unsupported:
                    continue
                try:
                    for series, (value, why) in call(self._library, gpu):
                        if value is None:
                            refused[why] += 1
                        else:
                            samples.append(Sample(series, value, gpu.device.key))
                except self._library.NVMLError as error:
                    if type(error).__name__.endswith(("NotSupported", "FunctionNotFound", "NoPermission")):
                        gpu.unsupported.add(call.__name__)
                    else:
                        self._failed(error)
        return Reading(samples, refused, self._take_errors())

    def _take_errors(self) -> Counter[str]:
        errors, self._errors = self._errors, Counter()
        return errors

    def clocks(self) -> list[DeviceClock]:
        """NVML offers no read of a GPU's timer."""
        return []

    def close(self) -> None:
        if self._ready:
            self._ready = False
            try:
                self._library.nvmlShutdown()
            except self._library.NVMLError as error:
                self._failed(error)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


Values = Iterator[tuple[Series, tuple[int | float | None, str]]]


def _scaled(raw: object, factor: float) -> tuple[float | None, str]:
    value, why = clean(raw)
    return (None, why) if value is None else (value * factor, "")


def _counted(gpu: _Gpu, name: str, raw: object, factor: float, modulus: int = 1 << 64) -> tuple[float | None, str]:
    value, why = clean(raw)
    if value is None:
        return None, why
    return gpu.counters.setdefault(name, Accumulator(modulus)).add(int(value)) * factor, ""


_POWER = _series("power_watts", "W")
_TEMPERATURE = _series("temperature_celsius", "Cel", sensor="gpu")
_SM_CLOCK, _MEMORY_CLOCK = (_series("clock_hertz", "Hz", clock=clock) for clock in ("sm", "memory"))
_MEMORY_USED, _MEMORY_TOTAL = _series("memory_used_bytes", "byte"), _series("memory_total_bytes", "byte")
_UTILIZATION = _series("utilization_ratio", "1")
_ENERGY = _series("energy_joules_total", "J", True)
_THROTTLED = {reason: _series("throttled", "1", reason=reason) for reason in THROTTLE_BITS}
_THROTTLE_TIME = {reason: _series("throttle_seconds_total", "s", True, reason=reason) for reason in _VIOLATIONS}


def _power(nvml: Any, gpu: _Gpu) -> Values:
    yield _POWER, _scaled(nvml.nvmlDeviceGetPowerUsage(gpu.handle), 1e-3)


def _temperature(nvml: Any, gpu: _Gpu) -> Values:
    yield _TEMPERATURE, clean(nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU))


def _clocks(nvml: Any, gpu: _Gpu) -> Values:
    for series, domain in ((_SM_CLOCK, nvml.NVML_CLOCK_SM), (_MEMORY_CLOCK, nvml.NVML_CLOCK_MEM)):
        yield series, _scaled(nvml.nvmlDeviceGetClockInfo(gpu.handle, domain), 1e6)


def _memory(nvml: Any, gpu: _Gpu) -> Values:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    yield _MEMORY_USED, clean(memory.used)
    yield _MEMORY_TOTAL, clean(memory.total)


def _utilization(nvml: Any, gpu: _Gpu) -> Values:
    yield _UTILIZATION, clean_ratio(nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu, 100)


def _energy(nvml: Any, gpu: _Gpu) -> Values:
    yield _ENERGY, _counted(gpu, "energy", nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle), 1e-3)


def _throttled(nvml: Any, gpu: _Gpu) -> Values:
    bits, why = clean(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu.handle))
    for reason, bit in THROTTLE_BITS.items():
        yield _THROTTLED[reason], (None, why) if bits is None else (int(bool(int(bits) & bit)), "")


def _violations(nvml: Any, gpu: _Gpu) -> Values:
    for reason, policy in _VIOLATIONS.items():
        status = nvml.nvmlDeviceGetViolationStatus(gpu.handle, policy)
        yield _THROTTLE_TIME[reason], _counted(gpu, reason, status.violationTime, 1e-9)


_CALLS: tuple[Callable[[Any, _Gpu], Values], ...] = (
    _power,
    _temperature,
    _clocks,
    _memory,
    _utilization,
    _energy,
    _throttled,
    _violations,
)
_MIG_CALLS = (_memory,)
