"""What a chain carries from epoch to epoch, partition by partition: numbers, clocks, held batches, ledger, counters.

Kept per partition, not per chain, so that a new generation may deal partitions anew. Bytes are zlib over canonical
JSON: a host costs ~1 kB of JSON, and digits compress to a third.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetscope.pipelines.admit import SourceState
from fleetscope.pipelines.shelf import Entry, Shelf

STATE_VERSION = 1

SOURCE_IDLE_NS = 48 * 3_600_000_000_000
"""A source silent for two days cannot come back: the log keeps one. Forgetting it bounds the state."""

SHELVE_NS = 900_000_000_000
"""A source silent for so long is shelved, as soon as there are SHELVE_AT of them."""
SHELVE_AT = 64

AGE_STEP_NS = 600_000_000_000
"""The longest that one epoch grows the state older. Were it the clock's time: after a weekend without a worker, or with
its clock set wrong for a moment, all sources would be forgotten while their batches still wait in the log, and what is
then read of them would open gaps that are none."""

FORGET_EVERY_NS = 3_600_000_000_000
"""Only then all that is shelved is unpacked."""


@dataclass(slots=True)
class SourceRecord:
    """One source: its numbers, what it said of itself, and where its events went (all cumulative)."""

    host: int
    process: int
    run: str
    numbers: SourceState = field(default_factory=SourceState)
    produced: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    arrived: int = 0
    """Events of believed headers, duplicates included."""
    duplicate: int = 0
    stored: int = 0
    dead: int = 0
    seen_ns: int = 0
    counted: list[int] = field(default_factory=lambda: [0] * 5)
    """What pipelines.counters already added to its run, by outcome."""
    told_dropped: int = 0
    """Events of `dropped` that stand in a completeness row."""
    covered: dict[int, list[list[int]]] = field(default_factory=dict)
    """Key of (device, clock epoch) -> newest disjoint tick ranges it observed."""
    changed: bool = False

    def to_json(self) -> list[Any]:
        return [
            self.host,
            self.process,
            self.run,
            self.numbers.to_json(),
            self.produced,
            self.dropped,
            [self.arrived, self.duplicate, self.stored, self.dead],
            self.seen_ns,
            self.counted,
            self.told_dropped,
            {str(key): ranges for key, ranges in self.covered.items()},
        ]

    @classmethod
    def from_json(cls, value: list[Any]) -> "SourceRecord":
        host, process, run, numbers, produced, dropped, counts, seen_ns, counted, told_dropped, covered = value
        arrived, duplicate, stored, dead = counts
        return cls(
            host=host,
            process=process,
            run=run,
            numbers=SourceState.from_json(numbers),
            produced=produced,
            dropped=dropped,
            arrived=arrived,
            duplicate=duplicate,
            stored=stored,
            dead=dead,
            seen_ns=seen_ns,
            counted=counted,
            told_dropped=told_dropped,
            covered={int(key): ranges for key, ranges in covered.items()},
        )


@dataclass(frozen=True, slots=True)
class Held:
    """An admitted batch that waits in the log for a clock bracket that follows it."""

    offset: int
    since_ns: int
    source: int
    rows: int


@dataclass(slots=True)
class Messages:
    """Fate of every message of a partition, cumulative: read = taken + duplicate + dead. Held ones count as taken."""

    read: int = 0
    taken: int = 0
    duplicate: int = 0
    dead: int = 0
    expired: int = 0


@dataclass(slots=True)
class PartitionState:
    """Carried state of one partition. `clocks`: host -> state of pipelines.align.clocks."""

    messages: Messages = field(default_factory=Messages)
    sources: dict[int, SourceRecord] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)
    clocks: dict[int, Any] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    """host -> newest event time committed."""
    processes: dict[int, dict[str, Any]] = field(default_factory=dict)
    """process -> run, attempt, rank, host, peak_flops, declared_flops."""
    devices: dict[int, dict[str, Any]] = field(default_factory=dict)
    """device -> key, sku, host name and id."""
    steps: dict[int, Any] = field(default_factory=dict)
    """process -> open step and recent steps (pipelines.step)."""
    idle: dict[int, Any] = field(default_factory=dict)
    """process -> idle gaps of its devices and what its host did (pipelines.idle)."""
    counters: dict[str, Any] = field(default_factory=dict)
    """run -> cumulative counters (pipelines.counters)."""
    shelf: Shelf = field(default_factory=Shelf)
    age_ns: int = 0
    """The time by which gaps grow old and sources silent: it stands still while nobody reads. 0: not begun."""
    now_ns: int = 0
    """`now` of the epoch that last grew it."""
    forgot_ns: int = 0
    """Age when `forget` last looked at everything."""
    frequencies: dict[int, list[list[int]]] = field(default_factory=dict)
    """device -> [window, sum of hertz, samples] of its compute clock (pipelines.frequency)."""
    counted: dict[int, Any] = field(default_factory=dict)
    """process -> what the programs of its executions are, and the dtypes they compute in (pipelines.counted)."""

    def grow_older(self, now_ns: int) -> None:
        """Once an epoch, before anything is read. The first age is the clock's time."""
        passed = min(max(now_ns - self.now_ns, 0), AGE_STEP_NS)
        self.age_ns = self.age_ns + passed if self.age_ns else now_ns
        self.now_ns = now_ns

    def source(self, source: int) -> SourceRecord | None:
        """The record of a source that was heard before, taken from the shelf if it lies there."""
        record = self.sources.get(source)
        if record is not None:
            return record
        entry = self.shelf.take(source)
        if entry is None:
            return None
        record = self.sources[source] = SourceRecord.from_json(entry[0])
        for by_process, found in zip((self.processes, self.steps, self.counted), entry[1:], strict=False):
            if found is not None:
                by_process.setdefault(record.process, found)
        return record

    def to_json(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "messages": [
                self.messages.read,
                self.messages.taken,
                self.messages.duplicate,
                self.messages.dead,
                self.messages.expired,
            ],
            "sources": {str(key): source.to_json() for key, source in self.sources.items()},
            "held": [[held.offset, held.since_ns, held.source, held.rows] for held in self.held],
            "clocks": _keys_to_text(self.clocks),
            "watermarks": _keys_to_text(self.watermarks),
            "processes": _keys_to_text(self.processes),
            "devices": _keys_to_text(self.devices),
            "steps": _keys_to_text(self.steps),
            "idle": _keys_to_text(self.idle),
            "counters": self.counters,
            "shelf": _keys_to_text(self.shelf.packed),
            "age": [self.age_ns, self.now_ns, self.forgot_ns],
            "frequencies": _keys_to_text(self.frequencies),
            "counted": _keys_to_text(self.counted),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PartitionState":
        age_ns, now_ns, forgot_ns = value.get("age", (0, 0, 0))
        return cls(
            Messages(*value["messages"]),
            {int(key): SourceRecord.from_json(source) for key, source in value["sources"].items()},
            [Held(*held) for held in value["held"]],
            _keys_to_int(value["clocks"]),
            _keys_to_int(value["watermarks"]),
            _keys_to_int(value["processes"]),
            _keys_to_int(value["devices"]),
            _keys_to_int(value["steps"]),
            _keys_to_int(value.get("idle", {})),
            value["counters"],
            Shelf(_keys_to_int(value.get("shelf", {}))),
            age_ns=age_ns,
            now_ns=now_ns,
            forgot_ns=forgot_ns,
            frequencies=_keys_to_int(value.get("frequencies", {})),
            counted=_keys_to_int(value.get("counted", {})),
        )

    def shelve(self) -> None:
        """Put away what has been silent for SHELVE_NS and owes nothing: neither a gap nor a batch that waits."""
        held = {item.source for item in self.held}
        idle = [
            source
            for source, record in self.sources.items()
            if self.age_ns - record.seen_ns > SHELVE_NS and not record.numbers.gaps and source not in held
        ]
        if len(idle) < SHELVE_AT:
            return
        records = {source: self.sources.pop(source) for source in idle}
        busy = {record.process for record in self.sources.values()}
        entries: dict[int, Entry] = {}
        for source, record in records.items():
            mine = record.process not in busy
            about = (self.processes, self.steps, self.counted)
            found = [by_process.pop(record.process, None) if mine else None for by_process in about]
            if mine:
                self.idle.pop(record.process, None)
            entries[source] = [record.to_json(), *found]
        self.shelf.put(entries)

    def forget(self) -> None:
        """Drop sources that ended long ago, and what only they needed."""
        if self.age_ns - self.forgot_ns < FORGET_EVERY_NS:
            return
        self.forgot_ns = self.age_ns
        for key in [key for key, source in self.sources.items() if self.age_ns - source.seen_ns > SOURCE_IDLE_NS]:
            del self.sources[key]
        records = list(self.sources.values())
        kept = {}
        for key, entry in self.shelf.items():
            record = SourceRecord.from_json(entry[0])
            if self.age_ns - record.seen_ns <= SOURCE_IDLE_NS:
                kept[key] = entry
                records.append(record)
        self.shelf.keep(kept)
        hosts = {record.host for record in records}
        processes = {record.process for record in records}
        for by_host in (self.clocks, self.watermarks):
            for key in [key for key in by_host if key not in hosts]:
                del by_host[key]
        for by_process in (self.processes, self.steps, self.idle, self.counted):
            for key in [key for key in by_process if key not in processes]:
                del by_process[key]
        for key in [key for key, device in self.devices.items() if device["host_id"] not in hosts]:
            del self.devices[key]
        for key in [key for key in self.frequencies if key not in self.devices]:
            del self.frequencies[key]


def _keys_to_text(value: Mapping[int, Any]) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()}


def _keys_to_int(value: Mapping[str, Any]) -> dict[int, Any]:
    return {int(key): item for key, item in value.items()}


def pack(document: Any) -> bytes:
    """Canonical: equal documents give equal bytes."""
    return zlib.compress(json.dumps(document, sort_keys=True, separators=(",", ":")).encode(), 1)


def unpack(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def load_partition(data: bytes) -> PartitionState:
    """b"" is the state of a partition nobody has read yet."""
    return PartitionState.from_json(unpack(data)) if data else PartitionState()
