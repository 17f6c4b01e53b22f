"""Two ranks without a configured K: the coordinator gives them one, over log and agent, and they keep to it."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
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

TOLD = """
import sys, threading
over = threading.Event()
def told():
    print("ready", flush=True)
    begin = float(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    return begin
"""
"""A rank begins at the moment it is told, and ends when nothing more is said."""

STEPS = (
    TOLD
    + """
import time
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
number = int(sys.argv[1])
told()
while not over.is_set():
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = f(x).block_until_ready()
        time.sleep(0.01)
    number += 1
"""
)

EXECUTIONS = (
    TOLD
    + """
import os, time
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
begin, number = told(), 0
while not over.is_set():
    number += 1
    time.sleep(max(0.0, begin + number * 0.04 - time.time()))
    x = f(x).block_until_ready()
"""
)


def lived(
    tmp_path: Path, code: str, arguments: tuple[tuple[str, ...], ...], platform: str, enough: Callable[[], object]
) -> Config:
    """Ranks of one attempt run `code` beside an agent and a coordinator until it is enough, 150 s at the most."""
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
    ranks: list[subprocess.Popen[str]] = []
    try:
        for rank, own_arguments in enumerate(arguments):
            argv = [sys.executable, "-c", code, *own_arguments]
            own = inject.environment(argv, dict(os.environ) | {"FLEETSCOPE_RUN": "pair", "FLEETSCOPE_ATTEMPT": "1"})
            own |= {"FLEETSCOPE_RANK": str(rank), "FLEETSCOPE_WORLD_SIZE": "2", "JAX_PLATFORMS": platform}
            own |= {"FLEETSCOPE_STATE_DIR": str(tmp_path / "s"), "FLEETSCOPE_AGENT__SHM_DIR": str(shm)}
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            ranks.append(subprocess.Popen(argv, env=own, **pipes))
        assert [rank.stdout.readline() for rank in ranks if rank.stdout is not None] == ["ready\n"] * 2
        begin = f"{time.time() + 0.5}\n"
        for one in ranks:
            assert one.stdin is not None
            one.stdin.write(begin)
            one.stdin.flush()
        deadline = time.monotonic() + 150
        while not enough() and time.monotonic() < deadline and all(one.poll() is None for one in ranks):
            time.sleep(0.1)
        for one in ranks:
            one.communicate(timeout=120)
        assert [one.returncode for one in ranks] == [0, 0]
    finally:
        for one in ranks:
            if one.poll() is None:
                one.kill()
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


def watched(monkeypatch: pytest.MonkeyPatch, of: Callable[[Window], int]) -> dict[int, set[int]]:
    """By rank, where its windows opened, as the agent gets them."""
    found: dict[int, set[int]] = {0: set(), 1: set()}
    offer = NodeAgent._offer

    def seen(agent: NodeAgent, process: Process, message: Any, body: bytes, kept: Path | None) -> None:
        if isinstance(message, Window):
            found[process.hello.rank].add(of(message))
        offer(agent, process, message, body, kept)

    monkeypatch.setattr(NodeAgent, "_offer", seen)
    return found


@pytest.mark.e2e
def test_several_ranks_get_windows_without_a_configured_k(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = watched(monkeypatch, lambda window: window.step)
    config = lived(tmp_path, STEPS, (("0",), ("23",)), "cpu", lambda: steps[0] & steps[1])
    check(decided(config), steps)
    shipped: dict[int, set[int]] = {0: set(), 1: set()}
    with open_log(config.log_url) as log:
        for partition, end in log.end_offsets("fleetscope.telemetry").items():
            for message in log.read("fleetscope.telemetry", partition, 0, end):
                batch = wire.Batch.FromString(message.value)
                if batch.HasField("window"):
                    shipped[batch.source.rank].add(batch.window.step)
    assert shipped == steps


@pytest.mark.e2e
def test_without_step_numbers_they_open_at_the_same_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real plugin; its windows hold no device, so they are seen as they come."""
    monkeypatch.setattr(coordinate, "PATIENCE_S", 1.0)
    named: set[tuple[str, int]] = set()

    def execution(window: Window) -> int:
        named.add((window.program, window.step))
        return window.execution

    numbers = watched(monkeypatch, execution)
    cadence = decided(lived(tmp_path, EXECUTIONS, ((), ()), "toy", lambda: numbers[0] & numbers[1]))
    assert named == {("jit_train", -1)}
    assert (cadence.program, len(cadence.members)) == ("jit_train", 2)
    check(cadence, numbers)
