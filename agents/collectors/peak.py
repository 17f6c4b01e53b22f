"""Peak of the local CPU, measured: no data sheet says what a slice of a shared machine can do.

Run as a module in a process of its own: the BLAS library's buffers (tens of MB) must not stay in the agent.
"""

import json
import logging
import subprocess
import sys
import time
from pathlib import Path

log = logging.getLogger(__name__)

SIZE = 768
"""Matrices of 2.4 MB: three fit a last-level cache, and one product takes ~10 ms on one core."""
BUDGET_S = 0.25
CACHE_NAME = "cpu_peak.json"


def measure() -> float:
    """Best FLOP/s of float32 products C = A B of SIZE^3, 2 SIZE^3 FLOPs each, over at most BUDGET_S; all cores."""
    import numpy as np

    rng = np.random.default_rng(0)
    left, right = (rng.random((SIZE, SIZE), dtype=np.float32) for _ in range(2))
    out = np.empty((SIZE, SIZE), np.float32)
    np.matmul(left, right, out=out)
    best_s = float("inf")
    end = time.perf_counter() + BUDGET_S
    while (begin := time.perf_counter()) < end:
        np.matmul(left, right, out=out)
        best_s = min(best_s, time.perf_counter() - begin)
    return 2.0 * SIZE**3 / best_s


def cpu_peak(state_dir: Path, boot_id: str, timeout_s: float = 15.0) -> float | None:
    """FLOP/s of the local CPU, measured once a boot and kept in `state_dir`. None if it cannot be measured."""
    cache = state_dir / CACHE_NAME
    try:
        kept = json.loads(cache.read_text())
        if kept["boot_id"] == boot_id and float(kept["flops_per_s"]) > 0:
            return float(kept["flops_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        command = [sys.executable, "-m", "fleetscope.agents.collectors.peak"]
        done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=True)
        peak = float(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        log.warning("the CPU's peak could not be measured: %s", error)
        return None
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        partial = cache.with_suffix(".tmp")
        partial.write_text(json.dumps({"boot_id": boot_id, "flops_per_s": peak}))
        partial.replace(cache)
    except OSError as error:
        log.warning("the CPU's peak could not be kept: %s", error)
    return peak


if __name__ == "__main__":
    print(measure())
