"""The whole path into a bucket of a real S3 server that loses answers, throttles and goes away; exact all the same."""

import importlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fleetscope.agents.simulated import Simulation
from fleetscope.cli.main import app
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.schema.config import load
from fleetscope.schema.errors import FleetscopeError

pytestmark = pytest.mark.e2e
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class S3(Protocol):
    endpoint: str
    key: str
    secret: str

    def environment(self) -> dict[str, str]: ...


class FaultyS3(S3, Protocol):
    fault: Callable[[str, str], str]
    seen: Counter[tuple[str, str]]


@pytest.fixture
def home(faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration in the environment alone, as a container would have it; the lake's URL."""
    url = f"s3://lake/fleet {tmp_path.name}"
    variables = {"FLEETSCOPE_HOME": str(tmp_path), "FLEETSCOPE_LAKE__URL": url, "FLEETSCOPE_LOG__PARTITIONS": "2"}
    variables |= {"FLEETSCOPE_WORKER__EPOCH_MAX_BYTES": "150000", **faulty_s3.environment()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return url


def _ask(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def _restarted(role: Callable[[], Any], tries: int = 20) -> None:
    """A role as a supervisor runs it: started again while it says that trying again may help."""
    for attempt in range(tries):
        try:
            role()
            return
        except FleetscopeError:
            if attempt + 1 == tries:
                raise
            time.sleep(0.2)


@pytest.mark.timeout(240)
def test_every_event_once_though_the_store_loses_answers_throttles_and_goes_away(
    home: str, faulty_s3: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = ["lost:host=0,at=6,count=2", "duplicate:host=1,at=6,count=2"]
    simulation = Simulation(
        load(), hosts=2, chips=2, seconds=14, seed=1, truth=tmp_path / "truth", speed="max", faults=faults, ops=60,
        step_ms=250, busy=0.6,
    )  # fmt: skip
    simulation.run(threading.Event())

    # one worker is killed just before it commits, with a store that answers
    monkeypatch.setenv("FLEETSCOPE_FAULTS", "manifest.before_put=kill@2")
    killed = subprocess.run(
        [sys.executable, "-m", "fleetscope.cli.main", "worker", "--once", "-v"], capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    monkeypatch.delenv("FLEETSCOPE_FAULTS")
    assert killed.returncode == -signal.SIGKILL
    assert faulty_s3.secret not in killed.stderr + killed.stdout

    rng = random.Random(1)
    away_until = [time.monotonic() + 2]

    def fault(method: str, path: str) -> str:
        if time.monotonic() < away_until[0]:
            return "refuse"
        dice = rng.random() * (1 if method == "PUT" else 4)  # of reads, a round makes six hundred
        return "lose" if dice < 0.05 and method == "PUT" else "503" if dice < 0.08 else "refuse" if dice < 0.11 else ""

    faulty_s3.fault = fault
    rounds = []

    def once() -> None:
        rounds.append(Coordinator(load()).round_once())

    _restarted(lambda: Worker(load()).run_once())
    away_until[0] = time.monotonic() + 0.5
    _restarted(once)
    faulty_s3.fault = lambda method, path: ""
    _restarted(once)
    for what in ("lose", "503", "refuse"):
        assert any(kind == what for _, kind in faulty_s3.seen), what

    monkeypatch.syspath_prepend(str(BENCHMARKS))
    mismatches: list[object] = []
    result = importlib.import_module("exact_truth").compare(tmp_path / "truth", home, mismatches)
    assert not mismatches
    assert result["lost_on_purpose"] > 0

    sql = "SELECT count(*) AS spans, count(DISTINCT date) AS days FROM spans"
    counted = json.loads(_ask("query", sql, "-o", "json").stdout)
    assert counted == [{"spans": result["spans"], "days": 1}]
    info = json.loads(_ask("lake", "info", "-o", "json").stdout)
    assert sum(row["rows"] for row in info if row["table"] == "spans") == result["spans"]
    assert json.loads(_ask("runs", "-o", "json").stdout)[0]["hosts"] == 2
    checks = {row["check"]: row for row in json.loads(_ask("doctor", "-o", "json").stdout)}
    assert checks["lake"]["result"] == checks["worker"]["result"] == checks["coordinator"]["result"] == "ok"
    assert "answers" in checks["lake"]["detail"]


def _doctor() -> dict[str, dict[str, str]]:
    began = time.monotonic()
    answer = _ask("doctor", "-o", "json")
    assert time.monotonic() - began < 5 + 2  # log, agent and exporter are looked at too
    assert answer.exit_code == 1
    return {row["check"]: row for row in json.loads(answer.stdout)}


@pytest.mark.fault
def test_doctor_tells_wrong_credentials_a_missing_bucket_and_silence_apart(
    home: str, faulty_s3: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}
    with monkeypatch.context() as changed:
        changed.setenv("AWS_SECRET_ACCESS_KEY", "wrong-" + faulty_s3.secret)
        told["credentials"] = _doctor()
        assert _ask("query", "SELECT 1").exit_code == 69
    with monkeypatch.context() as changed:
        changed.setenv("FLEETSCOPE_LAKE__URL", "s3://nobucket/x")
        told["no such bucket"] = _doctor()
        assert _ask("query", "SELECT 1").exit_code == 69
    faulty_s3.fault = lambda method, path: time.sleep(6) or "refuse"  # type: ignore[func-returns-value]
    told["FS5002"] = _doctor()
    for words, checks in told.items():
        assert checks["lake"]["result"] == "WRONG"
        assert words in checks["lake"]["detail"]
        assert faulty_s3.secret not in str(checks)
        assert faulty_s3.key not in str(checks)
        assert checks["worker"]["result"] == checks["coordinator"]["result"] == "-"


def test_a_bucket_without_a_lake_is_no_lake_and_printed_options_are_masked(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETSCOPE_LAKE__OPTIONS__SECRET_ACCESS_KEY", "hidden-from-view")
    printed = _ask("config", "check")
    assert printed.exit_code == 0
    assert "hidden-from-view" not in printed.stdout
    monkeypatch.delenv("FLEETSCOPE_LAKE__OPTIONS__SECRET_ACCESS_KEY")
    missing = _ask("lake", "info")
    assert missing.exit_code == 69
    assert "FS6001" in missing.stderr
    monkeypatch.setenv("FLEETSCOPE_LAKE__PATH", "/somewhere")
    both = _ask("config", "check")
    assert both.exit_code == 2
    assert "give one" in both.stderr
    # a flag names the one place whatever the configuration says
    assert "no lake at /nowhere" in _ask("lake", "info", "--lake", "/nowhere").stderr
