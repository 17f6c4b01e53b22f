"""Another number of chains on a lake that has some: killed at each named point, zombies, rivals; every event once."""

from __future__ import annotations

import multiprocessing as mp
import os
import runpy
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.drivers import generation as driver
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema.errors import GenerationFenced, GenerationPending
from fleetscope.schema.vocabulary import Kind
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.generation import current_generation, generations
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.sweep import sweep
from fleetscope.sinks.prometheus.state import FleetState
from fleetscope.transport.partition import partition_of

pytestmark = pytest.mark.fault

MS = 1_000_000
START = 1_000 * MS
BUSY_NS = 2 * 750_000
"""A host's two chips in a millisecond: [0, 500) us with an op inside, and [700, 950)."""
POINTS = (
    "generation.before_fence",
    "generation.fenced",
    "generation.folded",
    "generation.before_put",
    "generation.after_put",
)
EVER_NS = 1 << 62


@pytest.fixture(scope="module")
def forks() -> Any:
    """Children of a server that has imported Beam already: 20 ms each instead of 2 s."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fleetscope.pipelines.drivers.runner", "fleetscope.pipelines.drivers.epoch"])
    return context


class Fleet:
    """Four hosts over four partitions; what was sent is what must be there."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        names = {partition_of(f"h{number}".encode(), 4): f"h{number}" for number in range(64)}
        assert len(names) == 4
        self.hosts = [bench.host(name) for name in names.values()]
        self.steps = 0
        self.exporter = FleetState(EVER_NS, EVER_NS, 1000)
        self.tail = bench.log.tail(bench.topics.metrics)
        self.shown_s = 0.0

    def step(self) -> None:
        """One more millisecond of two chips of each host: 3 ops each, and a batch that is sent twice."""
        at = START + self.steps * MS
        rows = {"start": [at, at + 100_000, at + 700_000], "dur": [500_000, 200_000, 250_000], "line": 0, "program": 5}
        for host in self.hosts:
            for chip in (0, 1):
                batch = host.spans(chip, at, at + MS, {**rows, "kind": Kind.COMPUTE, "op": [1, 2, 3]})
                self.bench.send(batch)
            self.bench.send(batch)
        self.steps += 1

    def chains(self, count: int, **section: Any) -> None:
        worker = self.bench.config.worker.model_copy(update={"chain_count": count, **section})
        self.bench.config = self.bench.config.model_copy(update={"worker": worker})

    def fold(self) -> None:
        Coordinator(self.bench.config, store=self.bench.store, log=self.bench.log).round_once()

    def look(self) -> float:
        """Busy seconds on /metrics, which may not have become fewer since the last look."""
        for message in self.tail.poll():
            self.exporter.take(MetricsRecord.FromString(message.value), 0)
            busy_s = self._busy_s()
            assert busy_s >= self.shown_s - 1e-12, "a counter went back"
            self.shown_s = busy_s
        return self.shown_s

    def _busy_s(self) -> float:
        families = self.exporter.families(0)
        name = "fleetscope_device_busy_seconds_total"
        return sum(value for family in families if family.metric.name == name for _, value in family.series())

    def check(self) -> None:
        """Committed segments, tables of the newest round, ledger, and /metrics against what was sent."""
        bench, steps, hosts = self.bench, self.steps, len(self.hosts)
        self.fold()
        snapshot = Snapshot.open(bench.store)
        assert not snapshot.tail
        for spans in (bench.rows("spans"), snapshot.table("spans", ["process", "seq"]).to_pylist()):
            events = Counter((row["process"], row["seq"]) for row in spans)
            assert set(events.values()) == {1}
            assert len(events) == hosts * steps * 6
        for rollup in (bench.rows("op_10s"), snapshot.table("op_10s", ["op", "sum_ns"]).to_pylist()):
            by_op: Counter[int] = Counter()
            for row in rollup:
                by_op[row["op"]] += row["sum_ns"]
            assert by_op == {op: hosts * steps * 2 * dur for op, dur in ((1, 500_000), (2, 200_000), (3, 250_000))}
        assert sum(row["busy_ns"] for row in bench.rows("device_10s")) == hosts * steps * BUSY_NS
        with snapshot.duckdb() as connection:
            now = connection.sql("SELECT stored, duplicate, gaps FROM ledger_now").fetchall()
        assert now == [(steps * 6, steps * 3, [])] * hosts
        assert self.look() == pytest.approx(hosts * steps * BUSY_NS / 1e9)
        restarted = FleetState(EVER_NS, EVER_NS, 1000)
        for value in bench.log.read_compacted(bench.topics.metrics).values():
            restarted.take(MetricsRecord.FromString(value), 0)
        self.exporter, before = restarted, self.exporter
        assert self._busy_s() == pytest.approx(self.shown_s)
        self.exporter = before


@pytest.fixture
def fleet(bench: Any, tmp_path: Path) -> Iterator[Fleet]:
    bench.log.close()
    log = bench.config.log.model_copy(update={"partitions": 4, "url": f"file://{tmp_path / 'four'}"})
    bench.config = bench.config.model_copy(update={"log": log})
    bench.__post_init__()
    made = Fleet(bench)
    yield made
    made.tail.close()


def start(forks: Any, fleet: Fleet, point: str, signal_number: int = signal.SIGKILL) -> BaseProcess:
    given = {"CONFIG": fleet.bench.config, "POINT": point, "SIGNAL": signal_number}
    script = str(Path(__file__).with_name("worker_child.py"))
    child: BaseProcess = forks.Process(target=runpy.run_path, args=(script, given))
    child.start()
    return child


def asleep(child: BaseProcess) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the worker never reached the point"
        time.sleep(0.01)


def wake(child: BaseProcess) -> int | None:
    assert child.pid is not None
    os.kill(child.pid, signal.SIGCONT)
    child.join(30)
    return child.exitcode


def test_one_to_three_to_two_chains(fleet: Fleet) -> None:
    for count, owned in ((1, {0: (0, 1, 2, 3)}), (3, {0: (0, 3), 1: (1,), 2: (2,)}), (2, {0: (0, 2), 1: (1, 3)})):
        fleet.chains(count)
        fleet.step()
        assert fleet.bench.drain() == len(owned)
        current = current_generation(fleet.bench.store)
        assert current is not None
        assert current.chains == owned
        fleet.check()
    assert [item.number for item in generations(fleet.bench.store)] == [1, 2, 3]
    # Numbers of a chain go on: first epoch, fence, epoch, fence, epoch; chain 2 had one epoch and its fence.
    assert [len(fleet.bench.manifests(chain)) for chain in range(3)] == [5, 3, 2]


def test_killed_at_every_point_of_the_change(fleet: Fleet, forks: Any) -> None:
    fleet.step()
    fleet.bench.drain()
    for count, point in zip((3, 2, 4, 1, 2), POINTS, strict=True):
        fleet.fold()
        fleet.step()
        fleet.chains(count)
        child = start(forks, fleet, point)
        child.join(30)
        assert child.exitcode == -signal.SIGKILL, point
        fleet.bench.drain()
        fleet.check()
    assert [len(item.chains) for item in generations(fleet.bench.store)] == [1, 3, 2, 4, 1, 2]


def test_a_change_that_nobody_finished_may_be_taken_back(fleet: Fleet, forks: Any) -> None:
    fleet.step()
    fleet.bench.drain()
    fleet.fold()
    fleet.chains(3)
    child = start(forks, fleet, "generation.fenced")
    child.join(30)
    fleet.chains(1)
    fleet.step()
    fleet.bench.drain()
    assert [len(item.chains) for item in generations(fleet.bench.store)] == [1, 1]
    fleet.check()


@pytest.mark.parametrize("point", ["read.done", "commit.before_manifest", "commit.after_manifest"])
def test_a_zombie_of_the_old_generation_commits_nothing(fleet: Fleet, forks: Any, point: str) -> None:
    fleet.step()
    zombie = start(forks, fleet, point, signal.SIGSTOP)
    asleep(zombie)
    fleet.fold()
    fleet.chains(3)
    fleet.bench.drain()
    fleet.step()
    fleet.bench.drain()
    assert wake(zombie) == 1, "it ends with GenerationFenced"
    fleet.bench.drain()
    fleet.check()


@pytest.mark.parametrize("point", ["generation.before_fence", "generation.fenced", "generation.before_put"])
@pytest.mark.parametrize("again", [False, True])
def test_a_zombie_of_the_change_itself(fleet: Fleet, forks: Any, point: str, again: bool) -> None:
    """It sleeps while others make the change, work, and in the other half change once more."""
    fleet.step()
    fleet.bench.drain()
    fleet.fold()
    fleet.chains(3)
    zombie = start(forks, fleet, point, signal.SIGSTOP)
    asleep(zombie)
    fleet.step()
    fleet.bench.drain()
    if again:
        fleet.fold()
        fleet.chains(2)
        fleet.bench.drain()
    fleet.step()
    assert wake(zombie) == (1 if again else 0)
    fleet.bench.drain()
    fleet.check()


def test_two_workers_start_the_new_generation_at_once(fleet: Fleet, forks: Any) -> None:
    fleet.step()
    fleet.bench.drain()
    for count in (3, 2, 4):
        fleet.fold()
        fleet.step()
        fleet.chains(count)
        children = [start(forks, fleet, "never") for _ in range(2)]
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0]
    fleet.bench.drain()
    assert [len(item.chains) for item in generations(fleet.bench.store)] == [1, 3, 2, 4]
    fleet.check()


def test_two_workers_that_disagree_harm_nothing(fleet: Fleet, forks: Any) -> None:
    fleet.step()
    fleet.bench.drain()
    fleet.fold()
    fleet.step()
    children = []
    for count in (3, 2):
        fleet.chains(count)
        children.append(start(forks, fleet, "never"))
    for child in children:
        child.join(60)
    fleet.fold()
    fleet.chains(2)
    fleet.bench.drain()
    fleet.check()


def test_it_waits_for_the_coordinator(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.step()
    fleet.bench.drain()
    fleet.chains(3)
    # As if what waits had waited for long: no coordinator runs, and the old chains are left to go on.
    monkeypatch.setattr(driver, "FOLD_PATIENCE_NS", 0)
    with pytest.raises(GenerationPending, match="chain 0 is folded, from epoch 1 on: run the coordinator"):
        fleet.bench.drain()
    fleet.chains(1)
    fleet.step()
    assert fleet.bench.drain() == 1
    monkeypatch.undo()
    fleet.chains(3)
    with pytest.raises(GenerationPending):
        fleet.bench.drain()
    fleet.step()
    fleet.fold()
    fleet.bench.drain()
    fleet.check()


def test_a_running_worker_waits_and_goes_on_and_the_old_one_ends(fleet: Fleet) -> None:
    fleet.step()
    old = Worker(fleet.bench.config, fleet.bench.graph)
    old.run_once()
    fleet.chains(3)
    new = Worker(fleet.bench.config, fleet.bench.graph)
    stop = threading.Event()
    thread = threading.Thread(target=new.run, args=(stop,))
    thread.start()
    fleet.step()
    with pytest.raises(GenerationFenced, match="chain 0 is in generation 2, this worker in 1"):
        old.run(threading.Event())
    fleet.fold()
    deadline = time.monotonic() + 60
    while Chain(fleet.bench.store, 2).latest() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    stop.set()
    thread.join(60)
    fleet.bench.drain()
    fleet.check()


def test_a_chain_without_a_worker_for_days_begins_where_it_should(fleet: Fleet) -> None:
    """Manifests and states of the old chains are swept meanwhile."""
    fleet.step()
    fleet.bench.drain()
    fleet.fold()
    fleet.chains(3, chains=[0])
    fleet.step()
    fleet.bench.drain()
    fleet.fold()
    assert fleet.look() == pytest.approx(4 * BUSY_NS / 1e9), "chains 1 and 2 have not spoken: the old values stand"
    swept = sweep(fleet.bench.store, time.time() + 3 * 86_400)
    assert swept.manifests
    fleet.chains(3, chains=[1, 2])
    fleet.bench.drain()
    fleet.fold()
    assert Chain(fleet.bench.store, 0).get(1) is None
    assert fleet.look() == pytest.approx(4 * 2 * BUSY_NS / 1e9)
    spans = Snapshot.open(fleet.bench.store).table("spans", ["process", "seq"])
    assert spans.num_rows == len(spans.group_by(["process", "seq"]).aggregate([])) == 4 * 2 * 6


def test_batches_that_wait_for_a_bracket_wait_on_in_the_new_chain(fleet: Fleet) -> None:
    fleet.chains(1, clock_wait_s=600.0)
    host = fleet.hosts[0]
    rows = {"start": [START], "dur": [600_000], "line": 0, "kind": Kind.COMPUTE, "program": 5, "op": 1}
    fleet.bench.send(host.spans(0, START, START + MS, rows, snapshots=(START,)))
    worker = fleet.bench.worker()
    worker.start()
    assert worker._epoch(worker._chains[0])
    assert fleet.bench.rows("spans") == []
    fleet.fold()
    fleet.chains(2, clock_wait_s=600.0)
    fleet.bench.send(host.spans(0, START + MS, START + 2 * MS, {**rows, "start": [START + MS]}))
    again = fleet.bench.worker()
    again.start()
    for chain in again._chains:
        again._epoch(chain)
    assert sorted(row["seq"] for row in fleet.bench.rows("spans")) == [0, 1]
