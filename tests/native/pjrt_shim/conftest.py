"""Programs on the real plugin (an unmodified XLA:CPU from PyPI), with and without the shim, and on the toy plugin."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_spec = importlib.util.spec_from_file_location("toys", Path(__file__).with_name("toys.py"))
assert _spec is not None
assert _spec.loader is not None
toys = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toys)

PREAMBLE = """
import glob, json, os, sys, time
from fleetscope.agents import profiler
from fleetscope.native import _recorder, recorder
profiler.start(early=True)
import jax, jax.numpy as jnp, numpy as np
import jax._src.xla_bridge as bridge
import fastatomstruct_xla_cpu
library = os.path.join(os.path.dirname(fastatomstruct_xla_cpu.__file__), "libpjrt_cpu.so")
api = bridge.register_plugin("toy", library_path=library)

def path():
    return glob.glob(os.environ["FLEETSCOPE_AGENT__SHM_DIR"] + "/fleetscope-*.ring")[0]

def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)

class Records:
    def __init__(self):
        self.segment, self.rows = recorder.Segment(path()), []
    def read(self):
        more = True
        while more:
            got = self.segment.drain()
            names = self.segment.names()
            self.rows += [dict(kind=int(k), start=int(s), dur=int(d), arg=int(a), flags=int(f), name=names[n])
                for k, s, d, a, f, n in zip(got.kind, got.start, got.dur, got.arg, got.flags, got.name)]
            assert got.lost == 0
            more = got.more
        return self
    def of(self, kind):
        return [row for row in self.read().rows if row["kind"] == kind]

def say(**facts):
    print(json.dumps(facts), flush=True)
"""


@pytest.fixture(scope="session")
def real_plugin() -> Path:
    found = importlib.util.find_spec("fastatomstruct_xla_cpu")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).with_name("libpjrt_cpu.so")


@pytest.fixture
def on_plugin(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs a program after PREAMBLE; what it said last."""

    def run(code: str, **env: str) -> dict[str, Any]:
        folder = tmp_path / "shm"
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
            env={
                **os.environ,
                "JAX_PLATFORMS": "toy",
                "FLEETSCOPE_AGENT__SHM_DIR": str(folder),
                "FLEETSCOPE_AGENT_SOCKET": str(tmp_path / "no.sock"),
                **env,
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said

    return run


TOY_PREAMBLE = """
import ctypes as c, json, os, sys, threading, time
import numpy as np
sys.path.insert(0, {here!r})
from toys import *
from fleetscope.native import _pjrt_shim, _recorder
from fleetscope.native.recorder import Segment
folder, library = {folder!r}, {library!r}
counts = _pjrt_shim.counts

def begin(options="", **how):
    records, toy = Records(folder), Toy(library, options)
    why = toy.wrap()
    assert not why, why
    toy.set(tsc=int(records.clock_is_tsc), **how)
    toy.lib.toy_log(c.c_uint64(1 << 16))
    return records, toy

def say(**facts):
    print(json.dumps(facts), flush=True)
"""


@pytest.fixture(scope="session")
def toy_library(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    return toys.build(tmp_path_factory.mktemp("toy"), repository)


@pytest.fixture
def on_toy(tmp_path: Path, toy_library: Path) -> Callable[..., dict[str, Any]]:
    """Runs a program that drives the toy plugin through the shim; what it said last."""

    def run(code: str) -> dict[str, Any]:
        preamble = TOY_PREAMBLE.format(here=str(Path(__file__).parent), folder=str(tmp_path), library=str(toy_library))
        done = subprocess.run(
            [sys.executable, "-c", preamble + textwrap.dedent(code)], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr[-3000:]
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return said

    return run
