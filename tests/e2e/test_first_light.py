"""A real training run, from its unchanged process through agent, log, worker and coordinator to queries and to series
in a real Prometheus. What it must show follows from what the example prints, not from anything of ours."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
STEPS, STEP_MS = 400, 50
WORK = "(0, 3, 4, 5, 6, 7, 13)"
"""Kinds that make a device busy (docs/format/wire.md)."""


@dataclass
class Light:
    """Where everything is, and what the program said of itself."""

    config: Path
    metrics_url: str
    prometheus_url: str
    seconds: float = 0.0

    def ask(self, *words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, "-m", "fleetscope.cli.main", *words, "-o", "json", "--config", self.config],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return list(json.loads(done.stdout))

    def series(self, query: str) -> list[tuple[dict[str, str], float]]:
        """An instant query of Prometheus: (labels, value)."""
        url = f"{self.prometheus_url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            result = json.load(answer)["data"]["result"]
        return [(entry["metric"], float(entry["value"][1])) for entry in result]


def eventually(what: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, KeyError):
            if what():
                return
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def light(
    require: Callable[[str], Path],
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    free_port: Callable[[], int],
) -> Iterator[Light]:
    prometheus = require("prometheus")
    folder = tmp_path_factory.mktemp("light")
    (folder / "shm").mkdir()
    ports = [free_port(), free_port()]
    config = folder / "fleetscope.yaml"
    document = {
        "cluster": "light",
        "state_dir": str(folder),
        "profiler": {"window_s": 1},
        "governor": {"enabled": False},
        "agent": {"shm_dir": str(folder / "shm")},
        "exporter": {"address": f"127.0.0.1:{ports[0]}"},
        "coordinator": {"round_s": 5},
    }
    config.write_text(yaml.safe_dump(document))
    scraped = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(repository / "deploy" / "prometheus" / "fleetscope.rules.yml")],
        "scrape_configs": [{"job_name": "fleetscope", "static_configs": [{"targets": [f"127.0.0.1:{ports[0]}"]}]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(scraped))
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLEETSCOPE_", "PYTHON"))}
    environment = clean | {"FLEETSCOPE_CONFIG": str(config), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fleetscope.cli.main"]
    found = Light(config, f"http://127.0.0.1:{ports[0]}/metrics", f"http://127.0.0.1:{ports[1]}")
    with contextlib.ExitStack() as stack:

        def start(name: str, *words: str) -> subprocess.Popen[bytes]:
            output = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
            stack.callback(_end, process)
            return process

        start("up", *command, "up")
        agent = start("agent", *command, "agent")
        start(
            "prometheus", str(prometheus), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{ports[1]}",
        )  # fmt: skip
        eventually(lambda: b"fleetscope_exporter" in urllib.request.urlopen(found.metrics_url, timeout=2).read())
        eventually((folder / "agent.sock").exists)
        done = subprocess.run(
            [*command, "run", "--run", "light", "--", sys.executable, repository / "examples" / "train_transformer.py",
             "--steps", str(STEPS), "--step-ms", str(STEP_MS)],
            env=environment, capture_output=True, text=True, timeout=150,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        said = re.search(rf"^{STEPS} steps in ([0-9.]+) s", done.stdout, re.MULTILINE)
        assert said, done.stdout
        found.seconds = float(said[1])
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(60) == 0

        def told() -> bool:
            runs = [(run["steps"], run["state"]) for run in found.ask("runs", "--run", "light")]
            return runs in ([(STEPS, "ended")], [(STEPS - 1, "ended")])

        eventually(told)
        yield found


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.mark.timeout(300)
def test_the_run_and_its_steps(light: Light) -> None:
    (run,) = light.ask("runs", "--run", "light")
    assert (run["state"], run["ranks"], run["hosts"], run["devices"], run["lost"]) == ("ended", 1, 1, 1, 0)
    # The example holds each step to STEP_MS; its own mean holds the first step too, which compiles.
    assert 0.98 * STEP_MS <= run["step_time_ns"] / 1e6 <= light.seconds * 1e3 / STEPS
    assert 0 < run["compute_ratio"] <= run["busy_ratio"] <= 1
    ledger = light.ask("ledger", "--run", "light")
    assert sum(row["produced"] for row in ledger) == sum(row["stored"] for row in ledger) > 2 * STEPS


@pytest.mark.timeout(300)
def test_device_time_has_op_category_and_source(light: Light) -> None:
    (row,) = light.ask(
        "query",
        f"""SELECT sum(s.dur_ns - s.child_ns)::DOUBLE AS all_ns,
                   sum(s.dur_ns - s.child_ns) FILTER (o.name != '' AND o.category != '')::DOUBLE AS known_ns
            FROM spans s LEFT JOIN ops o USING (program, op) JOIN processes p ON p.process = s.process
            WHERE p.run_name = 'light' AND s.device != 0 AND s.kind IN {WORK}""",
    )
    assert row["known_ns"] >= 0.95 * row["all_ns"] > 0
    ops = light.ask("top", "--run", "light")
    assert len(ops) >= 10
    assert all(op["category"] for op in ops)
    assert any("train_transformer.py:" in (op["source"] or "") for op in ops)
    assert "dot" in " ".join(f"{op['op']} {op['op_name']}" for op in ops)


@pytest.mark.timeout(300)
def test_windows_stand_for_the_whole_run(light: Light) -> None:
    """Most ops of the step run once a step: their estimated rate is that of the steps. A busy machine leaves room for
    two windows only, so much is allowed."""
    (run,) = light.ask("runs", "--run", "light")
    assert run["windows"] >= 1
    rows = light.ask(
        "query",
        """SELECT r.op, sum(r.rate_uhz)::DOUBLE / 1e6 AS hz
           FROM op_10s r JOIN programs m USING (program) JOIN processes p USING (process)
           WHERE p.run_name = 'light' AND m.module = 'jit_train_step' AND r.weight = 0 GROUP BY r.op""",
    )
    rates = sorted(row["hz"] / run["windows"] for row in rows)
    middle = rates[len(rates) // 2]
    assert 0.6 <= middle * run["step_time_ns"] / 1e9 <= 1.6


@pytest.mark.timeout(300)
def test_prometheus_has_the_series_and_the_rules(light: Light) -> None:
    def steps() -> bool:
        found = light.series('sum(fleetscope_run_steps_total{run="light"})')
        return bool(found) and found[0][1] >= STEPS - 1

    eventually(steps)
    eventually(lambda: bool(light.series('run:fleetscope_step_seconds:mean{run="light"}')))
    ((_, mean_s),) = light.series('run:fleetscope_step_seconds:mean{run="light"}')
    # A step is counted when it begins, its time when the next one does: a rate over few scrapes is short of one step.
    assert 0.93 * STEP_MS / 1e3 <= mean_s <= light.seconds / 10
    eventually(lambda: bool(light.series('run:fleetscope_duty:ratio{run="light"}')))
    ((_, duty),) = light.series('run:fleetscope_duty:ratio{run="light"}')
    assert 0 < duty <= 1
    stored = light.series('fleetscope_events_total{run="light",outcome="stored"}')
    assert stored[0][1] > 2 * STEPS
