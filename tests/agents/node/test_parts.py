"""Parts of the daemon alone: windows, devices, periods, collectors that hang, hellos on disk."""

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleetscope.agents.batches import span_rows
from fleetscope.agents.clocks import DeviceClock, Register
from fleetscope.agents.collectors import Reading, Sample, Series
from fleetscope.agents.collectors.named import buckets
from fleetscope.agents.node.agent import next_period
from fleetscope.agents.node.collect import CollectorRunner
from fleetscope.agents.node.facts import Host, boot_id, start_ticks
from fleetscope.agents.node.metrics import MetricsServer, Page
from fleetscope.agents.node.rows import Names, rows_of
from fleetscope.agents.node.saved import SavedHellos
from fleetscope.agents.node.windows import inside, window_ticks
from fleetscope.agents.profiler import protocol
from fleetscope.agents.xspace import DeviceSpans
from fleetscope.agents.xspace.session import REALTIME, TPU_RAW
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.vocabulary import Kind

from .conftest import eventually
from .test_hostile import hello, window


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 60)), max_size=30))
def test_a_window_keeps_what_lies_wholly_between_its_brackets(spans: list[tuple[int, int]]) -> None:
    start, dur = [begin for begin, _ in spans], [length for _, length in spans]
    rows = inside(span_rows(start=start, dur=dur, line=0, kind=3, op=np.arange(len(spans))), 20, 80)
    expected = {op for op, (begin, length) in enumerate(spans) if begin >= 20 and begin + length <= 80}
    assert set(rows.column("op").to_pylist()) == expected
    assert set(rows.column("weight").to_pylist()) <= {0}


@pytest.mark.unit
def test_the_range_of_a_window_in_each_kind_of_clock() -> None:
    message = window(window_id=9)
    rows = span_rows(start=[1000, 5000], dur=[10, 7], line=0, kind=3)
    wall = DeviceSpans("cpu", 0, "cpu:0", "cpu", REALTIME, rows, {})
    clock, low, high, length = window_ticks(message, wall)
    assert (clock.clock, clock.device) == ("realtime", "")
    assert (low, high, length) == (message.opened.realtime_ns, message.closed.realtime_ns, 10**8)
    raw = DeviceSpans("tpu", 0, "/device:TPU:0", "TPU v6e", TPU_RAW, rows, {})
    clock, low, high, length = window_ticks(message, raw)
    # 100 ms at 1.25 ns a tick; the session's own clock is an epoch of its own each time.
    assert (low, high, length) == (1000, 5007, 80_000_000)
    assert (clock.clock, clock.resets, clock.period_num, clock.period_den) == ("tpu_raw", 9, 5, 4)


@pytest.mark.property
@given(st.floats(0.05, 1.0), st.floats(0.0, 3.0))
def test_the_period_shortens_while_a_ring_fills_and_recovers(period: float, fullest: float) -> None:
    following = next_period(period, 1.0, fullest)
    assert 0.05 <= following <= 1.0
    if fullest > 0.5:
        # Filling at the same rate, the ring is at most 0.3 full after the next period.
        assert following == 0.05 or following / period * fullest <= 0.3 + 1e-9
    else:
        assert following >= period


class Source:
    """A collector that does what it is told: one value, hang, or raise."""

    name = "source"
    period_s = 0.0

    def __init__(self) -> None:
        self.mode = "value"
        self.released = threading.Event()
        self.clock = DeviceClock("ptimer", "GPU-1", Register(1 << 64, 1, 1), time.monotonic_ns)
        self.closed = False

    def inventory(self) -> list[wire.Device]:
        return [wire.Device(key="GPU-1", sku="H200")]

    def read(self, deadline_s: float) -> Reading:
        if self.mode == "hang":
            self.released.wait(30)
        if self.mode == "raise":
            raise OSError("gone")
        sample = Sample(Series("fleetscope_chip_power_watts", "W"), 5.0, "GPU-1")
        return Reading([sample], {"blank": 1}, {})

    def clocks(self) -> list[DeviceClock]:
        return [self.clock]

    def close(self) -> None:
        self.closed = True


@pytest.mark.fault
def test_a_collector_that_hangs_or_raises_only_makes_its_own_values_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetscope.agents.node.collect.STALE_PERIODS", 0.2)
    monkeypatch.setattr("fleetscope.agents.node.collect.PENDING_READINGS", 3)
    monkeypatch.setattr("fleetscope.agents.node.collect.HUNG_S", 0.1)
    source = Source()
    runner = CollectorRunner(source, 0.05, lambda: 7)
    runner.start()
    eventually(lambda: runner.refused["blank"] >= 5)
    assert [sample.value for sample in runner.latest()] == [5.0]
    readings, brackets, refused = runner.take()
    assert {(b.clock.clock, b.clock.device) for b in brackets} == {("ptimer", "GPU-1")}
    assert len(readings) == 3  # a loop that does not take them must not grow memory
    assert readings[0][0] == 7
    assert refused >= 5
    source.mode = "raise"
    eventually(lambda: runner.errors["OSError"] > 1)
    source.mode = "hang"
    eventually(lambda: runner.age_s > 1.1)
    assert runner.latest() == ()
    for _ in range(3):
        runner.take()
    assert runner.errors["hung"] == 1
    begin = time.monotonic()
    source.mode = "value"
    source.released.set()
    runner.stop()
    assert time.monotonic() - begin < 2
    assert source.closed


@pytest.mark.fault
def test_a_page_stays_valid_when_a_source_fails_or_repeats_itself() -> None:
    def broken() -> Any:
        raise RuntimeError("no values today")

    def twice() -> Any:
        for value in (1.0, 2.0):
            yield "fleetscope_agent_spool_bytes", {}, value
        yield "fleetscope_chip_power_watts", {"device": 'a"b\n', "unknown": "x"}, 3.0

    page = Page("h", [broken, twice])
    families = {family.name: family for family in page.collect()}
    assert [s.value for s in families["fleetscope_agent_spool_bytes"].samples] == [1.0]
    (power,) = families["fleetscope_chip_power_watts"].samples
    assert power.labels == {"host": "h", "device": 'a"b\n', "sku": ""}


@pytest.mark.unit
def test_a_histogram_is_one_for_who_parses_the_page() -> None:
    def values() -> Any:
        for series, value in buckets(
            "fleetscope_tpu_operation_seconds", [0.1, 0.2], [3, 0, 1], 0.9, operation="x", size=""
        ):
            yield series.name, dict(series.labels), value

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page("h", [values, values]))
    (family,) = text_string_to_metric_families(generate_latest(registry).decode())
    assert family.type == "histogram"
    found = {(s.name.rpartition("_")[2], s.labels.get("le")): s.value for s in family.samples}
    assert found == {
        ("bucket", "0.1"): 3, ("bucket", "0.2"): 3, ("bucket", "+Inf"): 4, ("count", None): 4, ("sum", None): 0.9,
    }  # fmt: skip
    assert {s.labels["host"] for s in family.samples} == {"h"}


@pytest.mark.unit
@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:notaport", "127.0.0.1:99999", "203.0.113.1:1"])
def test_an_address_that_cannot_be_served_is_named(address: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"FS1001: agent\.metrics_address"):
        MetricsServer(address, Page("h", []))


@pytest.mark.unit
def test_hellos_of_this_boot_come_back_others_are_removed(tmp_path: Path) -> None:
    saved = SavedHellos(tmp_path / "processes")
    mine = hello(labels={"a": "b"}, run="r é")
    saved.keep(mine)
    saved.keep(hello(pid=5, boot_id="another boot"))
    (tmp_path / "processes" / "7-7.json").write_bytes(b"\xff{")
    assert list(saved.load(boot_id())) == [(mine, 0)]
    saved.keep(mine, pid=77, namespace=4)
    # the pid says nothing in another namespace
    assert [list(saved.load(boot_id(), namespace)) for namespace in (4, 5, 0)] == [
        [(mine, 77)],
        [(mine, 0)],
        [(mine, 0)],
    ]
    before = protocol.encode(mine)[8:]
    next((tmp_path / "processes").glob("*.json")).write_bytes(before)
    assert list(saved.load(boot_id(), 4)) == [(mine, 0)], "kept by an earlier release"
    assert len(list((tmp_path / "processes").iterdir())) == 1
    saved.forget(mine.pid, mine.start_ticks)
    assert list(SavedHellos(tmp_path / "processes").load(boot_id())) == []


@pytest.mark.unit
def test_start_ticks_tell_a_process_from_the_next_with_its_pid() -> None:
    import os

    mine = start_ticks(os.getpid())
    assert mine is not None
    assert mine > 0
    assert start_ticks(2**22 + 1) is None
    host = Host.here("c", "named")
    assert host.source().host == "named"
    assert protocol.VERSION == 1


@pytest.mark.unit
def test_a_port_nobody_chose_gives_way_one_that_was_chosen_does_not() -> None:
    first = MetricsServer("127.0.0.1:0", Page("h", []))
    try:
        taken = f"127.0.0.1:{first.port}"
        second = MetricsServer(taken, Page("h", []), fallback=True)
        assert second.port not in (0, first.port)
        second.stop()
        with pytest.raises(ConfigInvalid, match=r"FS1001: agent\.metrics_address"):
            MetricsServer(taken, Page("h", []))
    finally:
        first.stop()


@pytest.mark.unit
def test_records_that_are_no_rows_are_counted() -> None:
    def column(*values: int, of: Any = np.int64) -> Any:
        return np.array(values, of)

    kinds = [int(Kind.HOST), recorder.COUNTER_INT, recorder.COUNTER_INT, recorder.COUNTER_FLOAT, 31, 45]
    none = column()
    drained = recorder.Drained(
        start=column(1, 2, 3, 4, 5, 6), dur=column(0, 0, 0, 0, 0, 0), arg=column(0, 7, 8, 9, 0, 0),
        seq=column(0, 1, 2, 3, 4, 5), name=column(0, 1, 0, 9000, 1, 1, of=np.int32),
        line=column(0, 0, 0, 0, 0, 0, of=np.int32), kind=column(*kinds, of=np.uint8),
        flags=column(0, 0, 0, 0, 0, 0, of=np.uint8), flow=column(0, 0, 0, 0, 0, 0),
        weight=column(1, 1, 1, 1, 1, 1, of=np.int32),
        arg_row=none, arg_key=none, arg_kind=column(of=np.uint8),
        arg_value=none, link_row=none, link_kind=none, link_type=none, link_id=none, lost=0, more=False,
    )  # fmt: skip
    rows = rows_of(drained, Names(lambda known: ["other", "loss"][known:]), 0)
    assert rows.spans is not None
    assert rows.spans.num_rows == 1
    assert rows.samples is not None
    assert rows.samples.column("value_int").to_pylist() == [7]
    assert {name: count for name, count in rows.lost.items() if count} == {"invalid_row": 2, "name_limit": 2}
    assert sum(rows.lost.values()) + rows.spans.num_rows + rows.samples.num_rows == len(kinds)
