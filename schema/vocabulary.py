"""Small closed vocabularies that travel as numbers: kinds, classes, flags, reasons, topics."""

from enum import IntEnum, IntFlag

WIRE_VERSION = 1
"""Version written into Batch and ProgramChunk. Readers accept it and its predecessor."""

WINDOW_NS = 10_000_000_000
"""Length of the finest rollup window."""


class Kind(IntEnum):
    """What a span is; travels with each span so that a worker never waits for the symbol table."""

    OTHER = 0
    STEP = 1
    MODULE = 2
    COMPUTE = 3
    COLLECTIVE = 4
    COPY = 5
    INFEED = 6
    OUTFEED = 7
    HOST = 8
    DATA_WAIT = 9
    COMPILE = 10
    CHECKPOINT = 11
    DISPATCH = 12
    CONTAINER = 13
    """An op that only holds others (while, conditional, call): its instants belong to what runs inside it."""
    H2D = 14
    """Transfer from host to device memory, as the runtime was asked for it."""
    D2H = 15
    QUEUE = 16
    """From the enqueue of an execution to its begin: its device was busy with earlier ones."""
    SPARSE_CORE = 17
    """Work of a TPU's sparse cores, which run beside the main ones."""


DEVICE_WORK = frozenset(
    {
        Kind.COMPUTE,
        Kind.COLLECTIVE,
        Kind.COPY,
        Kind.INFEED,
        Kind.OUTFEED,
        Kind.CONTAINER,
        Kind.OTHER,
        Kind.SPARSE_CORE,
    }
)
"""Kinds whose intervals make a device busy. Steps and modules enclose ops and are never added to busy time."""

PER_DEVICE_ROLLUP = frozenset({Kind.MODULE, Kind.COLLECTIVE, Kind.QUEUE})
"""Kinds rolled up per device: a slow chip would hide in its host's sum otherwise (DESIGN 3.4)."""


class SpanFlag(IntFlag):
    """Bits of `spans.flags`."""

    UNSYNCED = 1 << 0
    """Placed by the host's wall clock only: its error against the fleet is unknown."""
    INFERRED_BEGIN = 1 << 1
    PROVISIONAL_PROGRAM = 1 << 2
    """`program` is a provisional key; program_loads tells the fingerprint."""
    NEGATIVE_DURATION = 1 << 3
    """The producer reported end < start. Kept as reported, never clamped, left out of sums."""
    OUT_OF_RANGE_TIME = 1 << 4
    OVERLAPS = 1 << 5
    """Partly overlaps another span of its line, which a line must not contain."""
    TRUNCATED = 1 << 6
    CUT_BATCH = 1 << 7
    """From a batch cut at 8 MiB while an op was open: child time may miss across the cut."""
    NO_DEVICE_CLOCK = 1 << 8
    EXTRAPOLATED = 1 << 9
    """Beyond the newest, or before the oldest, reading of a wall clock that was known when it was placed: the error
    stated holds only if that clock was not set in between."""


class LinkRole(IntFlag):
    """Bits of `links.role`: what a span is to a (context type, context id). Both: of those that say only that they
    belong together (FLEETSCOPE_FLOW), each goes on with what the one before it did."""

    PRODUCES = 1 << 0
    CONSUMES = 1 << 1


LINKS = "_links"
"""First member of a wire row's `args` where the span has links: [[role, context type, context id], ...]."""

CONTEXT_TYPES = (
    "generic",
    "legacy",
    "tf executor",
    "tfrt executor",
    "shared batch scheduler",
    "pjrt",
    "adaptive shared batch scheduler",
    "tfrt tpu runtime",
    "tpu embedding engine",
    "gpu launch",
    "batcher",
    "tpu stream",
    "tpu launch",
    "pathways executor",
    "pjrt library call",
    "threadpool event",
    "jax serving executor",
    "sc offload",
)
"""By number, of XLA's TraceMe (tsl profiler context_types.h); higher ones are the user's."""


class BatchFlag(IntFlag):
    """Bits of `Batch.flags`."""

    FORCED_CUT = 1 << 0
    LATE = 1 << 1
    REPLAYED = 1 << 2
    EXECUTIONS = 1 << 3
    """Of a device: its program executions alone, as the PJRT shim told them. No op was looked at."""


class ClockFlag(IntFlag):
    """Bits of `ClockSnapshot.flags`."""

    STEPPED = 1 << 0
    WRAPPED = 1 << 1
    SUSPECT = 1 << 2
    PAIRED = 1 << 3
    """No read: a program of a window began at `value`, between its enqueue and its completion less its length; which
    launch it was is concluded from order and names."""
    ESTIMATED = 1 << 4
    """No read: what a capture says of its clock, by a line through its own times."""


class ProbeFlag(IntFlag):
    """Bits of `PeerProbes.flags`: who took the stamps, where it was not the process itself."""

    HARDWARE_TX = 1 << 0
    HARDWARE_RX = 1 << 1
    KERNEL = 1 << 2


class CollectiveFlag(IntFlag):
    """Bits of `CollectiveObservation.flags`."""

    BARRIER_LIKE = 1 << 0
    """No rank leaves before all have entered: all-reduce, all-gather, barrier, an execution that holds one."""
    FROM_SHIM = 1 << 1
    """From enqueue to completion of an execution."""
    FROM_WINDOW = 1 << 2


CLOCK_REASONS = (
    "",
    "start",
    "stop",
    "window_begin",
    "window_end",
    "step",
    "clocksource",
    "suspend",
    "vm_restore",
    "leap",
)
"""Why a ClockRecord came out of turn."""


MAP_QUALITIES = ("guaranteed", "statistical", "host-only", "extrapolated", "unsynced")
"""Words of `clock_maps.quality`, the best first: proved, estimated, by the host's own wall clock, that while it was not
set meanwhile, not known."""
GUARANTEED, STATISTICAL, HOST_ONLY, EXTRAPOLATED, UNSYNCED = MAP_QUALITIES

WRITTEN, SETTLED = 1, 2
"""`clock_maps.version` of the segments rows were written with, and of a host's wall clock that its worker told
afterwards; what is above was solved by the fleet."""


class StepFlag(IntFlag):
    """Bits of `step.flags`."""

    FIRST = 1 << 0
    AFTER_COMPILE = 1 << 1
    EVAL = 1 << 2
    TRUNCATED = 1 << 3
    REORDERED = 1 << 4
    """Begins or ends where completions were told in another order than launched: known to about an execution."""
    MISTIMED = 1 << 5
    """Of inferred begins one of which was told late: it has less time than its FLOPs take at the peak of the chip, or
    the one after it has."""


DROP_REASONS = (
    "ring_overwritten",
    "no_ring",
    "process_killed",
    "spool_full",
    "spool_disk",
    "window_undecodable",
    "window_abandoned",
    "batch_too_large",
    "socket_backpressure",
    "sentinel_value",
    "invalid_row",
    "name_limit",
)
"""Reasons a source may give in Batch.dropped. New ones are appended, none is renamed."""

COORDINATOR_CHAIN = (1 << 32) - 1
"""`chain` of the metrics records of the coordinator, which has none of its own."""
