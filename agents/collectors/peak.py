"""Peak of the local CPU, measured: no data sheet says what a slice of a shared machine can do.

Run as a module in a process of its own: the BLAS library's buffers (tens of MB) must not stay in the agent.
"""

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

SIZE = 256
"""One product takes 0.3 ms on one core: short enough that some of the 200 tried are not interrupted. On a machine with
load 9 the best of 256^3 gave 104 GFLOP/s a core, of 768^3 31, and of 768^3 on both cores 6."""
BUDGET_S = 0.25
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
CACHE_NAME = "cpu_peak.json"


def measure() -> float:
    """Best FLOP/s of float32 products C = A B of SIZE^3, 2 SIZE^3 FLOPs each, over BUDGET_S, on one thread."""
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
    """FLOP/s of the local CPU: one core's, measured once a boot and kept in `state_dir`, times the cores this process
    may use (threads of one core share its units). None if it cannot be measured.
    """
    cache = state_dir / CACHE_NAME
    try:
        kept = json.loads(cache.read_text())
        if kept["boot_id"] == boot_id and float(kept["flops_per_s"]) > 0:
            return float(kept["flops_per_s"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        command = [sys.executable, "-m", "fleetscope.agents.collectors.peak"]
        done = subprocess.run(
            command, capture_output=True, timeout=timeout_s, check=True, env={**os.environ, **_ONE_THREAD}
        )
        usable = len(os.sched_getaffinity(0))
        peak = float(done.stdout) * min(usable, psutil.cpu_count(logical=False) or usable)
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
