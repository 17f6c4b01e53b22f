"""A loader that delays each batch by 30 ms is named as what a run waits for, within 30 s and without a window.

A real JAX program on the CPU, whose loop is `for batch in loader():` over a plain generator and knows nothing of us,
goes through everything: injection, profiler, agent, log, worker, and `fleetscope steps` and `fleetscope top` as a
person types them. Windows are off. Beside it: the same program without the delay, and one that spends 30 ms a step on
the host elsewhere, which must not be called input-bound.

    python benchmarks/input_wait.py [--seconds 30]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import report
from roles import Site

DELAY_MS = 30
BUDGET_S = 30.0

PROGRAM = """
import sys, time
import jax, jax.numpy as jnp

kind, seconds = sys.argv[1], float(sys.argv[2])

@jax.jit
def train_step(weights, batch):
    return weights - 1e-3 * jax.grad(lambda w: jnp.sum(jnp.tanh(batch @ w) ** 2))(weights)

def loader():
    number = 0
    while True:
        if kind == "loader":
            time.sleep(0.030)
        yield number
        number += 1

def log(number):
    if kind == "elsewhere":
        time.sleep(0.030)

batch, weights = jnp.ones((128, 256)), jnp.ones((256, 256)) / 256
end, steps = time.monotonic() + seconds, 0
for number in loader():
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        weights = train_step(weights, batch)
        weights.block_until_ready()
    log(number)
    steps += 1
    if time.monotonic() > end:
        break
print(steps)
"""


def train(site: Site, kind: str, seconds: float) -> "subprocess.Popen[str]":
    script = site.folder / "train.py"
    script.write_text(PROGRAM)
    words = ("run", "--run", kind, "--", sys.executable, str(script), kind, str(seconds))
    return subprocess.Popen(site.command(*words), env=site.environment, stdout=subprocess.PIPE, text=True)


def waits(site: Site, run: str) -> tuple[int, float, float]:
    """(steps, mean wait in ms, mean step time in ms) of what the lake has of a run."""
    rows = site.rows("steps", "--run", run, "-n", "100000")[:-8]
    if not rows:
        return 0, 0.0, 0.0
    return len(rows), *(sum(row[name] for row in rows) / len(rows) / 1e6 for name in ("data_wait_ns", "step_time_ns"))


def named(site: Site, run: str) -> bool:
    return all(f"{run}: input-bound" in site.ask(question, "--run", run) for question in ("steps", "top"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="of training, each program")
    args = parser.parse_args()
    failed: list[str] = []
    facts: dict[str, object] = {}
    with (
        tempfile.TemporaryDirectory(prefix="fleetscope-input-") as folder,
        Site(Path(folder), profiler={"steps_between_windows": 1 << 30}) as site,
    ):
        # Training time: what a person waits from the program's start, the import of jax and its compile included.
        began = time.monotonic()
        program = train(site, "loader", args.seconds + 10)
        took = float("inf")
        while time.monotonic() - began < args.seconds + 8 and took == float("inf"):
            time.sleep(1)
            if named(site, "loader"):
                took = time.monotonic() - began
        program.communicate(timeout=120)
        steps, wait_ms, step_ms = waits(site, "loader")
        facts |= {"steps": steps, "wait_ms": round(wait_ms, 2), "step_ms": round(step_ms, 2)}
        if took > BUDGET_S:
            failed.append(f"a delay of {DELAY_MS} ms was named after {took:.1f} s")
        if not 0.7 * DELAY_MS <= wait_ms <= step_ms:
            failed.append(f"{wait_ms:.1f} ms of wait a step of {step_ms:.1f} ms, for a delay of {DELAY_MS} ms")
        for kind in ("elsewhere", "quick"):
            train(site, kind, args.seconds / 2).communicate(timeout=120)
            time.sleep(5)
            other, wait_ms, step_ms = waits(site, kind)
            facts |= {f"{kind}_steps": other, f"{kind}_wait_ms": round(wait_ms, 2), f"{kind}_ms": round(step_ms, 2)}
            if not other:
                failed.append(f"{kind}: no steps in the lake")
            if named(site, kind) or wait_ms > 0.1 * step_ms:
                failed.append(f"{kind}: called input-bound, {wait_ms:.1f} of {step_ms:.1f} ms")
    return report("input_wait", round(min(took, 1e9), 1), "s", BUDGET_S, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
