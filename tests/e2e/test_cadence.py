"""Two ranks without a configured K: the coordinator gives them one, over log and agent, and they keep to it."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fleetscope.agents.node import NodeAgent
from fleetscope.agents.profiler import inject, placement
from fleetscope.pipelines.coordinate.cadence import Decisions
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, ProfilerConfig
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport import open_log

RANK = """
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


@pytest.mark.e2e
def test_several_ranks_get_windows_without_a_configured_k(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    config = Config(
        state_dir=tmp_path / "s",
        agent=AgentConfig(shm_dir=shm, batch_s=0.5),
        profiler=ProfilerConfig(window_s=1.0, window_budget=1.0),
    )
    stop = threading.Event()
    roles = [NodeAgent(config, collectors=[]).run, Coordinator(config).run]
    threads = [threading.Thread(target=role, args=(stop,)) for role in roles]
    for thread in threads:
        thread.start()
    try:
        ranks = []
        for rank, first in enumerate((0, 23)):
            argv = [sys.executable, "-c", RANK, str(first), "17"]
            own = inject.environment(argv, dict(os.environ) | {"FLEETSCOPE_RUN": "pair", "FLEETSCOPE_ATTEMPT": "1"})
            own |= {"FLEETSCOPE_RANK": str(rank), "FLEETSCOPE_WORLD_SIZE": "2", "JAX_PLATFORMS": "cpu"}
            own |= {"FLEETSCOPE_STATE_DIR": str(tmp_path / "s"), "FLEETSCOPE_AGENT__SHM_DIR": str(shm)}
            ranks.append(subprocess.Popen(argv, env=own))
        assert [process.wait(120) for process in ranks] == [0, 0]
        time.sleep(2)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    cadence = Decisions(open_store(config.lake_url)).newest(("pair", "1"))
    assert cadence is not None
    steps: dict[int, set[int]] = {0: set(), 1: set()}
    with open_log(config.log_url) as log:
        for partition, end in log.end_offsets("fleetscope.telemetry").items():
            for message in log.read("fleetscope.telemetry", partition, 0, end):
                batch = wire.Batch.FromString(message.value)
                if batch.HasField("window"):
                    steps[batch.source.rank].add(batch.window.step)
    assert all(steps.values()), (steps, cadence)
    for step in steps[0] | steps[1]:
        (stretch,) = [s for s in cadence.stretches if s.from_step <= step < s.until_step]
        assert step == placement.opening("pair", stretch.k, step // stretch.k)[0]
    assert steps[0] & steps[1]
