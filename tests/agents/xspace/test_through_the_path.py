"""Real captures through import, log, worker, coordinator and SQL: every figure of issue 3, as its benchmark has it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.e2e
def test_real_files_in_the_lake(samples: Path, repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, repository / "benchmarks" / "real_files.py", "--samples", samples],
        capture_output=True,
        text=True,
        timeout=170,
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )
    assert done.returncode in (0, 1), done.stderr[-4000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["failed"] == []
    assert result["unit"] == "figures that differ, of 44"
