"""The byte-bounded queue between everything that observes and the log (DESIGN 3.1, 3.6).

Numbers are given on entry and stored with the batch in one write. Nothing here blocks on the log or raises because of a
disk: what does not fit drops the oldest batches that nobody has been given yet, and counts them by reason.
"""

import errno
import json
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition

from fleetscope.agents.batches import SOFT_BYTES, Draft, Numberer, Packed, SourceState, pack
from fleetscope.agents.spool.record import Record, RecordKind, Topic, encode_segment_head
from fleetscope.agents.spool.recover import recover
from fleetscope.agents.spool.scan import End, Walk, read_head, read_record
from fleetscope.agents.spool.state import States, encode_states
from fleetscope.agents.spool.store import DiskStore, MemoryStore, Segment, Store
from fleetscope.schema import wire_pb2 as wire

log = logging.getLogger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record given out for sending; it stays in the spool until it is acknowledged."""

    record: Record
    begin: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """Events [first, end) of a source, numbered and then dropped by the spool."""

    source_id: int
    reason: str
    first_event: int
    end_event: int


@dataclass(frozen=True, slots=True)
class SpoolStats:
    """`dropped` (here, with numbers), `lost` (before, without) and the counts: since this process opened the spool."""

    size_bytes: int
    cap_bytes: int
    segments: int
    in_flight: int
    batches: int
    events: int
    sent: int
    messages_dropped: int
    dropped: Mapping[str, int]
    lost: Mapping[str, int]


class Spool:
    """Thread-safe. One process a folder. `cap_bytes` bounds the segments; 0.5 MiB of reserve come on top. Payloads are
    cut above `soft_bytes` where nothing is open."""

    def __init__(
        self,
        store: Store,
        cap_bytes: int,
        now_ns: Callable[[], int] = time.time_ns,
        soft_bytes: int = SOFT_BYTES,
    ) -> None:
        self._store = store
        self._cap_bytes = cap_bytes
        self._soft_bytes = soft_bytes
        # 32 segments: an overflow then drops about 3 % of what is held at a time.
        self._segment_bytes = min(max(cap_bytes // 32, 64 << 10), 8 << 20)
        self._now_ns = now_ns
        self._changed = Condition()
        self._closed = self._woken = False
        self._in_flight: deque[Delivery] = deque()
        self._counts: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._untold: set[int] = set()
        self.dropped_ranges: deque[DroppedRange] = deque(maxlen=10_000)
        found = recover(store)
        self.torn_tails = found.torn_tails
        self._numberer = Numberer(found.incarnation, found.states)
        self._retired: set[int] = set()
        self._pending: tuple[int, SourceState] | None = None
        self._segments: list[Segment] = found.segments
        self._heads = found.heads
        self._next_number = found.next_number
        self._cursor = found.start
        self._given = found.given
        self._active: Segment | None = None
        if not self._roll() and self._segments:
            # A full disk at start: go on in the newest segment, whose head has the numbers.
            self._active = self._segments[-1]
        self._settle()

    @classmethod
    def at(cls, folder: Path, cap_bytes: int, soft_bytes: int = SOFT_BYTES) -> "Spool":
        """On disk. AgentRunning (FS3101) if another process has this folder open."""
        return cls(DiskStore(folder), cap_bytes, soft_bytes=soft_bytes)

    @classmethod
    def in_memory(cls, cap_bytes: int = 64 << 20) -> "Spool":
        """For tests and benchmarks: the same queue, numbers and drops without files."""
        return cls(MemoryStore(), cap_bytes)

    @property
    def incarnation(self) -> int:
        return self._numberer.incarnation

    # ---- in

    def put(self, *drafts: Draft) -> int:
        """Number, encode and keep drafts of one source as one entry: all are there after a kill or none is.

        Rows kept: all or, when there is no room even after dropping, 0.
        """
        packed = [piece for draft in drafts for piece in pack(draft, self._soft_bytes)]
        with self._changed:
            return self._put(packed) if not self._closed else 0

    def put_message(self, topic: Topic, key: bytes, value: bytes) -> bool:
        """Keep a value without numbers (clocks, programs). False if there was no room."""
        with self._changed:
            if self._closed:
                return False
            kept = self._write(Record(RecordKind.MESSAGE, topic, 0, 0, 0, 0, b"", key, value).encode())
            self._counts["messages_dropped"] += not kept
            self._changed.notify_all()
            return kept

    def lose(self, source: wire.Source, lost: Mapping[str, int]) -> None:
        """Count losses of a source that has no batch to carry them (its process is gone)."""
        with self._changed:
            source_id = self._numberer.identify(source)[1]
            self._numberer.states.setdefault(source_id, SourceState()).lose(lost)
            self._lost.update(lost)
            self._keep_states({source_id}, [])

    def mark(self, source: wire.Source) -> str:
        """The newest `Draft.mark` that was kept for this source under this incarnation; "" if there is none."""
        with self._changed:
            state = self._numberer.states.get(self._numberer.identify(source)[1])
            return state.mark if state else ""

    def untold(self, source: wire.Source) -> bool:
        """Whether losses of the source were counted after its newest kept batch: no reader can know of them yet."""
        with self._changed:
            return self._numberer.identify(source)[1] in self._untold

    def retire(self, source: wire.Source) -> None:
        """The source will never be heard of again: its numbers need no keeping beyond the segments that hold them."""
        with self._changed:
            self._retired.add(self._numberer.identify(source)[1])

    def retire_all(self) -> None:
        """After a reboot: every source that has numbers here is of a boot that is over."""
        with self._changed:
            self._retired.update(self._numberer.states)

    def _put(self, packed: list[Packed]) -> int:
        now_ns = self._now_ns()
        parts, rows, first = [], 0, 0
        source_id = self._numberer.identify(packed[0].draft.source)[1]
        self._pending = (source_id, replace(self._numberer.states.setdefault(source_id, SourceState())))
        self._pending[1].dropped = dict(self._pending[1].dropped)
        for index, piece in enumerate(packed):
            numbered = self._numberer.number(piece, now_ns)
            self._lost.update(piece.draft.lost)
            first = numbered.first_event if index == 0 else first
            rows += numbered.rows
            state = self._numberer.states[source_id]
            record = Record(
                RecordKind.MESSAGE,
                Topic.TELEMETRY,
                source_id,
                numbered.batch_number,
                numbered.first_event,
                numbered.rows,
                encode_states({source_id: state}),
                numbered.key,
                numbered.value,
                index + 1 < len(packed),
            )
            parts.append(record.encode())
        self._retired.discard(source_id)
        self._counts["batches"] += len(packed)
        self._counts["events"] += rows
        data = b"".join(parts)
        kept = self._write(data)
        self._pending = None
        if kept:
            self._untold.discard(source_id)
            self._changed.notify_all()
            return rows
        reason = "spool_full" if len(data) > self._cap_bytes - self._floor_bytes() else "spool_disk"
        self._count_drop(source_id, reason, first, first + rows)
        self._keep_states({source_id}, [])
        return 0

    def _states(self) -> States:
        """As what is stored says. The numbers of an entry that is being written count only once it is: a segment begun
        for it, and then a kill, would otherwise leave a gap that nobody counted."""
        states = dict(self._numberer.states)
        if self._pending:
            states[self._pending[0]] = self._pending[1]
        return states

    # ---- room

    def _floor_bytes(self) -> int:
        """Bytes that dropping cannot free: what is in flight and the segment being written."""
        return sum(segment.size_bytes for segment in self._segments if segment.number <= self._pinned())

    def _pinned(self) -> int:
        """Up to this segment something was given out and not acknowledged: it may be in the log, so it cannot be
        called lost."""
        return max(self._cursor[0] if self._in_flight else 0, self._given[0])

    def _write(self, data: bytes) -> bool:
        """Append one entry to the active segment, dropping old ones as needed. False: it could not be kept."""
        active = self._active
        head_bytes = 0 if active is None else self._heads[active.number]
        if active is None or (active.size_bytes > head_bytes and active.size_bytes + len(data) > self._segment_bytes):
            self._roll()
        while self._size_bytes() + len(data) > self._cap_bytes:
            if not self._drop_oldest("spool_full"):
                return False
        for _ in range(4):
            if self._active is None and not self._roll() and not self._drop_oldest("spool_disk"):
                return False
            if self._active is None:
                continue
            try:
                self._active.append(data)
                return True
            except OSError as error:
                self._note_disk_error(error)
                if not self._drop_oldest("spool_disk"):
                    return False
        return False

    def _size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    def _note_disk_error(self, error: OSError) -> None:
        self._counts["disk_errors"] += 1
        if error.errno not in _FULL or self._counts["disk_errors"] == 1:
            log.warning("spool: %s", error)

    def _roll(self) -> bool:
        """Begin a new segment. The old one stays active if that fails."""
        if self._retired:
            for source_id in self._retired:
                self._numberer.states.pop(source_id, None)
            self._retired.clear()
        head = encode_segment_head(self._next_number, self.incarnation, encode_states(self._states()))
        try:
            segment = self._store.create(self._next_number, head)
        except OSError as error:
            self._note_disk_error(error)
            return False
        self._heads[segment.number] = len(head)
        if not self._segments:
            self._cursor = (segment.number, len(head))
        self._segments.append(segment)
        self._active = segment
        self._next_number += 1
        return True

    def _drop_oldest(self, reason: str) -> bool:
        """Drop the oldest segment nobody has been given anything of, or the rest of the one being read. Counted first:
        a kill in between is put right by recovery, which deletes what the count names."""
        floor = max(self._pinned() + 1, self._cursor[0])
        victim = next((segment for segment in self._segments if segment.number >= floor), None)
        if victim is None:
            return False
        begin = self._cursor[1] if victim.number == self._cursor[0] else self._heads[victim.number]
        if victim is self._active and not (self._holds_messages(victim, begin) and self._roll()):
            return False
        touched: set[int] = set()
        for record, _ in Walk(victim, begin):
            if record.source_id:
                self._count_drop(record.source_id, reason, record.first_event, record.first_event + record.rows)
                touched.add(record.source_id)
            elif record.kind is RecordKind.MESSAGE:
                self._counts["messages_dropped"] += 1
        self._keep_states(touched, [victim.number])
        if victim.number == self._cursor[0]:
            self._advance(victim)
        self._remove(victim)
        self._settle()
        return True

    @staticmethod
    def _holds_messages(segment: Segment, begin: int) -> bool:
        """Dropping a segment that holds nothing but states frees nothing: its successor begins with them."""
        return any(record.kind is RecordKind.MESSAGE for record, _ in Walk(segment, begin))

    def _count_drop(self, source_id: int, reason: str, first: int, end: int) -> None:
        lost = {reason: end - first}
        self._numberer.states.setdefault(source_id, SourceState()).lose(lost)
        if self._pending and self._pending[0] == source_id:
            self._pending[1].lose(lost)
        self._dropped[reason] += end - first
        self._untold.add(source_id)
        self.dropped_ranges.append(DroppedRange(source_id, reason, first, end))

    def _keep_states(self, sources: set[int], dropped_segments: list[int]) -> None:
        """Store states that changed without a batch: in the active segment, or where space was reserved."""
        known = self._states()
        states = {source: known[source] for source in sources}
        dropped = json.dumps(dropped_segments).encode()
        record = Record(RecordKind.STATE, Topic.TELEMETRY, 0, 0, 0, 0, encode_states(states), b"", dropped)
        data = record.encode()
        if self._active is not None and self._size_bytes() + len(data) <= self._cap_bytes:
            try:
                self._active.append(data)
                return
            except OSError as error:
                self._note_disk_error(error)
        for body in (encode_states(known), encode_states(states)):
            if self._store.write_reserve(b"%d\n%s\n%s" % (self.incarnation, dropped, body)):
                return
        log.error("spool: losses of %d sources could not be stored", len(states))

    # ---- out

    def read(self, max_bytes: int = 8 << 20, max_records: int = 256) -> list[Delivery]:
        """The next records to send, in order; they are in flight until acknowledged."""
        taken: list[Delivery] = []
        with self._changed:
            while not self._closed and max_bytes > 0 and len(taken) < max_records:
                found = self._next()
                if found is None:
                    break
                taken.append(found)
                max_bytes -= len(found.record.value)
            self._in_flight.extend(taken)
            self._settle()
        return taken

    def _next(self) -> Delivery | None:
        while True:
            segment = next((segment for segment in self._segments if segment.number >= self._cursor[0]), None)
            if segment is None:
                return None
            if segment.number > self._cursor[0]:
                self._cursor = (segment.number, self._heads[segment.number])
            found = read_record(segment, self._cursor[1])
            if isinstance(found, Record):
                begin = self._cursor
                self._cursor = (segment.number, begin[1] + found.size_bytes)
                if found.kind is RecordKind.MESSAGE:
                    return Delivery(found, begin)
                continue
            if segment is self._active and (found is End.CLEAN or not self._roll()):
                return None
            if found is not End.CLEAN:
                self._lose_damaged(segment)
            self._advance(segment)

    def _advance(self, behind: Segment) -> None:
        """Move the cursor to the segment after `behind`."""
        following = next(segment for segment in self._segments if segment.number > behind.number)
        self._cursor = (following.number, self._heads[following.number])

    def _lose_damaged(self, segment: Segment) -> None:
        """Count what the damaged rest of a segment held: its successor's head says which numbers had been given."""
        following = next(other for other in self._segments if other.number > segment.number)
        mine, theirs = read_head(segment), read_head(following)
        log.error("spool segment %d is damaged at byte %d", segment.number, self._cursor[1])
        self._counts["damaged_segments"] += 1
        if mine is None or theirs is None or mine[0] != self.incarnation or theirs[0] != self.incarnation:
            return
        seen = {source: state.next_event for source, state in mine[1].items()}
        for record, _ in Walk(segment, mine[2]):
            if record.source_id:
                seen[record.source_id] = record.first_event + record.rows
        lost = {
            source: (seen.get(source, 0), state.next_event)
            for source, state in theirs[1].items()
            if state.next_event > seen.get(source, 0)
        }
        for source, (first, end) in lost.items():
            self._count_drop(source, "spool_disk", first, end)
        if lost:
            self._keep_states(set(lost), [])

    def wait(self, timeout_s: float) -> bool:
        """Until there is something to read, the spool closes, or time is up. True if there is."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._woken or self._readable(), timeout_s)
            self._woken = False
            return self._readable() and not self._closed

    def wake(self) -> None:
        """End the `wait` in progress, or the next."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _readable(self) -> bool:
        last = self._segments[-1] if self._segments else None
        return last is not None and self._cursor < (last.number, last.size_bytes)

    def acknowledge(self, delivery: Delivery) -> None:
        """The log has it. In the order of `read`."""
        with self._changed:
            if self._in_flight and self._in_flight[0] is delivery:
                self._in_flight.popleft()
                self._counts["sent"] += 1
                self._settle()

    def reject(self, delivery: Delivery, reason: str) -> None:
        """The log will never take it: count its events as lost and go on. In the order of `read`."""
        with self._changed:
            if not self._in_flight or self._in_flight[0] is not delivery:
                return
            self._in_flight.popleft()
            record = delivery.record
            if record.source_id:
                self._count_drop(record.source_id, reason, record.first_event, record.first_event + record.rows)
                self._keep_states({record.source_id}, [])
            else:
                self._counts["messages_dropped"] += 1
            self._settle()

    def rewind(self) -> None:
        """Give out again, under the same numbers, everything that is not acknowledged."""
        with self._changed:
            if self._in_flight:
                self._given = max(self._given, self._cursor)
                self._cursor = self._in_flight[0].begin
                self._in_flight.clear()
                self._changed.notify_all()

    def _settle(self) -> None:
        """Keep how far the log has it all, and delete the segments behind that."""
        done = self._in_flight[0].begin if self._in_flight else self._cursor
        for segment in list(self._segments):
            if segment is self._active or (segment.number, segment.size_bytes) > done:
                break
            if self._cursor[0] == segment.number:
                self._advance(segment)
            self._remove(segment)
        done = self._in_flight[0].begin if self._in_flight else self._cursor
        if done >= self._given:
            self._given = (0, 0)
        self._store.write_sent(done, max(self._given, self._cursor))

    def _remove(self, segment: Segment) -> None:
        self._segments.remove(segment)
        del self._heads[segment.number]
        segment.delete()

    @property
    def cap_bytes(self) -> int:
        return self._cap_bytes

    def stats(self) -> SpoolStats:
        with self._changed:
            return SpoolStats(
                self._size_bytes(),
                self._cap_bytes,
                len(self._segments),
                len(self._in_flight),
                self._counts["batches"],
                self._counts["events"],
                self._counts["sent"],
                self._counts["messages_dropped"],
                dict(self._dropped),
                dict(self._lost),
            )

    def close(self) -> None:
        """Keeps everything for the next opening. Deliveries in flight are given again then."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            for segment in self._segments:
                segment.close()
            self._store.close()
