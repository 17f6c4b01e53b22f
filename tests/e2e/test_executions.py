"""A JAX program without annotations or windows on a real PJRT plugin (an unmodified XLA:CPU): what the shim's stream
alone makes of it, from the ring to the tables."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from fleetscope.agents.node import NodeAgent
from fleetscope.analysis.devices import device_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema.config import load
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.e2e

STEPS, WAIT_S = 60, 0.015
PROGRAM = f"""
import os, time
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
import jax._src.xla_bridge as bridge
import fastatomstruct_xla_cpu
bridge.register_plugin("real", library_path=os.path.join(os.path.dirname(fastatomstruct_xla_cpu.__file__),
                                                         "libpjrt_cpu.so"))
@jax.jit
def train(x):
    for _ in range(4):
        x = x @ x / 300.0
    return x
x = train(jnp.ones((300, 300))).block_until_ready()
time.sleep(1.5)  # its HLO is taken before the next execution
begin = time.monotonic_ns()
for _ in range({STEPS}):
    with profiler.annotate("data_wait"):
        time.sleep({WAIT_S})
    x = train(x)
    x.block_until_ready()
print(time.monotonic_ns() - begin)
time.sleep(1.2)
profiler.stop()
"""


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshot, int]:
    """(the lake after the run, ns its loop took)"""
    home = tmp_path_factory.mktemp("shim")
    (home / "shm").mkdir()
    config = load(state_dir=home, log={"partitions": 2}, agent={"shm_dir": str(home / "shm"), "host": "h1"},
                  governor={"enabled": False})  # fmt: skip
    agent = NodeAgent(config, collectors=[])
    agent.start()
    stop = threading.Event()

    def rounds() -> None:
        while not stop.is_set():
            agent.tick()
            time.sleep(0.2)

    ticking = threading.Thread(target=rounds)
    ticking.start()
    env = {
        **os.environ,
        "JAX_PLATFORMS": "real",
        "FLEETSCOPE_AGENT__SHM_DIR": str(home / "shm"),
        "FLEETSCOPE_AGENT_SOCKET": str(config.agent_socket),
        "FLEETSCOPE_PROFILER__ENABLED": "0",
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    time.sleep(0.6)
    stop.set()
    ticking.join()
    agent.tick()
    agent.close()
    assert done.returncode == 0, done.stderr[-3000:]
    Worker(config).run_once()
    Coordinator(config).round_once()
    return Snapshot.open(LocalFolder(config.state_dir / "lake")), int(done.stdout.split()[-1])


def _named(snapshot: Snapshot) -> list[dict[str, Any]]:
    with snapshot.duckdb() as connection:
        query = f"SELECT * EXCLUDE t FROM spans_named WHERE kind = {int(Kind.MODULE)} ORDER BY t_ns"
        return list(connection.sql(query).to_arrow_table().to_pylist())


def test_every_execution_is_there_once_under_its_programs_name(lived: tuple[Snapshot, int]) -> None:
    rows = [row for row in _named(lived[0]) if row["name"] == "jit_train"]
    assert len(rows) == STEPS + 1
    assert {row["weight"] for row in rows} == {1}
    flags = {row["flags"] & ~SpanFlag.UNSYNCED for row in rows}
    assert flags == {SpanFlag.INFERRED_BEGIN}, "known by its fingerprint from the first on"
    assert len({row["program"] for row in rows}) == 1
    assert [row["exec"] for row in rows] == sorted(row["exec"] for row in rows)
    assert {row["device_key"] for row in rows} == {"h1/cpu/0/0"}


def test_occupancy_and_idle_time_by_cause_without_a_window(lived: tuple[Snapshot, int]) -> None:
    snapshot, took_ns = lived
    rows = snapshot.table("device_10s").to_pylist()
    idle = ("idle_input_ns", "idle_dispatch_ns", "idle_compile_ns", "idle_checkpoint_ns", "idle_unknown_ns")
    for row in rows:
        assert sum(row[name] for name in idle) == row["watched_ns"] - row["occupancy_ns"]
        assert row["observed_ns"] == row["busy_ns"] == 0
    rows = [row for row in rows if row["occupancy_ns"]]
    assert len({row["device"] for row in rows}) == 1, "the plugin has more; the others never ran anything"
    waited = sum(row["idle_input_ns"] for row in rows)
    assert STEPS * WAIT_S * 1e9 * 0.98 <= waited <= took_ns
    assert sum(row["occupancy_ns"] for row in rows) > 0
    assert sum(row["executions"] for row in rows) >= STEPS + 1
    (device,) = (row for row in device_table(snapshot, Scope()).to_pylist() if row["occupancy_ratio"])
    assert device["seen"] == "executions"
    assert 0 < device["occupancy_ratio"] < 1
    assert device["idle_input_ratio"] > 0.1


def test_steps_are_inferred_from_the_program(lived: tuple[Snapshot, int]) -> None:
    snapshot, took_ns = lived
    steps = rank_step_table(snapshot, Scope(), limit=500).to_pylist()
    found = [row for row in steps if row["data_wait_ns"] >= WAIT_S * 1e9 * 0.98]
    assert {row["source"] for row in found} == {"inferred"}
    # the first began before the loop, the last has no end
    assert len(found) == STEPS
    mine = found[:-1]
    assert abs(sum(row["step_time_ns"] for row in mine) / took_ns - (STEPS - 1) / STEPS) < 0.1
    assert {row["executions"] for row in found} == {1}
    assert all(0 < row["occupancy_ratio"] < 1 for row in found)
    assert found[0]["confidence_ratio"] > 0.3
    assert all(row["idle_ratio"] + row["occupancy_ratio"] == pytest.approx(1) for row in found)
