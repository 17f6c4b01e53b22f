"""TPUs: a built host, a real gRPC metric server, the SDK's rows, the plugin's page. No TPU was here."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fleetscope.agents.collectors import Reading
from fleetscope.agents.collectors.tpu import TpuCollector
from fleetscope.agents.collectors.tpu import collector as module
from fleetscope.agents.collectors.tpu.sdk import Sdk
from fleetscope.agents.simulated.vendors.tpu import (
    V4,
    V7X,
    Monitoring,
    Plugin,
    Runtime,
    distribution,
    gauges,
    tree,
)
from fleetscope.schema import tpu_runtime_pb2 as runtime_pb

DUTY, HBM_USED = "tpu.runtime.tensorcore.dutycycle.percent", "tpu.runtime.hbm.memory.usage.bytes"
TIMES = "megascale.dcn_transfer_latencies.microsecond.cumulative.distribution"


class NoSdk(Sdk):
    """As where libtpu is not installed."""

    there = False  # type: ignore[assignment]


@pytest.fixture
def server() -> Iterator[Runtime]:
    found = Runtime()
    yield found
    found.close()


@pytest.fixture
def plugin() -> Iterator[Plugin]:
    found = Plugin()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Holders and distributions are looked at in every read."""
    monkeypatch.setattr(module, "HOLDERS_S", 0.0)
    monkeypatch.setattr(module, "HISTOGRAMS_S", 0.0)


def collect(root: Path, server: Runtime | None = None, plugin: Plugin | None = None, sdk: Any = None) -> TpuCollector:
    address = f"127.0.0.1:{server.port}" if server is not None else "127.0.0.1:1"
    url = plugin.url if plugin is not None else "http://127.0.0.1:1/metrics"
    return TpuCollector("h", address, url, root, Sdk(sdk) if sdk is not None else NoSdk())


def read(collector: TpuCollector) -> Reading:
    collector.inventory()
    try:
        return collector.read(time.monotonic() + 20)
    finally:
        collector.close()


def key(number: int) -> str:
    return f"h/pci/0000:00:{4 + number:02x}.0"


def told(reading: Reading, name: str, *labels: str) -> dict[str, float]:
    """Device -> value of one series."""
    return {
        s.device: s.value
        for s in reading.samples
        if s.series.name == f"fleetscope_chip_{name}" and tuple(v for _, v in s.series.labels) == labels
    }


@pytest.mark.unit
def test_without_a_chip_on_the_bus_nothing_is_asked(tmp_path: Path) -> None:
    collector = TpuCollector("h", "nowhere:1", "http://nowhere:1/", tree(tmp_path, 0))
    assert collector.inventory() == []
    assert collector.read(0.0) == Reading()


@pytest.mark.unit
@pytest.mark.parametrize(("device", "sku"), [("0x006f", "TPU v6e"), (V4, "TPU v4")])
def test_chips_by_address_and_who_has_them_open(tmp_path: Path, device: str, sku: str) -> None:
    """VFIO groups and accel numbers are followed, not counted: here groups run against the addresses."""
    collector = collect(tree(tmp_path, 4, device, {70: [0, 2], 71: []}))
    assert [(d.key, d.sku, d.local_ordinal) for d in collector.inventory()] == [(key(n), sku, n) for n in range(4)]
    reading = read(collector)
    assert reading.holders == {key(0): {70}, key(1): set(), key(2): {70}, key(3): set()}
    vfio = {key(n): f"/dev/vfio/{4 - n}" for n in range(4)}
    assert reading.paths == (vfio if device != V4 else {key(n): f"/dev/accel{n}" for n in range(4)})


@pytest.mark.unit
def test_the_first_alias_that_answers_is_taken_and_an_empty_one_is_not(
    tmp_path: Path, server: Runtime, plugin: Plugin
) -> None:
    server.answers = {DUTY: gauges(DUTY, [(1, 50.0), (0, 25.0)], ordinal_as_text=True), HBM_USED: gauges(HBM_USED, [])}
    plugin.text = "".join(f'memory_used{{make="cloud-tpu",accelerator_id="u-{n}"}} {n + 1}\n' for n in range(2))
    plugin.text += 'memory_used{accelerator_id="u-0",namespace="a",pod="p",container="c"} 99\n'
    plugin.text += (
        'memory_bandwidth_utilization{accelerator_id="u-0"} 10\nmemory_bandwidth_utilization{accelerator_id="u-1"} 20\n'
    )
    sdk = Monitoring({"duty_cycle_pct": [], "tensorcore_util": ["12.5", "75"]})
    reading = read(collect(tree(tmp_path, 2), server, plugin, sdk))
    assert told(reading, "utilization_ratio") == {key(0): 0.25, key(1): 0.5}
    assert told(reading, "unit_active_ratio", "tensor") == {key(0): 0.125, key(1): 0.75}
    assert told(reading, "unit_active_ratio", "memory") == {key(0): 0.1, key(1): 0.2}
    # The series with a pod says again what that without says: a chip handed over would count twice.
    assert told(reading, "memory_used_bytes") == {key(0): 1, key(1): 2}
    assert reading.errors == {}


@pytest.mark.unit
def test_cores_make_one_chip(tmp_path: Path, server: Runtime) -> None:
    """Memory is told of each core, the duty cycle of each chip (TPU7x has two cores a chip)."""
    server.answers = {
        DUTY: gauges(DUTY, [(0, 30.0), (1, 60.0)]),
        HBM_USED: gauges(HBM_USED, [(n, 10.0 * 2**n) for n in range(4)]),
    }
    reading = read(collect(tree(tmp_path, 2, V7X), server))
    assert told(reading, "utilization_ratio") == {key(0): 0.3, key(1): 0.6}
    assert told(reading, "memory_used_bytes") == {key(0): 30, key(1): 120}


@pytest.mark.unit
@pytest.mark.parametrize("as_attribute", [False, True])
def test_throttling_and_links_of_the_sdk(tmp_path: Path, as_attribute: bool) -> None:
    rows = [f"tray1.chip{chip}.ici{link}.int: 0" for chip in (1, 2) for link in range(4)]
    rows[5:7] = ["tray1.chip2.ici1.int: 3", "tray1.chip2.ici2.ext: 10"]
    sdk = Monitoring({"tpu_throttle_score": ["0", "4"], "ici_link_health": [*rows, "no link"]}, as_attribute)
    reading = read(collect(tree(tmp_path, 2), sdk=sdk))
    assert told(reading, "throttled", "other", "tpu_throttle_score") == {key(0): 0, key(1): 1}
    assert told(reading, "links", "ici", "up") == {key(0): 4, key(1): 2}
    assert told(reading, "links", "ici", "degraded") == {key(0): 0, key(1): 1}
    assert told(reading, "links", "ici", "down") == {key(0): 0, key(1): 1}


@pytest.mark.unit
def test_distributions_stay_buckets_and_add_up_by_size(tmp_path: Path, server: Runtime) -> None:
    """By hand: bounds 100, 200, 400 us; two of one size together hold 1 + 1, 2 + 0, 3 + 4 and 1 above."""
    answer = runtime_pb.MetricResponse()
    answer.metric.metrics.append(distribution([1, 2, 3, 1], 100, 2, 300.0, "8MB+"))
    answer.metric.metrics.append(distribution([1, 0, 4, 0], 100, 2, 200.0, "8MB+"))
    answer.metric.metrics.append(distribution([0, 0, 0, 0], 100, 2, 0.0, "1MB"))
    server.answers = {TIMES: answer.SerializeToString()}
    reading = read(collect(tree(tmp_path, 2), server))
    found = {
        (s.series.name.removeprefix("fleetscope_tpu_operation_seconds_"), dict(s.series.labels).get("le", "")): s.value
        for s in reading.samples
        if "operation" in s.series.name
    }
    assert found == {
        ("bucket", "0.0001"): 2, ("bucket", "0.0002"): 4, ("bucket", "0.0004"): 11, ("bucket", "+Inf"): 12,
        ("count", ""): 12, ("sum", ""): pytest.approx((7 * 300 + 5 * 200) * 1e-6),
    }  # fmt: skip


@pytest.mark.fault
def test_distributions_without_an_event_and_with_absurd_buckets_are_absent(tmp_path: Path, server: Runtime) -> None:
    """tpu-info 0.14.1 (RT-16): a division by the zero programs that had run."""
    answer = runtime_pb.MetricResponse()
    answer.metric.metrics.append(distribution([], 0, 0, 0.0))
    answer.metric.metrics.append(distribution([1, 2], 0.0, 2, 5.0))
    answer.metric.metrics.append(distribution([1, 2], 10, 1.0, 5.0))
    answer.metric.metrics.append(distribution([1] * 5000, 1, 2, 5.0))
    answer.metric.metrics.add()
    server.answers = {TIMES: answer.SerializeToString(), DUTY: gauges(DUTY, [(0, float("nan")), (1, 40.0)])}
    reading = read(collect(tree(tmp_path, 2), server))
    assert [s.value for s in reading.samples] == [0.4]
    assert reading.refused == {"not_a_number": 1}
    assert reading.errors == {}


@pytest.mark.fault
def test_two_numbering_schemes_are_one_set_of_chips(tmp_path: Path, server: Runtime, plugin: Plugin) -> None:
    """ml-training-platform (RT-19): the duty cycle by the place in the slice, the tensor cores by 0-3; a join by number
    found 970 chips among 512."""
    server.answers = {DUTY: gauges(DUTY, [(508 + n, 10.0 * n) for n in range(4)])}
    plugin.text = "".join(f'tensorcore_utilization{{accelerator_id="u-{n}"}} {20 + n}\n' for n in range(4))
    plugin.text += 'memory_used{accelerator_id="u-0"} 7\nmemory_used{accelerator_id="u-1"} 7\n'
    reading = read(collect(tree(tmp_path, 4), server, plugin))
    assert told(reading, "utilization_ratio") == pytest.approx({key(n): 0.1 * n for n in range(4)})
    assert told(reading, "unit_active_ratio", "tensor") == pytest.approx({key(n): 0.2 + 0.01 * n for n in range(4)})
    # Two numbers for four chips: whose they are nobody knows.
    assert told(reading, "memory_used_bytes") == {}
    assert reading.refused == {"unmapped": 2}
    assert {s.device for s in reading.samples} == {key(n) for n in range(4)}


@pytest.mark.fault
def test_a_second_tenant_of_the_port_is_told_and_nothing_is_attributed(
    tmp_path: Path, server: Runtime, plugin: Plugin
) -> None:
    """marin 7392 (RT-19): the port is the host's, and one of two runtimes answers."""
    server.answers = {DUTY: gauges(DUTY, [(0, 90.0), (1, 90.0)])}
    plugin.text = "".join(f'duty_cycle{{accelerator_id="u-{n}"}} {n}\n' for n in range(4))
    reading = read(collect(tree(tmp_path, 4, holders={70: [0, 1], 71: [2, 3]}), server, plugin))
    assert reading.errors == {"shared_port": 1}
    assert told(reading, "utilization_ratio") == pytest.approx({key(n): n / 100 for n in range(4)})


@pytest.mark.fault
def test_one_tenant_with_some_of_the_chips(tmp_path: Path, server: Runtime) -> None:
    server.answers = {DUTY: gauges(DUTY, [(0, 90.0), (1, 80.0)])}
    reading = read(collect(tree(tmp_path, 4, holders={70: [1, 3]}), server))
    assert told(reading, "utilization_ratio") == {key(1): 0.9, key(3): 0.8}


@pytest.mark.fault
@pytest.mark.parametrize(
    ("status", "reason"),
    [(grpc.StatusCode.UNAVAILABLE, "unavailable"), (grpc.StatusCode.INTERNAL, "internal")],
)
def test_sources_that_do_not_answer_are_named_only_when_none_does(
    tmp_path: Path, server: Runtime, plugin: Plugin, status: grpc.StatusCode, reason: str
) -> None:
    server.answers = dict.fromkeys((DUTY, HBM_USED), status)
    plugin.status = 500
    reading = read(collect(tree(tmp_path / "busy", 1, holders={70: [0]}), server, plugin))
    assert reading.samples == []
    assert reading.errors == {f"runtime_{reason}": 1, "plugin_http_500": 1}
    assert read(collect(tree(tmp_path / "idle", 1), server, plugin)).errors == {}


@pytest.mark.fault
def test_answers_that_are_no_answers(tmp_path: Path, server: Runtime, plugin: Plugin) -> None:
    """RT-23, RT-16: bytes that are no message, a page that is no page, terminal escapes in names."""
    server.answers = {DUTY: b"\x0a\xff\xff\xff\xff\x01"}
    plugin.text = 'duty_cycle{accelerator_id="\x1b[31m-0"} 5\n\udcff\udcfe{{{\n'
    sdk = Monitoring({"duty_cycle_pct": RuntimeError("no"), "hbm_capacity_usage": ["[bold]1[/bold]"]})
    reading = read(collect(tree(tmp_path, 1, holders={70: [0]}), server, plugin, sdk))
    assert reading.samples == []
    assert reading.errors == {"sdk_RuntimeError": 1, "runtime_undecodable": 1, "plugin_undecodable": 1}


@pytest.mark.fault
def test_a_server_that_never_answers_ends_with_the_deadline(tmp_path: Path, server: Runtime) -> None:
    import threading

    held = threading.Event()
    server.answers = {DUTY: lambda: bytes(not held.wait(20))}
    collector = collect(tree(tmp_path, 1, holders={70: [0]}), server)
    collector.inventory()
    begin = time.monotonic()
    reading = collector.read(begin + 0.3)
    assert time.monotonic() - begin < 10
    assert "runtime_deadline_exceeded" in reading.errors
    held.set()
    collector.close()
