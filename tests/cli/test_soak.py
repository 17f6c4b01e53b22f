"""The soak: what it concludes from what it saw, a death of its program, and going on where it ended."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node.control import Controls
from fleetscope.agents.profiler.protocol import Hello
from fleetscope.cli import soak
from fleetscope.transport import open_log

WORDS = "soak-windows --length 0.01 --pause 0 --size 32"
COMMAND = [sys.executable, "-m", "fleetscope.cli.main", *WORDS.split()]


def seen(**changed: Any) -> soak.State:
    """100 000 windows without a fault: stops of 10 ms, but for one in 200 of 60 ms; memory stands still."""
    state = soak.fresh()
    state |= {"windows": 100_000, "stop_max_ns": 60_000_000, "lives": 1}
    state["machine"] = {"platform": "gpu", "chip": "NVIDIA-H200", "driver": "580.95", "jaxlib": "0.10.2"}
    state["stops"] = soak.buckets([10_000_000] * 99_500 + [60_000_000] * 500)
    state["memory"] = [[1, at, 1 << 30, 1 << 33] for at in range(50, 1001, 50)]
    return state | changed


@pytest.mark.unit
def test_a_clean_soak_is_evidence_for_this_machine_only() -> None:
    found = soak.result(seen(), 100_000)
    assert found["entry"] == "NVIDIA-H200/580.95/0.10.2"
    assert (found["evidence"], found["ok"], found["failures"]) == (True, True, 0)
    assert found["stop_ms"]["p50"] == pytest.approx(10, rel=0.023)
    assert found["stop_ms"]["p99"] == pytest.approx(10, rel=0.023)
    assert found["stop_ms"]["p99.9"] == pytest.approx(60, rel=0.023)
    assert found["stop_ms"]["max"] == 60
    few = soak.result(seen(windows=99_999), 99_999)
    assert (few["evidence"], few["ok"]) == (False, True)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"failed": {"stop_failed": 1}}, "1 windows: stop_failed"),
        ({"crashes": ["signal 11"]}, "the process died: signal 11"),
        ({"stop_max_ns": 1_000_000_001}, "a stop took 1.00 s"),
        ({"memory": [[1, at, 2000 * at, 0] for at in range(50, 1001, 50)]}, "rss bytes a window: 2000.0"),
        ({"memory": [[1, at, 0, 1025 * at] for at in range(50, 1001, 50)]}, "device bytes a window: 1025.0"),
        ({"windows": 5}, "5 windows of 100000"),
    ],
)
def test_what_denies_an_entry(changed: dict[str, Any], why: str) -> None:
    found = soak.result(seen(**changed), 100_000)
    assert found["wrong"] == [why]
    assert not found["ok"]
    assert not found["evidence"]


@pytest.mark.unit
def test_growth_before_a_plateau_is_no_leak_and_lives_are_judged_apart() -> None:
    warm = [[life, at, min(at, 400) * 100_000, 0] for life in (1, 2) for at in range(50, 1001, 50)]
    assert soak.slope(warm, 2) == pytest.approx(0)
    leak = warm + [[3, at, at * 5000, 0] for at in range(50, 1001, 50)]
    assert soak.slope(leak, 2) == pytest.approx(5000)


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (path / "children").read_text().split()]
    return found


@pytest.mark.e2e
def test_a_death_is_counted_and_a_soak_goes_on_where_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [*COMMAND, "--state", str(file)]
    process = subprocess.Popen(
        [*command, "--windows", "100000"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )

    def until(true: Any) -> None:
        end = time.monotonic() + 60
        while not (file.exists() and true(json.loads(file.read_text()))):
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.05)

    until(lambda state: state["windows"] >= 50)
    (worker,) = children(process.pid)
    os.kill(worker, signal.SIGKILL)
    until(lambda state: state["lives"] == 2 and state["crashes"])
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    first = json.loads(out.splitlines()[-1])
    assert first["crashes"] == ["signal 9"]
    assert first["windows"] >= 100
    assert "NOT evidence" in out
    more = str(first["windows"] + 50)
    done = subprocess.run([*command, "--windows", more], env=environment, capture_output=True, text=True, timeout=120)
    second = json.loads(done.stdout.splitlines()[-1])
    assert second["windows"] == first["windows"] + 50
    assert second["crashes"] == ["signal 9"]  # not forgotten
    assert second["entry"] == "cpu/cpu/0.10.2"
    file.write_text("{}")
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert file.read_text() == "{}"


@pytest.mark.e2e
def test_a_soak_of_a_plugin_has_the_shim_around_it(tmp_path: Path) -> None:
    """As in production: evidence without it would be of another process."""
    spec = importlib.util.find_spec("fastatomstruct_xla_cpu")
    assert spec is not None
    assert spec.origin is not None
    library = Path(spec.origin).with_name("libpjrt_cpu.so")
    environment = os.environ | {"JAX_PLATFORMS": "real", "PJRT_NAMES_AND_LIBRARY_PATHS": f"real:{library}"}
    command = [*COMMAND, "--windows", "20", "--state", str(tmp_path / "soak.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["machine"]["shim"], found["failures"], found["windows"]) == (["real"], 0, 20)
    assert found["window_kb_mean"] > 0.5, "planes of executions"


@pytest.mark.unit
def test_the_switch_of_a_run(tmp_path: Path) -> None:
    def run(*words: str) -> None:
        command = [sys.executable, "-m", "fleetscope.cli.main", "windows", *words, "--log", f"file://{tmp_path}/log"]
        subprocess.run(command, check=True, timeout=60, capture_output=True)

    def told() -> str | None:
        controls = Controls()
        with open_log(f"file://{tmp_path}/log") as log:
            for message in log.read("fleetscope.control", 0, 0, log.end_offsets("fleetscope.control")[0]):
                controls.take(message)
        schedule = controls.schedule(Hello(1, 1, 1, "b", "train", "a7", 0, 2, "", "", "", "", "cpu", "", 0))
        return None if schedule is None else schedule.off

    run("off", "train", "--reason", "maintenance")
    assert told() == "maintenance"
    run("on", "train", "--attempt", "a7")
    assert told() == ""
    run("off", "other")
    assert told() == ""
