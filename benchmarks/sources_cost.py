"""CPU that a source costs a worker each epoch: known and silent, and active with one small batch.

    python benchmarks/sources_cost.py [--sources 512] [--rounds 7]

Every source is a process that drives one device, of one run, 32 of them on a host, all in one partition. Rounds in
turns: an epoch in which one source sends a batch of 24 spans, in a chain that knows no other and in one that knows
them all, and one in which all of them send; counters are made, encoded and appended as the worker does. A silent
source costs the difference of the first two, an active one that of the last two. CPU time of the process; the least of
the rounds. The last line is JSON. Exit 1 over a budget (us a source and epoch).
"""

import argparse
import gc
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pinned import BEGIN_NS, UPTIME_NS, payload
from report import report

from fleetscope.pipelines import counters
from fleetscope.pipelines.drivers.chain import ChainRunner
from fleetscope.pipelines.drivers.generation import ensure_generation
from fleetscope.pipelines.drivers.runner import EmbeddedGraph
from fleetscope.pipelines.memory import keep_freed_memory
from fleetscope.schema import identity
from fleetscope.schema.config import Config
from fleetscope.schema.vocabulary import WIRE_VERSION, Kind
from fleetscope.schema.wire_pb2 import PAYLOAD_SPANS, Batch, ClockEpoch, ClockSnapshot, Source
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport.open import open_log
from fleetscope.transport.topics import Topics

SILENT_BUDGET, ACTIVE_BUDGET = 150.0, 700.0
A_HOST = 32
SPANS = 24
EPOCH_NS = 1_000_000_000
WARM_UP = 2


@dataclass(slots=True)
class Sender:
    """One process; its batches follow each other without a gap, a second long."""

    rank: int
    sent: int = 0
    origin: Source = field(init=False)

    def __post_init__(self) -> None:
        host = self.rank // A_HOST
        self.origin = Source(
            cluster="sources",
            host=f"host-{host}",
            boot_id=f"boot-{host}",
            pid=1000 + self.rank,
            start_ticks=100,
            run="train",
            attempt="1",
            rank=self.rank,
            incarnation=1,
        )

    def batch(self, second: int) -> bytes:
        """What it saw in second `second` of the run: SPANS ops one after another, of one program."""
        key = f"host-{self.rank // A_HOST}/chip-{self.rank}"
        raw = ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
        wall = ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
        ticks = ClockEpoch(clock="device", device=key, period_num=1, period_den=1, width_bits=64)
        begin = UPTIME_NS + second * EPOCH_NS
        end = begin + EPOCH_NS
        message = Batch(
            version=WIRE_VERSION,
            source=self.origin,
            source_id=identity.source_id(self.origin),
            payload_kind=PAYLOAD_SPANS,
            clock=ticks,
            tick_from=begin,
            tick_to=end,
            batch_number=self.sent,
            first_event=self.sent * SPANS,
            rows=SPANS,
            sent_ns=BEGIN_NS + (second + 1) * EPOCH_NS,
            produced=(self.sent + 1) * SPANS,
            payload=payload(_spans(begin, second)),
        )
        message.device.key, message.device.platform, message.device.sku = key, "tpu", "TPU v5e"
        for at in (begin, end) if not self.sent else (end,):
            for clock, read in ((ticks, at), (wall, BEGIN_NS + at - UPTIME_NS)):
                message.snapshots.append(
                    ClockSnapshot(clock=clock, ref=raw, value=read, ref_before=at - 500, ref_after=at + 500)
                )
        self.sent += 1
        return message.SerializeToString()


def _spans(begin: int, second: int) -> dict[str, np.ndarray]:
    each = EPOCH_NS // SPANS
    kinds = np.full(SPANS, int(Kind.COMPUTE), np.uint8)
    kinds[-1] = int(Kind.COLLECTIVE)
    number = np.full(SPANS, second, np.int64)
    return {
        "start": begin + np.arange(SPANS, dtype=np.int64) * each,
        "dur": np.full(SPANS, each - 100_000, np.int64),
        "line": np.zeros(SPANS, np.int32),
        "kind": kinds,
        "program": np.full(SPANS, identity.key_hash("program", "sources"), np.int64),
        "op": np.arange(SPANS, dtype=np.int32),
        "exec": number,
        "step": number,
        "flow": np.zeros(SPANS, np.int64),
        "weight": np.ones(SPANS, np.int32),
        "flags": np.zeros(SPANS, np.uint32),
    }


class Fleet:
    """A chain over one partition, and the sources it knows."""

    def __init__(self, root: Path, graph: EmbeddedGraph, sources: int) -> None:
        config = Config(state_dir=root, log={"partitions": 1})
        self._topics = Topics(config.log.topic_prefix)
        self._log = open_log(config.log_url)
        self._log.create_topics(self._topics.specs(1))
        store = open_store(config.lake_url)
        self._chain = ChainRunner(config, self._log, store, ensure_generation(config, self._log, store), 0)
        self._chain.load()
        self._graph = graph
        self._senders = [Sender(rank) for rank in range(sources)]
        self._second = 0
        self.epoch(sources)

    def epoch(self, active: int) -> float:
        """CPU seconds of an epoch in which the first `active` sources send."""
        for sender in self._senders[:active]:
            value = sender.batch(self._second)
            self._log.append(self._topics.telemetry, b"host", value).result(10)
        self._second += 1
        gc.collect()
        began = time.process_time()
        plan = self._chain.plan(time.time_ns())
        if plan is None:
            raise SystemExit("nothing to do")
        manifest = self._chain.run(plan, self._graph)
        if manifest.counts["stored"] != active * SPANS:
            raise SystemExit(f"{manifest.counts} stored of {active} batches")
        chain = self._chain
        for record in counters.records(
            chain.chain, chain.number, chain.now_ns, chain.states, chain.changed_runs, chain.generation
        ):
            self._log.append(self._topics.metrics, counters.key_of(record), record.SerializeToString())
        return time.process_time() - began

    def close(self) -> None:
        self._log.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    keep_freed_memory()
    graph = EmbeddedGraph()
    alone: list[float] = []
    silent: list[float] = []
    active: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        one, many = Fleet(Path(folder) / "one", graph, 1), Fleet(Path(folder) / "many", graph, args.sources)
        for number in range(args.rounds + WARM_UP):
            spent = one.epoch(1), many.epoch(1), many.epoch(args.sources)
            if number >= WARM_UP:
                for into, seconds in zip((alone, silent, active), spent, strict=True):
                    into.append(seconds)
        one.close()
        many.close()
    others = args.sources - 1
    silent_us = (min(silent) - min(alone)) / others * 1e6
    active_us = (min(active) - min(silent)) / others * 1e6
    failed = [
        f"{name}: {value:.0f} us a source and epoch, budget {budget:.0f}"
        for name, value, budget in (("silent", silent_us, SILENT_BUDGET), ("active", active_us, ACTIVE_BUDGET))
        if value > budget
    ]
    print(f"fixed {min(alone) * 1e3:.1f} ms, {silent_us:.0f} us a silent source, {active_us:.0f} us an active one")
    return report(
        "sources_cost",
        round(active_us, 1),
        "us an active source and epoch",
        ACTIVE_BUDGET,
        failed=failed,
        silent_us=round(silent_us, 1),
        fixed_ms=round(min(alone) * 1e3, 2),
        sources=args.sources,
        spans_a_batch=SPANS,
    )


if __name__ == "__main__":
    sys.exit(main())
