"""What NVML tells of a GPU by a call each: power, temperature, clocks, memory, utilization, throttling."""

from typing import Any

from fleetscope.agents.collectors.named import chip, throttle_seconds, throttled
from fleetscope.agents.collectors.nvidia.gpu import Call, Gpu, Values
from fleetscope.agents.collectors.sentinels import clean, scaled

HW_THERMAL, HW_POWER_BRAKE = 0x40, 0x80
THROTTLE_BITS = {
    0x4: ("power", "sw_power_cap"),
    0x8: ("other", "hw_slowdown"),
    0x10: ("sync", "sync_boost"),
    0x20: ("thermal", "sw_thermal"),
    HW_THERMAL: ("thermal", "hw_thermal"),
    HW_POWER_BRAKE: ("power_brake", "hw_power_brake"),
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons that mean slower than asked for (idle, user and display settings do
not). hw_slowdown says how far, the two after it say why: alone, it has a reason of its own."""

POLICIES = {
    0: ("power", "power_policy"),
    1: ("thermal", "thermal_policy"),
    2: ("sync", "sync_boost_policy"),
    3: ("power", "board_limit_policy"),
    5: ("other", "reliability_policy"),
}
"""nvmlPerfPolicyType_t; violationTime is in ns. Low utilization (4) slows nothing that was asked for."""

_POWER, _POWER_LIMIT = chip("power_watts"), chip("power_limit_watts")
_TEMPERATURE = chip("temperature_celsius", sensor="gpu")
_SM_CLOCK, _MEMORY_CLOCK = (chip("clock_hertz", clock=clock) for clock in ("sm", "memory"))
_MEMORY_USED, _MEMORY_TOTAL = chip("memory_used_bytes"), chip("memory_total_bytes")
_UTILIZATION = chip("utilization_ratio")
_ENERGY = chip("energy_joules_total")
_THROTTLED = {bit: throttled(*names) for bit, names in THROTTLE_BITS.items()}
_THROTTLE_TIME = {policy: throttle_seconds(*names) for policy, names in POLICIES.items()}


def power(nvml: Any, gpu: Gpu) -> Values:
    yield _POWER, scaled(nvml.nvmlDeviceGetPowerUsage(gpu.handle), 1e-3)


def power_limit(nvml: Any, gpu: Gpu) -> Values:
    yield _POWER_LIMIT, scaled(nvml.nvmlDeviceGetEnforcedPowerLimit(gpu.handle), 1e-3)


def temperature(nvml: Any, gpu: Gpu) -> Values:
    yield _TEMPERATURE, clean(nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU))


def clocks(nvml: Any, gpu: Gpu) -> Values:
    for series, domain in ((_SM_CLOCK, nvml.NVML_CLOCK_SM), (_MEMORY_CLOCK, nvml.NVML_CLOCK_MEM)):
        yield series, scaled(nvml.nvmlDeviceGetClockInfo(gpu.handle, domain), 1e6)


def memory(nvml: Any, gpu: Gpu) -> Values:
    found = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
    yield _MEMORY_USED, clean(found.used)
    yield _MEMORY_TOTAL, clean(found.total)


def utilization(nvml: Any, gpu: Gpu) -> Values:
    yield _UTILIZATION, scaled(nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu, 0.01)


def energy(nvml: Any, gpu: Gpu) -> Values:
    yield _ENERGY, gpu.counters.counted("energy", nvml.nvmlDeviceGetTotalEnergyConsumption(gpu.handle), 1e-3)


def throttle_bits(nvml: Any, gpu: Gpu) -> Values:
    """Drivers before 535 know the call by its older name only."""
    ask = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    try:
        raw = ask(gpu.handle)
    except nvml.NVMLError as error:
        if not type(error).__name__.endswith("FunctionNotFound"):
            raise
        raw = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu.handle)
    found, why = clean(raw)
    bits = int(found or 0)
    if bits & (HW_THERMAL | HW_POWER_BRAKE):
        bits &= ~0x8
    for bit, series in _THROTTLED.items():
        yield series, (None, why) if found is None else (int(bool(bits & bit)), "")


def policies(nvml: Any, gpu: Gpu) -> Values:
    for policy, series in _THROTTLE_TIME.items():
        name = POLICIES[policy][1]
        if name in gpu.unsupported:
            continue
        try:
            status = nvml.nvmlDeviceGetViolationStatus(gpu.handle, policy)
        except nvml.NVMLError as error:
            if not type(error).__name__.endswith(("NotSupported", "InvalidArgument")):
                raise
            gpu.unsupported.add(name)
            continue
        yield series, gpu.counters.counted(name, status.violationTime, 1e-9)


CALLS: tuple[Call, ...] = (
    power,
    power_limit,
    temperature,
    clocks,
    memory,
    utilization,
    energy,
    throttle_bits,
    policies,
)
MIG_CALLS: tuple[Call, ...] = (memory,)
