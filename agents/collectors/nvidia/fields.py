"""What NVML tells by field numbers, all of a GPU in one call: errors, repairs, links, the margin to the slowdown."""

from typing import Any

from fleetscope.agents.collectors.named import chip, throttle_seconds
from fleetscope.agents.collectors.nvidia.gpu import Gpu, Values, is_unsupported
from fleetscope.agents.collectors.sentinels import clean, scaled

ALL_LINKS = 0xFFFFFFFF
LINKS = 18
"""Of Hopper and Blackwell; asking for more than a chip has is answered with an error of that link alone."""
GET_STATE, SLOWDOWN_TLIMIT, MEMORY_TEMPERATURE = 165, 194, 82
KIB = 1024

_COUNTERS = {
    5: (chip("ecc_errors_total", severity="corrected"), 1),
    6: (chip("ecc_errors_total", severity="uncorrected"), 1),
    38: (chip("link_errors_total", link="nvlink", kind="crc"), 1),
    52: (chip("link_errors_total", link="nvlink", kind="replay"), 1),
    59: (chip("link_errors_total", link="nvlink", kind="recovery"), 1),
    94: (chip("link_errors_total", link="pcie", kind="replay"), 1),
    269: (throttle_seconds("thermal", "sw_thermal"), 1e-9),
    270: (throttle_seconds("thermal", "hw_thermal"), 1e-9),
    271: (throttle_seconds("power_brake", "hw_power_brake"), 1e-9),
}
_TRAFFIC = {
    138: (chip("link_bytes_total", link="nvlink", direction="transmit"), KIB),
    139: (chip("link_bytes_total", link="nvlink", direction="receive"), KIB),
}
"""Where GPM does not count them."""
_GAUGES = {
    142: chip("remapped_rows", severity="corrected"),
    143: chip("remapped_rows", severity="uncorrected"),
    144: chip("memory_repair", state="pending"),
    145: chip("memory_repair", state="failed"),
}
_STATES = {state: chip("links", link="nvlink", state=state) for state in ("up", "degraded", "down")}
_STATE_NAMES = {0: "down", 1: "up", 2: "up", 3: "degraded"}
"""NVML_NVLINK_STATE_*: a link that sleeps wakes by itself; one that is up and carries no traffic does not."""
_MARGIN = chip("temperature_margin_celsius")
_MEMORY_HEAT = chip("temperature_celsius", sensor="memory")

_KINDS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t -> member of the value's union"""


def _value(field: Any) -> Any:
    """The value of one field, None where it has none now."""
    if field.nvmlReturn:
        return None
    return getattr(field.value, _KINDS.get(int(field.valueType), "ullVal"))


def _modulus(field: Any) -> int:
    return 1 << 32 if int(field.valueType) in (1, 5) else 1 << 64


def fields(nvml: Any, gpu: Gpu) -> Values:
    """A field the chip does not have is no value and no error; one that answered once and then does not is absent."""
    counters = _COUNTERS if gpu.gpm and "gpm" not in gpu.unsupported else {**_COUNTERS, **_TRAFFIC}
    asked = [(number, ALL_LINKS if number in _TRAFFIC else 0) for number in (*counters, *_GAUGES, MEMORY_TEMPERATURE)]
    asked.append((SLOWDOWN_TLIMIT, 0))
    asked += [(GET_STATE, link) for link in range(LINKS)]
    found = list(nvml.nvmlDeviceGetFieldValues(gpu.handle, asked))
    links: list[str] = []
    limit: float | None = None
    for (number, _), field in zip(asked, found, strict=True):
        raw = _value(field)
        if raw is None:
            continue
        if number in counters:
            series, factor = counters[number]
            yield series, gpu.counters.counted(f"field {number}", raw, factor, _modulus(field))
        elif number in _GAUGES:
            yield _GAUGES[number], clean(raw)
        elif number == MEMORY_TEMPERATURE:
            yield _MEMORY_HEAT, clean(raw)
        elif number == SLOWDOWN_TLIMIT:
            limit = scaled(raw, 1)[0]
        else:
            links.append(_STATE_NAMES.get(int(raw), "degraded"))
    if links:
        for state, series in _STATES.items():
            yield series, (links.count(state), "")
    yield from _margin(nvml, gpu, limit)


def _margin(nvml: Any, gpu: Gpu, limit: float | None) -> Values:
    """Degrees to the slowdown. Newer chips tell their distance to the operating limit, and where the slowdown lies
    from there (-2 on H100, -3 on B200); older ones an absolute threshold."""
    try:
        margin, why = scaled(nvml.nvmlDeviceGetMarginTemperature(gpu.handle), 1)
        yield _MARGIN, (None if margin is None else margin - (limit or 0.0), why)
        return
    except nvml.NVMLError as error:
        if not is_unsupported(error):
            raise
    threshold = nvml.nvmlDeviceGetTemperatureThreshold(gpu.handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
    now, why = clean(nvml.nvmlDeviceGetTemperature(gpu.handle, nvml.NVML_TEMPERATURE_GPU))
    yield _MARGIN, (None if now is None else threshold - now, why)
