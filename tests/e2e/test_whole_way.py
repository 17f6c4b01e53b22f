"""Programs on real PJRT plugins, unchanged, under `fleetscope run`: what ops, devices and steps then say, by commands.

Two at a time. *plain*: an unmodified XLA:CPU and no window ever; from completions alone. *timed*: the same XLA:CPU
behind a plugin whose profiler tells ops and which writes down when each execution ran
(tests/native/pjrt_shim/timed_plugin.cpp): windows are calibrated by exact counts, and their intervals are compared with
what the plugin wrote.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fleetscope.agents.node import NodeAgent
from fleetscope.cli.main import app
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema.config import load

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

SECONDS = 14
PROGRAM = """
import contextlib, sys, time
import jax, jax.numpy as jnp, numpy as np
ahead, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
@jax.jit
def train(x, batch):
    for _ in range(3):
        x = jnp.tanh(x @ x / 300.0) + batch
    return x
batch = np.ones((size, size), np.float32)
x = train(jnp.ones((size, size)), jax.device_put(batch)).block_until_ready()
time.sleep(2)  # its HLO is taken before the next execution
begin, steps = time.monotonic_ns(), 0
while time.monotonic_ns() < begin + seconds * 1e9:
    with jax.profiler.StepTraceAnnotation("train", step_num=steps) if ahead == 1 else contextlib.nullcontext():
        there = jax.device_put(batch)
        for _ in range(ahead):
            x = train(x, there)
        x.block_until_ready()
        time.sleep(0.004)
    steps += 1
took = time.monotonic_ns() - begin
print(steps, took, jax.devices()[0].platform, flush=True)
time.sleep(1.2)
"""
AHEAD = 4
"""Executions launched in one go."""
SIZE = 400
"""Of the square matrices of *plain*."""


@dataclass(frozen=True, slots=True)
class Ran:
    steps: int
    took_ns: int


@dataclass(frozen=True, slots=True)
class Way:
    config: Path
    plain: Ran
    timed: Ran
    truth: list[tuple[str, int, str, str]]
    """(module, ns, first op, second op) of each execution, as the timed plugin noted."""

    def ask(self, *words: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(app, [*words, "-o", "json", "--config", str(self.config)], catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        return list(json.loads(done.stdout))


def _plugin() -> Path:
    found = importlib.util.find_spec("fastatomstruct_xla_cpu")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("libpjrt_cpu.so")


def _timed(folder: Path, repository: Path) -> Path:
    library, native = folder / "timed.so", repository / "native" / "pjrt_shim"
    source = repository / "tests" / "native" / "pjrt_shim" / "timed_plugin.cpp"
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", f"-I{native}"]
    subprocess.run(["c++", *flags, source, "-o", library, "-ldl"], check=True, timeout=120)
    return library


@pytest.fixture(scope="module")
def way(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Way:
    home = tmp_path_factory.mktemp("way")
    (home / "shm").mkdir()
    written = home / "fleetscope.yaml"
    document = {
        "state_dir": str(home / "s"),
        "log": {"partitions": 2},
        "agent": {"shm_dir": str(home / "shm"), "host": "h1"},
        "profiler": {"window_s": 0.6, "window_budget": 1.0},
        "governor": {"enabled": False},
    }
    written.write_text(yaml.safe_dump(document))
    config = load(written)
    stop = threading.Event()
    agent = threading.Thread(target=NodeAgent(config, collectors=[]).run, args=(stop,))
    agent.start()
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "PYTHON", "XLA_"))}

    def start(run: str, library: Path, ahead: int, size: int, **own: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "fleetscope.cli.main", "run", "--config", str(written), "--run", run, "--"]
        command += [sys.executable, "-c", PROGRAM, str(ahead), str(size), str(SECONDS)]
        env = clean | own | {"JAX_PLATFORMS": run, "PJRT_NAMES_AND_LIBRARY_PATHS": f"{run}:{library}"}
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    try:
        until = time.monotonic() + 30
        while not config.agent_socket.exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        log = home / "truth.tsv"
        own = {"TIMED_PLUGIN_REAL": str(_plugin()), "TIMED_PLUGIN_US": "8000", "TIMED_PLUGIN_LOG": str(log)}
        started = [
            start("plain", _plugin(), AHEAD, SIZE, FLEETSCOPE_WINDOWS="0"),
            start("timed", _timed(home, repository), 1, 64, **own),
        ]
        said = [process.communicate(timeout=120) for process in started]
        assert [process.returncode for process in started] == [0, 0], said
        time.sleep(1.5)
    finally:
        stop.set()
        agent.join()
    Worker(config).run_once()
    Coordinator(config).round_once()
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    truth = [(module, int(end) - int(begin), first, second) for module, begin, end, first, second in lines]
    ran = []
    for output, _ in said:
        steps, took, platform = output.split()
        assert platform == "cpu"
        ran.append(Ran(int(steps), int(took)))
    return Way(written, ran[0], ran[1], truth)


def _watched(way: Way, run: str) -> dict[str, Any]:
    """Sums over the devices of a run that ran anything."""
    query = f"""SELECT sum(watched_ns)::BIGINT AS watched_ns, sum(occupancy_ns)::BIGINT AS occupancy_ns,
            sum(windows)::BIGINT AS windows, sum(observed_ns)::BIGINT AS observed_ns, count(DISTINCT device) AS devices,
            sum(watched_flops)::BIGINT AS watched_flops, sum(watched_known_ns) / sum(watched_ran_ns) AS known
        FROM device_10s JOIN processes p USING (process) WHERE p.run_name = '{run}'
            AND device IN (SELECT device FROM device_10s WHERE occupancy_ns > 0)"""
    return way.ask("query", query)[0]


def test_without_a_window_executions_say_what_the_device_and_the_host_did(way: Way) -> None:
    (device,) = (row for row in way.ask("devices", "--run", "plain") if row["occupancy_ratio"])
    assert (device["seen"], device["windows"], device["busy_ratio"]) == ("executions", 0, None)
    assert device["device_key"] == "h1/cpu/0/0"
    assert device["executions"] >= AHEAD * way.plain.steps + 1
    assert device["run_ahead_max"] >= AHEAD, "more where the machine is late to tell of a completion"
    # The last of four waits for three, the first for none: one and a half executions on average if all take the same,
    # three if the first takes all the time.
    sums = _watched(way, "plain")
    ran_ns = sums["occupancy_ns"] / device["executions"]
    assert 0.75 * ran_ns < device["queue_mean_ns"] < 3 * ran_ns
    assert device["idle_compile_ratio"] > 0
    # Three products of SIZE x SIZE an execution, and some elementwise work.
    assert sums["watched_flops"] == pytest.approx((AHEAD * way.plain.steps + 1) * 3 * 2 * SIZE**3, rel=0.02)
    assert sums["known"] > 0.95
    # Without annotations each execution of the one program is a step.
    steps = [row for row in way.ask("steps", "--run", "plain", "--limit", "9000") if row["source"] == "inferred"]
    assert AHEAD * way.plain.steps - 1 <= len(steps) <= AHEAD * way.plain.steps + 1
    loop = steps[: AHEAD * (way.plain.steps - 1)]  # newest first; what came before the loop left out
    assert sum(row["step_time_ns"] for row in loop) == pytest.approx(way.plain.took_ns, rel=0.1)
    assert {row["executions"] for row in loop} == {1}
    assert sum(row["h2d_ns"] > 0 for row in loop) > 0.7 * way.plain.steps, "a transfer each time round"
    assert way.ask("ops", "--run", "plain") == []


def _near(truth: float, row: dict[str, Any], low: str, high: str) -> bool:
    """Within twice the half width: four standard errors, of which one in 16 000 runs is further off."""
    middle, half = (row[low] + row[high]) / 2, (row[high] - row[low]) / 2
    assert 0 < half < 0.35 * middle, row
    return bool(abs(truth - middle) <= 2 * half)


def test_windows_and_executions_meet_in_one_device_and_give_the_truth(way: Way) -> None:
    seen = way.ask("devices", "--run", "timed")
    assert len({row["device_key"] for row in seen}) == len(seen), "one row a device, whoever named it"
    (device,) = (row for row in seen if row["occupancy_ratio"])
    assert (device["device_key"], device["device"], device["sku"]) == ("h1/cpu/0/0", "cpu:0", "cpu")
    assert (device["seen"], device["calibrated"]) == ("windows", True)
    assert device["windows"] >= 8
    assert device["executions"] == len(way.truth)
    sums = _watched(way, "timed")
    ran_ns = {name: sum(ns for module, ns, *_ in way.truth if module == name) for name in ("jit_train",)}
    # Each execution is half first op, a quarter second, and the rest is nobody's.
    duty = sum(ns // 2 + ns // 4 if second else ns // 2 for _, ns, first, second in way.truth if first)
    assert _near(duty / sums["watched_ns"], device, "busy_low_ratio", "busy_high_ratio")
    assert sums["occupancy_ns"] == pytest.approx(sum(ns for _, ns, *_ in way.truth), rel=0.05)
    assert device["residual_ratio"] == pytest.approx(0.25, abs=0.06)

    watched_ns = sum(row["n"] for row in way.ask("query", _WATCHED))
    ops = {row["op"]: row for row in way.ask("ops", "--run", "timed")}
    first, second = next((first, second) for module, _, first, second in way.truth if module == "jit_train")
    for name, part in ((first, 2), (second, 4)):
        assert ops[name]["calibrated"], ops[name]
        assert ops[name]["module"] == "jit_train"
        assert _near(ran_ns["jit_train"] / part / watched_ns, ops[name], "low_ratio", "high_ratio")
    (program,) = (r for r in way.ask("ops", "--by", "program", "--run", "timed") if r["module"] == "jit_train")
    assert program["calibrated"]
    assert program["executions"] == sum(module == "jit_train" for module, *_ in way.truth)
    assert _near(0.75 * ran_ns["jit_train"] / watched_ns, program, "low_ratio", "high_ratio")

    steps = [row for row in way.ask("steps", "--run", "timed", "--limit", "3000") if row["source"] == "declared"]
    assert [row["step"] for row in steps] == list(range(len(steps) - 1, -1, -1))
    assert len(steps) == way.timed.steps - 1, "the last has no end"
    assert {row["executions"] for row in steps[1:-1]} == {1}
    assert any(row["compute_ratio"] for row in steps), "steps within windows"


_WATCHED = """SELECT sum(watched_ns)::BIGINT AS n FROM device_10s JOIN processes p USING (process)
    WHERE p.run_name = 'timed'"""
