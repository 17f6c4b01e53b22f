"""benchmarks/agent_leak.py in its short form: a forgotten process, descriptor, thread or file shows after dozens."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.e2e
def test_an_agent_keeps_nothing_of_processes_that_came_and_went(repository: Path) -> None:
    command = [sys.executable, "benchmarks/agent_leak.py", "--rounds", "9", "--size", "6"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["processes"] == 54
    # A process that is kept is 250 blocks, 80 objects and a descriptor (tried); what fluctuates is far below.
    for name in ("fds", "threads", "files"):
        assert said[f"{name}_a_process"] < 0.2, done.stdout
    assert said["blocks_a_process"] < 60, done.stdout
    assert said["objects_a_process"] < 20, done.stdout
