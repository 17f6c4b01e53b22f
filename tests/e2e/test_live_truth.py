"""Windows of a live run against what the run noted itself: benchmarks/live_truth.py in its short form."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.alone]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.mark.timeout(300)
def test_intervals_of_a_live_run_hold_what_the_run_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "live_truth.py", "--sure",
         "--seconds", "45", "--windows", "10", "--window-s", "0.8"],
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["steps"] == result["noted"] > 300
    names = [claim["name"] for claim in result["claims"]]
    assert names[0] == "duty"
    # Of a program that tracing prolongs nothing is claimed: on a busy machine that can be any.
    assert "share of train_step" in names or result["prolonged"]["train_step"] > 0.1
    assert len([name for name in names if name.startswith("rate of ")]) == 5
    # Would it see a difference? Half as many again as there were.
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    live_truth = importlib.import_module("live_truth")
    counted = (result["windows"], 10, result["noted"], result["steps"], True)
    found = [live_truth.Claim(**claim) for claim in result["claims"]]
    assert live_truth.judge(found, *counted) == []
    wrong = [live_truth.Claim(**{**claim, "truth": claim["truth"] * 1.5}) if claim["name"].startswith("rate") else
             live_truth.Claim(**claim) for claim in result["claims"]]  # fmt: skip
    assert len([line for line in live_truth.judge(wrong, *counted) if line.startswith("rate")]) >= 3
    assert live_truth.judge(found, 9, *counted[1:]) == ["9 windows of 10"]
    assert live_truth.judge(found, *counted[:3], result["steps"] + 1, True)
