"""The unix-socket protocol between a training process and the node agent of its host. Both ends import this module.

A frame is two little-endian uint32 (header bytes, body bytes), a JSON object with a `type`, and a body; see
docs/format/agent-socket.md. NamedTuples, not dataclasses: importing `dataclasses` costs a training process 6 ms, more
than our whole import budget.
"""

import json
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

VERSION = 1
"""Of the protocol. An agent answers a hello of another version with a config that says `enabled: false`."""

MAX_HEADER_BYTES = 256 << 10
MAX_BODY_BYTES = 256 << 20
"""Beyond this a length is taken for garbage, not for a program: the largest HLO module seen in public is 60 MB."""

NAMELESS = "memfd:"
"""Begin of what a segment without a file is called: its descriptor alone leads to it."""

_PREFIX = struct.Struct("<II")


class FrameError(ValueError):
    """Bytes that are no frame. The connection they came on cannot be resynchronised and is closed."""


class Clocks(NamedTuple):
    """REALTIME read between two reads of MONOTONIC_RAW, all ns: a bracket as ClockSnapshot wants it."""

    raw_before_ns: int
    realtime_ns: int
    raw_after_ns: int


class Stretch(NamedTuple):
    """Steps [from_step, until_step) in which windows open once in `every` = K steps; placement.opening() says where."""

    from_step: int
    until_step: int
    every: int
    strata: int = 1
    """Parts of a step the phases of successive windows visit in turn, a power of two; 1: any phase, each time anew."""


class Ran(NamedTuple):
    """A program by its module's name, as the PJRT shim counts it since the process began."""

    program: str
    executions: int
    busy_ns: int
    """Of devices, from max(enqueue, previous completion) to completion, while recording."""


class Followed(NamedTuple):
    """Pace by executions of one program, where they stand for steps: DESIGN 5."""

    program: str = ""
    execution: int = -1
    """Newest begun, counted since the process began."""
    period_ns: int = 0
    longest_ns: int = 0
    settled: int = 0
    """Executions since the last compile."""
    mark_ns: int = 0
    """A moment of REALTIME that all ranks take alike; 0: none."""
    marked: int = -1
    """The first execution that ended after it, `after_ns` after it."""
    after_ns: int = 0


class Hello(NamedTuple):
    """Who is calling. May be repeated on a connection (jax imported later): the newest wins."""

    version: int
    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: with the pid it survives pid reuse."""
    boot_id: str
    run: str
    attempt: str
    rank: int
    world_size: int
    command: str
    python: str
    jax: str
    """Empty while jax is not imported."""
    jaxlib: str
    platform: str
    """Platform of the default backend, once there is one: "cpu", "gpu", "tpu"; empty before."""
    segment: str
    """Path of the recorder segment, or NAMELESS and what it is called; empty when it could not be made. Its descriptor
    comes with the frame's first byte (SCM_RIGHTS)."""
    started_ns: int
    """REALTIME at which the process started."""
    tenant: str = ""
    labels: dict[str, str] = {}  # noqa: RUF012 - never mutated; a NamedTuple default cannot be a factory
    flops_per_step: float = 0.0
    """Model FLOPs of one step of the whole job, as the user declared them; 0: not declared."""


class Config(NamedTuple):
    """The agent's answer to a hello; may be sent again at any time."""

    version: int = VERSION
    enabled: bool = True
    """False: record nothing, open no windows."""
    window_s: float = 60.0
    """Mean period of device windows; 0 opens none."""
    window_max_bytes: int = 4 << 20
    steps_between_windows: int = 0
    """K, a power of two, kept by a process as it was first told. 0: chosen from window_s for a single rank; by the
    coordinator (`schedule`) on several."""
    allow: tuple[str, ...] = ()
    """chip-or-platform/driver/jaxlib, as "NVIDIA-H200/570.86/0.10.2", whose windows passed a soak; "gpu/*/*" is all."""
    window_budget: float = 0.005
    """Share of a step's time that windows may cost; K grows until they do not cost more."""
    level: int = 1
    """Sites of a higher level record nothing: 1 user, 2 framework, 3 verbose."""
    categories_off: tuple[str, ...] = ()
    """Nor do sites of these categories."""
    thin: dict[str, int] = {}  # noqa: RUF012 - never mutated; a NamedTuple default cannot be a factory
    """Of regions of these names one pass in 2^k leaves a record, with its weight: the agent's governor."""
    thin_rest: int = 0
    """And of all other names, but for steps and regions of a kind of their own."""
    thin_windows: int = 0
    """One device window in 2^k is taken, the same ones on every rank that is told the same."""


class Schedule(NamedTuple):
    """What the coordinator decided for the run of this process; sent when it is known, and again whenever it changes.

    All ranks of an attempt get the same stretches, and no later one changes them: that is what keeps their windows at
    the same steps, whoever learns of it late.
    """

    attempt: str
    number: int = 0
    """Grows with every decision for the attempt; 0: none yet."""
    stretches: tuple[Stretch, ...] = ()
    off: str = ""
    """Why windows are switched off for the whole job; "" while they are not."""
    program: str = ""
    """Steps of the stretches are executions of this module, counted since the process began; "": the user's steps."""


class Window(NamedTuple):
    """A device window. Body: the XSpace bytes as the profiler session returned them."""

    window_id: int
    """Unique in the process, from 1."""
    length_ns: int
    """W: from the moment the session was known to record to the moment it was told to stop."""
    opened: Clocks
    closed: Clocks
    step: int
    """User's step number at which it opened; -1 where windows do not follow steps."""
    open_delay_ns: int
    """Random delay after that step's begin."""
    executions: int
    """Program executions seen to begin inside, by our own count; -1 unknown."""
    longest_ns: int
    """Longest program execution known when W was chosen."""
    start_ns: int
    """Cost of opening the session."""
    stop_ns: int
    """Cost of stop(): collecting and serialising, without the GIL."""
    capped: bool
    """The byte cap, not W, closed it."""
    every: int = 0
    """K in force; 0 where the period is by time."""
    program: str = ""
    """Whose executions stand for steps, and at which one it opened; `step` is -1 then."""
    execution: int = 0


class Program(NamedTuple):
    """A compiled program. Body: HloModuleProto bytes (not wrapped in HloProto)."""

    program_id: int
    """HloModule.id: the `program_id` of this process's profiler events."""
    module: str
    platform: str
    at_ns: int
    """REALTIME."""
    harvest_ns: int
    """GIL time its serialisation took."""


class Cost(NamedTuple):
    """What the profiler cost its process so far. Cumulative, sent every few seconds and at the end."""

    windows: int = 0
    start_ns: int = 0
    stop_ns: int = 0
    stop_max_ns: int = 0
    """Of windows that were given up too."""
    window_bytes: int = 0
    harvests: int = 0
    harvest_ns: int = 0
    harvests_left_out: int = 0
    """Programs not taken: 64 MiB were waiting, or jax would not give them."""
    user_delay_max_ns: int = 0
    """Longest a user's profiler start waited for our stop."""
    thread_cpu_ns: int = 0
    """CPU time of our background thread."""
    skipped: dict[str, int] = {}  # noqa: RUF012 - as above
    """Windows not opened, by reason: user_session, server, capture, compile, late, governor, start_failed,
    stop_failed (a rest after windows that were)."""
    dropped: dict[str, int] = {}  # noqa: RUF012 - as above
    """Windows opened but lost, by reason: user_session, stop_failed, not_sent, stopped, late, too_large,
    clock_step."""
    broken: bool = False
    """The breaker has switched windows off."""
    breaker: str = ""
    """Why: slow_stop, crash (an earlier life of this rank died in a window)."""
    stall_ns: int = 0
    """What a window adds to the steps that meet it: trimmed mean of the newest 32, of `stalls` windows."""
    stalls: int = 0
    step: int = -1
    """Newest step begun; -1: none."""
    steps: int = 0
    """Begun so far."""
    period_ns: int = 0
    longest_ns: int = 0
    settled_steps: int = 0
    """Steps since the last compile."""
    configured_k: int = 0
    """K of the configuration this process keeps to; 0: none."""
    schedule: int = 0
    """Number of the newest schedule it holds."""
    ran: tuple[Ran, ...] = ()
    """Its busiest programs, where a shim counts them."""
    followed: Followed = Followed()
    record_ps: int = 0
    """Picoseconds a region that leaves a record takes of this process, as it measured itself; 0: not measured."""
    pass_ps: int = 0
    """And one that is left out."""


class End(NamedTuple):
    """The process is leaving through its exit handlers. A killed process sends none."""

    at_ns: int
    steps: int


class Query(NamedTuple):
    """A question about the agent and its processes: the first frame of a connection, no hello needed. Read-only."""

    what: str
    """agent, processes, stacks, decisions (of the governor)."""
    pid: int = 0
    """Of one process; 0: all."""
    process: int = 0
    """Where the answer goes on: what the last one said."""
    row: int = 0


class Answer(NamedTuple):
    """Rows of an answer, about 32 KiB of them."""

    what: str
    rows: str
    """A JSON list of objects."""
    process: int = 0
    row: int = 0
    more: bool = False
    """Ask again, with this `process` and `row`."""


Message = Hello | Config | Schedule | Window | Program | Cost | End | Query | Answer
_TYPES: dict[str, type[Message]] = {
    "hello": Hello,
    "config": Config,
    "schedule": Schedule,
    "window": Window,
    "program": Program,
    "cost": Cost,
    "end": End,
    "query": Query,
    "answer": Answer,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def _whole(value: Any) -> int:
    """A number that fits 64 bits: JSON's may have thousands of digits, and what is counted or divided with one fails
    far from here."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError("no whole number of 64 bits")
    return value


def _row(kind: Any, value: Any) -> Any:
    """A NamedTuple of plain fields from a JSON list; those of a newer peer that we do not know are left."""
    wanted = kind.__annotations__.values()
    return kind(*(_typed(field, part) for field, part in zip(wanted, value, strict=False)))


def _typed(wanted: Any, value: Any) -> Any:
    """`value` as the field's type: JSON has no tuples, no NamedTuples. Raises TypeError when it is something else."""
    if wanted in (Clocks, Followed):
        return _row(wanted, value)
    if wanted is float:
        if type(value) not in (int, float) or not -1e300 < value < 1e300:
            raise TypeError("no finite number")
        return float(value)
    if wanted is int:
        return _whole(value)
    if wanted in (bool, str):
        if type(value) is not wanted:
            # Its type alone: what is told of bad frames is in the agent's log.
            raise TypeError(f"{type(value).__name__} is no {wanted.__name__}")
        return value
    if wanted == tuple[Stretch, ...] or wanted == tuple[Ran, ...]:
        return tuple(_row(get_args(wanted)[0], row) for row in value)
    if wanted == tuple[str, ...]:
        return tuple(str(part) for part in value)
    cast = str if wanted == dict[str, str] else _whole
    return {str(key): cast(part) for key, part in value.items()}


def encode(message: Message, body: bytes | memoryview = b"") -> bytes:
    """The frame's prefix and header. The body is sent after it as it is, so that a 4 MB window is not copied."""
    header = json.dumps({"type": _NAMES[type(message)], **message._asdict()}, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER_BYTES or len(body) > MAX_BODY_BYTES:
        raise FrameError(f"a {_NAMES[type(message)]} frame of {len(header)} + {len(body)} bytes is too large")
    return _PREFIX.pack(len(header), len(body)) + header


def decode(header: bytes) -> Message | None:
    """Message of a JSON header. Unknown keys are ignored (a newer peer), an unknown type is None; raises FrameError."""
    try:
        fields = json.loads(header)
        kind = _TYPES.get(fields.pop("type"))
        if kind is None:
            return None
        known = {key: value for key, value in fields.items() if key in kind._fields}
        for key, value in known.items():
            known[key] = _typed(kind.__annotations__[key], value)
        return kind(**known)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FrameError(f"not a frame header: {error}") from error


class Reader:
    """Cuts a byte stream into frames: feed() what arrived, iterate over what is whole.

    Holds at most one frame. Raises FrameError on lengths beyond the limits or a header that is no message.
    """

    def __init__(self, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._buffer = bytearray()
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[Message | None, bytes]]:
        """(message or None for an unknown type, body) of every frame that is complete now."""
        self._buffer += data
        while len(self._buffer) >= _PREFIX.size:
            header_bytes, body_bytes = _PREFIX.unpack_from(self._buffer)
            if header_bytes > MAX_HEADER_BYTES or body_bytes > self._max_body_bytes:
                raise FrameError(f"a frame of {header_bytes} + {body_bytes} bytes is too large")
            body_at = _PREFIX.size + header_bytes
            end = body_at + body_bytes
            if len(self._buffer) < end:
                return
            header, body = bytes(self._buffer[_PREFIX.size : body_at]), bytes(self._buffer[body_at:end])
            del self._buffer[:end]
            yield decode(header), body


def default_socket() -> str:
    """Where the agent listens: $FLEETSCOPE_AGENT_SOCKET, else agent.sock in the state folder of schema.config."""
    named = os.environ.get("FLEETSCOPE_AGENT_SOCKET") or os.environ.get("FLEETSCOPE_AGENT__SOCKET")
    if named:
        return named
    state = os.environ.get("FLEETSCOPE_STATE_DIR") or os.environ.get("FLEETSCOPE_HOME")
    if not state:
        base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        state = os.path.join(base, "fleetscope")
    return os.path.join(state, "agent.sock")
