"""A profiler that is injected more than once, programs that come and go, thousands of live ones, a stepping clock."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.profiler import inject
from fleetscope.agents.profiler.protocol import Cost, Hello, Program, Window

TRAIN = """
import sys, threading, time
import jax, jax.numpy as jnp
from fleetscope.agents import profiler
profiler.start()
profiler.start(early=True)
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
from fleetscope.agents.profiler.lifecycle import _process
end, number = time.monotonic() + 60, 0
while time.monotonic() < end and not (_process.loop and _process.loop._windows.taken >= 3):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = f(x).block_until_ready()
        time.sleep(0.003)
    number += 1
print(type(jax._src.lib._profiler.ProfilerSession).__name__, len(jax._src.lib._profiler.ProfilerSession.__mro__))
"""


@pytest.mark.fault
def test_injected_twice_and_started_by_hand_is_one_profiler(
    agent: Callable[..., Any], environment: dict[str, str], tmp_path: Path, shm: Path
) -> None:
    """Our site folder twice on PYTHONPATH under two names, a .pth-like import, and two calls of start()."""
    toy = agent(window_s=0.3, steps_between_windows=2)
    again = tmp_path / "again"
    again.symlink_to(inject.SITE)
    own = inject.environment(["train"], environment)
    own["PYTHONPATH"] += f":{again}"
    argv = [sys.executable, "-c", TRAIN]
    done = subprocess.run(argv, env=own, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    # One subclass of jaxlib's class, not a subclass of our own subclass.
    plain = "import jax, jax._src.lib; print(len(jax._src.lib._profiler.ProfilerSession.__mro__))"
    plain_mro = subprocess.run([sys.executable, "-c", plain], env=environment, capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) == int(plain_mro.stdout) + 1
    assert len({(hello.pid, hello.start_ticks) for hello, _ in toy.of(Hello)}) == 1
    numbers = [window.window_id for window, _ in toy.of(Window)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(list(shm.glob("*.ring"))) == 1


PROGRAMS = """
import gc, json, sys, time
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
from fleetscope.agents.profiler.lifecycle import _process
live, freed = int(sys.argv[1]), int(sys.argv[2])
f = jax.jit(lambda x: jnp.tanh(x @ x))
x = f(jnp.ones((64, 64))).block_until_ready()
def windows():
    return _process.loop._windows
def train(until):
    global x, number
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, (windows().taken, windows().skipped, windows().dropped)
        with profiler.step(number):
            x = f(x).block_until_ready()
            time.sleep(0.002)
        number += 1
number = 0
while not (_process.loop and _process.loop.attached):
    time.sleep(0.02)
train(lambda: windows().taken >= 2)
first_ns = _process.arbiter.stop_max_ns
kept = [jax.jit(lambda x, n=n: x * n).lower(jax.ShapeDtypeStruct((8,), jnp.float32)).compile() for n in range(live)]
for n in range(freed):
    g = jax.jit(lambda x, n=n: x + n)
    g(jnp.ones(8)).block_until_ready()
    del g
    gc.collect()
    if n % 10 == 9:
        taken = windows().taken
        train(lambda: windows().taken > taken)
taken = windows().taken
_process.arbiter.stop_max_ns = 0
train(lambda: windows().taken >= taken + 3)
print(json.dumps([first_ns, _process.arbiter.stop_max_ns, len(jax.devices()[0].client.live_executables())]))
profiler.stop()
"""


@pytest.mark.fault
def test_programs_that_come_and_go_and_many_that_stay(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """A stop must not pay for every live executable: with HLO protos on it did, 233 ms for 8.7 MB."""
    toy = agent(window_s=0.3, steps_between_windows=2)
    done = python(PROGRAMS, "300", "20", PYTHONWARNINGS="ignore")
    first_ns, last_ns, live = json.loads(done.stdout)
    assert live >= 300
    assert last_ns < first_ns + 300e6
    cost = toy.of(Cost)[-1][0]
    assert cost.dropped == {}
    assert not cost.broken
    assert toy.of(Program)
    assert len(toy.of(Window)) >= 5
