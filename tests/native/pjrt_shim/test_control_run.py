"""`fleetscope run` against a run without us: the same platforms, the same results, the same errors, whatever plugins
are registered, chosen or missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

PROGRAM = """
import json
said = {}
try:
    import jax, numpy as np
    said["default"] = jax.default_backend()
    said["devices"] = [(d.platform, d.id, d.device_kind) for d in jax.devices()]
    said["result"] = float(jax.jit(lambda x: (x @ x).sum())(np.full((8, 8), 1.5, np.float32)))
except Exception as error:
    said["error"] = [type(error).__name__, str(error)]
import jax._src.xla_bridge as bridge
said["backends"] = sorted(bridge._backends)
said["errors"] = {name: str(error) for name, error in bridge._backend_errors.items()}
said["names"] = sorted(bridge._backend_factories)
import sys
said["wrapped"] = sorted(getattr(sys.modules.get("fleetscope.agents.profiler.pjrt"), "wrapped", ()))
print(json.dumps(said))
"""


def _words(stderr: str) -> list[str]:
    """Lines without what differs from run to run: times, process ids, addresses; and without our own."""
    kept = [line for line in stderr.splitlines() if not line.startswith("fleetscope run:")]
    return [re.sub(r"0x[0-9a-f]+|\d+", "#", line) for line in kept]


def _both(tmp_path: Path, own: dict[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(without us, under `fleetscope run`), side by side."""
    left_out = ("FLEETSCOPE_", "PYTHON", "JAX_", "PJRT_", "XLA_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | own
    program = [sys.executable, "-c", PROGRAM]
    run = [sys.executable, "-m", "fleetscope.cli.main", "run", "--", *program]
    socket = {"FLEETSCOPE_AGENT_SOCKET": str(tmp_path / "none.sock"), "FLEETSCOPE_AGENT__SHM_DIR": str(tmp_path)}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(program, env=env, **pipes), subprocess.Popen(run, env=env | socket, **pipes)]
    told = []
    for process in started:
        output, errors = process.communicate(timeout=120)
        assert output, errors[-2000:]
        told.append({"code": process.returncode, "words": _words(errors)} | json.loads(output.splitlines()[-1]))
    return told[0], told[1]


@pytest.mark.parametrize(
    ("registered", "chosen", "wrapped"),
    [
        ("one:{real},two:{real}", None, ["one", "two"]),
        ("one:{real},two:{real}", "two,cpu", ["one", "two"]),
        ("one:{real},two:{real}", "cpu", ["one", "two"]),
        ("gone:/nowhere/libgone.so,one:{real}", None, None),
        ("gone:/nowhere/libgone.so", "gone", None),
        ("odd:{odd}", "odd", None),
        (None, None, []),
        (None, "cpu", []),
    ],
)
def test_a_program_sees_what_it_would_see_without_us(
    tmp_path: Path, real_plugin: Path, registered: str | None, chosen: str | None, wrapped: list[str] | None
) -> None:
    own = {} if chosen is None else {"JAX_PLATFORMS": chosen}
    if registered is not None:
        odd = next(Path("/").glob("lib/*/libm.so.6"), Path("/lib/libm.so.6"))
        own["PJRT_NAMES_AND_LIBRARY_PATHS"] = registered.format(real=real_plugin, odd=odd)
    plain, ours = _both(tmp_path, own)
    assert plain.pop("wrapped") == []
    found = ours.pop("wrapped")
    assert ours == plain
    assert wrapped is None or found == wrapped
    assert plain["code"] == 0
    assert "result" in plain or "error" in plain
