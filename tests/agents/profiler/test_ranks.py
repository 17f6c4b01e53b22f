"""Two ranks of a run, started apart: their windows open at the same steps, or not at all."""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.agents.profiler import inject, placement
from fleetscope.agents.profiler.protocol import Cost, Hello, Window

pytestmark = pytest.mark.e2e

RANK = """
import os, sys, time
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
first, last = int(sys.argv[1]), int(sys.argv[2])
end = time.monotonic() + float(sys.argv[3])
number = first
while number < last and time.monotonic() < end:
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = f(x).block_until_ready()
        time.sleep(0.01)
    number += 1
"""


def run_ranks(environment: dict[str, str], starts: tuple[int, int], world: str = "2") -> None:
    ranks = []
    for rank, first in enumerate(starts):
        argv = [sys.executable, "-c", RANK, str(first), "900", "60"]
        own = inject.environment(argv, environment | {"FLEETSCOPE_RUN": "pair", "FLEETSCOPE_ATTEMPT": "1"})
        own |= {"FLEETSCOPE_RANK": str(rank), "FLEETSCOPE_WORLD_SIZE": world}
        ranks.append(subprocess.Popen(argv, env=own))
    assert [process.wait(120) for process in ranks] == [0, 0]


def test_ranks_open_at_the_same_steps(agent: Callable[..., Any], environment: dict[str, str]) -> None:
    toy = agent(window_s=1.0, steps_between_windows=64)
    run_ranks(environment, (0, 37))
    assert {(hello.rank, hello.world_size, hello.run) for hello, _ in toy.of(Hello)} == {(0, 2, "pair"), (1, 2, "pair")}
    windows = [window for window, _ in toy.of(Window)]
    assert len(windows) >= 6
    for window in windows:
        step, delay = placement.opening("pair", 64, window.step // 64)
        assert window.step == step
        assert window.every == 64
        # The same fraction of a step on both: 10 ms and what the machine adds to it.
        assert delay * 9e6 <= window.open_delay_ns <= delay * 1e9
    # Each window comes from one of two connections; at most one a rank and block.
    steps = [window.step for window in windows]
    assert max(steps.count(step) for step in steps) <= 2
    skipped = [cost.skipped for cost, _ in toy.of(Cost)]
    assert all(set(reasons) <= {"compile", "late", "governor"} for reasons in skipped)


def test_several_ranks_without_a_common_k_have_no_windows(
    agent: Callable[..., Any], environment: dict[str, str]
) -> None:
    toy = agent(window_s=0.3)
    run_ranks(environment, (600, 700))
    assert os.listdir(environment["FLEETSCOPE_AGENT__SHM_DIR"])
    assert {hello.world_size for hello, _ in toy.of(Hello)} == {2}
    assert toy.of(Window) == []
