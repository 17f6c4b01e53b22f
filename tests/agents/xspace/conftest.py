"""Real captures, converted once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.agents.xspace.importing import Imported, read_capture

FILES = {
    "v6e": "xprof__tpu_inference_2",
    "mi300x": "tracelens__mi300_jax08_gemm",
    "v100": "xprof__demo_gpu_v100x8_tf_2020",
    "cpu": "self__jax0.10.2_cpu_1s",
}


@pytest.fixture(scope="session")
def imported(samples: Path) -> Callable[[str], Imported]:
    """``imported("v6e")``: one of the real captures, read and converted."""
    done: dict[str, Imported] = {}

    def get(name: str) -> Imported:
        if name not in done:
            done[name] = read_capture(samples / "xplane" / f"{FILES[name]}.xplane.pb")
        return done[name]

    return get
