"""Two ranks without a configured K: the coordinator gives them one, over log and agent, and they keep to it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node import NodeAgent
from fleetscope.agents.node.process import Process
from fleetscope.agents.profiler import inject, placement
from fleetscope.agents.profiler.protocol import Window
from fleetscope.pipelines.coordinate import cadence as coordinate
from fleetscope.pipelines.coordinate.cadence import Decisions
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, ProfilerConfig
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport import open_log

STEPS = """
import sys, time
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
number, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = f(x).block_until_ready()
        time.sleep(0.01)
    number += 1
"""

EXECUTIONS = """
import os, sys, time
import fastatomstruct_xla_cpu
from fleetscope.agents.profiler import executions, loop
executions.MARK_NS, loop.COST_S = 500_000_000, 0.5
import jax, jax.numpy as jnp
import jax._src.xla_bridge as bridge
folder = os.path.dirname(fastatomstruct_xla_cpu.__file__)
bridge.register_plugin("toy", library_path=os.path.join(folder, "libpjrt_cpu.so"))
def train(x):
    return jnp.tanh(x @ x)
f = jax.jit(train)
x = f(jnp.ones((64, 64))).block_until_ready()
# What makes ranks of a job wait for each other: every execution has its time.
begin, number = float(sys.argv[1]), 0
while number * 0.04 < float(sys.argv[2]):
    number += 1
    time.sleep(max(0.0, begin + number * 0.04 - time.time()))
    x = f(x).block_until_ready()
"""


def lived(tmp_path: Path, code: str, arguments: tuple[tuple[str, ...], ...], platform: str) -> Config:
    """Ranks of one attempt run `code` beside an agent and a coordinator."""
    shm = tmp_path / "shm"
    shm.mkdir()
    config = Config(
        state_dir=tmp_path / "s",
        agent=AgentConfig(shm_dir=shm, batch_s=0.5),
        profiler=ProfilerConfig(window_s=1.0, window_budget=1.0, allow=["*/*/*"]),
    )
    stop = threading.Event()
    roles = [NodeAgent(config, collectors=[]).run, Coordinator(config).run]
    threads = [threading.Thread(target=role, args=(stop,)) for role in roles]
    for thread in threads:
        thread.start()
    try:
        ranks = []
        for rank, own_arguments in enumerate(arguments):
            argv = [sys.executable, "-c", code, *own_arguments]
            own = inject.environment(argv, dict(os.environ) | {"FLEETSCOPE_RUN": "pair", "FLEETSCOPE_ATTEMPT": "1"})
            own |= {"FLEETSCOPE_RANK": str(rank), "FLEETSCOPE_WORLD_SIZE": "2", "JAX_PLATFORMS": platform}
            own |= {"FLEETSCOPE_STATE_DIR": str(tmp_path / "s"), "FLEETSCOPE_AGENT__SHM_DIR": str(shm)}
            ranks.append(subprocess.Popen(argv, env=own))
        assert [process.wait(120) for process in ranks] == [0, 0]
        time.sleep(2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return config


def decided(config: Config) -> wire.Cadence:
    cadence = Decisions(open_store(config.lake_url)).newest(("pair", "1"))
    assert cadence is not None
    return cadence


def check(cadence: wire.Cadence, steps: dict[int, set[int]]) -> None:
    """By rank: both took windows, at openings of the cadence, and some at the same."""
    assert all(steps.values()), (steps, cadence)
    for step in steps[0] | steps[1]:
        (stretch,) = [s for s in cadence.stretches if s.from_step <= step < s.until_step]
        assert step == placement.opening("pair", stretch.k, step // stretch.k)[0]
    assert steps[0] & steps[1]


@pytest.mark.e2e
def test_several_ranks_get_windows_without_a_configured_k(tmp_path: Path) -> None:
    config = lived(tmp_path, STEPS, (("0", "17"), ("23", "17")), "cpu")
    steps: dict[int, set[int]] = {0: set(), 1: set()}
    with open_log(config.log_url) as log:
        for partition, end in log.end_offsets("fleetscope.telemetry").items():
            for message in log.read("fleetscope.telemetry", partition, 0, end):
                batch = wire.Batch.FromString(message.value)
                if batch.HasField("window"):
                    steps[batch.source.rank].add(batch.window.step)
    check(decided(config), steps)


@pytest.mark.e2e
def test_without_step_numbers_they_open_at_the_same_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real plugin; its windows hold no device, so they are seen as they come."""
    monkeypatch.setattr(coordinate, "PATIENCE_S", 1.0)
    numbers: dict[int, set[int]] = {0: set(), 1: set()}
    offer = NodeAgent._offer

    def seen(agent: NodeAgent, process: Process, message: Any, body: bytes, kept: Path | None) -> None:
        if isinstance(message, Window):
            assert (message.program, message.step) == ("jit_train", -1)
            numbers[process.hello.rank].add(message.execution)
        offer(agent, process, message, body, kept)

    monkeypatch.setattr(NodeAgent, "_offer", seen)
    arguments = (f"{time.time() + 6}", "12")
    cadence = decided(lived(tmp_path, EXECUTIONS, (arguments, arguments), "toy"))
    assert (cadence.program, len(cadence.members)) == ("jit_train", 2)
    check(cadence, numbers)
