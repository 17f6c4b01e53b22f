"""Workers killed at each named point, stopped and woken late, two at once: every event once, the ledger exact."""

from __future__ import annotations

import multiprocessing as mp
import os
import runpy
import signal
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from fleetscope.schema.vocabulary import Kind
from fleetscope.schema.wire_pb2 import MetricsRecord

pytestmark = pytest.mark.fault

MS = 1_000_000
START = 1_000 * MS
POINTS = (
    "read.done",
    "file.written",
    "segment.written",
    "commit.segment_written",
    "commit.before_manifest",
    "manifest.before_put",
    "object.written",
    "object.before_link",
    "object.linked",
    "manifest.after_put",
    "commit.after_manifest",
    "worker.before_publish",
)


@pytest.fixture(scope="module")
def forks() -> Any:
    """Children of a server that has imported Beam already: 20 ms each instead of 2 s."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["fleetscope.pipelines.drivers.runner", "fleetscope.pipelines.drivers.epoch"])
    return context


def start(forks: Any, bench: Any, point: str, signal_number: int = signal.SIGKILL) -> BaseProcess:
    given = {"CONFIG": bench.config, "POINT": point, "SIGNAL": signal_number}
    script = str(Path(__file__).with_name("worker_child.py"))
    child: BaseProcess = forks.Process(target=runpy.run_path, args=(script, given))
    child.start()
    return child


def step(bench: Any, host: Any, index: int) -> None:
    """One more millisecond of two chips: 3 ops each, and a batch that is sent twice."""
    at = START + index * MS
    rows = {"start": [at, at + 100_000, at + 700_000], "dur": [500_000, 200_000, 250_000], "line": 0, "program": 5}
    for chip in (0, 1):
        batch = host.spans(chip, at, at + MS, {**rows, "kind": Kind.COMPUTE, "op": [1, 2, 3]})
        bench.send(batch)
    bench.send(batch)


def check(bench: Any, hosts: int, steps: int) -> None:
    spans = bench.rows("spans")
    events = Counter((row["process"], row["seq"]) for row in spans)
    assert set(events.values()) == {1}
    assert len(events) == hosts * steps * 6
    by_op: Counter[int] = Counter()
    for row in bench.rows("op_10s"):
        by_op[row["op"]] += row["sum_ns"]
    assert by_op == {op: hosts * steps * 2 * dur for op, dur in ((1, 500_000), (2, 200_000), (3, 250_000))}
    busy = sum(row["busy_ns"] for row in bench.rows("device_10s"))
    assert busy == hosts * steps * 2 * 750_000
    assert sum(row["observed_ns"] for row in bench.rows("device_10s")) == hosts * steps * 2 * MS
    newest: dict[int, dict[str, Any]] = {}
    for row in bench.rows("ledger"):
        if row["source"] not in newest or row["epoch"] > newest[row["source"]]["epoch"]:
            newest[row["source"]] = row
    assert len(newest) == hosts
    for row in newest.values():
        assert (row["stored"], row["duplicate"], row["gaps"]) == (steps * 6, steps * 3, [])


def published(bench: Any, series_of: Any) -> float:
    """Busy seconds of the run by the newest record."""
    newest = [MetricsRecord.FromString(value) for value in bench.log.read_compacted(bench.topics.metrics).values()]
    return sum(
        value
        for record in newest
        if record.run == "train"
        for name, _, value in series_of(record)
        if name == "fleetscope_device_busy_seconds_total"
    )


def test_killed_at_every_point(bench: Any, forks: Any, series_of: Any) -> None:
    host = bench.host("h1")
    for index, point in enumerate(POINTS):
        step(bench, host, index)
        child = start(forks, bench, point)
        child.join(30)
        assert child.exitcode == -signal.SIGKILL, point
    bench.drain()
    check(bench, 1, len(POINTS))
    assert published(bench, series_of) == pytest.approx(len(POINTS) * 2 * 750_000 / 1e9)
    files = list(Path(bench.config.lake_url, "tables").rglob("*.parquet"))
    referenced = {ref.key for manifest in bench.manifests() for ref in manifest.segments}
    assert len(files) > len(referenced), "no orphan was left, so nothing was killed between segment and manifest"


@pytest.mark.parametrize("point", ["read.done", "commit.before_manifest", "commit.after_manifest"])
def test_a_zombie_that_wakes_late_commits_nothing(bench: Any, forks: Any, point: str) -> None:
    host = bench.host("h1")
    step(bench, host, 0)
    zombie = start(forks, bench, point, signal.SIGSTOP)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the worker never reached the point"
        time.sleep(0.01)
    for index in range(1, 4):
        step(bench, host, index)
        bench.drain()
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(30)
    assert zombie.exitcode == 0
    bench.drain()
    check(bench, 1, 4)


def test_two_workers_on_one_chain(bench: Any, forks: Any) -> None:
    hosts = [bench.host(f"h{number}") for number in range(3)]
    children = []
    for index in range(3):
        for host in hosts:
            step(bench, host, index)
        children += [start(forks, bench, "never"), start(forks, bench, "never")]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    bench.drain()
    check(bench, 3, 3)
