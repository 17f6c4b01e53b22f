"""Reading the recorder segments of training processes: what the node agent calls. Bytes: docs/format/recorder.md.

>>> segment = Segment("/dev/shm/fleetscope-4711-123456.ring")   # doctest: +SKIP
>>> batch = segment.drain()                                      # doctest: +SKIP
>>> batch.start, batch.lost                                      # doctest: +SKIP

A training process does not import this module: numpy is not the profiler's to load.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleetscope.native import _recorder

STEP, HOST, DATA_WAIT, COMPILE, CHECKPOINT, DISPATCH = 1, 8, 9, 10, 11, 12
"""Kinds of spans, the numbers of schema.vocabulary.Kind."""

LAUNCH, DONE, H2D, D2H, DEVICE, LOAD, UNLOAD = 16, 17, 18, 19, 20, 21, 22
"""Records of the PJRT shim; what `arg` and the name hold: docs/format/recorder.md."""

FAILED = 1
"""Flag of a LAUNCH, DONE, H2D, D2H or LOAD."""

COUNTER_INT, COUNTER_FLOAT = 32, 33
"""Kinds of samples: `arg` is the value, for the second as the bits of a float64."""

PRODUCER, CONSUMER = 46, 47
"""Kinds of links."""

ARG_INT, ARG_FLOAT, ARG_NAME = 40, 41, 42
"""Kinds of arguments: `arg_value` is the value, its float64 bits, or the id of a name."""


@dataclass(frozen=True, slots=True)
class Drained:
    """Events taken out of the rings, by line in order of their ends.

    All arrays but `arg_*` and `link_*` have one entry an event."""

    start: NDArray[np.int64]
    """Begin, in counter ticks (Info.clock)."""
    dur: NDArray[np.int64]
    """Duration in ticks; 0 for samples and for a step that was only marked."""
    arg: NDArray[np.int64]
    """STEP: its number. Samples: the value. The shim: docs/format/recorder.md. Else the step it ended in + 1, or 0."""
    seq: NDArray[np.int64]
    """Number of the event in its ring (line >> 8), from 0."""
    name: NDArray[np.int32]
    line: NDArray[np.int32]
    """Thread: see Segment.threads."""
    kind: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    flow: NDArray[np.int64]
    """What links it to spans of other threads and processes; 0: nothing."""
    weight: NDArray[np.int32]
    """2^k where one in 2^k passes of a sampled site left a record, else 1."""
    arg_row: NDArray[np.int32]
    """Row of the event an argument belongs to."""
    arg_key: NDArray[np.int32]
    """Name of the argument."""
    arg_kind: NDArray[np.uint8]
    arg_value: NDArray[np.int64]
    link_row: NDArray[np.int32]
    """Row of the event a link belongs to."""
    link_kind: NDArray[np.uint8]
    link_type: NDArray[np.int32]
    """Context type."""
    link_id: NDArray[np.int64]
    """Context id: 64 bits, whatever their sign."""
    lost: int
    """Events overwritten before this drain came: the numbers missing, by ring, between the last taken and these."""
    more: bool
    """The limit was reached: drain again."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def value_float(self) -> NDArray[np.float64]:
        """`arg` read as float64 bits; means something for COUNTER_FLOAT."""
        return self.arg.view(np.float64)


class Info(NamedTuple):
    """What a segment says about its process; does not change."""

    pid: int
    start_ticks: int
    boot_id: str
    clock: str
    """"tsc" or "monotonic_raw"."""
    period_num: int
    """Nominal nanoseconds a tick = period_num / period_den, equal for all processes of a boot."""
    period_den: int
    anchor: tuple[int, int, int, int]
    """(MONOTONIC_RAW, counter, REALTIME, MONOTONIC_RAW) read in this order when the segment was made."""
    pid_namespace: int = 0
    """Inode of the namespace that `pid` is of; 0: an older recorder did not say."""


class State(NamedTuple):
    """What changes. Counts are since the segment was made."""

    closed: bool
    """The process left through its exit handlers. A killed one did not."""
    events: int
    """Events recorded: taken out + lost + still inside."""
    no_ring: int
    """Events of threads that found no ring left (more than 64 at a time, or a full tmpfs); never numbered."""
    name_limit: int
    """Events whose name found the table full and became name 0, "other"."""
    abandoned: int
    """Regions begun whose end was never seen."""
    step: int
    """Newest step begun; -1 none."""


class Thread(NamedTuple):
    line: int
    tid: int
    name: int
    """Id of its name; 0 before it is known."""
    retired: bool


class Open(NamedTuple):
    """A region that a thread has begun and not ended."""

    line: int
    tid: int
    thread: int
    """Id of the thread's name; 0 before it is known."""
    depth: int
    """0: the outermost."""
    start: int
    """Ticks."""
    kind: int
    name: int


class Segment:
    """The segment of one process, live or dead. Raises ValueError when the file is none, or shrinks."""

    def __init__(self, path: str, cursor: bytes | None = None, descriptor: int = -1) -> None:
        """`cursor`: where an earlier reader stopped (its `cursor`); without one, the newest commit() in the file.

        `descriptor`: of the file, as its process sent it; `path` is only what it is called. Refused unless it is shared
        memory of a size that is sealed, or a file of a tmpfs. The caller closes it.
        """
        self.path = path
        self._reader = _recorder.Reader(path, descriptor)
        self.info = Info(**self._reader.info())
        if cursor is not None:
            self._reader.seek(cursor)

    def drain(self, max_records: int = 1 << 16, until: int = (1 << 63) - 1) -> Drained:
        """Takes out what is new, at most about `max_records` (events and arguments).

        Events that end after tick `until` wait in their ring as long as it is less than half full.
        """
        (
            start, dur, arg, seq, name, line, kind, flags, flow, weight, row, key, arg_kind, value, link_row, link_kind,
            link_type, link_id, lost, more,
        ) = self._reader.drain(max_records, until)  # fmt: skip
        return Drained(
            start=np.frombuffer(start, np.int64),
            dur=np.frombuffer(dur, np.int64),
            arg=np.frombuffer(arg, np.int64),
            seq=np.frombuffer(seq, np.int64),
            name=np.frombuffer(name, np.int32),
            line=np.frombuffer(line, np.int32),
            kind=np.frombuffer(kind, np.uint8),
            flags=np.frombuffer(flags, np.uint8),
            flow=np.frombuffer(flow, np.int64),
            weight=np.frombuffer(weight, np.int32),
            arg_row=np.frombuffer(row, np.int32),
            arg_key=np.frombuffer(key, np.int32),
            arg_kind=np.frombuffer(arg_kind, np.uint8),
            arg_value=np.frombuffer(value, np.int64),
            link_row=np.frombuffer(link_row, np.int32),
            link_kind=np.frombuffer(link_kind, np.uint8),
            link_type=np.frombuffer(link_type, np.int32),
            link_id=np.frombuffer(link_id, np.int64),
            lost=lost,
            more=more,
        )

    def names(self, first: int = 0) -> list[str]:
        """Names first, first + 1, ... known so far. Ids are never reused."""
        return self._reader.names(first)

    def threads(self) -> list[Thread]:
        """Owners of the rings as of the last drain. A ring may pass to another thread: then its line changes."""
        return [Thread(*entry) for entry in self._reader.threads()]

    def open_since(self) -> list[tuple[int, int, int]]:
        """(line, begin in ticks of the outermost region, regions open) of each thread that is in one now."""
        return self._reader.open_since()

    def open_now(self) -> list[Open]:
        """The regions each thread is in, outermost first: what it hangs in, or was in when its process died."""
        return [Open(*entry) for entry in self._reader.open_now()]

    def state(self) -> State:
        return State(**self._reader.state())

    @property
    def cursor(self) -> bytes:
        """Where the next drain begins: kept with what was drained, it lets a restarted agent go on exactly there."""
        return self._reader.cursor()

    def commit(self) -> bool:
        """Writes the cursor into the segment: where a reader that knows nothing begins. False when not writable."""
        return self._reader.commit()

    @property
    def held(self) -> bool:
        """The process that made it lives and has not closed it; says so across pid namespaces. Asked from inside that
        process it is always False."""
        return self._reader.held()


def host_counter() -> tuple[str, int, int]:
    """(name, period_num, period_den) of the counter that recorders of this boot stamp with."""
    return _recorder.host_counter()


def read_clocks(counter: str) -> tuple[int, int, int, int]:
    """(MONOTONIC_RAW ns, counter, REALTIME ns, MONOTONIC_RAW ns), read in this order: the tightest of five brackets."""
    return _recorder.clocks(counter)


def read_clock(clock_id: int, tries: int = 5) -> tuple[int, int, int]:
    """(MONOTONIC_RAW, clock, MONOTONIC_RAW), ns: the tightest bracket of `tries` of a POSIX clock, or of a device's,
    whose id is negative. Raises OSError for one that there is not."""
    return _recorder.bracket(clock_id, tries)


def clock_change(counter: str, before: tuple[int, int, int, int], look: bool) -> str:
    """Why the counter does not go on from `before` (of read_clocks) as it did: "stepped back", "leapt", or, with
    `look`, "another source" when the kernel keeps time by something else now; "" while it does."""
    return _recorder.clock_change(look, counter, before)
