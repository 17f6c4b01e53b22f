"""The daemon with real processes, rings, spool and log."""

import errno
import os
import socket
import threading
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from fleetscope.agents.collectors.host import HostCollector
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.node import NodeAgent
from fleetscope.agents.node.metrics import Page, families_of
from fleetscope.agents.simulated.vendors.nvml import FakeNvml, busy_gpu
from fleetscope.agents.spool.store import DiskSegment
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config
from fleetscope.schema.errors import AgentRunning, BadLogUrl
from fleetscope.schema.identity import name_program, series_id
from fleetscope.schema.metrics import metrics
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.transport import Log, open_log
from fleetscope.transport.errors import AccessDenied

from .conftest import Child, MakeAgent, batches, eventually, shipped


def table(batch: wire.Batch) -> pa.Table:
    return pa.ipc.open_stream(batch.payload).read_all()


def announced(found: list[wire.Batch], kind: str) -> list[Any]:
    return [getattr(a, kind) for b in found for a in b.announcements if a.WhichOneof("info") == kind]


@pytest.mark.e2e
def test_annotations_become_spans_of_their_process(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn(rank=3)
    child.do("connect()")
    child.do("step = r.step(7); step.__enter__(); a = r.annotate('load', shard=5, split='x'); a.__enter__()")
    child.do("time.sleep(0.01); a.__exit__(None, None, None); r.counter('loss', 2.5); r.counter('tokens', 4096)")
    child.do("step.__exit__(None, None, None)")
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    spans = [b for b in found if b.payload_kind == wire.PAYLOAD_SPANS]
    samples = [b for b in found if b.payload_kind == wire.PAYLOAD_SAMPLES]
    assert len(spans) == len(samples) == 1
    rows = table(spans[0]).to_pylist()
    assert [(r["kind"], r["step"]) for r in rows] == [(Kind.STEP, 7), (Kind.HOST, 7)]
    assert rows[1]["program"] == name_program("load")
    assert rows[1]["args"] in ('{"shard":5,"split":"x"}', '{"split":"x","shard":5}')
    period = spans[0].clock.period_num / spans[0].clock.period_den
    assert 10e6 <= rows[1]["dur"] * period < 1e9
    assert rows[0]["start"] <= rows[1]["start"]
    assert {n.name for n in announced(found, "name")} >= {"load"}
    assert {line.name for line in announced(found, "line")} == {"MainThread"}
    (process,) = announced(found, "process")
    assert (process.run, process.rank, process.pid) == ("run", 3, child.pid)
    assert spans[0].source.rank == 3
    values = {row["series"]: row for row in table(samples[0]).to_pylist()}
    assert values[series_id("loss", {})]["value_float"] == 2.5
    assert values[series_id("tokens", {})]["value_int"] == 4096
    assert [event.event for event in announced(found, "run_event")] == ["start"]


@pytest.mark.unit
def test_heartbeats_carry_brackets_and_host_samples(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent([HostCollector()])
    for _ in range(3):
        time.sleep(0.12)
        agent.tick()
    agent.close()
    found = batches(tmp_path / "s", 0)
    assert len(found) >= 3
    assert [b.batch_number for b in found] == list(range(len(found)))
    for batch in found:
        assert {s.clock.clock for s in batch.snapshots} >= {"realtime"}
        if batch.rows:
            ticks = table(batch)["tick"].to_numpy()
            assert (ticks >= batch.tick_from).all()
            assert (ticks < batch.tick_to).all()
    names = {s.name for s in announced(found, "series")}
    assert "fleetscope_host_cpu_seconds_total" in names
    (host,) = announced(found, "host")
    assert (host.host, host.cpus) == ("h1", os.cpu_count())
    records = [wire.ClockRecord.FromString(value) for value in shipped(tmp_path / "s", "fleetscope.clocks")]
    assert records
    assert records[0].source.host == "h1"


@pytest.mark.unit
def test_what_is_nested_in_an_open_region_waits_for_it(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    child.do("outer = r.annotate('outer'); outer.__enter__()")
    child.do("[r.annotate('in').__enter__().__exit__(None, None, None) for _ in range(5)]")
    agent.tick()
    child.do("outer.__exit__(None, None, None)")
    agent.tick()
    agent.close()
    spans = [b for b in batches(tmp_path / "s", child.pid) if b.rows]
    assert [b.rows for b in spans] == [6]
    assert not any(flag & SpanFlag.CUT_BATCH for flag in table(spans[0])["flags"].to_pylist())


@pytest.mark.unit
def test_a_region_that_stays_open_does_not_hold_back_for_ever(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path
) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    child.do("outer = r.annotate('outer'); outer.__enter__(); time.sleep(1.1)")
    child.do("[r.annotate('in').__enter__().__exit__(None, None, None) for _ in range(5)]")
    agent.tick()
    child.do("outer.__exit__(None, None, None)")
    agent.tick()
    agent.close()
    spans = [b for b in batches(tmp_path / "s", child.pid) if b.rows]
    assert [b.rows for b in spans] == [5, 1]
    assert spans[0].tick_to == spans[1].tick_from
    (outer,) = table(spans[1]).to_pylist()
    assert outer["flags"] == SpanFlag.CUT_BATCH


@pytest.mark.fault
def test_a_killed_process_loses_only_what_it_counts(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(100_000)]")
    child.do("a = r.annotate('open'); a.__enter__(); b = r.annotate('open too'); b.__enter__()")
    child.kill()
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    last = found[-1]
    dropped = {d.reason: d.events for d in last.dropped}
    kept = sum(b.rows for b in found)
    assert "process_killed" not in dropped
    assert dropped["ring_overwritten"] + kept == 100_002
    unended = [row for b in found if b.rows for row in table(b).to_pylist() if row["flags"] & SpanFlag.TRUNCATED]
    assert [row["program"] for row in unended] == [name_program("open"), name_program("open too")]
    assert kept > 20_000
    assert last.produced == 100_002
    assert [event.event for event in announced(found, "run_event")] == ["start", "end"]
    assert not list((tmp_path / "shm").glob("*.ring"))


@pytest.mark.fault
def test_an_orderly_end_loses_nothing(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(100)]")
    child.do("send(protocol.End(at_ns=123, steps=0)); r.close(False)")
    child.close()
    eventually(lambda: agent.server.connections == 0)
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    assert sum(b.rows for b in found) == 100
    assert list(found[-1].dropped) == []
    ends = [event for event in announced(found, "run_event") if event.event == "end"]
    assert [event.at_ns for event in ends] == [123]


@pytest.mark.fault
def test_an_agent_that_restarts_goes_on_exactly(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    child: Child = spawn()
    first = make_agent()
    child.do("connect()")
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(100)]")
    first.tick()
    first.close()
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(50)]")
    second = make_agent()
    # Without a new hello: the process' next try may be 10 s away.
    second.tick()
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(7)]; connect()")
    second.tick()
    child.kill()
    second.tick()
    second.close()
    found = batches(tmp_path / "s", child.pid)
    assert len({b.source_id for b in found}) == 1
    assert [b.batch_number for b in found] == list(range(len(found)))
    assert [b.rows for b in found if b.rows] == [100, 50, 7]
    assert found[-1].produced == 157


@pytest.mark.fault
def test_a_second_agent_is_refused(make_agent: MakeAgent, tmp_path: Path) -> None:
    make_agent()
    with pytest.raises(AgentRunning, match=rf"FS3101: spool .* pid {os.getpid()}"):
        make_agent()
    with pytest.raises(AgentRunning, match=rf"FS3101: socket .* pid {os.getpid()}"):
        make_agent(spool_dir=tmp_path / "other")


@pytest.mark.unit
def test_the_page_has_only_known_names_and_parses(make_agent: MakeAgent, spawn: Any) -> None:
    agent = make_agent([HostCollector()])
    child: Child = spawn()
    child.do("connect()")
    child.do("send(protocol.Cost(windows=2, stop_ns=5_000_000, skipped={'server': 4}, steps=30))")
    eventually(lambda: any(p.cost.windows == 2 for p in agent.registry))
    eventually(lambda: bool(agent.runners[0].latest()))
    agent.tick()
    families = _page(agent)
    known = {name.removesuffix("_total") for name in metrics()}
    assert set(families) <= known
    stop = families["fleetscope_profiler_window_stop_seconds"].samples[0]
    assert (stop.labels["run"], stop.labels["host"], stop.value) == ("run", "h1", 0.005)
    skipped = {s.labels["outcome"]: s.value for s in families["fleetscope_profiler_windows"].samples}
    assert skipped == {"taken": 2, "skipped_server": 4}
    assert families["fleetscope_host_memory_total_bytes"].samples[0].value > 1 << 28
    assert families["fleetscope_agent_processes"].samples[0].value == 1
    assert [s.value for s in families["fleetscope_profiler_steps"].samples] == [30]
    child.do("send(protocol.End(at_ns=1, steps=30))")
    # A process that ended begins no step, and that is no hang.
    eventually(lambda: "fleetscope_profiler_steps" not in _page(agent))


def _page(agent: NodeAgent) -> dict[str, Metric]:
    with urllib.request.urlopen(f"http://{agent.metrics.address}/metrics", timeout=60) as answer:
        return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}


@pytest.mark.fault
def test_a_receiver_of_otlp_that_never_answers_costs_the_page_nothing(make_agent: MakeAgent) -> None:
    """It takes connections and says nothing. A page is made while a push waits; what does not arrive is counted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/metrics"
        agent = make_agent([HostCollector()], {"endpoint": endpoint, "interval_s": 1, "timeout_s": 2})
        connection, _ = silent.accept()
        assert "fleetscope_agent_processes" in _page(agent)
        threads = {thread.name for thread in threading.enumerate()}
        assert "fleetscope-otlp" in threads
        connection.close()

        def lost() -> float:
            samples = _page(agent)["fleetscope_agent_otlp_points"].samples
            return sum(sample.value for sample in samples if sample.labels["outcome"] not in ("accepted", "late"))

        silent.close()
        eventually(lambda: lost() > 0)
        assert _page(agent)["fleetscope_agent_otlp_failing_seconds"].samples[0].value > 0


@pytest.mark.unit
def test_what_is_pushed_is_what_stands_on_the_page(make_agent: MakeAgent) -> None:
    agent = make_agent([HostCollector(), NvidiaCollector(FakeNvml([busy_gpu(1)]))])
    eventually(lambda: all(runner.latest() for runner in agent.runners))
    shown = {name: len(family.samples) for name, family in _page(agent).items()}
    pushed = {
        family.metric.name.removesuffix("_total"): len(dict(family.series())) for family in families_of(agent._shown)
    }
    assert pushed == shown


@pytest.mark.unit
def test_a_histogram_of_the_page_has_its_buckets_when_it_is_pushed() -> None:
    """The runtime's own: 3 up to 0.1 s, 5 in all."""
    name, labels = "fleetscope_tpu_operation_seconds", {"operation": "send", "size": ""}
    parts = [(f"{name}_bucket", {**labels, "le": "0.1"}, 3.0), (f"{name}_bucket", {**labels, "le": "+Inf"}, 5.0),
             (f"{name}_count", labels, 5.0), (f"{name}_sum", labels, 2.5)]  # fmt: skip
    (family,) = families_of(Page("h1", [lambda: parts]))
    (found,) = family.classic.values()
    assert (list(family.classic), found.bounds, found.counts, found.sum_s) == ([("h1", "send", "")], [0.1], [3, 5], 2.5)


@pytest.mark.fault
def test_chips_on_the_page_with_their_state_and_owner_and_a_liar_named(make_agent: MakeAgent, spawn: Any) -> None:
    gpus = [busy_gpu(1), busy_gpu(2, temperature=400), busy_gpu(3, utilization=0)]
    agent = make_agent([NvidiaCollector(FakeNvml(gpus))])
    child: Child = spawn()
    child.do("connect()")
    gpus[0]["pids"] = [child.pid]

    def of(name: str, label: str) -> dict[str, str]:
        """Number of the chip -> the label's value, of series that are 1."""
        samples = _page(agent).get(name, Metric(name, "", "gauge")).samples
        return {s.labels["device"][11:12]: s.labels[label] for s in samples if s.value == 1}

    eventually(lambda: of("fleetscope_chip_quarantined", "reason") == {"2": "temperature"})
    eventually(lambda: of("fleetscope_chip_owner_info", "run") == {"1": "run"})
    # Values a second old are not current: on a busy machine chips are unknown for moments.
    eventually(lambda: of("fleetscope_chip_state", "state") == {"1": "busy", "2": "unknown", "3": "free"})
    assert len(_page(agent)["fleetscope_chip_state"].samples) == 12
    # A chip nobody believes has no other series.
    heat = {s.labels["device"][11:12] for s in _page(agent)["fleetscope_chip_temperature_celsius"].samples}
    assert heat == {"1", "3"}


@pytest.mark.fault
def test_a_log_without_credentials_is_on_the_page_and_an_address_that_is_none_at_the_start(
    tmp_path: Path, shm: Path
) -> None:
    """otel-contrib 35868, 9251, fleetint 199 (RT-45): an exporter that sends nothing, and says nothing."""

    def refused() -> Log:
        raise AccessDenied("SASL: wrong password")

    config = Config(state_dir=tmp_path / "s", agent=AgentConfig(shm_dir=shm, host="h1"))
    agent = NodeAgent(config, collectors=[], log_opener=refused)
    agent.start()
    try:
        agent.tick()
        eventually(lambda: _page(agent)["fleetscope_agent_send_failures"].samples[0].value >= 1)
        assert _page(agent)["fleetscope_agent_log_failing_seconds"].samples[0].value > 0
    finally:
        agent.close()
    for url in ("kafka://", "kafka://:9092", "nothing://x"):
        with pytest.raises(BadLogUrl):
            open_log(url)


@pytest.mark.unit
def test_the_cpus_peak_becomes_a_label_of_the_process(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    eventually(lambda: bool(agent.registry.labels), 20)
    agent.tick()
    agent.close()
    labels = announced(batches(tmp_path / "s", child.pid), "process")[-1].labels
    assert 1e9 < float(labels["peak_flops_per_s"]) < 1e15


@pytest.mark.unit
@pytest.mark.parametrize(("said", "told"), [("6.2e15", 6.2e15), ("0", 0.0), ("-3e9", 0.0), ("1e99", 0.0)])
def test_the_flops_a_user_declared_are_announced(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path, said: str, told: float
) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do(f"hello = hello._replace(flops_per_step={said})")
    child.do("connect()")
    agent.tick()
    agent.close()
    assert announced(batches(tmp_path / "s", child.pid), "process")[-1].declared_flops_per_step == told


@pytest.mark.unit
def test_ranges_of_host_batches_join(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    for _ in range(5):
        child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(300)]")
        agent.tick()
    agent.close()
    spans = [b for b in batches(tmp_path / "s", child.pid) if b.rows]
    for left, right in pairwise(spans):
        assert left.tick_to <= right.tick_from
    for batch in spans:
        rows = table(batch)
        end = rows["start"].to_numpy() + rows["dur"].to_numpy()
        assert (end <= batch.tick_to).all()
        assert (end >= batch.tick_from).all()
    assert np.concatenate([table(b)["start"].to_numpy() for b in spans]).size == 1500


@pytest.mark.fault
def test_sources_of_an_earlier_boot_are_forgotten(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    agent.tick()
    agent.close()
    (tmp_path / "s" / "spool" / "boot").write_text("a boot before")
    again = make_agent()
    assert again.spool.incarnation == agent.spool.incarnation
    # The sources of this boot go on all the same: whatever is heard of again is kept.
    again.tick()
    again.close()
    numbers = [batch.batch_number for batch in batches(tmp_path / "s", 0)]
    assert numbers == list(range(len(numbers)))


@pytest.mark.fault
def test_a_round_that_fails_is_counted_and_the_next_goes_on(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = make_agent()
    with monkeypatch.context() as patch:
        patch.setattr(agent.clocks, "snapshot", lambda: 1 / 0)
        agent._guarded_tick()
    assert agent.failed_rounds == 1
    agent._guarded_tick()
    assert agent.failed_rounds == 1


@pytest.mark.fault
def test_the_last_losses_of_a_process_that_ended_on_a_full_disk_are_told(
    make_agent: MakeAgent, spawn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleetscope.agents.node.registry.FAREWELL_S", 0.1)
    agent = make_agent()
    child: Child = spawn()
    child.do("connect()")
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(10)]")
    agent.tick()
    eventually(lambda: agent.sender.stats.messages > 1 and agent.spool.stats().in_flight == 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(DiskSegment, "append", full)
        child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(7)]")
        child.kill()
        eventually(lambda: agent.server.connections == 0)
        for _ in range(4):
            agent.tick()
            time.sleep(0.12)
        assert len(agent.registry) == 1, "held: no batch says what was lost"
    time.sleep(0.12)
    agent.tick()
    assert len(agent.registry) == 0
    agent.close()
    found = sorted(batches(tmp_path / "s", child.pid), key=lambda batch: batch.batch_number)
    assert sum(batch.rows for batch in found) == 10
    assert {item.reason: item.events for item in found[-1].dropped} == {"spool_disk": 7}
    assert found[-1].produced == 17
