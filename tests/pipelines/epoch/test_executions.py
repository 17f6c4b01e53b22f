"""The stream of executions of a simulated fleet, through log, worker and coordinator: every tick against the truth."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fleetscope.agents.simulated import Simulation
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema import config
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.e2e

IDLE = ("idle_input_ns", "idle_dispatch_ns", "idle_compile_ns", "idle_checkpoint_ns", "idle_unknown_ns")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("executions")
    loaded = config.load(state_dir=home, log={"partitions": 2})
    Simulation(
        loaded, hosts=2, chips=2, seconds=12, seed=3, truth=home / "truth", speed="max", ops=20, step_ms=100, busy=0.5,
        faults=["straggler:host=1,at=4,for=3,wait=0.2"], shim=True,
    ).run(threading.Event())  # fmt: skip
    Worker(loaded).run_once()
    Coordinator(loaded).round_once()
    return home


def test_every_execution_is_there_once_to_the_tick(fleet: Path) -> None:
    snapshot = Snapshot.open(LocalFolder(fleet / "lake"))
    rows = [
        row
        for row in snapshot.table("spans").to_pylist()
        if row["kind"] == Kind.MODULE and row["flags"] & SpanFlag.INFERRED_BEGIN
    ]
    maps = {row["map"]: row for row in snapshot.table("clock_maps").to_pylist()}

    def ticks(row: dict[str, int]) -> int:
        """The smallest tick whose image is t_ns, and t_sub on (DESIGN 3.3)."""
        line = maps[row["map"]]
        smallest = -((line["y0"] - row["t_ns"]) * line["d"] // line["n"]) + line["x0"]
        return int(smallest + row["t_sub"])

    found = sorted((row["device"], row["flow"], ticks(row), row["dur_ns"]) for row in rows)
    truth = pq.read_table(fleet / "truth" / "executions.parquet").to_pylist()
    told = sorted((row["device"], row["launch"], row["begin"], row["end"] - row["begin"]) for row in truth)
    assert found == told
    assert len(found) > 200


def test_occupied_and_idle_time_add_up_and_the_causes_are_the_hosts(fleet: Path) -> None:
    snapshot = Snapshot.open(LocalFolder(fleet / "lake"))
    rows = snapshot.table("device_10s").to_pylist()
    occupied: dict[int, int] = defaultdict(int)
    for row in pq.read_table(fleet / "truth" / "executions.parquet").to_pylist():
        occupied[row["device"]] += row["end"] - row["begin"]
    total: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        idle = sum(row[name] for name in IDLE)
        assert idle == row["observed_ns"] - row["busy_ns"] + row["watched_ns"] - row["occupancy_ns"]
        for name in (*IDLE, "watched_ns", "occupancy_ns"):
            total[row["device"]][name] += row[name]
    assert {device: sums["occupancy_ns"] for device, sums in total.items()} == dict(occupied)
    truth = pq.read_table(fleet / "truth" / "executions.parquet").to_pylist()
    slow = {row["device"] for row in truth if row["host"] == 1}
    for device, sums in total.items():
        assert sums["watched_ns"] > 10 * 10**9
        assert sums["idle_dispatch_ns"] > 0
        if device in slow:
            # ops and executions are both idle while its host waits for data: 0.2 s of each 0.3 s for 3 s, twice told
            assert sums["idle_input_ns"] > 2 * 10**9


def test_steps_have_their_executions_occupancy_and_exposed_wait(fleet: Path) -> None:
    snapshot = Snapshot.open(LocalFolder(fleet / "lake"))
    rows = [row for row in snapshot.table("step").to_pylist() if row["dur_ns"]]
    truth = pq.read_table(fleet / "truth" / "executions.parquet").to_pylist()
    assert {row["source"] for row in rows} == {"declared"}
    assert {row["confidence"] for row in rows} == {1000}
    middle = [row for row in rows if 5 < row["step"] < 60]
    assert {row["executions"] for row in middle} == {2}, "one a chip; those of full captures are the same ones"
    assert sum(row["executions"] for row in rows) <= len(truth)
    lasted = sorted(row["end"] - row["begin"] for row in truth)
    parts = {(row["process"], row["step"]): row for row in snapshot.table("step_program").to_pylist()}
    for row in middle:
        part = parts[row["process"], row["step"]]
        assert (part["executions"], part["program"], part["t_ns"]) == (2, row["program"], row["t_ns"])
        assert 2 * lasted[0] <= part["dur_ns"] <= 2 * lasted[-1]
    for row in middle:
        assert row["idle_ns"] == row["watched_ns"] - row["occupancy_ns"] > 0
        assert abs(row["watched_ns"] - 2 * row["dur_ns"]) < 10_000, "two chips; clocks differ by parts per million"
