"""NVIDIA GPUs through a built NVML (its own structures and errors, our answers). No GPU was here."""

import time
from typing import Any

import pytest

from fleetscope.agents.collectors import Reading
from fleetscope.agents.collectors.named import THROTTLE_REASONS
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.collectors.nvidia import collector as module
from fleetscope.agents.simulated.vendors.nvml import FakeNvml, busy_gpu
from fleetscope.schema.metrics import metrics


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes slowly is read at every read."""
    monkeypatch.setattr(module, "STANDING_S", 0.0)


def read(collector: NvidiaCollector) -> Reading:
    if not collector._gpus:
        collector.inventory()
    return collector.read(time.monotonic() + 5)


def values(collector: NvidiaCollector, device: str) -> dict[str, float]:
    """Short name and label values -> value."""
    return {
        " ".join((s.series.name.removeprefix("fleetscope_chip_"), *(v for _, v in s.series.labels))): s.value
        for s in read(collector).samples
        if s.device == device
    }


@pytest.mark.unit
def test_no_driver_is_absence_not_error() -> None:
    collector = NvidiaCollector(FakeNvml([], init="NVMLError_LibraryNotFound"))
    assert collector.inventory() == []
    assert read(collector).errors == {}
    broken = NvidiaCollector(FakeNvml([], init="NVMLError_LibRmVersionMismatch"))
    assert broken.inventory() == []
    assert read(broken).errors["LibRmVersionMismatch"] >= 1


@pytest.mark.unit
def test_a_gpu_in_base_units_and_neutral_reasons() -> None:
    gpu = busy_gpu(1, reasons=0x4 | 0x8 | 0x40, pids=[41, 42], minor=3)
    collector = NvidiaCollector(FakeNvml([gpu]))
    (device,) = collector.inventory()
    key = gpu["uuid"]
    assert (device.key, device.platform, device.sku) == (key, "gpu", "NVIDIA H200")
    got = values(collector, key)
    # By hand from the dict: mW, MHz, %, mJ, ns, KiB.
    expected = {
        "power_watts": 650, "power_limit_watts": 700, "clock_hertz sm": 1_755_000_000, "utilization_ratio": 0.98,
        "energy_joules_total": 7000, "temperature_celsius gpu": 71, "temperature_celsius memory": 88,
        "throttle_seconds_total thermal thermal_policy": 2.5, "throttle_seconds_total thermal sw_thermal": 4,
        "throttled power sw_power_cap": 1, "throttled thermal hw_thermal": 1, "throttled thermal sw_thermal": 0,
        "throttled power_brake hw_power_brake": 0, "throttled sync sync_boost": 0,
        "ecc_errors_total corrected": 3, "remapped_rows corrected": 1, "memory_repair pending": 0,
        "links nvlink up": 18, "links nvlink down": 0,
        "link_errors_total replay pcie": 1,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    # The slowdown has a cause that is told, so it is none of its own; 16 degrees to the limit, 2 more to the slowdown.
    assert got["throttled other hw_slowdown"] == 0
    assert got["temperature_margin_celsius"] == 18
    reading = read(collector)
    assert reading.holders == {key: {41, 42}}
    assert reading.paths == {key: "/dev/nvidia3"}
    assert reading.errors == {}
    reasons = {dict(s.series.labels).get("reason") for s in reading.samples if "throttle" in s.series.name}
    assert reasons - {None} <= set(THROTTLE_REASONS)
    for sample in reading.samples:
        entry = metrics()[sample.series.name]
        assert {name for name, _ in sample.series.labels} | {"host", "device", "sku"} == set(entry.labels)


@pytest.mark.unit
def test_a_slowdown_without_a_cause_and_the_threshold_of_an_older_chip() -> None:
    gpu = busy_gpu(1, reasons=0x8, threshold=90)
    del gpu["margin"], gpu["gpm"], gpu["fields"][194]
    got = values(NvidiaCollector(FakeNvml([gpu])), gpu["uuid"])
    assert (got["throttled other hw_slowdown"], got["throttled thermal hw_thermal"]) == (1, 0)
    assert got["temperature_margin_celsius"] == 90 - 71
    assert not [name for name in got if name.startswith("unit_active")]
    assert got["link_bytes_total transmit nvlink"] == 1 << 40


@pytest.mark.fault
def test_a_chip_that_lacks_one_value_of_a_call_keeps_the_others() -> None:
    gpu = busy_gpu(1, violations={0: 10**9})
    del gpu["margin"], gpu["fields"][269]
    collector = NvidiaCollector(FakeNvml([gpu]))
    for _ in range(3):
        got = values(collector, gpu["uuid"])
        assert {"ecc_errors_total corrected", "throttle_seconds_total power power_policy"} <= got.keys()
        assert not {"temperature_margin_celsius", "throttle_seconds_total thermal thermal_policy"} & got.keys()
    assert read(collector).errors == {}


@pytest.mark.unit
def test_units_of_a_chip_with_gpm_from_its_second_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.5, 13.0])
    monkeypatch.setattr("fleetscope.agents.collectors.nvidia.gpm.monotonic", lambda: next(now))
    gpu = busy_gpu(1)
    nvml = FakeNvml([gpu])
    collector = NvidiaCollector(nvml)
    assert not [name for name in values(collector, gpu["uuid"]) if name.startswith("unit_active")]
    got = values(collector, gpu["uuid"])
    assert (got["unit_active_ratio tensor"], got["unit_active_ratio memory"]) == (0.625, 0.55)
    # 100 MiB/s for 2.5 s, then 40 for half a second; never twice, once by GPM and once by a field
    assert got["link_bytes_total transmit pcie"] == 250 << 20
    gpu["gpm"][20] = 40.0
    assert values(collector, gpu["uuid"])["link_bytes_total transmit pcie"] == 270 << 20
    collector.close()
    assert nvml.samples == {}


@pytest.mark.fault
def test_one_bad_value_costs_one_series() -> None:
    """slurm-job-exporter 30 and 53 (RT-12): one blank made the page an error."""
    gpu = busy_gpu(1, power=0xFFFFFFFF, temperature="NVMLError_Unknown", utilization=4294967295, used=3)
    gpu["fields"][5] = 9223372036854775794
    collector = NvidiaCollector(FakeNvml([gpu]))
    reading = read(collector)
    names = {s.series.name.removeprefix("fleetscope_chip_") for s in reading.samples}
    assert not names & {"power_watts", "utilization_ratio"}
    assert {"memory_used_bytes", "energy_joules_total", "remapped_rows"} <= names
    assert reading.refused == {"all_ones": 2, "blank": 1}
    assert reading.errors == {"Unknown": 1}
    # AMD exporter 1.5.0 (RT-14): a first sample that is bad must not keep the series away.
    gpu["power"] = 1000
    assert values(collector, gpu["uuid"])["power_watts"] == 1


@pytest.mark.fault
def test_identity_is_the_uuid_whatever_the_order_and_holes() -> None:
    """jobstats 34, nvidia_gpu_exporter 93 (RT-17); a virtual function's UUID of zeros (RT-18)."""
    gpus: list[dict[str, Any]] = [{"uuid": "GPU-a1", "power": 1000}, {"uuid": "GPU-b2", "power": 2000}]
    nvml = FakeNvml(gpus)
    collector = NvidiaCollector(nvml)
    collector.inventory()
    nvml.gpus = [{"lost": True}, {"uuid": "GPU-00000000-0000-0000-0000-000000000000"}, gpus[1], gpus[0], gpus[0]]
    assert sorted(device.key for device in collector.inventory()) == ["GPU-a1", "GPU-b2"]
    assert values(collector, "GPU-a1")["power_watts"] == 1
    assert values(collector, "GPU-b2")["power_watts"] == 2
    assert read(collector).errors == {}
    collector.inventory()
    assert read(collector).errors == {"GpuIsLost": 1, "zero_uuid": 1, "same_uuid": 1}


@pytest.mark.fault
def test_a_name_that_is_no_text_is_shown_inert() -> None:
    """tracee PR 4894, tpu-info 0.14.1 (RT-23): bytes that are no UTF-8, a terminal's escape, 64 KiB of it."""
    gpus = [busy_gpu(1, name=b"H\xff\x1b[31m200\0"), busy_gpu(2, name=b"x" * 65536)]
    first, second = NvidiaCollector(FakeNvml(gpus)).inventory()
    assert first.sku == "H\\xff\\x1b[31m200\\x00"
    assert len(second.sku) <= 128


@pytest.mark.fault
def test_each_mig_instance_once_beside_its_chip() -> None:
    """dcgm-exporter 353, 577 (RT-18): instances twice, or without a name. Their sum is the chip."""
    slices = [{"uuid": f"MIG-{n}", "used": n, "power": 9, "instance": n, "gpm": {1: 50.0, 2: n}} for n in range(1, 8)]
    chip = busy_gpu(1, used=28, mig=[*slices, None], utilization="NVMLError_NotSupported")
    collector = NvidiaCollector(FakeNvml([chip]))
    devices = collector.inventory()
    assert [device.key for device in devices] == [chip["uuid"], *(f"MIG-{n}" for n in range(1, 8))]
    assert devices[1].partition == f"{chip['uuid']}/0"
    read(collector)
    got = [values(collector, f"MIG-{n}") for n in range(1, 8)]
    assert "power_watts" not in got[0]
    assert sum(value["memory_used_bytes"] for value in got) == 28
    assert [value["unit_active_ratio sm"] for value in got] == pytest.approx([n / 100 for n in range(1, 8)])
    assert got[0]["utilization_ratio"] == 0.5
    assert "utilization_ratio" not in values(collector, chip["uuid"])


@pytest.mark.fault
def test_a_xid_is_counted_once_and_a_storm_of_codes_is_bounded() -> None:
    """dcgm-exporter 500, 190, DCGM 277 (RT-15): a gauge of the last Xid stays for ever. 235: Xid 62 was left out."""
    gpus = [busy_gpu(1), busy_gpu(2, no_events=True)]
    nvml = FakeNvml(gpus)
    collector = NvidiaCollector(nvml)
    collector.inventory()
    nvml.faults += [(gpus[0], 62), (gpus[0], 31), (gpus[0], 62)]
    key = gpus[0]["uuid"]
    for _ in range(3):
        got = values(collector, key)
        assert (got["faults_total xid_62"], got["faults_total xid_31"]) == (2, 1)
    nvml.faults += [(gpus[0], code) for code in range(1000, 1200)]
    for _ in range(4):
        got = values(collector, key)
    codes = {name: value for name, value in got.items() if name.startswith("faults_total")}
    assert len(codes) == 33
    assert sum(codes.values()) == 203
    assert not [name for name in values(collector, gpus[1]["uuid"]) if name.startswith("faults")]


@pytest.mark.fault
def test_counters_go_on_through_resets_and_wraps() -> None:
    """dynolog PR 595 (RT-10, RT-11): what follows a reset counts from 0, and the total never falls."""
    gpu = busy_gpu(1, energy=5000, violations={0: 10**9, 1: 2 * 10**9, 2: 0})
    collector = NvidiaCollector(FakeNvml([gpu]))
    assert values(collector, gpu["uuid"])["energy_joules_total"] == 5
    gpu |= {"energy": 1000, "violations": {0: (1 << 64) - 10**9, 1: 5 * 10**8, 2: 0}}
    got = values(collector, gpu["uuid"])
    assert got["energy_joules_total"] == 6
    assert got["throttle_seconds_total thermal thermal_policy"] == 2.5
    gpu["violations"][0] = 10**9
    wrapped = values(collector, gpu["uuid"])["throttle_seconds_total power power_policy"]
    assert wrapped - got["throttle_seconds_total power power_policy"] == pytest.approx(2)


@pytest.mark.unit
def test_a_read_past_its_deadline_stops() -> None:
    collector = NvidiaCollector(FakeNvml([busy_gpu(1)]))
    collector.inventory()
    reading = collector.read(time.monotonic() - 1)
    assert list(reading.samples) == []
    assert reading.errors == {"deadline": 1}


@pytest.mark.unit
def test_what_changes_slowly_stands_between_its_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STANDING_S", 3600.0)
    gpu = busy_gpu(1)
    collector = NvidiaCollector(FakeNvml([gpu]))
    first, second = read(collector), read(collector)
    shipped = {s.series.name for s in second.samples}
    standing = {s.series.name for s in second.standing}
    assert "fleetscope_chip_ecc_errors_total" in {s.series.name for s in first.samples}
    assert "fleetscope_chip_ecc_errors_total" in standing - shipped
    assert first.standing == []
