"""The same graph on a second portable runner gives the same rows: nothing in it leans on FnApiRunner."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.pipelines.drivers.portable import options_for
from fleetscope.schema.errors import RunnerUnavailable
from fleetscope.schema.vocabulary import Kind

MS = 1_000_000
START = 1_000 * MS


@pytest.mark.e2e
def test_prism_writes_the_same_rows(bench: Any, require: Callable[[str], Path]) -> None:
    prism = require("prism")
    for name in ("h1", "h2", "h3"):
        host = bench.host(name)
        for index in range(4):
            at = START + index * MS
            rows = {"start": [at, at + 5, at + 200_000], "dur": [900_000, 100_000, 300_000], "line": 0, "step": index}
            kinds = [Kind.MODULE, Kind.COMPUTE, Kind.COLLECTIVE]
            bench.send(host.spans(0, at, at + MS, {**rows, "kind": kinds, "program": 5, "op": [0, 1, 2]}))
            bench.send(
                host.host_spans(at, at + MS, {"start": [at], "dur": [9], "line": 1, "kind": Kind.STEP, "step": index})
            )
        bench.send(host.samples([START + 4 * MS], [7], [1.5]))
    bench.send_bytes(b"no batch")
    bench.log.close()
    ran = subprocess.run(
        ["unshare", "-n", sys.executable, str(Path(__file__).with_name("prism_child.py")), str(bench.config.state_dir)],
        env={**os.environ, "FLEETSCOPE_PRISM": str(prism)},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    assert "'spans': 48" in ran.stdout
    bench.__post_init__()


@pytest.mark.unit
def test_a_missing_prism_is_said_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEETSCOPE_PRISM", str(tmp_path / "no-prism"))
    with pytest.raises(RunnerUnavailable, match="no Prism binary"):
        options_for("PrismRunner")
