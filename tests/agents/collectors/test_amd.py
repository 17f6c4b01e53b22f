"""AMD GPUs through a built amd-smi (dicts as its Python library answers). No GPU was here."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.collectors import Reading
from fleetscope.agents.collectors.amd import AmdCollector
from fleetscope.agents.collectors.amd_counter import AmdCounter
from fleetscope.agents.node.collect import CollectorRunner
from fleetscope.agents.simulated.vendors.amdsmi import FakeAmdSmi, FakeRenderNode, busy_gpu
from fleetscope.schema.metrics import metrics


def read(collector: AmdCollector) -> Reading:
    if not collector._gpus:
        collector.inventory()
    return collector.read(time.monotonic() + 5)


def values(reading: Reading, device: str) -> dict[str, float]:
    """Short name and label values -> value."""
    return {
        " ".join((s.series.name.removeprefix("fleetscope_chip_"), *(v for _, v in s.series.labels))): s.value
        for s in reading.samples
        if s.device == device
    }


@pytest.mark.unit
def test_no_driver_is_absence_not_error() -> None:
    assert AmdCollector(FakeAmdSmi([], init=34)).inventory() == []
    assert read(AmdCollector(FakeAmdSmi([], init=34))) == Reading((), {}, {})
    assert read(AmdCollector(FakeAmdSmi([], init=8))).errors == {"status_8": 1}


@pytest.mark.unit
def test_a_gpu_in_base_units_and_neutral_reasons() -> None:
    gpu = busy_gpu(1, pids=[41])
    smi = FakeAmdSmi([gpu])
    collector = AmdCollector(smi)
    (device,) = collector.inventory()
    key = gpu["uuid"]
    assert (device.key, device.local_name, device.sku) == (key, "0000:01:00.0", "AMD Instinct MI300X")
    reading = read(collector)
    got = values(reading, key)
    # By hand: uW, MHz, MiB, %, counts of 15.3 uJ, seven links of KiB; six of eight links up, one switched off.
    expected = {
        "power_watts": 740, "power_limit_watts": 750, "temperature_celsius junction": 92,
        "temperature_celsius memory": 70, "temperature_margin_celsius": 8, "clock_hertz gfx": 2_100_000_000,
        "memory_used_bytes": 150_000 << 20, "utilization_ratio": 0.97, "unit_active_ratio memory": 0.45,
        "energy_joules_total": 15.3, "ecc_errors_total corrected": 4, "ecc_errors_total uncorrected": 1,
        "link_bytes_total receive xgmi": 7000 << 10, "link_bytes_total transmit xgmi": 14000 << 10,
        "links xgmi up": 6, "links xgmi down": 1, "throttled power ppt_pwr": 1, "throttled thermal socket_thrm": 0,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == pytest.approx(expected)
    assert reading.holders == {key: {41}}
    assert (reading.errors, reading.refused.keys() - {"missing"}) == ({}, set())
    # What the chip has not is "N/A": no series (until AMD exporter 1.4.0 it was 0), and nothing that was lost.
    assert not [name for name in got if "media" in name or "hbm_thrm" in name]
    for sample in reading.samples:
        entry = metrics()[sample.series.name]
        assert {name for name, _ in sample.series.labels} | {"host", "device", "sku"} == set(entry.labels)
    collector.close()
    assert not smi.open


@pytest.mark.fault
def test_residencies_are_shares_of_the_time_between_reads_and_survive_a_reset() -> None:
    gpu = busy_gpu(1)
    collector = AmdCollector(FakeAmdSmi([gpu]))
    name = "throttle_seconds_total power ppt_pwr"
    assert name not in values(read(collector), gpu["uuid"])
    told = gpu["violations"]
    # Half of 2000 counts in violation, of 2 s: 1 s.
    gpu["violations"] = told | {"acc_counter": 3000, "acc_ppt_pwr": 1100, "reference_timestamp": 3_000_000}
    assert values(read(collector), gpu["uuid"])[name] == pytest.approx(1.0)
    gpu["violations"] = told | {"acc_counter": 10, "acc_ppt_pwr": 5, "reference_timestamp": 4_000_000}
    assert values(read(collector), gpu["uuid"])[name] == pytest.approx(1.0)
    gpu["violations"] = told | {"acc_counter": 20, "acc_ppt_pwr": 15, "reference_timestamp": 5_000_000}
    assert values(read(collector), gpu["uuid"])[name] == pytest.approx(2.0)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"power_info": {"socket_power": 0}}, ""),
        ({"power_info": 7}, "status_7"),
        ({"power_info": {"current_socket_power": 0xFFFFFFFF}}, "all_ones"),
    ],
)
def test_a_first_read_of_zero_or_an_error_keeps_no_series_away(first: dict[str, Any], reason: str) -> None:
    """AMD exporter 1.5.0 (RT-14): a first 0 W kept the power of that GPU away until the next start."""
    gpu = busy_gpu(1, **first)
    collector = AmdCollector(FakeAmdSmi([gpu]))
    reading = read(collector)
    assert values(reading, gpu["uuid"]).get("power_watts", 0) == 0
    assert reason in {*reading.errors, *reading.refused, ""}
    gpu["power_info"] = {"current_socket_power": 600, "average_socket_power": "N/A"}
    assert values(read(collector), gpu["uuid"])["power_watts"] == 600


@pytest.mark.fault
def test_partitions_once_each_beside_their_chip_and_bad_ids_rejected() -> None:
    """AMD exporter 233, 171 (RT-18): a virtual function's UUID of zeros, a partition id of 4294967295."""
    uuid = busy_gpu(1)["uuid"]
    parts = [
        busy_gpu(1, bdf=f"0000:01:00.{n}", partition=n, vram={"vram_total": 1000, "vram_used": n}, pids=[n])
        for n in range(8)
    ]
    zero = busy_gpu(9, uuid="00000000-0000-0000-0000-000000000000")
    odd = busy_gpu(3, partition=0xFFFFFFFF)
    twin = busy_gpu(1, bdf="0000:01:00.8", partition=7)
    collector = AmdCollector(FakeAmdSmi([*parts, zero, odd, twin]))
    devices = collector.inventory()
    assert [d.key for d in devices] == [uuid, *(f"{uuid}/{n}" for n in range(8)), odd["uuid"]]
    assert [d.partition for d in devices if d.partition] == [f"{uuid}/{n}" for n in range(8)]
    assert len({d.local_name for d in devices if d.local_name}) == 9  # a device plugin's address names one device
    reading = read(collector)
    assert reading.errors == {"zero_uuid": 1, "partition_id": 1, "same_partition": 1}
    assert values(reading, f"{uuid}/5")["memory_used_bytes"] == 5 << 20
    assert not [name for name in values(reading, f"{uuid}/5") if name.startswith("power")]
    assert reading.holders[uuid] == {*range(8)}
    assert reading.holders[f"{uuid}/3"] == {3}


@pytest.mark.fault
def test_one_call_that_fails_costs_its_own_series() -> None:
    """RT-23: the library decodes the names of processes itself, and raises for one that is no UTF-8."""
    gpu = busy_gpu(1, pids=UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), ecc=OSError("lost"))
    del gpu["links"]
    collector = AmdCollector(FakeAmdSmi([gpu]))
    for _ in range(2):
        reading = read(collector)
        got = values(reading, gpu["uuid"])
        assert {"power_watts", "links xgmi up"} <= got.keys()
        assert not [name for name in got if name.startswith(("ecc", "link_bytes"))]
        assert reading.errors == {"UnicodeDecodeError": 1, "OSError": 1}
        assert reading.holders == {}


@pytest.mark.fault
def test_a_chip_that_lacks_one_value_of_a_call_keeps_the_others() -> None:
    gpu = busy_gpu(1)
    del gpu["temperatures"]["junction critical"]
    collector = AmdCollector(FakeAmdSmi([gpu]))
    for _ in range(2):
        got = values(read(collector), gpu["uuid"])
        assert got["temperature_celsius junction"] == 92
        assert "temperature_margin_celsius" not in got


@pytest.mark.unit
def test_a_read_past_its_deadline_stops() -> None:
    collector = AmdCollector(FakeAmdSmi([busy_gpu(1)]))
    collector.inventory()
    assert collector.read(time.monotonic() - 1).errors == {"deadline": 1}


@pytest.fixture
def node(tmp_path: Path) -> Path:
    path = tmp_path / "pci-0000:01:00.0-render"
    path.write_bytes(b"")
    return path


@pytest.mark.unit
def test_a_gpus_counter_is_bracketed_at_the_rate_its_driver_says(node: Path) -> None:
    render = FakeRenderNode(khz=100_000)
    render.value = lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) // 10 + 7_000
    smi = FakeAmdSmi([busy_gpu(1), busy_gpu(2)])
    collector = AmdCollector(smi, lambda bdf: AmdCounter(bdf, render.ioctl, node.parent))
    collector.inventory()
    (clock,) = collector.clocks()  # the other has no node here
    found = clock.snapshot()
    assert (found.clock.clock, found.clock.device) == ("amdgpu", smi.gpus[0]["uuid"])
    assert (found.clock.period_num, found.clock.period_den, found.clock.width_bits) == (10, 1, 64)
    assert found.ref.clock == "monotonic_raw"
    assert found.ref_before // 10 <= found.value - 7_000 <= found.ref_after // 10
    assert render.asked.count(0x16) == 1
    collector.close()
    assert collector._clocks == {}


@pytest.mark.fault
def test_a_driver_without_a_rate_and_a_node_that_is_gone_cost_no_values(node: Path) -> None:
    silent = FakeRenderNode(khz=0)
    collector = AmdCollector(FakeAmdSmi([busy_gpu(1)]), lambda bdf: AmdCounter(bdf, silent.ioctl, node.parent))
    collector.inventory()
    assert collector.clocks() == []
    render = FakeRenderNode()

    def gone() -> int:
        raise OSError(errno.ENODEV, "No such device")

    render.value = gone
    collector = AmdCollector(FakeAmdSmi([busy_gpu(1)]), lambda bdf: AmdCounter(bdf, render.ioctl, node.parent))
    collector.inventory()
    runner = CollectorRunner(collector, 1.0, lambda: 0)
    runner._keep(collector.read(time.monotonic() + 5), runner._brackets())
    assert runner.errors["clock"] == 1
    assert runner.latest()
    collector.close()


@pytest.mark.unit
def test_the_agent_is_no_holder_of_a_gpu_whose_counter_it_reads() -> None:
    gpu = busy_gpu(1, pids=[41, os.getpid()])
    assert read(AmdCollector(FakeAmdSmi([gpu]))).holders == {gpu["uuid"]: {41}}
