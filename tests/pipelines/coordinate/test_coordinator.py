"""The coordinator's loop: when it folds, when it stands by, what it does at the end; silent runs."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.pipelines.coordinate import rounds
from fleetscope.pipelines.coordinate.rounds import Coordinator, merge_rows
from fleetscope.pipelines.coordinate.runs import SILENT_AFTER_NS, finished_runs, silent_runs
from fleetscope.schema.config import Config
from fleetscope.schema.errors import LakeUnavailable
from fleetscope.schema.tables import PROCESSES, RUNS
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.fold import fold_rows
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.rounds import newest_round
from fleetscope.transport import Message, TopicSpec, open_log

pytestmark = pytest.mark.unit


def _config(tmp_path: Path, **coordinator: Any) -> Config:
    return Config(state_dir=tmp_path, coordinator=coordinator)


@pytest.fixture
def store(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "lake")


def _coordinator(tmp_path: Path, **settings: Any) -> Coordinator:
    return Coordinator(_config(tmp_path, **settings), merge=merge_rows)


def _until(condition: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_round_once_folds_what_is_committed(world: ModuleType, tmp_path: Path, store: LocalFolder) -> None:
    coordinator = _coordinator(tmp_path)
    assert coordinator.round_once() is None
    world.commit_epoch(store)
    record = coordinator.round_once()
    assert record is not None
    assert (record.number, record.made_by) == (1, coordinator.name)
    coordinator.close()


def test_symbols_reach_the_next_round(tmp_path: Path, store: LocalFolder) -> None:
    with open_log((tmp_path / "log").as_uri()) as log:
        log.create_topics([TopicSpec("fleetscope.programs", compacted=True)])
    coordinator = _coordinator(tmp_path)
    assert coordinator.round_once() is None
    rows = pa.Table.from_pylist([], RUNS)
    fold_rows(coordinator.moments.tables["runs"], rows, {})
    assert coordinator.round_once() is None
    coordinator.close()


def test_the_loop_folds_after_its_period_or_enough_rows_and_once_more_at_the_end(
    world: ModuleType, tmp_path: Path, store: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOOK_S", 0.01)
    monkeypatch.setattr(rounds, "LEAST_S", 0.0)
    stop = threading.Event()
    # an hour: only rows make rounds
    coordinator = _coordinator(tmp_path, round_s=3600, round_rows=2 * (world.ROWS + 2))
    thread = threading.Thread(target=coordinator.run, args=(stop,))
    thread.start()
    try:
        world.commit_epoch(store)
        time.sleep(0.1)
        assert newest_round(store) is None
        world.commit_epoch(store)
        _until(lambda: newest_round(store) is not None)
        world.commit_epoch(store)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    last = newest_round(store)
    assert last is not None
    assert last.folded == {0: 3}


def test_a_second_coordinator_stands_by_and_takes_over(
    world: ModuleType, tmp_path: Path, store: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOOK_S", 0.01)
    monkeypatch.setattr(rounds, "LEAST_S", 0.0)
    stop_first, stop_second = threading.Event(), threading.Event()
    first = _coordinator(tmp_path, round_s=0.05)
    second = _coordinator(tmp_path, round_s=0.05)
    leader = threading.Thread(target=first.run, args=(stop_first,))
    standby = threading.Thread(target=second.run, args=(stop_second,))
    try:
        leader.start()
        world.commit_epoch(store)
        _until(lambda: newest_round(store) is not None)
        standby.start()
        for _ in range(3):
            number = world.commit_epoch(store).number
            _until(lambda number=number: newest_round(store).folded[0] == number)
        stop_first.set()
        leader.join(60)
        number = world.commit_epoch(store).number
        _until(lambda: newest_round(store).folded[0] == number)
    finally:
        stop_first.set()
        stop_second.set()
        leader.join(60)
        standby.join(60)
    last = newest_round(store)
    assert last is not None
    assert last.made_by == second.name
    world.check(store)


class _Clocks:
    """A solver and its tables, with a lake that fails once."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.waiting = True

    def fold(self) -> None:
        self.did.append("fold")
        if len(self.did) == 1:
            raise LakeUnavailable("injected")

    def leave(self) -> None:
        self.did.append("leave")


def test_one_that_stands_by_folds_what_it_knows_of_clocks_and_leaves_them_to_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: it kept the newest term, so that nobody solved for a minute, and its rows reached no reader."""
    coordinator = _coordinator(tmp_path)
    monkeypatch.setattr(coordinator, "_standing_by", lambda _: True)
    clocks: Any = _Clocks()
    coordinator.solver = coordinator._clock_tables = clocks
    for _ in range(3):
        coordinator._tick()
    assert clocks.did == ["fold", "fold", "leave"]
    assert coordinator.solver is None


def _runs(*rows: dict[str, Any]) -> pa.Table:
    base = {"cluster": "c", "name": "r", "attempt_name": "a", "start_ns": 5, "tenant": "", "labels": [], "mesh": ""}
    return pa.Table.from_pylist([{**base, "declared_flops_per_step": 0.0, **row} for row in rows], RUNS)


def test_a_silent_run_ends_when_it_was_last_seen() -> None:
    now = 10 * SILENT_AFTER_NS
    quiet, spoke = now - SILENT_AFTER_NS - 1, now - SILENT_AFTER_NS
    runs = _runs(
        {"run": 1, "attempt": 1, "end_ns": 0, "seen_ns": quiet},
        {"run": 2, "attempt": 1, "end_ns": 0, "seen_ns": spoke},
        {"run": 3, "attempt": 1, "end_ns": 77, "seen_ns": quiet},
    )
    ended = silent_runs(runs, now)
    assert ended.schema.equals(RUNS)
    assert [(row["run"], row["end_ns"], row["seen_ns"]) for row in ended.to_pylist()] == [(1, quiet, quiet + 1)]


def _processes(*rows: tuple[int, int, int, int, int]) -> pa.Table:
    """(process, run, attempt, end_ns, seen_ns) each."""
    names = ("process", "run", "attempt", "end_ns", "seen_ns")
    base = {field.name: "" if pa.types.is_string(field.type) else 0 for field in PROCESSES} | {"labels": []}
    return pa.Table.from_pylist([base | dict(zip(names, row, strict=True)) for row in rows], PROCESSES)


def test_a_run_ends_with_the_last_of_its_ranks() -> None:
    runs = _runs(
        {"run": 1, "attempt": 11, "end_ns": 0, "seen_ns": 100},
        {"run": 2, "attempt": 21, "end_ns": 0, "seen_ns": 100},
        {"run": 3, "attempt": 31, "end_ns": 66, "seen_ns": 100},
        {"run": 4, "attempt": 41, "end_ns": 0, "seen_ns": 100},
    )
    processes = _processes(
        (1, 1, 11, 50, 90),
        (2, 1, 11, 70, 120),
        (3, 2, 21, 50, 90),
        (4, 2, 21, 0, 95),  # this rank still runs
        (5, 3, 31, 60, 90),
    )
    ended = finished_runs(runs, processes)
    assert ended.schema.equals(RUNS)
    # newer than the newest word of any of its ranks, so that this row wins; nothing is known of run 4's ranks
    assert [(row["run"], row["end_ns"], row["seen_ns"]) for row in ended.to_pylist()] == [(1, 70, 121)]


def test_the_coordinator_ends_a_run_over_many_hosts(tmp_path: Path) -> None:
    coordinator = _coordinator(tmp_path)
    runs, processes = (coordinator.moments.tables[name] for name in ("runs", "processes"))
    fold_rows(runs, _runs({"run": 1, "attempt": 11, "end_ns": 0, "seen_ns": 100}), {})
    fold_rows(processes, _processes((1, 1, 11, 70, 110), (2, 1, 11, 0, 100)), {})
    assert coordinator.upkeep.end_runs(130) == 0
    fold_rows(processes, _processes((2, 1, 11, 80, 120)), {})
    assert coordinator.upkeep.end_runs(130) == 1
    assert coordinator.upkeep.end_runs(130) == 0


def test_a_run_that_speaks_again_runs_again(tmp_path: Path, store: LocalFolder) -> None:
    coordinator = _coordinator(tmp_path)
    table = coordinator.moments.tables["runs"]
    fold_rows(table, _runs({"run": 1, "attempt": 1, "end_ns": 0, "seen_ns": 100}), {})
    assert coordinator.upkeep.end_runs(100 + SILENT_AFTER_NS) == 0
    assert coordinator.upkeep.end_runs(101 + SILENT_AFTER_NS) == 1
    assert coordinator.upkeep.end_runs(101 + SILENT_AFTER_NS) == 0
    record = coordinator.round_once()
    assert record is not None
    assert "runs" in record.versions
    fold_rows(table, _runs({"run": 1, "attempt": 1, "end_ns": 0, "seen_ns": 200}), {})
    from fleetscope.sinks.lake.fold import read_rows

    rows = read_rows(store, "runs", [item.path for item in table.live()])
    assert rows.column("end_ns").to_pylist() == [0]
    coordinator.close()


def test_the_loop_tells_exporters_what_the_newest_round_holds(
    world: ModuleType, tmp_path: Path, store: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "LOOK_S", 0.01)
    monkeypatch.setattr(rounds, "LEAST_S", 0.0)
    topic = "fleetscope.metrics"
    with open_log((tmp_path / "log").as_uri()) as log:
        log.create_topics([TopicSpec(topic, compacted=True)])
        world.commit_epoch(store)
        stop = threading.Event()
        coordinator = _coordinator(tmp_path, round_s=0.05)
        thread = threading.Thread(target=coordinator.run, args=(stop,))
        thread.start()
        messages: list[Message] = []
        with closing(log.tail(topic)) as tail:
            _until(lambda: messages.extend(tail.poll(0.05)) or messages)
        stop.set()
        thread.join()
    record = MetricsRecord.FromString(messages[-1].value)
    assert coordinator.moments.last is not None
    folded = {s.labels["chain"]: s.int_value for s in record.samples if s.name == "fleetscope_lake_folded_epoch"}
    assert folded == {str(chain): number for chain, number in coordinator.moments.last.folded.items()} != {}
