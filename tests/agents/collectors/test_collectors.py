"""Sources of counters: sentinels, wraps, absence, a GPU library that misbehaves."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.collectors import Accumulator, clean
from fleetscope.agents.collectors.host import HostCollector
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.collectors.peak import CACHE_NAME, cpu_peak
from fleetscope.agents.collectors.sentinels import clean_ratio, clean_time


@pytest.mark.unit
@pytest.mark.parametrize(
    ("value", "why"),
    [
        (0xFFFFFFFF, "all_ones"),
        (0xFFFFFFFFFFFFFFFF, "all_ones"),
        ((1 << 48) - 1, "all_ones"),
        (9223372036854775794, "blank"),
        (9223372036854775792, "blank"),
        (140737488355328.0, "blank"),
        (2147483632, "blank"),
        (math.nan, "not_a_number"),
        (math.inf, "infinite"),
        (None, "missing"),
        ("12", "missing"),
        (True, "missing"),
    ],
)
def test_sentinels_are_dropped_with_a_reason(value: object, why: str) -> None:
    assert clean(value) == (None, why)


@pytest.mark.unit
@pytest.mark.parametrize("value", [0, 1, -5, 0.0, 4294967294, 9223372036854775807, 1.5e14, 2**31])
def test_ordinary_values_pass(value: int | float) -> None:
    assert clean(value) == (value, "")


@pytest.mark.unit
def test_ratios_above_one_and_zero_stamps_are_refused() -> None:
    assert clean_ratio(100, 100) == (1.0, "")
    assert clean_ratio(101, 100) == (None, "out_of_range")
    assert clean_ratio(0xFFFFFFFF, 100) == (None, "all_ones")
    assert clean_time(0) == (None, "zero_timestamp")
    assert clean_time(5) == (5, "")


@pytest.mark.property
@given(st.integers(0, (1 << 48) - 1), st.lists(st.integers(0, (1 << 47) - 1), max_size=30))
def test_a_48_bit_counter_goes_on_counting_through_its_wraps(begin: int, moves: list[int]) -> None:
    counter, true = Accumulator(1 << 48), begin
    assert counter.add(begin) == begin
    for move in moves:
        true += move
        assert counter.add(true % (1 << 48)) == true
    assert counter.resets == 0


@pytest.mark.unit
def test_a_reset_counts_on_from_what_was_there() -> None:
    counter = Accumulator(1 << 64)
    for raw in (1000, 1500, 20, 30):
        counter.add(raw)
    assert (counter.total, counter.resets) == (1530, 1)


@pytest.mark.unit
def test_host_counters_of_this_machine() -> None:
    reading = HostCollector().read(time.monotonic() + 1)
    names = {sample.series.name for sample in reading.samples}
    assert {"fleetscope_host_cpu_seconds_total", "fleetscope_host_memory_total_bytes"} <= names
    assert all(sample.value >= 0 for sample in reading.samples)
    assert len({sample.series.id for sample in reading.samples}) == len(reading.samples)


@pytest.mark.unit
def test_no_driver_is_absence_not_error() -> None:
    collector = NvidiaCollector(FakeNvml([], init="NVMLError_LibraryNotFound"))
    assert collector.inventory() == []
    assert collector.read(time.monotonic() + 1).errors == {}
    broken = NvidiaCollector(FakeNvml([], init="NVMLError_LibRmVersionMismatch"))
    assert broken.inventory() == []
    assert broken.read(time.monotonic() + 1).errors["LibRmVersionMismatch"] >= 1


class FakeNvml:
    """As much of pynvml as the collector asks for. A GPU is a dict; a value that is a str names the error to raise."""

    NVML_TEMPERATURE_GPU, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: list[dict[str, Any]], init: str = "") -> None:
        self.gpus = gpus
        self.init = init

    def _error(self, name: str) -> Exception:
        return type(name, (self.NVMLError,), {})()

    def nvmlInit(self) -> None:
        if self.init:
            raise self._error(self.init)

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if "lost" in self.gpus[index]:
            raise self._error("NVMLError_GpuIsLost")
        return self.gpus[index]

    def _get(self, handle: dict[str, Any], key: str) -> Any:
        value = handle.get(key, "NVMLError_NotSupported")
        if isinstance(value, str) and value.startswith("NVMLError"):
            raise self._error(value)
        return value

    def nvmlDeviceGetUUID(self, handle: dict[str, Any]) -> str:
        return str(handle["uuid"])

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> bytes:
        return b"NVIDIA H200"

    def nvmlDeviceGetMigMode(self, handle: dict[str, Any]) -> tuple[int, int]:
        return (int("mig" in handle), 0)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: dict[str, Any]) -> int:
        return len(handle["mig"])

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: dict[str, Any], slot: int) -> dict[str, Any]:
        if handle["mig"][slot] is None:
            raise self._error("NVMLError_NotFound")
        found: dict[str, Any] = handle["mig"][slot]
        return found

    def nvmlDeviceGetPowerUsage(self, handle: dict[str, Any]) -> int:
        return int(self._get(handle, "power"))

    def nvmlDeviceGetTemperature(self, handle: dict[str, Any], sensor: int) -> int:
        return int(self._get(handle, "temperature"))

    def nvmlDeviceGetClockInfo(self, handle: dict[str, Any], domain: int) -> int:
        return int(self._get(handle, "clock"))

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(used=self._get(handle, "used"), total=1 << 37)

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(gpu=self._get(handle, "utilization"))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: dict[str, Any]) -> int:
        return int(self._get(handle, "energy"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: dict[str, Any]) -> int:
        return int(self._get(handle, "throttle"))

    def nvmlDeviceGetViolationStatus(self, handle: dict[str, Any], policy: int) -> SimpleNamespace:
        return SimpleNamespace(violationTime=self._get(handle, "violation"))


def values(collector: NvidiaCollector, device: str) -> dict[str, float]:
    reading = collector.read(time.monotonic() + 1)
    return {
        " ".join((s.series.name.removeprefix("fleetscope_chip_"), *(v for _, v in s.series.labels))): s.value
        for s in reading.samples
        if s.device == device
    }


@pytest.mark.unit
def test_a_gpu_in_base_units() -> None:
    gpu = {"uuid": "GPU-a1", "power": 650_000, "temperature": 71, "clock": 1755, "used": 5, "utilization": 98}
    gpu |= {"energy": 7000, "throttle": 0x4 | 0x40, "violation": 2_500_000_000}
    collector = NvidiaCollector(FakeNvml([gpu]))
    (device,) = collector.inventory()
    assert (device.key, device.platform, device.sku) == ("GPU-a1", "gpu", "NVIDIA H200")
    got = values(collector, "GPU-a1")
    assert got["power_watts"] == 650
    assert got["clock_hertz sm"] == 1_755_000_000
    assert got["utilization_ratio"] == 0.98
    assert got["energy_joules_total"] == 7
    assert got["throttle_seconds_total thermal"] == 2.5
    assert {name: got[f"throttled {name}"] for name in ("power_cap", "hw_thermal", "hw_slowdown")} == {
        "power_cap": 1,
        "hw_thermal": 1,
        "hw_slowdown": 0,
    }


@pytest.mark.fault
def test_one_bad_value_costs_one_series() -> None:
    gpu = {
        "uuid": "GPU-a1",
        "power": 0xFFFFFFFF,
        "temperature": "NVMLError_Unknown",
        "utilization": 4294967295,
        "used": 3,
    }
    collector = NvidiaCollector(FakeNvml([gpu]))
    reading = collector.read(time.monotonic() + 1)
    assert {s.series.name for s in reading.samples} == {
        "fleetscope_chip_memory_used_bytes",
        "fleetscope_chip_memory_total_bytes",
    }
    assert reading.refused == {"all_ones": 2}
    assert reading.errors == {"Unknown": 1}
    gpu["power"] = 1000
    assert values(collector, "GPU-a1")["power_watts"] == 1


@pytest.mark.fault
def test_identity_is_the_uuid_whatever_the_order_and_holes() -> None:
    gpus = [{"uuid": "GPU-a1", "power": 1000}, {"uuid": "GPU-b2", "power": 2000}]
    nvml = FakeNvml(gpus)
    collector = NvidiaCollector(nvml)
    collector.inventory()
    nvml.gpus = [{"lost": True}, {"uuid": "GPU-00000000-0000-0000-0000-000000000000"}, gpus[1], gpus[0]]
    assert sorted(device.key for device in collector.inventory()) == ["GPU-a1", "GPU-b2"]
    assert values(collector, "GPU-a1")["power_watts"] == 1
    assert values(collector, "GPU-b2")["power_watts"] == 2


@pytest.mark.unit
def test_each_mig_instance_once_beside_its_chip() -> None:
    slices = [{"uuid": f"MIG-{n}", "used": n, "power": 9} for n in range(1, 8)]
    collector = NvidiaCollector(FakeNvml([{"uuid": "GPU-a1", "power": 1000, "used": 28, "mig": [*slices, None]}]))
    devices = collector.inventory()
    assert [device.key for device in devices] == ["GPU-a1", *(f"MIG-{n}" for n in range(1, 8))]
    assert devices[1].partition == "GPU-a1/0"
    assert "power_watts" not in values(collector, "MIG-1")
    assert sum(values(collector, f"MIG-{n}")["memory_used_bytes"] for n in range(1, 8)) == 28


@pytest.mark.unit
def test_a_read_past_its_deadline_stops() -> None:
    collector = NvidiaCollector(FakeNvml([{"uuid": "GPU-a1", "power": 1000}]))
    collector.inventory()
    reading = collector.read(time.monotonic() - 1)
    assert list(reading.samples) == []
    assert reading.errors == {"deadline": 1}


@pytest.mark.unit
def test_the_cpu_peak_is_measured_once_a_boot(tmp_path: Path) -> None:
    peak = cpu_peak(tmp_path, "boot-1")
    assert peak is not None
    # Less than 1 GFLOP/s would be scalar code, more than 1 PFLOP/s no CPU.
    assert 1e9 < peak < 1e15
    assert json.loads((tmp_path / CACHE_NAME).read_text()) == {"boot_id": "boot-1", "flops_per_s": peak}
    begin = time.monotonic()
    assert cpu_peak(tmp_path, "boot-1") == peak
    assert time.monotonic() - begin < 0.1
    (tmp_path / CACHE_NAME).write_text('{"boot_id": "boot-0", "flops_per_s": 1}')
    assert cpu_peak(tmp_path, "boot-0") == 1
