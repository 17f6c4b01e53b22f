"""The worker loop on an embedded log: what it does when nothing, little, late, too much or impossible is there."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleetscope.pipelines import read, work
from fleetscope.pipelines.drivers import chain
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.pipelines.held import HeldValues
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.schema.errors import ChainStopped, ConfigInvalid, EpochFailed, UnknownTopic
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake import faults
from fleetscope.transport.log import TopicSpec

pytestmark = pytest.mark.fault

MS = 1_000_000
START = 1_000 * MS


def ops(host: Any, index: int = 0, chip: int = 0, **more: Any) -> Any:
    """One op of 600 us in the millisecond `index`."""
    at = START + index * MS
    rows = {"start": [at], "dur": [600_000], "line": 0, "kind": Kind.COMPUTE, "program": 5, "op": 1}
    return host.spans(chip, at, at + MS, rows, **more)


def changed(bench: Any, **section: Any) -> Config:
    return bench.config.model_copy(update={"worker": bench.config.worker.model_copy(update=section)})


def test_nothing_runs_when_nothing_is_new(bench: Any) -> None:
    runs = []
    worker = Worker(bench.config, lambda plan, states: runs.append(plan.number))
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    time.sleep(0.3)
    stop.set()
    thread.join(60)
    assert runs == []
    assert not thread.is_alive()


def test_a_backlog_is_taken_in_several_epochs_of_bounded_size(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(*(ops(host, index) for index in range(9)))
    size = len(ops(host, 9)[0].value)
    bench.config = changed(bench, epoch_max_bytes=2 * size)
    assert bench.drain() >= 3
    assert sorted(row["seq"] for row in bench.rows("spans")) == list(range(9))
    offsets = [(item.start, item.end) for m in bench.manifests() for item in m.offsets if item.end > item.start]
    assert max(end - start for start, end in offsets) <= 3
    assert [end for _, end in offsets[:-1]] == [start for start, _ in offsets[1:]]


def test_an_empty_observation_counts_as_observed_time(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(ops(host, 0), host.spans(0, START + MS, START + 5 * MS, None))
    bench.drain()
    (row,) = bench.rows("device_10s")
    assert (row["busy_ns"], row["compute_ns"], row["observed_ns"]) == (600_000, 600_000, 5 * MS)


def test_rows_wait_for_a_bracket_that_follows_them(bench: Any) -> None:
    host = bench.host("h1")
    bench.config = changed(bench, clock_wait_s=30.0)
    worker = bench.worker()
    worker.start()
    chain = worker._chains[0]
    bench.send(ops(host, 0, snapshots=(START,)))
    assert worker._epoch(chain)
    assert bench.rows("spans") == []
    assert chain.wakes_in_s(time.time_ns()) > 20
    assert not worker._epoch(chain), "an epoch that could only hold the same rows again is no epoch"
    bench.send(ops(host, 1, snapshots=(START + MS, START + 2 * MS)))
    restarted = bench.worker()  # what waits is in the log, not in the worker that died
    restarted.start()
    assert restarted._epoch(restarted._chains[0])
    assert sorted(row["seq"] for row in bench.rows("spans")) == [0, 1]
    assert restarted._chains[0].wakes_in_s(time.time_ns()) is None
    assert [row["stored"] for row in sorted(bench.rows("ledger"), key=lambda row: row["epoch"])] == [0, 2]


def test_rows_do_not_wait_longer_than_the_freshness_budget(bench: Any) -> None:
    host = bench.host("h1")
    bench.config = changed(bench, clock_wait_s=0.3)
    bench.send(ops(host, 0, snapshots=(START,)))
    began = time.monotonic()
    assert bench.drain() == 2
    assert 0.2 < time.monotonic() - began < 10
    (extrapolated,) = [row for row in bench.rows("clock_maps") if row["ref"] == 0]
    assert [row["seq"] for row in bench.rows("spans")] == [0]
    # 1 ms beyond the only read of the wall clock, which may have been set meanwhile.
    assert (extrapolated["quality"], extrapolated["err_ns"]) == ("extrapolated", -1)


def test_rows_do_not_wait_for_a_clock_of_the_worker_that_was_set_back(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = bench.host("h1")
    bench.config = changed(bench, clock_wait_s=0.3)
    bench.send(ops(host, 0, snapshots=(START,)))
    worker = bench.worker()
    worker.start()
    assert worker._epoch(worker._chains[0])
    true = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true() - 7_200_000_000_000)
    began = time.monotonic()
    assert worker.run_once() == 1
    assert time.monotonic() - began < 5
    assert [row["seq"] for row in bench.rows("spans")] == [0]
    nows = [manifest.now_ns for manifest in bench.manifests()]
    assert 0 < nows[1] - nows[0] < 5_000_000_000


def test_rows_without_any_snapshot_are_placed_by_the_time_they_were_sent_and_say_so(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(ops(host, 0, snapshots=()))
    bench.drain()
    (row,) = bench.rows("spans")
    assert row["flags"] & SpanFlag.NO_DEVICE_CLOCK
    assert [row["err_ns"] for row in bench.rows("clock_maps") if row["ref"] == 0] == [-1]


def test_late_batches_are_delta_rows_and_counted_as_late(bench: Any) -> None:
    host = bench.host("h1")
    late = ops(host, 0)
    gap = ops(host, 1)
    bench.send(gap)
    bench.drain()
    bench.send(ops(host, 40_000))
    bench.drain()
    bench.send(late)
    bench.drain()
    rows = [row for row in bench.rows("op_10s") if row["t_ns"] == min(r["t_ns"] for r in bench.rows("op_10s"))]
    assert [row["count"] for row in rows] == [1, 1]
    assert {row["sum_ns"] for row in rows} == {600_000}
    assert sum(row["late"] for row in bench.rows("completeness")) == 1
    newest = max(bench.rows("ledger"), key=lambda row: row["epoch"])
    assert (newest["stored"], newest["gaps"]) == (3, [])


def test_lost_batches_are_named_by_their_events(bench: Any) -> None:
    host = bench.host("h1")
    ops(host, 0)
    bench.send(ops(host, 1))
    ops(host, 2)
    ops(host, 3)
    bench.send(ops(host, 4))
    bench.drain()
    (row,) = bench.rows("ledger")
    assert row["gaps"] == [{"first": 0, "last": 0}, {"first": 2, "last": 3}]
    assert (row["appended"], row["stored"], row["produced"]) == (5, 2, 5)


def test_a_topic_made_anew_stops_the_chain(bench: Any) -> None:
    bench.send(ops(bench.host("h1")))
    bench.drain()
    bench.log.delete_topics([bench.topics.telemetry])
    bench.log.create_topics([TopicSpec(bench.topics.telemetry, 2)])
    with pytest.raises(ChainStopped, match="made anew"):
        bench.drain()
    with pytest.raises(ChainStopped, match="made anew"):
        bench.worker().run(threading.Event())


def test_a_deleted_topic_stops_the_chain(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has been gone for a while: a broker that just came up may not know its topics yet."""
    bench.send(ops(bench.host("h1")))
    bench.drain()
    worker = bench.worker()
    bench.log.delete_topics([bench.topics.telemetry])
    monkeypatch.setattr(chain, "GONE_S", 0.7)
    began = time.monotonic()
    with pytest.raises(ChainStopped, match=r"no topic fleetscope\.telemetry .*it was deleted"):
        worker.run(threading.Event())
    assert 0.7 < time.monotonic() - began < 20
    with pytest.raises(ChainStopped, match="it was deleted"):
        worker.run_once()


def test_a_topic_that_is_away_for_a_moment_stops_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bench.worker()
    bench.send(ops(bench.host("h1")))
    answers = iter([UnknownTopic("no topic"), UnknownTopic("no topic")])
    topic = worker._log.topic

    def forgetful(name: str) -> Any:
        for error in answers:
            raise error
        return topic(name)

    monkeypatch.setattr(worker._log, "topic", forgetful)
    assert worker.run_once() == 1


def test_partitions_nobody_reads_stop_the_chain(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = bench.worker()
    bench.send(ops(bench.host("h1")))
    grown = replace(bench.log.topic(bench.topics.telemetry), partitions=3)
    monkeypatch.setattr(worker._log, "topic", lambda name: grown)
    with pytest.raises(ChainStopped, match="has 3 partitions, the chains were built on 2"):
        worker.run_once()


def test_a_log_that_lost_its_end_stops_the_chain(bench: Any, tmp_path: Any) -> None:
    host = bench.host("h1")
    bench.send(ops(host, 0))
    bench.log.close()
    shutil.copytree(tmp_path / "log", tmp_path / "earlier")
    bench.__post_init__()
    bench.send(ops(host, 1))
    bench.drain()
    bench.log.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "earlier", tmp_path / "log")
    bench.__post_init__()
    with pytest.raises(ChainStopped, match="committed up to offset 2, the log ends at 1"):
        Worker(bench.config, bench.graph, bench.log).run_once()


def test_a_configuration_that_does_not_fit_the_lake_is_refused(bench: Any) -> None:
    bench.drain()
    with pytest.raises(ConfigInvalid, match=r"worker.chains \[5\]"):
        Worker(changed(bench, chains=[5]))


def test_two_chains_divide_the_partitions(bench: Any) -> None:
    bench.config = changed(bench, chain_count=2)
    hosts = [bench.host(f"h{number}") for number in range(6)]
    for host in hosts:
        bench.send(ops(host))
    assert bench.drain() == 2
    assert [{item.partition for item in bench.manifests(chain)[0].offsets} for chain in (0, 1)] == [{0}, {1}]
    assert len(bench.rows("spans")) == 6


def test_a_started_worker_publishes_the_counters_again(bench: Any, series_of: Any) -> None:
    bench.send(ops(bench.host("h1")))
    bench.drain()
    before = bench.log.end_offsets(bench.topics.metrics)
    worker = bench.worker()
    worker.start()
    after = bench.log.end_offsets(bench.topics.metrics)
    assert after[0] == before[0] + 2
    records = {
        record.run: record
        for record in map(wire.MetricsRecord.FromString, bench.log.read_compacted(bench.topics.metrics).values())
    }
    assert set(records) == {"train", ""}
    values = {(name, tuple(sorted(labels.items()))): value for name, labels, value in series_of(records["train"])}
    device = (("device", "h1/chip0"), ("host", "h1"), ("run", "train"), ("sku", "TPU v5e"))
    assert values["fleetscope_device_busy_seconds_total", device] == pytest.approx(600e-6)
    assert values["fleetscope_device_observed_seconds_total", device] == pytest.approx(1e-3)
    # 1 ms of a chip whose data sheet says 197 TFLOP/s in bf16
    assert values["fleetscope_device_peak_flops_total", device] == pytest.approx(197e9)
    assert values["fleetscope_events_total", (("outcome", "stored"), ("run", "train"))] == 1


def test_announcements_become_dimension_rows(bench: Any) -> None:
    host = bench.host("h1")
    source = host.source
    said = [
        wire.Announcement(
            host=wire.HostInfo(cluster="test", host="h1", boot_id="boot-1", cpus=8, labels={"rack": "r1"})
        ),
        wire.Announcement(
            process=wire.ProcessInfo(
                pid=source.pid,
                start_ticks=source.start_ticks,
                run="train",
                attempt="a1",
                rank=0,
                world_size=8,
                mesh="data:8",
            )
        ),
        wire.Announcement(device=wire.DeviceInfo(device=host.device(0))),
        wire.Announcement(program_load=wire.ProgramLoad(program_id=11, program=5, module="jit_step", at_ns=3)),
        wire.Announcement(line=wire.LineInfo(device=identity.device_id("h1/chip0"), line=0, name="XLA Ops")),
        wire.Announcement(run_event=wire.RunEvent(event="end", at_ns=77)),
    ]
    bench.send(ops(host, announcements=said))
    bench.drain()
    (known,) = bench.rows("hosts")
    assert (known["host"], known["name"], known["cpus"]) == (identity.host_id("test", "h1"), "h1", 8)
    assert known["labels"] == [("rack", "r1")]
    (process,) = bench.rows("processes")
    assert (process["process"], process["run"]) == (bench.rows("spans")[0]["process"], identity.run_id("test", "train"))
    assert [(row["end_ns"], row["mesh"], row["name"]) for row in bench.rows("runs")] == [
        (0, "data:8", "train"),  # one of eight ranks has ended, the run has not
    ]
    assert bench.rows("devices")[0]["device"] == bench.rows("spans")[0]["device"]
    assert bench.rows("program_loads")[0]["module"] == "jit_step"
    assert bench.rows("lines")[0]["name"] == "XLA Ops"


def test_samples_keep_their_type_and_time(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(host.samples([START, START + 5], [7, 8], [3, 2.5]))
    bench.drain()
    rows = bench.rows("samples")
    assert [(r["series"], r["value_int"], r["value_float"], r["seq"]) for r in rows] == [
        (7, 3, None, 0),
        (8, None, 2.5, 1),
    ]
    assert rows[1]["t_ns"] - rows[0]["t_ns"] == 5


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "no space left on device")


@pytest.mark.parametrize("point", ["file.written", "commit.segment_written", "commit.before_manifest"])
def test_an_epoch_that_fails_leaves_no_files_and_is_run_again(bench: Any, point: str) -> None:
    bench.send(ops(bench.host("h1")))
    worker = bench.worker()
    worker.start()
    with faults.armed(point, full_disk), pytest.raises(EpochFailed, match=r"chain 0, epoch 1: .*(space|full)"):
        worker._epoch(worker._chains[0])
    assert list(Path(bench.config.lake_url, "tables").rglob("*.parquet")) == []
    assert worker._epoch(worker._chains[0])
    assert len(bench.rows("spans")) == 1


def test_a_ledger_that_does_not_add_up_stops_the_chain(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(ops(bench.host("h1")))
    monkeypatch.setattr(work, "span_faults", lambda *columns: iter(()))
    monkeypatch.setattr(work.Segments, "add", lambda self, table, rows: None)
    with pytest.raises(ChainStopped, match="1 events decoded, 0 rows in segments"):
        bench.drain()
    assert bench.manifests() == []


def test_a_chain_that_stops_does_not_stop_the_others(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.config = changed(bench, chain_count=2, epoch_s=0.05)
    for number in range(6):
        bench.send(ops(bench.host(f"h{number}")))
    worker = bench.worker()

    def refuse(now_ns: int) -> None:
        raise ChainStopped("made anew")

    monkeypatch.setattr(worker._chains[0], "plan", refuse)
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=(stop,))
    thread.start()
    deadline = time.monotonic() + 60
    while not bench.manifests(1) and time.monotonic() < deadline:
        time.sleep(0.02)
    stop.set()
    thread.join(60)
    assert bench.manifests(0) == []
    assert {item.partition for item in bench.manifests(1)[0].offsets} == {1}
    assert [chain.chain for chain in worker._chains] == [1]


def retain(bench: Any) -> None:
    """Retention, once and for all: the log's own thread does it too, whenever a segment was closed."""
    bench.log._keeper.stop()
    bench.log._maintain()


def test_what_the_log_dropped_before_it_was_read_is_counted_and_shows_as_a_gap(bench: Any) -> None:
    bench.log.delete_topics([bench.topics.telemetry])
    bench.log.create_topics([TopicSpec(bench.topics.telemetry, 2, retention_bytes=16_000)])
    host = bench.host("h1")
    bench.send(ops(host, 0))
    bench.drain()
    for index in range(1, 60):
        bench.send(ops(host, index))
    retain(bench)
    (partition,) = [p for p, start in bench.log.start_offsets(bench.topics.telemetry).items() if start > 0]
    dropped = bench.log.start_offsets(bench.topics.telemetry)[partition] - 1
    bench.drain()
    newest = max(bench.rows("ledger"), key=lambda row: row["epoch"])
    assert newest["gaps"] == [{"first": 1, "last": dropped}]
    assert newest["stored"] == 60 - dropped
    ranges = [(item.start, item.end) for m in bench.manifests() for item in m.offsets if item.partition == partition]
    assert ranges == [(0, 1), (1, 60)]
    worker = bench.worker()
    worker.start()
    assert sum(state.messages.expired for state in worker._chains[0].states) == dropped


def test_what_the_log_dropped_while_it_waited_for_a_clock_is_a_dead_letter(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.log.delete_topics([bench.topics.telemetry])
    bench.log.create_topics([TopicSpec(bench.topics.telemetry, 2, retention_bytes=16_000)])
    host = bench.host("h1")
    bench.config = changed(bench, clock_wait_s=600.0)
    bench.send(ops(host, 0, snapshots=(START,)))
    worker = bench.worker()
    worker.start()
    assert worker._epoch(worker._chains[0])
    monkeypatch.setattr(read, "HELD", HeldValues())  # another process, a day later
    for index in range(1, 60):
        bench.send(ops(host, index))
    retain(bench)
    assert worker._epoch(worker._chains[0])
    (letter,) = bench.rows("dead_letter")
    assert (letter["offset"], letter["rows"], letter["value"]) == (0, 1, b"")
    newest = max(bench.rows("ledger"), key=lambda row: row["epoch"])
    assert newest["dead_lettered"] == 1
