"""What an annotation of jax's costs in Python, patched by us with recording on and off. Ours: recorder_python.py.

CPU time of loops in one process, no profiler session, variants in turn, the 10th percentile of each; ratios, because
nanoseconds are the machine's. Budget: patched <= 1.3 x unpatched (DESIGN 9). The last line is one JSON object.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from report import report

BUDGET = 1.3


def loops() -> dict[str, Callable[[int], None]]:
    import jax

    plain, step = jax.profiler.TraceAnnotation, jax.profiler.StepTraceAnnotation
    function = jax.profiler.annotate_function(lambda: None)

    def empty(count: int) -> None:
        for _ in range(count):
            pass

    def annotation(count: int) -> None:
        for _ in range(count):
            with plain("name"):
                pass

    def arguments(count: int) -> None:
        for _ in range(count):
            with plain("name", batch=1):
                pass

    def steps(count: int) -> None:
        for _ in range(count):
            with step("name", step_num=1):
                pass

    def decorated(count: int) -> None:
        for _ in range(count):
            function()

    return {
        "empty": empty,
        "annotation": annotation,
        "arguments": arguments,
        "step": steps,
        "function": decorated,
    }


def modes() -> Iterator[str]:
    """ "unpatched", "on" (patched and recording), "off" (patched): each is in force when it is given."""
    import jax

    from fleetscope.native import _recorder

    for mode in ("unpatched", "on", "off"):
        _recorder.unpatch()
        if mode != "unpatched" and not _recorder.patch(jax.profiler.TraceAnnotation):
            raise SystemExit("jax's TraceAnnotation is not the class we know")
        _recorder.record(mode == "on")
        yield mode


def measure(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """variant -> mode -> ns a call, the empty loop subtracted."""
    variants = loops()
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in variants}
    for _ in range(rounds):
        for mode in modes():
            for name, loop in variants.items():
                begin = time.process_time_ns()
                loop(count)
                taken[name].setdefault(mode, []).append((time.process_time_ns() - begin) / count)
    low = {name: {mode: sorted(v)[len(v) // 10] for mode, v in modes.items()} for name, modes in taken.items()}
    empty = low.pop("empty")
    return {name: {mode: value - empty[mode] for mode, value in modes.items()} for name, modes in low.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--count", type=int, default=10_000)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from fleetscope.native import _recorder

    with tempfile.TemporaryDirectory() as folder:
        _recorder.open(folder)
        costs = measure(args.rounds, args.count)
        _recorder.record(False)
        _recorder.close(True)
    ratios = {
        name: {mode: round(modes[mode] / modes["unpatched"], 3) for mode in ("on", "off")}
        for name, modes in costs.items()
    }
    failed = [f"{name} {mode}" for name, modes in ratios.items() for mode, ratio in modes.items() if ratio > BUDGET]
    facts = {
        "unpatched_ns": {name: round(modes["unpatched"]) for name, modes in costs.items()},
        "patched_ratio": ratios,
    }
    worst = max(ratio for modes in ratios.values() for ratio in modes.values())
    return report("span_cost", worst, "x the unpatched call", BUDGET, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
