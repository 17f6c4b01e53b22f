"""Users' profiling against device windows: start_trace, jax.profiler.trace, PGLE, captures of a profiler server.

One training process with windows open as often as the rules allow (K = 2), and a toy agent that takes them. Each of the
three kinds is tried N times at a random phase; then a profiler server is started, windows go on beside it, and N whole
captures are made at random phases through xprof's client, over IPv4 and IPv6. Counted: exceptions (must be 0), captures
without device ops (must be 0), how many met an open window, and the longest a user's start waited for our stop. The
default takes about 2 minutes; `--phases 1000` is the full test. The last line is one JSON object.

`--shim`: on a real PJRT plugin (an unmodified XLA:CPU) with our shim around it, which adds the profiler extension: a
capture then holds executions in the place of ops, and each of the worker's executions must still be recorded, once.
"""

import argparse
import contextlib
import glob
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
from report import report

from fleetscope.agents.profiler import protocol
from fleetscope.native.recorder import DONE, LAUNCH, Segment
from fleetscope.transport.ports import free_port

NAME, UNIT = "never_in_the_way", "broken promises"

WORKER = """
import glob, json, os, random, sys, tempfile, threading, time
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
from jax.profiler import ProfileData
from jax._src import profiler as internal
from fleetscope.agents.profiler.lifecycle import _process
phases, port, shim = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "shim"
random.seed(1)
def counted(x):
    return jnp.sin(x @ x)
step = jax.jit(counted)
x = step(jnp.ones((64, 64))).block_until_ready()
busy, number = True, 0
def train():
    global number, x
    while busy:
        with profiler.step(number):
            x = step(x).block_until_ready()
            time.sleep(0.002)
        number += 1
thread = threading.Thread(target=train, daemon=True)
thread.start()
def windows():
    return _process.loop._windows
while windows().taken < 1:
    time.sleep(0.01)

def ops(data):
    planes = ProfileData.from_serialized_xspace(data).planes
    if shim:
        lines = [line for plane in planes if plane.name.startswith("/device:CUSTOM:") for line in plane.lines]
        return sum(event.name.startswith("jit_counted") for line in lines for event in line.events)
    return sum("hlo_op" in dict(event.stats) for plane in planes for line in plane.lines for event in line.events)

def read(folder):
    (path,) = glob.glob(folder + "/plugins/profile/*/*.xplane.pb")
    with open(path, "rb") as file:
        return ops(file.read())

def some_steps():
    # Not a time: on a busy machine 20 ms passed without a step in one of 300 sessions: an empty result proves nothing.
    end = number + 4
    time.sleep(0.02)
    while number < end:
        time.sleep(0.002)

def start_trace(folder):
    jax.profiler.start_trace(folder)
    some_steps()
    jax.profiler.stop_trace()
    return read(folder)

def trace(folder):
    with jax.profiler.trace(folder):
        some_steps()
    return read(folder)

seen = []
internal._profiler.get_fdo_profile = lambda data: seen.append(ops(data)) or b"profile"
def pgle(folder):
    with internal.PGLEProfiler.trace(internal.PGLEProfiler(1, 90)):
        some_steps()
    return seen.pop()

result = {"errors": [], "empty": 0, "done": {}, "in_window": 0}
for phase in range(phases):
    for kind in (start_trace, trace, pgle):
        time.sleep(random.random() * 0.3)
        result["in_window"] += _process.arbiter._ours is not None
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = kind(folder)
        except Exception as error:
            result["errors"].append(f"{kind.__name__}: {error!r}")
            continue
        result["empty"] += found == 0
        result["done"][kind.__name__] = result["done"].get(kind.__name__, 0) + 1

# A server: windows go on, captures of a client win, and the port is free when it is gone.
server = jax.profiler.start_server(port)
taken, met = windows().taken, windows().dropped.get("user_session", 0)
print("serving", flush=True)
line = sys.stdin.readline()
result["windows_beside_server"] = windows().taken - taken
result["server_captures_in_window"] = windows().dropped.get("user_session", 0) - met
result["server_calls"] = server._relay.calls if server.relayed else -1
del server
jax.profiler.stop_server()
before, end = windows().taken, time.monotonic() + 30
while windows().taken == before and time.monotonic() < end:
    time.sleep(0.01)
result["windows_after_server"] = windows().taken - before
result["windows"] = windows().taken
result["dropped"], result["skipped"] = windows().dropped, windows().skipped
result["user_delay_max_ms"] = round(_process.arbiter.delay_max_ns / 1e6, 2)
result["stop_max_ms"] = round(_process.arbiter.stop_max_ns / 1e6, 2)
busy = False
thread.join()
if shim:
    from fleetscope.agents.profiler import pjrt
    from fleetscope.native import _pjrt_shim
    end = time.monotonic() + 10
    while _pjrt_shim.counts()["in_flight"] and time.monotonic() < end:
        time.sleep(0.01)
    result |= {"shim": _pjrt_shim.counts(), "wrapped": sorted(pjrt.wrapped), "executions": number + 1}
print(json.dumps(result), flush=True)
"""


def serve(listener: socket.socket) -> None:
    """Answers every hello, reads everything."""
    connection, _ = listener.accept()
    reader = protocol.Reader()
    config = protocol.Config(window_s=0.3, steps_between_windows=2)
    while data := connection.recv(1 << 20):
        for message, _ in reader.feed(data):
            if isinstance(message, protocol.Hello):
                connection.sendall(protocol.encode(config))


class Executions(threading.Thread):
    """What the worker's ring holds, read on as it is written: launches and completions of the program that counts."""

    def __init__(self, folder: str) -> None:
        super().__init__(daemon=True)
        self.folder, self.done = folder, threading.Event()
        self.launches = self.completions = self.lost = 0

    def run(self) -> None:
        segment = None
        while segment is None:
            self.done.wait(0.1)
            with contextlib.suppress(IndexError, ValueError):  # not there yet, or not filled in yet
                segment = Segment(glob.glob(f"{self.folder}/fleetscope-*.ring")[0])
        while True:
            last = self.done.is_set()
            more = True
            while more:
                got = segment.drain(1 << 20)
                names, more = segment.names(), got.more
                self.lost += got.lost
                mine = np.isin(got.name, [index for index, name in enumerate(names) if name.startswith("jit_counted")])
                self.launches += int((mine & (got.kind == LAUNCH)).sum())
                self.completions += int((mine & (got.kind == DONE)).sum())
            if last:
                return
            self.done.wait(0.2)


def capture(port: int, folder: str, count: int, shim: bool) -> tuple[int, list[str]]:
    """Captures through xprof's client: (how many hold device ops, what went wrong with the others)."""
    code = """
import glob, json, random, sys, time
from jax.profiler import ProfileData
from xprof.convert import _pywrap_profiler_plugin as plugin
port, folder, count, shim = sys.argv[1:]
random.seed(2)
def is_work(plane, event):
    if shim == "shim":
        return plane.name.startswith("/device:CUSTOM:") and event.name.startswith("jit_counted")
    return "hlo_op" in dict(event.stats)
good, wrong = 0, []
for number in range(int(count)):
    time.sleep(random.random() * 0.4)
    address = ("localhost", "127.0.0.1", "[::1]")[number % 3]
    try:
        plugin.trace(f"{address}:{port}", f"{folder}/{number}", "", True, 100, 1, {})
        (path,) = glob.glob(f"{folder}/{number}/plugins/profile/*/*.xplane.pb")
        with open(path, "rb") as file:
            planes = ProfileData.from_serialized_xspace(file.read()).planes
        if any(is_work(plane, event) for plane in planes for line in plane.lines for event in line.events):
            good += 1
        else:
            wrong.append(f"{number}: no device ops")
    except Exception as error:
        wrong.append(f"{number}: {error!r}")
print(json.dumps([good, wrong]))
"""
    command = [sys.executable, "-c", code, str(port), folder, str(count), "shim" if shim else "plain"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    if done.returncode != 0:
        return 0, [done.stderr[-300:]]
    good, wrong = json.loads(done.stdout.splitlines()[-1])
    return good, wrong


def plugin() -> Path:
    """The library of the real plugin (PyPI fastatomstruct-xla-cpu), which is not imported for that."""
    found = importlib.util.find_spec("fastatomstruct_xla_cpu")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("libpjrt_cpu.so")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phases", type=int, default=60, help="random phases of each kind")
    parser.add_argument("--captures", type=int, default=0, help="through a profiler server; 0: as many as phases")
    parser.add_argument("--shim", action="store_true", help="on a real PJRT plugin, with the shim around it")
    args = parser.parse_args()
    args.captures = args.captures or args.phases
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agent.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        port = free_port()
        environment = os.environ | {"FLEETSCOPE_AGENT_SOCKET": path, "JAX_PLATFORMS": "cpu"}
        environment["FLEETSCOPE_AGENT__SHM_DIR"] = folder
        executions = Executions(folder)
        if args.shim:
            environment |= {"JAX_PLATFORMS": "real", "PJRT_NAMES_AND_LIBRARY_PATHS": f"real:{plugin()}"}
            executions.start()
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(args.phases), str(port), "shim" if args.shim else "plain"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert worker.stdout is not None
        assert worker.stdin is not None
        if worker.stdout.readline().strip() != "serving":
            worker.kill()
            return report(NAME, 0, UNIT, 0, failed=["the training process died"])
        captured, missed = capture(port, folder, args.captures, args.shim)
        worker.stdin.write("\n")
        worker.stdin.flush()
        result = json.loads(worker.stdout.readline())
        worker.wait(60)
        executions.done.set()
        if args.shim:
            executions.join(60)
    result |= {"phases": args.phases, "server_captures": captured, "server_errors": missed}
    failed = {
        "exceptions": bool(result["errors"]) or worker.returncode != 0,
        "captures without device ops": result["empty"] > 0,
        "phases missing": any(result["done"].get(kind) != args.phases for kind in ("start_trace", "trace", "pgle")),
        "no phase met a window": result["dropped"].get("user_session", 0) == 0,
        "no windows beside a server": result["windows_beside_server"] == 0,
        "no capture of the server met a window": result["server_captures_in_window"] == 0,
        "captures went past the relay": result["server_calls"] < args.captures,
        "no windows after the server": result["windows_after_server"] == 0,
        "captures of the server missing": captured != args.captures,
        # A user waits for our stop, and, having come while another is under way, for that one before it.
        "a user waited longer than a stop": result["user_delay_max_ms"] > result["stop_max_ms"] * 2 + 50,
    }
    if args.shim:
        result |= {name: getattr(executions, name) for name in ("launches", "completions", "lost")}
        seen = (executions.launches, executions.completions)
        failed |= {
            "the plugin was not wrapped": result["wrapped"] != ["real"],
            "executions not recorded once each": seen != (result["executions"],) * 2 or executions.lost > 0,
            "the shim counted faults": any(result["shim"].values()),
        }
    wrong = [what for what, is_wrong in failed.items() if is_wrong]
    return report(NAME, len(wrong), UNIT, 0, failed=wrong, **result)


if __name__ == "__main__":
    sys.exit(main())
