"""The user's profiling comes before ours, at any moment; a child of any kind starts clean in mid-window."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.agents.profiler.protocol import Cost, Hello, Window

pytestmark = pytest.mark.e2e

# A busy device, a profiler with windows as often as it can, and a little of the user's own profiling at random phases.
# K = 2 with 3 ms steps: a window (0.2 s) is open or being stopped almost all the time.
PREAMBLE = """
import glob, json, os, random, sys, tempfile, threading, time
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
from jax._src import profiler as internal
from fleetscope.agents.profiler.lifecycle import _process
random.seed(int(sys.argv[1]))
step = jax.jit(lambda x: jnp.sin(x @ x))
x = step(jnp.ones((64, 64))).block_until_ready()
busy, number = True, 0
def train():
    global number, x
    while busy:
        with profiler.step(number):
            x = step(x).block_until_ready()
            time.sleep(0.003)
        number += 1
thread = threading.Thread(target=train)
thread.start()
def windows():
    return _process.loop._windows
def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, (windows().taken, windows().skipped, windows().dropped)
        time.sleep(0.002)
def in_window():
    return _process.arbiter._ours is not None
def train_on():
    first = number
    until(lambda: number >= first + 5)
"""

END = """
before = windows().taken
until(lambda: windows().taken > before)  # and ours go on afterwards
busy = False
thread.join()
delay_ms = _process.arbiter.delay_max_ns / 1e6
profiler.stop()
"""


def test_users_sessions_win_at_random_phases(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    toy = agent(window_s=0.3, steps_between_windows=2)
    code = (
        PREAMBLE
        + """
kept = {}
until(lambda: windows().taken >= 1)
def ops(xspace_bytes):
    from jax.profiler import ProfileData
    planes = ProfileData.from_serialized_xspace(xspace_bytes).planes
    return sum("hlo_op" in dict(e.stats) for p in planes for l in p.lines for e in l.events)
for round in range(6):
    for kind in ("start_trace", "trace", "pgle", "pgle2"):
        if round % 2:
            until(in_window)
        time.sleep(random.random() * 0.25)
        with tempfile.TemporaryDirectory() as folder:
            if kind == "start_trace":
                jax.profiler.start_trace(folder)
                train_on()
                jax.profiler.stop_trace()
            elif kind == "trace":
                with jax.profiler.trace(folder):
                    train_on()
            else:
                runner = internal.PGLEProfiler(1, 90)
                runner_ops = []
                real = internal._profiler.get_fdo_profile
                internal._profiler.get_fdo_profile = lambda data: runner_ops.append(ops(data)) or b"profile"
                with internal.PGLEProfiler.trace(runner):
                    train_on()
                internal._profiler.get_fdo_profile = real
                assert runner.called_times == 1
                kept.setdefault(kind, []).append(runner_ops[0])
                continue
            (path,) = glob.glob(folder + "/plugins/profile/*/*.xplane.pb")
            kept.setdefault(kind, []).append(ops(open(path, "rb").read()))
"""
        + END
        + "print(json.dumps([kept, delay_ms]))"
    )
    kept, delay_ms = json.loads(python(code, "1").stdout)
    assert {kind: len(counts) for kind, counts in kept.items()} == dict.fromkeys(
        ("start_trace", "trace", "pgle", "pgle2"), 6
    )
    # Four steps are wholly inside, with ops in each: an empty or torn capture would have none.
    assert all(count >= 4 for counts in kept.values() for count in counts)
    (cost,) = [message for message, _ in toy.wait_for(Cost)][-1:]
    assert cost.dropped.get("user_session", 0) >= 1  # some were really in mid-window
    assert cost.windows >= 2
    assert cost.user_delay_max_ns == pytest.approx(delay_ms * 1e6)
    assert cost.user_delay_max_ns <= 2e9


def test_no_windows_while_a_server_without_a_relay_lives(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]], free_port: Callable[[], int]
) -> None:
    toy = agent(window_s=0.3, steps_between_windows=2)
    code = (
        PREAMBLE
        + """
until(in_window)
import socket
taken_port = socket.create_server(("0.0.0.0", int(sys.argv[2])))  # neither a relay nor the server can have it
server = jax.profiler.start_server(int(sys.argv[2]))
assert not in_window()
del server
taken = windows().taken
until(lambda: windows().skipped.get("server", 0) > 3)
assert windows().taken == taken
jax.profiler.stop_server()
"""
        + END
        + "print('ok')"
    )
    assert python(code, "2", str(free_port())).stdout == "ok\n"
    assert toy.of(Window)


FORK = """
import multiprocessing

def child_work():
    from fleetscope.agents import profiler
    import threading
    from fleetscope.native import _recorder
    names = {thread.name for thread in threading.enumerate()}
    with profiler.annotate("child"):
        profiler.counter("child", 1)
    return _recorder.recording()
"""


def test_children_start_clean_in_mid_window(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]], shm: Any
) -> None:
    """fork, spawn and forkserver while a window is open; the parent's window and recording go on."""
    toy = agent(window_s=0.3, steps_between_windows=2)
    code = (
        PREAMBLE.replace("-W error", "")
        + """
import warnings
warnings.simplefilter("ignore")  # jax warns of os.fork itself
until(lambda: windows().taken >= 1)
for round in range(5):
    until(in_window)
    pid = os.fork()
    if pid == 0:
        try:
            from fleetscope.native import _recorder
            ok = not _recorder.recording() and not in_window() and _process.loop is None
            with profiler.annotate("child"):
                profiler.counter("child", 1)
            real = _process.arbiter._real(_process.arbiter._options)  # the inherited session is really over
            real.stop()
            os._exit(0 if ok else 3)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(4)
    assert os.waitpid(pid, 0)[1] == 0
import subprocess
for start in ("spawn", "forkserver"):
    until(in_window)
    script = f'''
import multiprocessing, os
def work():
    from fleetscope.agents import profiler
    with profiler.annotate("child"):
        pass
if __name__ == "__main__":
    process = multiprocessing.get_context("{start}").Process(target=work)
    process.start(); process.join(60)
    assert process.exitcode == 0
'''
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/children.py"
        open(path, "w").write(script)
        subprocess.run([sys.executable, path], check=True, timeout=60)
    until(in_window)
"""
        + END
        + "print('ok')"
    )
    assert python(code, "3").stdout == "ok\n"
    assert len({(message.pid, message.start_ticks) for message, _ in toy.of(Hello)}) >= 1
    parents = {message.pid for message, _ in toy.of(Hello) if message.jax}
    assert len(parents) == 1
    cost = toy.of(Cost)[-1][0]
    assert cost.dropped.get("fork", 0) == 0
    assert len(toy.of(Window)) >= 3
