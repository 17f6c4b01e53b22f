"""What a region costs in Python against jax's own annotations, in one process: ours with recording on and off, jax's
with a profiler session on and off, and jax's patched by us.

At least 1 000 small batches of each variant in turn, the 10th percentile of each (a neighbour doubles the median), the
empty loop subtracted; ratios, because nanoseconds are the machine's. The last line is one JSON object.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from report import report
from span_cost import modes

BUDGETS = {
    "site_on": 0.15,
    "site_off": 0.13,
    "annotate_on": 0.30,
    "step_on": 0.15,
    "patched_on": 1.3,
    "patched_off": 1.3,
    "linked_on": 1.2,
}
"""Of a TraceAnnotation: with its session on, off, on; of a StepTraceAnnotation with its session on; of an unpatched
TraceAnnotation without a session, twice; an annotation with a link, of one with an argument."""

Loop = Callable[[int], None]


def own_loops() -> dict[str, Loop]:
    from fleetscope.native import _recorder

    site, annotate, step = _recorder.site("name"), _recorder.annotate, _recorder.step
    begin, end, instant, link = _recorder.begin, _recorder.end, _recorder.instant, _recorder.link

    def with_site(count: int, site: Any = site) -> None:
        for _ in range(count):
            with site:
                pass

    def with_annotate(count: int) -> None:
        for _ in range(count):
            with annotate("name"):
                pass

    def with_step(count: int) -> None:
        for number in range(count):
            with step(number):
                pass

    def begin_end(count: int) -> None:
        for _ in range(count):
            end(begin(site))

    def instants(count: int) -> None:
        for _ in range(count):
            instant(site)

    def with_argument(count: int) -> None:
        for number in range(count):
            with annotate("name", shard=number):
                pass

    def with_link(count: int) -> None:
        for number in range(count):
            with annotate("name", producer=number):
                pass

    def linked_site(count: int) -> None:
        for number in range(count):
            with site:
                link(consumer=number)

    return {
        "argument": with_argument,
        "linked": with_link,
        "linked_site": linked_site,
        "site": with_site,
        "annotate": with_annotate,
        "step": with_step,
        "begin_end": begin_end,
        "instant": instants,
    }


def jax_loops() -> dict[str, Loop]:
    import jax

    plain, stepped = jax.profiler.TraceAnnotation, jax.profiler.StepTraceAnnotation

    def annotation(count: int, plain: Any = plain) -> None:
        for _ in range(count):
            with plain("name"):
                pass

    def step(count: int) -> None:
        for number in range(count):
            with stepped("step", step_num=number):
                pass

    return {"jax": annotation, "jax_step": step}


def empty(count: int) -> None:
    for _ in range(count):
        pass


def low(taken: list[float]) -> float:
    return sorted(taken)[len(taken) // 10]


def in_turn(loops: dict[str, Loop], batches: int, count: int) -> dict[str, float]:
    """ns a call, by variant."""
    taken: dict[str, list[float]] = {name: [] for name in ("empty", *loops)}
    for _ in range(batches):
        for name, loop in (("empty", empty), *loops.items()):
            begin = time.perf_counter_ns()
            loop(count)
            taken[name].append((time.perf_counter_ns() - begin) / count)
    floor = low(taken.pop("empty"))
    return {name: low(values) - floor for name, values in taken.items()}


def patched(batches: int, count: int) -> dict[str, float]:
    """ns of a TraceAnnotation without a session: unpatched, patched and recording, patched and not."""
    from fleetscope.native import _recorder

    loop = jax_loops()["jax"]
    taken: dict[str, list[float]] = {}
    for _ in range(batches):
        for mode in modes():
            loop(20)
            begin = time.perf_counter_ns()
            empty(count)
            middle = time.perf_counter_ns()
            loop(count)
            taken.setdefault(mode, []).append((time.perf_counter_ns() - 2 * middle + begin) / count)
    _recorder.unpatch()
    return {mode: low(values) for mode, values in taken.items()}


def session() -> Any:
    from jax._src.lib import _profiler

    options = _profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = 1, 0
    return _profiler.ProfilerSession(options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--count", type=int, default=200)
    args = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    from fleetscope.native import _recorder

    jax.devices()
    load = os.getloadavg()[0]
    _recorder.on_first_use(None)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        _recorder.open(folder)
        _recorder.record(True)
        running = session()
        on = in_turn({**own_loops(), **jax_loops()}, args.batches, args.count)
        running.stop()
        _recorder.record(False)
        off = in_turn({**own_loops(), **jax_loops()}, args.batches, args.count)
        unsessioned = patched(args.batches, args.count)
        _recorder.record(False)
        _recorder.close(True)
    ratios = {
        "linked_on": on["linked"] / on["argument"],
        "site_on": on["site"] / on["jax"],
        "site_off": off["site"] / off["jax"],
        "annotate_on": on["annotate"] / on["jax"],
        "step_on": on["step"] / on["jax_step"],
        "patched_on": unsessioned["on"] / unsessioned["unpatched"],
        "patched_off": unsessioned["off"] / unsessioned["unpatched"],
    }
    failed = [f"{name} {ratio:.3f} > {BUDGETS[name]}" for name, ratio in ratios.items() if ratio > BUDGETS[name]]
    worst = max(ratio / BUDGETS[name] for name, ratio in ratios.items())
    return report(
        "recorder_python",
        round(worst, 3),
        "x its budget",
        1.0,
        failed=failed,
        ratios={name: round(ratio, 3) for name, ratio in ratios.items()},
        budgets=BUDGETS,
        on_ns={name: round(value, 1) for name, value in on.items()},
        off_ns={name: round(value, 1) for name, value in off.items()},
        batches=args.batches,
        load=[round(load, 2), round(os.getloadavg()[0], 2)],
        python=sys.version.split()[0],
    )


if __name__ == "__main__":
    sys.exit(main())
