"""Records of the PJRT shim -> device batches of program executions (docs/design/0011-executions.md).

A completion says when its execution ended and when it was enqueued; it began when both it and its device were ready:
begin = max(enqueue, previous completion on the device), INFERRED_BEGIN. Completions are written by threads of the
plugin, late and in any order, so a device's range is cut only where nothing that may still come can lie before it: at
a completion, or where the device is idle and no launch is under way. Records come out of a file that a training
process writes: whatever stands in it is bounded and counted, never trusted.
"""

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fleetscope.agents.batches import span_rows
from fleetscope.agents.node.launches import Launches
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import Kind, SpanFlag

MODULE_LINE, QUEUE_LINE = 4096, 4097
LINE_NAMES = {MODULE_LINE: "PJRT executions", QUEUE_LINE: "PJRT queue"}

ORDINAL_BITS = 12
DEVICE_LIMIT = 256
"""Devices of one process; more are hostile or a mistake: their records are counted and left out."""
HELD_LIMIT = 1 << 16
"""Completions kept back per device. Beyond it the oldest go although something might precede them."""
EARLY_LIMIT = 1 << 12
"""Completions kept for a device whose own record has not come: it may have been overwritten in its ring."""
BATCH_EXECUTIONS = 1 << 15
"""Of one batch: two rows each, well below the size at which a batch would be cut where nothing may be cut."""

SLACK_NS = 50_000_000
"""A completion is stamped before it is written; its thread may lose the CPU in between."""
CALL_NS = 1_000_000_000
"""A launch is recorded when Execute returns, its device may have begun long before: where a device is idle, only what
is older than this is told. Longer calls are cut there, and flagged."""


class Completion(NamedTuple):
    """One DONE, in ticks."""

    end: int
    enqueue: int
    launch: int
    label: int
    """Name id of the program label."""
    failed: bool = False


_END = attrgetter("end")


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """What is told of one device for [tick_from, tick_to), complete and final. `rows`: schema.payloads.WIRE_SPANS."""

    device: wire.Device
    tick_from: int
    tick_to: int
    rows: pa.RecordBatch


@dataclass(slots=True)
class Lane:
    """One device: what was told of it, and what is kept back."""

    device: wire.Device
    since: int
    """Everything before this tick was told."""
    ended: int
    """Completion of the newest execution told."""
    told: int = 0
    """Executions told: the `exec` of the next."""
    held: list[Completion] = field(default_factory=list)
    recent: list[int] = field(default_factory=list)
    """Ends of the newest executions told, ascending: how many were complete when another was enqueued."""
    history: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """(end, label, enqueue) of the newest executions told of a TPU, whose windows name programs otherwise (matching.py)
    and have a clock of their own (pairing.py)."""
    remembers: int = field(init=False)
    """All told after this tick are in it."""

    def __post_init__(self) -> None:
        self.remembers = self.since

    def note(self, ends: Sequence[int], labels: Sequence[int], enqueues: Sequence[int]) -> None:
        if self.device.platform != "tpu":
            return
        self.history.extend(zip(ends, labels, enqueues, strict=True))
        if len(self.history) == HISTORY:
            self.remembers = max(self.remembers, self.history[0][0])


RECENT = 1024
HISTORY = 4096

Program = Callable[[int], tuple[int, bool] | None]
"""Name id of a label -> (program, provisional); None: its fingerprint is still being made, wait."""
UNKNOWN = (0, False)
"""What an execution carries that cannot wait."""


class Executions:
    """Executions of one process. Not thread-safe.

    `counts`: what was odd, by reason. Give it launches and completions, then `settle`.
    """

    def __init__(self) -> None:
        self.launches = Launches()
        self.lanes: dict[int, Lane] = {}
        self.early: dict[int, list[Completion]] = {}
        """Completions of devices whose own record has not come yet."""
        self.counts: Counter[str] = Counter()

    def add_device(self, ordinal: int, device: wire.Device, tick: int) -> bool:
        """A device appeared. False if it is known, or one too many."""
        if ordinal in self.lanes:
            return False
        if not 0 <= ordinal < 1 << ORDINAL_BITS or len(self.lanes) >= DEVICE_LIMIT:
            self.counts["device_refused"] += 1
            return False
        held = self.early.pop(ordinal, [])
        since = min([tick, *(item.enqueue for item in held)])
        self.lanes[ordinal] = Lane(device, since, since, held=held)
        return True

    def add_done(self, ordinal: int, done: Completion) -> None:
        """A completion, in any order. One that came before is counted and left out."""
        if not self.launches.complete(done.launch, ordinal, done.enqueue, done.label):
            self.counts["duplicate"] += 1
            return
        lane = self.lanes.get(ordinal)
        if lane is not None:
            lane.held.append(done)
            return
        waiting = self.early.get(ordinal)
        if waiting is None and len(self.early) < DEVICE_LIMIT:
            waiting = self.early[ordinal] = []
        if waiting is None or len(waiting) >= EARLY_LIMIT:
            self.counts["device_unknown"] += 1
        else:
            waiting.append(done)

    def settle(self, now: int, per_ms: int, program: Program) -> Iterator[DeviceRows]:
        """What can be told as of tick `now`: records that end before it were all given. `per_ms`: ticks of a ms."""
        missing = self.launches.forget_stale(now, per_ms * 1000)
        if missing:
            self.counts["missing"] += missing
        slack, call = SLACK_NS // 1_000_000 * per_ms, CALL_NS // 1_000_000 * per_ms
        for ordinal, lane in self.lanes.items():
            lane.held.sort()
            cut = self._cut(ordinal, lane, now - slack, now - call)
            yield from self._tell(lane, cut, program)

    def _cut(self, ordinal: int, lane: Lane, complete: int, idle: int) -> int:
        """The tick up to which the device's range is final. `complete`: completions up to it are all there; `idle`:
        launches before it too."""
        if len(lane.held) > HELD_LIMIT:
            self.counts["held_too_many"] += len(lane.held) - HELD_LIMIT
            complete = max(complete, lane.held[-HELD_LIMIT].end)
        ready = bisect_right(lane.held, complete, key=_END)
        last = lane.held[ready - 1].end if ready else lane.since
        waiting = [item.enqueue for item in lane.held[ready:]]
        open_since = self.launches.open_since(ordinal)
        quiet = min([idle, *waiting, *(() if open_since is None else (open_since,))])
        cut: int = max(lane.since, last, quiet)
        return cut

    def _tell(self, lane: Lane, cut: int, program: Program) -> Iterator[DeviceRows]:
        """Batches up to `cut`, as far as the programs are known; `lane.held` is in order."""
        while True:
            ready = lane.held[: bisect_right(lane.held, cut, key=_END)]
            until = cut
            awaited = {label for label in {item.label for item in ready} if program(label) is None}
            if awaited:
                first = next(index for index, item in enumerate(ready) if item.label in awaited)
                begin = max(ready[first].enqueue, ready[first - 1].end if first else lane.ended)
                ready, until = ready[:first], max(lane.since, min(cut, begin))
            full = len(ready) > BATCH_EXECUTIONS
            if full:
                # Between two ends: those of one tick stay together.
                edge = max(ready[BATCH_EXECUTIONS - 1].end, lane.since + 1)
                ready = ready[: bisect_right(ready, edge, key=_END)]
                until = min(until, ready[-1].end)
            told, count = self._rows(lane, ready, program, until)
            if until <= lane.since:
                return
            yield DeviceRows(lane.device, lane.since, until, told)
            del lane.held[:count]
            lane.since = until
            if not full:
                return

    def _rows(
        self, lane: Lane, ready: Sequence[Completion], program: Program, until: int
    ) -> tuple[pa.RecordBatch, int]:
        """Rows of the executions that lie wholly before `until`, and how many there are. Moves the lane on."""
        if until <= lane.since or not ready:
            return _batch({name: [] for name in _COLUMNS}), 0
        end, enqueue, launch, label, failed = (np.array(column, np.int64) for column in zip(*ready, strict=True))
        labels, which = np.unique(label, return_inverse=True)
        known = [program(key) or UNKNOWN for key in labels.tolist()]
        reached = np.maximum.accumulate(np.maximum(end, max(lane.ended, lane.since)))
        before = np.concatenate(([lane.ended], np.where(end[:-1] > lane.ended, reached[:-1], lane.ended)))
        begin = np.maximum(np.maximum(enqueue, before), lane.since)
        end = np.maximum(end, begin)
        count = int(np.argmin(np.append((begin < until) & (end <= until), False)))
        late = begin > np.maximum(enqueue, before)
        flags = np.full(len(ready), int(SpanFlag.INFERRED_BEGIN))
        flags |= np.array([int(SpanFlag.PROVISIONAL_PROGRAM) * flag for _, flag in known])[which]
        # Told to be idle, or occupied by others, before it was heard of.
        flags |= np.where(late, int(SpanFlag.CUT_BATCH), 0)
        number = lane.told + np.arange(len(ready))
        ends = np.concatenate((np.array(lane.recent, np.int64), np.maximum.accumulate(end)))
        done = lane.told - len(lane.recent) + np.searchsorted(ends, enqueue, side="right")
        queued = np.flatnonzero(begin[:count] > enqueue[:count])
        both = np.concatenate((np.arange(count), queued))
        wait = np.arange(len(both)) >= count
        columns = {
            "start": np.where(wait, enqueue[both], begin[both]),
            "dur": np.where(wait, begin[both] - enqueue[both], end[both] - begin[both]),
            "line": np.where(wait, QUEUE_LINE, MODULE_LINE),
            "kind": np.where(wait, int(Kind.QUEUE), int(Kind.MODULE)),
            "program": np.array([key for key, _ in known], np.int64)[which][both],
            "exec": np.where(wait, np.minimum(done, number)[both], number[both]),
            "flow": launch[both],
            "flags": flags[both],
        }
        args = dict.fromkeys(np.flatnonzero(failed[:count]).tolist(), '{"failed":true}')
        if count:
            if late[:count].any():
                self.counts["late"] += int(late[:count].sum())
            lane.ended = int(max(lane.ended, end[:count].max()))
            lane.recent = ends[: len(lane.recent) + count][-RECENT:].tolist()
            lane.told += count
            lane.note(end[:count].tolist(), label[:count].tolist(), enqueue[:count].tolist())
        return _batch(columns, args), count

    def told_until(self, key: str) -> int | None:
        """Up to which tick a device's executions were told; None for one that is not known."""
        return next((lane.since for lane in self.lanes.values() if lane.device.key == key), None)

    def ran(self, key: str, begin: int, end: int) -> list[tuple[int, int, int]]:
        """(end, label, enqueue) of what a TPU completed in [begin, end], in order; none where not all of it is
        remembered."""
        for lane in self.lanes.values():
            if lane.device.key == key and lane.remembers <= begin and end <= lane.since:
                return [item for item in lane.history if begin <= item[0] <= end]
        return []

    def finish(self, at: int, program: Program) -> Iterator[DeviceRows]:
        """The process is gone, last known alive at tick `at`: everything kept back, and what was in flight,
        TRUNCATED. All devices end at one tick: a completion on one says that the process lived and watched them all."""
        ends = [item.end + 1 for lane in self.lanes.values() for item in lane.held]
        at = max([at, *ends, *(lane.since for lane in self.lanes.values())])
        for ordinal, lane in self.lanes.items():
            lane.held.sort()
            last = lane.held[-1].end if lane.held else lane.since
            flying = self.launches.in_flight(ordinal)
            # What was in flight takes a tick, also where all was told.
            until = max(at, lane.since + bool(flying))
            yield from self._tell(lane, last, program)
            rows, _ = self._rows(lane, lane.held, program, until)
            lane.held.clear()
            if flying:
                self.counts["in_flight_at_end"] += len(flying)
                rows = _with_cut_off(rows, lane, until, flying, program)
            if until > lane.since:
                yield DeviceRows(lane.device, lane.since, until, rows)
                lane.since = until

    def carried(self) -> list[Any]:
        """What an agent that is started again needs, as JSON; at most CARRIED completions and launches."""
        lanes = []
        for ordinal, lane in self.lanes.items():
            held = [list(item) for item in lane.held[:CARRIED]]
            device = lane.device.SerializeToString().hex()
            lanes.append([ordinal, device, lane.since, lane.ended, lane.told, held, lane.recent[-CARRIED_ENDS:]])
        return [lanes, self.launches.carried(CARRIED)]

    def restore(self, value: list[Any]) -> None:
        """Raises ValueError or TypeError for what `carried` did not write."""
        lanes, launches = value
        for ordinal, device, since, ended, told, held, recent in lanes:
            known = wire.Device.FromString(bytes.fromhex(device))
            self.lanes[int(ordinal)] = Lane(known, since, ended, told, [Completion(*item) for item in held], recent)
        self.launches.restore(launches)


CARRIED, CARRIED_ENDS = 1024, 64
"""Kept with the numbers of the source at every batch, so it has to be small: what is beyond is lost with the agent."""

_COLUMNS = ("start", "dur", "line", "kind", "program", "exec", "flow", "flags")


def _batch(columns: Mapping[str, Any], args: Mapping[int, str] | None = None) -> pa.RecordBatch:
    return span_rows(**{name: np.asarray(values, np.int64) for name, values in columns.items()}, args=args)


FLYING_LIMIT = 64


def _with_cut_off(
    rows: pa.RecordBatch, lane: Lane, until: int, flying: Sequence[tuple[int, int, int]], program: Program
) -> pa.RecordBatch:
    """`rows` and what was in flight: the oldest ran to the end, those behind it had not begun."""
    names = (*_COLUMNS, "args")
    columns: dict[str, list[Any]] = {name: rows.column(name).to_pylist() for name in names}
    for launch, enqueue, label in flying[:FLYING_LIMIT]:
        begin = min(max(enqueue, lane.ended, lane.since), until - 1)
        key, provisional = program(label) or UNKNOWN
        flags = SpanFlag.INFERRED_BEGIN | SpanFlag.TRUNCATED | (SpanFlag.PROVISIONAL_PROGRAM if provisional else 0)
        dur = max(0, until - begin) if launch == flying[0][0] else 0
        begin = begin if dur else until - 1
        row = (begin, dur, MODULE_LINE, int(Kind.MODULE), key, -1, launch, int(flags), None)
        for name, value in zip(names, row, strict=True):
            columns[name].append(value)
    args = {row: text for row, text in enumerate(columns.pop("args")) if text is not None}
    return _batch(columns, args)
