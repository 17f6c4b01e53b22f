"""CPU of the pipeline, encoded batch -> committed raw + 10 s rollup, beside a hand-written script doing the same work.

    python benchmarks/pipeline_cpu.py [--rounds 7]

Both get the same batches of the pinned generator (DESIGN 10) in one process that is warm: graph built, heap grown by
two epochs of each. A round is a pair, one right after the other, in turns the one first or the other. The ratio that
counts is the median of the pairs'; what an event costs is the least of the rounds. The last line is JSON. Exit 1 over
a budget of DESIGN 9: >= 1.0 M events/CPU-s at >= 300 k events an epoch, >= 0.5 M with batches of 1.5 k events, <= 1.3
times the script.
"""

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from by_hand import Times, run
from pinned import PinnedBatch, batches, encode

from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.pipelines.drivers.chain import ChainRunner
from fleetscope.pipelines.drivers.generation import ensure_generation
from fleetscope.pipelines.drivers.runner import EmbeddedGraph
from fleetscope.pipelines.memory import keep_freed_memory
from fleetscope.schema.config import Config
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport.open import open_log
from fleetscope.transport.topics import Topics

LARGE_BUDGET, SMALL_BUDGET, RATIO_BUDGET = 1.0, 0.5, 1.3
WARM_UP = 2
"""Epochs of each that do not count: in the first the heap grows (40 000 page faults), in the second its last part."""


@dataclass(frozen=True, slots=True)
class Case:
    """Batches of `steps` x 1 500 events, `per_epoch` of each of 64 devices an epoch."""

    name: str
    steps: int
    per_epoch: int
    budget: float


CASES = (Case("10.5k-event batches", 7, 1, LARGE_BUDGET), Case("1.5k-event batches", 1, 5, SMALL_BUDGET))


def epochs_of(case: Case, rounds: int) -> list[list[PinnedBatch]]:
    made = list(batches(case.steps, case.per_epoch * (rounds + WARM_UP)))
    size = len(made) // (rounds + WARM_UP)
    return [made[i : i + size] for i in range(0, len(made), size)]


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of this process, without what was left to collect by others."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(case: Case, rounds: int, graph: EmbeddedGraph) -> dict[str, object]:
    """Pairs of epochs, pipeline and script on the same batches."""
    pipeline: list[float] = []
    script: list[float] = []
    parts: list[Times] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "by-hand").mkdir()
        config = Config(state_dir=root, worker={"epoch_max_bytes": 256 << 20})
        log = open_log(config.log_url)
        log.create_topics(Topics(config.log.topic_prefix).specs(config.log.partitions))
        store, events = open_store(config.lake_url), 0
        chain = ChainRunner(config, log, store, ensure_generation(config, log, store), 0)
        chain.load()
        clocks: dict[str, ClockState] = {}

        def an_epoch() -> None:
            plan = chain.plan(time.time_ns())
            if plan is None:
                raise SystemExit(f"{case.name}: nothing to do")
            chain.run(plan, graph)

        for number, epoch in enumerate(epochs_of(case, rounds)):
            values = [encode(batch) for batch in epoch]
            events = sum(batch.rows for batch in epoch)
            for batch, value in zip(epoch, values, strict=True):
                log.append(Topics(config.log.topic_prefix).telemetry, f"host-{batch.host}".encode(), value).result(10)
            times = Times()
            if number % 2:
                by_hand = cpu_s(lambda values=values, times=times: run(values, clocks, root / "by-hand", times))
                spent = cpu_s(an_epoch)
            else:
                spent = cpu_s(an_epoch)
                by_hand = cpu_s(lambda values=values, times=times: run(values, clocks, root / "by-hand", times))
            if number >= WARM_UP:
                pipeline.append(spent)
                script.append(by_hand)
                parts.append(times)
        stored = sum(
            ref.rows for manifest in Chain(store, 0).after(0) for ref in manifest.segments if ref.table == "spans"
        )
        log.close()
        if stored != events * (rounds + WARM_UP):
            raise SystemExit(f"{case.name}: {stored} rows stored of {events * (rounds + WARM_UP)}")
    least = min(parts, key=lambda times: sum(times.spent.values()))
    ratios = sorted(one / other for one, other in zip(pipeline, script, strict=True))
    return {
        "case": case.name,
        "events": events,
        "pipeline_ns": round(min(pipeline) / events * 1e9),
        "script_ns": round(min(script) / events * 1e9),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "million_events_per_cpu_s": round(events / min(pipeline) / 1e6, 3),
        "script_parts_ns": {name: round(seconds / events * 1e9) for name, seconds in least.spent.items()},
    }


def verdict(case: Case, got: dict[str, object]) -> list[str]:
    found = []
    if float(str(got["million_events_per_cpu_s"])) < case.budget:
        found.append(f"{case.name}: {got['million_events_per_cpu_s']} M events/CPU-s, budget {case.budget}")
    if float(str(got["ratio"])) > RATIO_BUDGET:
        found.append(f"{case.name}: {got['ratio']} times the script, budget {RATIO_BUDGET}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    keep_freed_memory()
    graph = EmbeddedGraph()
    results, broken = [], []
    for case in CASES:
        got = measure(case, rounds, graph)
        results.append(got)
        broken += verdict(case, got)
        print(f"{case.name}: pipeline {got['pipeline_ns']} ns/event, script {got['script_ns']}, ratio {got['ratio']}")
        for name, nanoseconds in dict(got["script_parts_ns"]).items():  # type: ignore[call-overload]
            print(f"    {name:10s} {nanoseconds:5d} ns/event")
    for line in broken:
        print(f"over budget: {line}", file=sys.stderr)
    print(json.dumps({"benchmark": "pipeline_cpu", "cases": results, "over_budget": broken}))
    return 1 if broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
