"""Values of all sources: sentinels, wraps; the host's own counters."""

import json
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.collectors import Accumulator, clean, host
from fleetscope.agents.collectors.host import HostCollector
from fleetscope.agents.collectors.peak import CACHE_NAME, cpu_peak
from fleetscope.agents.collectors.sentinels import clean_time, scaled


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
def test_a_sentinel_is_dropped_before_it_is_scaled_and_a_stamp_of_zero_is_none() -> None:
    assert scaled(50, 0.01) == (0.5, "")
    assert scaled(0xFFFFFFFF, 0.01) == (None, "all_ones")
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


@pytest.mark.property
@given(
    st.integers(0, 1 << 40),
    st.lists(st.tuples(st.integers(0, 1 << 40), st.booleans()), max_size=40),
    st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_two_that_read_one_counter_agree_on_what_it_counted(
    begin: int, moves: list[tuple[int, bool]], seen: list[bool]
) -> None:
    """Thanos 1326, SigNoz PR 2449 (RT-11): interleaved resets inflate an increase. Each reads every reset, at other
    moments in between; what both say it counted is what it counted."""
    often, seldom = Accumulator(1 << 64), Accumulator(1 << 64)
    raw = total = begin
    for counter in (often, seldom):
        counter.add(raw)
    for (move, reset), look in zip(moves, seen, strict=False):
        if reset and move < raw:
            seldom.add(raw)  # the last value before it was read by both
            raw, total = move, total + move
            often.add(raw)
            seldom.add(raw)
            continue
        raw, total = raw + move, total + move
        assert often.add(raw) == total
        if look:
            assert seldom.add(raw) == total
    assert seldom.add(raw) == often.total == total


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
def test_nodes_and_cards_as_the_kernel_shows_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    for node in (0, 1):
        put(f"node/node{node}/meminfo", f"Node {node} MemTotal:  {node + 10} kB\nNode {node} MemFree:  {node + 1} kB\n")
        put(f"node/node{node}/numastat", f"numa_hit 5\nnuma_miss {node + 3}\nnuma_foreign 0\n")
    for name, value in (("port_rcv_data", 100), ("port_xmit_data", 200), ("port_rcv_errors", 7)):
        put(f"ib/mlx5_0/ports/1/counters/{name}", f"{value}\n")
    put("net/lo/device", "")
    monkeypatch.setattr(host, "_NODES", tmp_path / "node")
    monkeypatch.setattr(host, "_INFINIBAND", tmp_path / "ib")
    monkeypatch.setattr(host, "_NET", tmp_path / "net")
    reading = HostCollector().read(time.monotonic() + 1)
    got = {
        " ".join((s.series.name.removeprefix("fleetscope_host_"), *(v for _, v in s.series.labels))): s.value
        for s in reading.samples
        if s.series.labels
    }
    expected = {
        "numa_memory_total_bytes 0": 10240, "numa_memory_free_bytes 1": 2048, "numa_misses_total 1": 4,
        "nic_receive_bytes_total mlx5_0/1": 400, "nic_transmit_bytes_total mlx5_0/1": 800,
        "nic_errors_total receive mlx5_0/1": 7,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == expected
    assert {name.split()[-1] for name in got if name.startswith("nic_")} == {"mlx5_0/1", "lo"}
    put("node/node1/numastat", "no numbers here\n")
    assert HostCollector().read(time.monotonic() + 1).errors == {"numa": 1}


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
