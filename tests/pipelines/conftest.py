"""A tiny fleet for worker tests: batches made by the agents' own numbering, an embedded log, a lake, a worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleetscope.agents.batches import Draft, Numbered, Numberer, pack, sample_rows, span_rows
from fleetscope.pipelines.drivers.epoch import Worker
from fleetscope.pipelines.drivers.runner import EmbeddedGraph
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.sinks.lake.chain import Chain, chain_numbers
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport.open import open_log
from fleetscope.transport.topics import Topics

PERIOD = (5, 4)
"""1.25 ns a tick."""

BASE_NS = 1_760_000_000_000_000_000
"""2025-10-09T08:53:20Z: far from an hour edge and a multiple of 10 s."""


@dataclass
class Host:
    """One simulated host: wall clock = zero_ns + counter, device ticks at exactly 1.25 ns from the same zero.

    Every device batch carries brackets of 100 ns at its two ends, so its rows are placed within 100 ns and never wait.
    """

    name: str
    numberer: Numberer
    run: str = "train"
    attempt: str = "a1"
    rank: int = 0
    pid: int = 4242
    boot_id: str = "boot-1"
    zero_ns: int = BASE_NS
    """Wall clock when the counter stands at 0."""

    @property
    def source(self) -> wire.Source:
        return wire.Source(
            cluster="test",
            host=self.name,
            boot_id=self.boot_id,
            pid=self.pid,
            start_ticks=77,
            run=self.run,
            attempt=self.attempt,
            rank=self.rank,
        )

    def device(self, index: int, sku: str = "TPU v5e") -> wire.Device:
        return wire.Device(
            key=f"{self.name}/chip{index}",
            platform="tpu",
            sku=sku,
            local_name=f"/device:TPU:{index}",
            local_ordinal=index,
        )

    def device_clock(self, index: int) -> wire.ClockEpoch:
        return wire.ClockEpoch(
            clock="gtc", device=f"{self.name}/chip{index}", period_num=PERIOD[0], period_den=PERIOD[1]
        )

    @staticmethod
    def host_clock() -> wire.ClockEpoch:
        return wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)

    def brackets(self, index: int | None, at_ns: Sequence[int]) -> list[wire.ClockSnapshot]:
        """Snapshots of device `index` and of the wall clock around host counter values `at_ns` (ns since zero)."""
        found = []
        for at in at_ns:
            if index is not None:
                found.append(
                    wire.ClockSnapshot(
                        clock=self.device_clock(index),
                        ref=self.host_clock(),
                        value=at * PERIOD[1] // PERIOD[0],
                        ref_before=at - 50,
                        ref_after=at + 50,
                    )
                )
            wall = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1)
            found.append(
                wire.ClockSnapshot(
                    clock=wall, ref=self.host_clock(), value=self.zero_ns + at, ref_before=at - 50, ref_after=at + 50
                )
            )
        return found

    def number(self, draft: Draft) -> list[Numbered]:
        sent_ns = self.zero_ns + draft.tick_to
        return [self.numberer.number(packed, sent_ns) for packed in pack(draft)]

    def spans(
        self,
        index: int,
        from_ns: int,
        to_ns: int,
        rows: dict[str, Any] | None,
        *,
        snapshots: Sequence[int] | None = None,
        announcements: Sequence[wire.Announcement] = (),
        **more: Any,
    ) -> list[Numbered]:
        """A device batch for [from_ns, to_ns) of the host counter (multiples of 5); `rows` start and dur likewise."""
        table = None
        if rows is not None:
            ticks = {
                name: np.asarray(value) * PERIOD[1] // PERIOD[0] if name in ("start", "dur") else value
                for name, value in rows.items()
            }
            table = span_rows(**ticks)
        draft = Draft(
            self.source,
            from_ns * PERIOD[1] // PERIOD[0],
            to_ns * PERIOD[1] // PERIOD[0],
            self.device_clock(index),
            self.device(index),
            table,
            snapshots=self.brackets(index, snapshots if snapshots is not None else (from_ns, to_ns)),
            announcements=announcements,
            **more,
        )
        return self.number(draft)

    def host_spans(
        self,
        from_ns: int,
        to_ns: int,
        rows: dict[str, Any],
        *,
        snapshots: Sequence[int] | None = None,
        announcements: Sequence[wire.Announcement] = (),
        **more: Any,
    ) -> list[Numbered]:
        """A batch of host threads in host counter ns."""
        draft = Draft(
            self.source,
            from_ns,
            to_ns,
            self.host_clock(),
            None,
            span_rows(**rows),
            snapshots=self.brackets(None, snapshots if snapshots is not None else (from_ns, to_ns)),
            announcements=announcements,
            **more,
        )
        return self.number(draft)

    def samples(self, at_ns: Sequence[int], series: Sequence[int], values: Sequence[float | int]) -> list[Numbered]:
        draft = Draft(
            self.source,
            min(at_ns),
            max(at_ns) + 1,
            self.host_clock(),
            None,
            sample_rows(tick=at_ns, series=series, values=values),
            snapshots=self.brackets(None, (min(at_ns), max(at_ns) + 1)),
        )
        return self.number(draft)


@pytest.fixture(scope="session")
def series_of() -> Callable[[wire.MetricsRecord], list[tuple[str, dict[str, str], float]]]:
    """(metric, labels, value) of every series of a record, whichever way it is written; no histograms."""

    def read(record: wire.MetricsRecord) -> list[tuple[str, dict[str, str], float]]:
        found = [
            (one.name, dict(one.labels), float(one.int_value) if one.is_int else one.value)
            for one in record.samples
            if not one.HasField("durations")
        ]
        for block in record.blocks:
            names, texts = list(block.label_names), iter(block.labels)
            rows = [
                {"run": record.run, **dict(zip(names, row, strict=True))}
                for row in zip(*[texts] * len(names), strict=True)
            ]
            found += [
                (column.name, labels, value)
                for column in block.columns
                for labels, value in zip(rows, column.values, strict=True)
            ]
        return found

    return read


@dataclass
class Bench:
    """A log, a lake and workers over them."""

    config: Config
    numberer: Numberer = field(default_factory=lambda: Numberer(1))
    graph: Any = None

    def __post_init__(self) -> None:
        self.log = open_log(self.config.log_url)
        self.topics = Topics(self.config.log.topic_prefix)
        self.log.create_topics(self.topics.specs(self.config.log.partitions))
        self.store = open_store(self.config.lake_url)

    def host(self, name: str, **fields: Any) -> Host:
        return Host(name, self.numberer, **fields)

    def send(self, *batches: Numbered | Sequence[Numbered]) -> list[int]:
        """Append; the offsets."""
        offsets = []
        for item in batches:
            for numbered in [item] if isinstance(item, Numbered) else item:
                pending = self.log.append(self.topics.telemetry, numbered.key, numbered.value)
                offsets.append(pending.result(60)[1])
        return offsets

    def send_bytes(self, value: bytes, key: bytes = b"h1") -> int:
        return self.log.append(self.topics.telemetry, key, value).result(60)[1]

    def worker(self) -> Worker:
        return Worker(self.config, self.graph)

    def drain(self) -> int:
        return self.worker().run_once()

    def manifests(self, chain: int = 0) -> list[Manifest]:
        return Chain(self.store, chain).after(0)

    def table(self, name: str) -> pa.Table:
        """Committed rows of a table: segments named by manifests, and nothing else."""
        found = [
            pq.read_table(self.store.location(ref.key), filesystem=self.store.filesystem(), partitioning=None)
            for chain in chain_numbers(self.store)
            for manifest in self.manifests(chain)
            for ref in manifest.segments
            if ref.table == name
        ]
        return pa.concat_tables(found) if found else pa.table({})

    def rows(self, name: str) -> list[dict[str, Any]]:
        return self.table(name).to_pylist()

    def close(self) -> None:
        self.log.close()


@pytest.fixture(scope="session")
def embedded_graph() -> EmbeddedGraph:
    """Built once for all tests: building costs more than running."""
    return EmbeddedGraph()


@pytest.fixture
def bench(tmp_path: Path, embedded_graph: EmbeddedGraph) -> Iterator[Bench]:
    config = Config(
        state_dir=tmp_path,
        log={"partitions": 2},
        worker={"clock_wait_s": 0.0},
    )
    made = Bench(config, graph=embedded_graph)
    yield made
    made.close()


@pytest.fixture
def now_ns() -> int:
    return time.time_ns()
