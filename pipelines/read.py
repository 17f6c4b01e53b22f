"""One partition's share of an epoch: headers in offset order, admission, clocks; then batches with their map segments.

The only stage with state. It reads the whole planned range before it places anything, because a bracket that follows
a row usually comes in a later message; what still lacks one waits in the log (its offset is carried) for
`clock_wait_ns`.
"""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from fleetscope.pipelines import handed
from fleetscope.pipelines.admit import Outcome
from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.pipelines.align.segment import Placement
from fleetscope.pipelines.block import BatchInfo
from fleetscope.pipelines.covered import observe
from fleetscope.pipelines.dead import DEFECTS, dead_letter, unprocessable
from fleetscope.pipelines.dimensions import Announced, announced
from fleetscope.pipelines.elements import BatchMeta, Chunk, Part
from fleetscope.pipelines.header import TICK_LIMIT, Origin, origin_of, parse
from fleetscope.pipelines.held import HELD
from fleetscope.pipelines.plan import PartitionPlan, Plan
from fleetscope.pipelines.state import Held, Messages, PartitionState, SourceRecord, load_partition
from fleetscope.schema import identity
from fleetscope.schema.errors import (
    FleetscopeError,
    HeaderInvalid,
    HeaderUnreadable,
    RangeOverlap,
    SnapshotImpossible,
    TimeOverflow,
    VersionUnknown,
)
from fleetscope.schema.tables import DEAD_LETTER, TABLES
from fleetscope.schema.vocabulary import WINDOW_NS, BatchFlag
from fleetscope.schema.wire_pb2 import PAYLOAD_SAMPLES, Batch
from fleetscope.transport.errors import OffsetOutOfRange, UnreadableRecord
from fleetscope.transport.log import Log, Message

CHUNK_ROWS = 256 << 10
CHUNK_BYTES = 4 << 20
"""Rows worked on together: enough to forget the cost of a numpy call, few enough for the cache and memory."""

SNAPSHOTS_KEPT, SNAPSHOT_BYTES = 4, 1024
"""Impossible readings of one batch that are kept, and how much of each."""

LANES_KEPT = 512
"""Clock epochs of devices whose observed ranges are remembered of one source: a process drives 4 to 64 devices."""

_WENT_BAD = (OffsetOutOfRange, UnreadableRecord, HeaderInvalid, HeaderUnreadable, VersionUnknown)
"""What may become of a message that waits: no worker ran for as long as the log keeps its data, the record was damaged,
or the worker that goes on is stricter than the one that took it."""


@dataclass(slots=True)
class _Admitted:
    batch: Batch
    origin: Origin
    offset: int
    since_ns: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Lane:
    """A device's (or thread's) clock epoch of one source: the ids of its batches, hashed once an epoch of the chain."""

    epoch: int
    device: int
    key: int


@dataclass(slots=True)
class PartitionReader:
    """Reads one partition of a plan. Iterate `chunks()` to the end, then take `outcome()`."""

    plan: Plan
    plan_bytes: bytes
    part: PartitionPlan
    packed: bytes
    log: Log
    state: PartitionState = field(init=False)
    clocks: dict[int, ClockState] = field(default_factory=dict)
    dimensions: Announced = field(default_factory=Announced)
    dead_letters: list[dict[str, Any]] = field(default_factory=list)
    dead_events: dict[int, int] = field(default_factory=dict)
    newest_ns: dict[str, int] = field(default_factory=dict)
    _lanes: dict[tuple[int, str, str, str, int], Lane] = field(default_factory=dict)
    reached: int = 0
    _seen: Messages = field(default_factory=Messages)

    def __post_init__(self) -> None:
        self.state = load_partition(self.packed)
        self.state.grow_older(self.plan.now_ns)
        self.reached = self.part.start

    @property
    def partition(self) -> int:
        return self.part.partition

    def chunks(self) -> Iterator[Chunk]:
        """Batches to work on, grouped; everything the epoch takes, in order of arrival per source."""
        admitted = self._held_again()
        for message in self._messages():
            self.reached = message.offset + 1
            taken = self._take(message)
            if taken is not None:
                admitted.append(taken)
        if self.part.end > self.reached and not self._seen.read:
            self.reached = self.part.end
        yield from _grouped(self.plan_bytes, self._placed(admitted))

    def _messages(self) -> Iterator[Message]:
        if self.part.end <= self.part.start:
            return
        yield from self.log.read(
            self.plan.topic,
            self.partition,
            self.part.start,
            self.part.end,
            max_bytes=self.part.max_bytes,
            topic_id=self.plan.topic_id,
        )

    def _held_again(self) -> list[_Admitted]:
        admitted = []
        for held in self.state.held:
            value = b""
            try:
                value = HELD.get(self.plan, self.partition, held.offset, self.log)
                batch = parse(value)
            except _WENT_BAD as error:
                self.state.messages.taken -= 1
                self.state.messages.dead += 1
                self._dead(held.offset, error, value, held.source, held.rows)
                self.dead_events[held.source] = self.dead_events.get(held.source, 0) + held.rows
                continue
            admitted.append(_Admitted(batch, origin_of(batch.source), held.offset, held.since_ns, value))
        self.state.held = []
        return admitted

    def _take(self, message: Message) -> _Admitted | None:
        self._seen.read += 1
        try:
            if message.unreadable is not None:
                raise message.unreadable
            batch = parse(message.value)
            origin = origin_of(batch.source)
            record = self.state.source(origin.source) or SourceRecord(origin.host, origin.process, origin.run_name)
            outcome = record.numbers.admit(batch.batch_number, batch.first_event, batch.rows, self.state.age_ns)
        except FleetscopeError as error:
            self._dead(message.offset, error, message.value or message.raw, 0, 0)
            self._seen.dead += 1
            return None
        self.state.sources[origin.source] = record
        self._note(record, batch, origin)
        if outcome is Outcome.DUPLICATE:
            record.duplicate += batch.rows
            self._seen.duplicate += 1
            return None
        try:
            self._learn(batch, origin, message.offset)
            _cover(record, batch, self._lane(batch, origin))
        except (RangeOverlap, *DEFECTS) as error:
            self._seen.dead += 1
            fault = error if isinstance(error, FleetscopeError) else unprocessable(error)
            self._refuse(batch, origin, message.offset, fault, message.value)
            return None
        self._seen.taken += 1
        if batch.rows or batch.tick_to > batch.tick_from:
            return _Admitted(batch, origin, message.offset, self.plan.now_ns, message.value)
        return None

    def _lane(self, batch: Batch, origin: Origin) -> Lane:
        clock = batch.clock
        name = (origin.source, batch.device.key, clock.device, clock.clock, clock.resets)
        lane = self._lanes.get(name)
        if lane is None:
            epoch = identity.epoch_id(batch.source, clock)
            device = identity.device_id(batch.device.key) if batch.HasField("device") else 0
            lane = self._lanes[name] = Lane(epoch, device, identity.key_hash(batch.device.key, epoch))
        return lane

    def _clocks_of(self, origin: Origin) -> ClockState:
        clocks = self.clocks.get(origin.host)
        if clocks is None:
            clocks = self.clocks[origin.host] = ClockState.load(self.state.clocks.get(origin.host))
        return clocks

    def _note(self, record: SourceRecord, batch: Batch, origin: Origin) -> None:
        record.changed = True
        record.arrived += batch.rows
        record.run = origin.run_name or record.run
        record.seen_ns = self.state.age_ns
        if batch.produced >= record.produced:
            record.produced = batch.produced
            record.dropped = {item.reason: item.events for item in batch.dropped}

    def _learn(self, batch: Batch, origin: Origin, offset: int) -> None:
        for snapshot, why in self._clocks_of(origin).take(batch.source, batch.snapshots)[:SNAPSHOTS_KEPT]:
            name = f"{snapshot.clock.clock[:64]} of {snapshot.clock.device[:64] or batch.source.host[:64]}"
            error = SnapshotImpossible(f"{name}: {why}")
            self._dead(offset, error, snapshot.SerializeToString()[:SNAPSHOT_BYTES], origin.source, 0)
        refused = len(self.dimensions.refused)
        announced(batch, origin, self.plan.now_ns, self.state, self.dimensions)
        for value, error in self.dimensions.refused[refused:]:
            self._dead(offset, error, value, origin.source, 0)

    def _refuse(self, batch: Batch, origin: Origin, offset: int, error: FleetscopeError, value: bytes) -> None:
        self._dead(offset, error, value, origin.source, batch.rows)
        self.dead_events[origin.source] = self.dead_events.get(origin.source, 0) + batch.rows

    def _dead(self, offset: int, error: FleetscopeError, value: bytes, source: int, rows: int) -> None:
        place = (self.plan.topic, self.partition, offset)
        self.dead_letters.append(dead_letter(self.plan.now_ns, place, error, value, source=source, rows=rows))

    def _placed(self, admitted: list[_Admitted]) -> Iterator[tuple[BatchMeta, bytes]]:
        waiting: set[tuple[int, int]] = set()
        before = dict(self.state.watermarks)
        for item in admitted:
            batch, origin = item.batch, item.origin
            clocks = self._clocks_of(origin)
            lane = self._lane(batch, origin)
            epoch, device = lane.epoch, lane.device
            queue = (origin.source, epoch)
            patient = self.plan.now_ns - item.since_ns < self.plan.clock_wait_ns
            # A batch may not overtake one of its own queue: steps are told apart by the order of their begins.
            if patient and (queue in waiting or not clocks.has_bracket_after(batch.source, batch.clock, batch.tick_to)):
                waiting.add(queue)
                HELD.put(self.plan, self.partition, item.offset, item.value)
                self.state.held.append(Held(item.offset, item.since_ns, origin.source, batch.rows))
                continue
            HELD.drop(self.plan, self.partition, item.offset)
            try:
                placement = clocks.place(
                    batch.source, batch.clock, batch.tick_from, batch.tick_to, batch.sent_ns, device
                )
            except DEFECTS as error:
                self._set_aside(item, unprocessable(error))
                continue
            start_ns, end_ns = placement[0].at(batch.tick_from), placement[-1].at(batch.tick_to)
            if start_ns < -TICK_LIMIT or end_ns > TICK_LIMIT:
                self._set_aside(item, TimeOverflow(f"ticks [{batch.tick_from}, {batch.tick_to}) lie beyond year 2116"))
                continue
            late = end_ns // WINDOW_NS * WINDOW_NS + 2 * WINDOW_NS <= before.get(origin.host, -(1 << 62))
            if end_ns <= self.plan.now_ns + WINDOW_NS:
                newest = self.state.watermarks.get(origin.host, end_ns)
                self.state.watermarks[origin.host] = max(newest, end_ns)
            # A run is not newer than now: one batch of the year 2100 would keep its series and hide its lag until then.
            newest = min(end_ns, self.plan.now_ns)
            self.newest_ns[origin.run_name] = max(newest, self.newest_ns.get(origin.run_name, newest))
            if batch.window.id:
                self.dimensions.add("windows", _window(batch, origin, device, placement))
            yield self._meta(item, epoch, device, placement, late), batch.payload

    def _set_aside(self, item: _Admitted, error: FleetscopeError) -> None:
        """Refuse a batch that was taken when it was admitted, perhaps in an earlier epoch."""
        self.state.messages.taken -= 1
        self.state.messages.dead += 1
        self._refuse(item.batch, item.origin, item.offset, error, item.value)

    def _meta(self, item: _Admitted, epoch: int, device: int, placement: Placement, late: bool) -> BatchMeta:
        batch, origin = item.batch, item.origin
        known = self.state.processes.get(origin.process, {})
        record = self.state.sources[origin.source]
        dropped = sum(record.dropped.values())
        newly, record.told_dropped = max(0, dropped - record.told_dropped), dropped
        info = BatchInfo(
            host=origin.host,
            process=origin.process,
            device=device,
            tick_from=batch.tick_from,
            tick_to=batch.tick_to,
            period_num=batch.clock.period_num,
            period_den=batch.clock.period_den,
            window=batch.window.id,
            window_ticks=batch.window.length_ticks,
            executions=min(batch.window.executions, 1 << 62),
            complete=batch.window.complete or not batch.window.id,
            watched=bool(batch.flags & BatchFlag.EXECUTIONS),
            epoch=epoch,
        )
        return BatchMeta(
            info=info,
            placement=placement,
            partition=self.partition,
            offset=item.offset,
            source=origin.source,
            run=origin.run,
            attempt=origin.attempt,
            rank=origin.rank,
            samples=batch.payload_kind == PAYLOAD_SAMPLES,
            epoch=epoch,
            first_event=batch.first_event,
            rows=batch.rows,
            flags=batch.flags,
            late=late,
            dropped=newly,
            sku=batch.device.sku,
            peak_flops=known.get("peak_flops", 0),
        )

    def outcome(self) -> Part:
        """Dimension rows, dead letters, and the partition's new state as a fact. Call once, after `chunks` ended."""
        state, seen = self.state, self._seen
        messages = state.messages
        messages.read += seen.read
        messages.taken += seen.taken
        messages.duplicate += seen.duplicate
        messages.dead += seen.dead
        messages.expired += self.part.expired
        for record in state.sources.values():
            before = len(record.numbers.lost)
            record.numbers.expire(state.age_ns)
            record.changed |= len(record.numbers.lost) > before
        maps = [clocks.take_maps(self.plan.now_ns) for clocks in self.clocks.values()]
        state.clocks.update({host: clocks.dump() for host, clocks in self.clocks.items()})
        lost = {
            str(source): [[gap.first_event, gap.end_event - 1] for gap in record.numbers.lost if gap.events]
            for source, record in state.sources.items()
            if record.numbers.lost
        }
        changed = [source for source, record in state.sources.items() if record.changed]
        tables = {
            table: pa.Table.from_pylist(rows, schema=TABLES[table].schema)
            for table, rows in self.dimensions.rows.items()
        }
        if any(found.num_rows for found in maps):
            tables["clock_maps"] = pa.concat_tables(maps)
        if self.dead_letters:
            tables["dead_letter"] = pa.Table.from_pylist(self.dead_letters, schema=DEAD_LETTER)
        fact: dict[str, Any] = {
            "partition": self.partition,
            "reached": self.reached,
            "messages": [seen.read, seen.taken, seen.duplicate, seen.dead],
            "changed": changed,
            "dead": {str(source): events for source, events in self.dead_events.items()},
            "lost": lost,
            "newest_ns": self.newest_ns,
        }
        if not handed.hand(self.plan.attempt, self.partition, state):
            fact["state"] = state.to_json()
        return Part(tables, {"plan": [self.plan_bytes.decode()], "partition": [fact]})


def untouched(plan_bytes: bytes, part: PartitionPlan, packed: bytes) -> Part:
    """Outcome of a partition in which nothing is new: its state goes on as it is."""
    fact = {"partition": part.partition, "reached": part.end, "packed": b64encode(packed).decode("ascii")}
    return Part(facts={"plan": [plan_bytes.decode()], "partition": [fact]})


def _window(batch: Batch, origin: Origin, device: int, placement: Placement) -> dict[str, Any]:
    window = batch.window
    return {
        "window": window.id,
        "host": origin.host,
        "process": origin.process,
        "device": device,
        "t_ns": placement[0].at(batch.tick_from),
        "length_ns": min(window.length_ticks * batch.clock.period_num // batch.clock.period_den, 1 << 62),
        "executions": min(window.executions, 1 << 62),
        "step": window.step,
        "xspace_bytes": min(window.xspace_bytes, 1 << 62),
        "stop_ns": min(window.stop_ns, 1 << 62),
        "open_delay_ns": min(window.open_delay_ns, 1 << 62),
        "complete": window.complete,
    }


def _cover(record: SourceRecord, batch: Batch, lane: Lane) -> None:
    if batch.HasField("device") and batch.payload_kind != PAYLOAD_SAMPLES:
        ranges = record.covered.setdefault(lane.key, [])
        if len(record.covered) > LANES_KEPT:
            del record.covered[next(key for key in record.covered if key != lane.key)]
        observe(ranges, batch.tick_from, batch.tick_to, f"device {batch.device.key!r}")


@dataclass(slots=True)
class _Group:
    metas: list[BatchMeta] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    rows: int = 0
    size_bytes: int = 0

    def add(self, meta: BatchMeta, payload: bytes) -> None:
        self.metas.append(meta)
        self.payloads.append(payload)
        self.rows += meta.rows
        self.size_bytes += len(payload)

    def chunk(self, plan: bytes) -> Chunk:
        return Chunk(plan, tuple(self.metas), tuple(self.payloads))


def _grouped(plan: bytes, placed: Iterator[tuple[BatchMeta, bytes]]) -> Iterator[Chunk]:
    groups: dict[bool, _Group] = {}
    for meta, payload in placed:
        group = groups.setdefault(meta.samples, _Group())
        group.add(meta, payload)
        if group.rows >= CHUNK_ROWS or group.size_bytes >= CHUNK_BYTES:
            yield group.chunk(plan)
            del groups[meta.samples]
    for group in groups.values():
        yield group.chunk(plan)
