"""GPU Performance Monitoring (Hopper and newer): how busy the units of a chip or MIG instance were between two samples.

Unlike the counters of DCGM's profiling module it needs no exclusive lock: a user's Nsight or CUPTI session goes on.
"""

from time import monotonic
from typing import Any

from fleetscope.agents.collectors.named import chip
from fleetscope.agents.collectors.nvidia.gpu import Gpu, Values
from fleetscope.agents.collectors.sentinels import clean, scaled

MIB = 1 << 20
_RATIOS = {
    2: chip("unit_active_ratio", unit="sm"),
    3: chip("unit_active_ratio", unit="occupancy"),
    4: chip("unit_active_ratio", unit="int"),
    5: chip("unit_active_ratio", unit="tensor"),
    10: chip("unit_active_ratio", unit="memory"),
    11: chip("unit_active_ratio", unit="fp64"),
    12: chip("unit_active_ratio", unit="fp32"),
    13: chip("unit_active_ratio", unit="fp16"),
}
_RATES = {
    20: chip("link_bytes_total", link="pcie", direction="transmit"),
    21: chip("link_bytes_total", link="pcie", direction="receive"),
    60: chip("link_bytes_total", link="nvlink", direction="receive"),
    61: chip("link_bytes_total", link="nvlink", direction="transmit"),
}
"""MiB/s over the time between the samples; added up they are a counter of bytes."""
_UTILIZATION = chip("utilization_ratio")
GRAPHICS = 1
"""Time with any work: what the driver's own utilization is of a whole chip. An instance has no other."""


def ready(nvml: Any, gpu: Gpu) -> bool:
    """Whether the chip has GPM; then two samples are set up. Raises NVMLError."""
    if not gpu.gpm:
        if not nvml.nvmlGpmQueryDeviceSupport(gpu.parent).isSupportedDevice:
            return False
        gpu.gpm = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
    return True


def gpm(nvml: Any, gpu: Gpu) -> Values:
    """Nothing at the first read: a ratio needs two."""
    if not ready(nvml, gpu):
        gpu.unsupported.add("gpm")
        return
    earlier, later = gpu.gpm
    if gpu.whole:
        nvml.nvmlGpmSampleGet(gpu.handle, later)
    else:
        nvml.nvmlGpmMigSampleGet(gpu.parent, nvml.nvmlDeviceGetGpuInstanceId(gpu.handle), later)
    before_s, gpu.gpm_at_s = gpu.gpm_at_s, monotonic()
    gpu.gpm = [later, earlier]
    if not before_s:
        return
    asked = nvml.c_nvmlGpmMetricsGet_t()
    wanted = [*_RATIOS, *([] if gpu.whole else [GRAPHICS]), *_RATES]
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(wanted)
    asked.sample1, asked.sample2 = earlier, later
    for place, number in enumerate(wanted):
        asked.metrics[place].metricId = number
    nvml.nvmlGpmMetricsGet(asked)
    passed_s = gpu.gpm_at_s - before_s
    for place, number in enumerate(wanted):
        metric = asked.metrics[place]
        if metric.nvmlReturn:
            continue
        if number in _RATES:
            rate, why = clean(metric.value)
            name = f"gpm {number}"
            total = None if rate is None else gpu.sums.get(name, 0.0) + max(rate, 0.0) * MIB * passed_s
            if total is not None:
                gpu.sums[name] = total
            yield _RATES[number], (total, why)
        else:
            yield _RATIOS.get(number, _UTILIZATION), scaled(metric.value, 0.01)


def free(nvml: Any, gpu: Gpu) -> None:
    """Gives the driver's memory back. Raises NVMLError."""
    samples, gpu.gpm, gpu.gpm_at_s = gpu.gpm, [], 0.0
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
