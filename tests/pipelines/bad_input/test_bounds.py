"""One message must not make the worker large: neither its memory now nor what it carries from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.pipelines.dimensions import DEVICES_KEPT
from fleetscope.schema import errors
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.chain import Chain

pytestmark = pytest.mark.fault

MS = 1_000_000
MANY = 20_000


def _loads(batch: wire.Batch) -> None:
    for i in range(MANY):
        batch.announcements.add().program_load.CopyFrom(wire.ProgramLoad(program_id=i, program=i + 1))


def _processes(batch: wire.Batch) -> None:
    for i in range(MANY):
        batch.announcements.add().process.CopyFrom(wire.ProcessInfo(pid=10_000 + i, start_ticks=1, run=f"run {i}"))


def _snapshots(batch: wire.Batch) -> None:
    for i in range(MANY // 10):
        clock = wire.ClockEpoch(clock="gtc" * 200, device=f"chip {i}", period_num=5, period_den=4)
        ref = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)
        batch.snapshots.add(clock=clock, ref=ref, value=i, ref_before=i, ref_after=i + 100)


def _names(batch: wire.Batch) -> None:
    for i in range(MANY):
        batch.announcements.add().name.CopyFrom(wire.NameInfo(program=i, name=f"annotation {i}"))


def _state_bytes(bench: Any) -> int:
    return len(Chain(bench.store, 0).state(bench.manifests()[-1]))


@pytest.mark.parametrize("fill", [_loads, _processes, _snapshots, _names])
def test_what_one_message_announces_is_not_carried_for_ever(bench: Any, fill: Callable[[wire.Batch], None]) -> None:
    host = bench.host("h1")
    rows = {"start": [0], "dur": [5], "line": 0, "kind": Kind.COMPUTE}
    (numbered,) = host.spans(0, 0, MS, rows)
    batch = wire.Batch.FromString(numbered.value)
    fill(batch)
    bench.send_bytes(batch.SerializeToString())
    bench.drain()
    assert len(bench.rows("spans")) == 1
    letters = bench.rows("dead_letter")
    assert {row["error"] for row in letters} <= {errors.SnapshotImpossible.number}
    assert len(letters) == (4 if fill is _snapshots else 0)
    assert _state_bytes(bench) < 16_000


def test_devices_beyond_those_remembered_are_named_by_their_number(
    bench: Any, monkeypatch: pytest.MonkeyPatch, series_of: Any
) -> None:
    assert DEVICES_KEPT >= 4096
    monkeypatch.setattr("fleetscope.pipelines.dimensions.DEVICES_KEPT", 3)
    host = bench.host("h1")
    for index in range(8):
        bench.send(host.spans(index, 0, MS, {"start": [0], "dur": [5], "line": 0, "kind": Kind.COMPUTE}))
    bench.drain()
    records = [
        wire.MetricsRecord.FromString(message.value)
        for partition, end in bench.log.end_offsets(bench.topics.metrics).items()
        for message in bench.log.read(bench.topics.metrics, partition, 0, end)
    ]
    devices = {
        labels["device"]
        for record in records
        for name, labels, _ in series_of(record)
        if name == "fleetscope_device_busy_seconds_total"
    }
    assert len(devices) == 8
    assert {device for device in devices if device.startswith("h1/chip")} == {f"h1/chip{index}" for index in range(3)}


def test_a_record_damaged_while_it_waits_for_its_clock_is_a_dead_letter(bench: Any) -> None:
    """Taken in one epoch, unreadable in the next: its events are counted, and the chain goes on."""
    host = bench.host("h1")
    patient = bench.config.model_copy(
        update={"worker": bench.config.worker.model_copy(update={"clock_wait_s": 3600.0})}
    )
    rows = {"start": [0], "dur": [5], "line": 0, "kind": Kind.COMPUTE}
    bench.send(host.spans(0, 0, MS, rows, snapshots=[0]))
    worker = type(bench.worker())(patient, bench.graph)
    worker.start()
    for chain in worker._chains:
        worker._epoch(chain)
    assert bench.rows("spans") == []
    from fleetscope.pipelines.held import HELD

    HELD._values.clear()
    bench.log.flush()
    topic = bench.config.state_dir / "log" / "topics" / bench.topics.telemetry
    (segment,) = [path for path in topic.rglob("*.seg") if b"train" in path.read_bytes()]
    data = bytearray(segment.read_bytes())
    data[len(data) * 3 // 4] ^= 0x55
    segment.write_bytes(data)
    bench.send(host.spans(0, MS, 2 * MS, {**rows, "start": [MS]}))
    bench.drain()
    (letter,) = bench.rows("dead_letter")
    assert (letter["error"], letter["offset"], letter["rows"]) == (2035, 0, 1)
    assert [row["seq"] for row in bench.rows("spans")] == [1]
    ledger = bench.rows("ledger")[-1]
    assert (ledger["stored"], ledger["dead_lettered"], ledger["gaps"]) == (1, 1, [])
