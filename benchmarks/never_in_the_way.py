"""Users' profiling against device windows: start_trace, jax.profiler.trace, PGLE, captures of a profiler server.

One training process with windows open as often as the rules allow (K = 2), and a toy agent that takes them. Each of the
three kinds is tried N times at a random phase; then a profiler server is started, windows go on beside it, and N whole
captures are made at random phases through xprof's client, over IPv4 and IPv6. Counted: exceptions (must be 0), captures
without device ops (must be 0), how many met an open window, and the longest a user's start waited for our stop. The
default takes about 2 minutes; `--phases 1000` is the full test. `--shim`: the same on an unmodified XLA:CPU behind the
PJRT shim, whose executions stand for device ops; that plugin has no profiler of its own, so every session is ours.
The last line is one JSON object.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from importlib.resources import files
from pathlib import Path

from report import report

from fleetscope.agents.profiler import protocol

NAME, UNIT = "never_in_the_way", "broken promises"

WORKER = """
import glob, json, os, random, sys, tempfile, threading, time
from fleetscope.agents import profiler
profiler.start(early=True)
import jax, jax.numpy as jnp
from jax.profiler import ProfileData
from jax._src import profiler as internal
if len(sys.argv) > 3:
    from jax._src import xla_bridge
    xla_bridge.register_plugin("yours", library_path=sys.argv[3])
from fleetscope.agents.profiler.lifecycle import _process
phases, port = int(sys.argv[1]), int(sys.argv[2])
random.seed(1)
step = jax.jit(lambda x: jnp.sin(x @ x))
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
    return sum(
        plane.name.startswith("/device:CUSTOM:") or "hlo_op" in dict(event.stats)
        for plane in planes for line in plane.lines for event in line.events
    )

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


def capture(port: int, folder: str, count: int) -> tuple[int, list[str]]:
    """Captures through xprof's client: (how many hold device ops, what went wrong with the others)."""
    code = """
import glob, json, random, sys, time
from jax.profiler import ProfileData
from xprof.convert import _pywrap_profiler_plugin as plugin
port, folder, count = sys.argv[1:]
random.seed(2)
good, wrong = 0, []
for number in range(int(count)):
    time.sleep(random.random() * 0.4)
    address = ("localhost", "127.0.0.1", "[::1]")[number % 3]
    try:
        plugin.trace(f"{address}:{port}", f"{folder}/{number}", "", True, 100, 1, {})
        (path,) = glob.glob(f"{folder}/{number}/plugins/profile/*/*.xplane.pb")
        with open(path, "rb") as file:
            planes = ProfileData.from_serialized_xspace(file.read()).planes
        if any(
            plane.name.startswith("/device:CUSTOM:") or "hlo_op" in dict(event.stats)
            for plane in planes for line in plane.lines for event in line.events
        ):
            good += 1
        else:
            wrong.append(f"{number}: no device ops")
    except Exception as error:
        wrong.append(f"{number}: {error!r}")
print(json.dumps([good, wrong]))
"""
    command = [sys.executable, "-c", code, str(port), folder, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})
    if done.returncode != 0:
        return 0, [done.stderr[-300:]]
    good, wrong = json.loads(done.stdout.splitlines()[-1])
    return good, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phases", type=int, default=60, help="random phases of each kind")
    parser.add_argument("--captures", type=int, default=0, help="through a profiler server; 0: as many as phases")
    parser.add_argument("--shim", action="store_true", help="on a plugin behind the PJRT shim: fastatomstruct-xla-cpu")
    args = parser.parse_args()
    plugin = [str(Path(str(files("fastatomstruct_xla_cpu"))) / "libpjrt_cpu.so")] if args.shim else []
    args.captures = args.captures or args.phases
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "agent.sock")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = os.environ | {"FLEETSCOPE_AGENT_SOCKET": path, "JAX_PLATFORMS": "yours" if plugin else "cpu"}
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(args.phases), str(port), *plugin],
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
        captured, missed = capture(port, folder, args.captures)
        worker.stdin.write("\n")
        worker.stdin.flush()
        result = json.loads(worker.stdout.readline())
        worker.wait(60)
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
    wrong = [what for what, is_wrong in failed.items() if is_wrong]
    return report(NAME, len(wrong), UNIT, 0, failed=wrong, **result)


if __name__ == "__main__":
    sys.exit(main())
