"""Which launch of the host each program in a TPU's window was: what places the window's own clock.

Both sides know the order in which one device ran programs, and their names (matching.py). The window is laid along what
the PJRT shim was told, wherever the names agree and each program may have begun between its enqueue and its completion
less its length. A loop of one program fits every step later as well; then the place counts whose completions come
nearest to what the runtime itself says of its clock (launches may wait in the queue for long), if the next one is
clearly further off. Otherwise there are no pairs: nothing is guessed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fleetscope.agents.node.matching import MODULES
from fleetscope.agents.profiler import protocol
from fleetscope.agents.xspace import DeviceSpans, OpTables
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag, Kind, SpanFlag

PAIRS = 64
"""Sent of a window, spread over it."""
DRIFT_PPM = 200
NEAR_NS = 2_000_000
"""How wrong the runtime's own times are believed to be: the v6e sample's clean ops are within 18 us (xprof.md 5.3)."""


class Execution(NamedTuple):
    """One that the shim was told, in ns of MONOTONIC_RAW."""

    name: str
    enqueue_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Programs:
    """Of one device in a window, in order: `start` and `dur` in ns from its tick 0, nominal; `ticks` of the starts.
    `zero_ns`: MONOTONIC_RAW at tick 0 as the runtime has it."""

    clock: wire.ClockEpoch
    names: tuple[str, ...]
    ticks: tuple[int, ...]
    start: tuple[int, ...]
    dur: tuple[int, ...]
    zero_ns: int | None


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A window that waits for what ran meanwhile to be told. `devices` by natural key."""

    devices: dict[str, Programs]
    begin: int
    end: int
    """Ticks of the host between which its executions completed."""
    until_s: float


def programs_of(
    spans: DeviceSpans, tables: OpTables, clock: wire.ClockEpoch, opened: protocol.Clocks
) -> Programs | None:
    """None where it holds none whole, or its clock is the host's."""
    kind, flags, starts, durs, programs = (
        spans.rows.column(name).to_numpy() for name in ("kind", "flags", "start", "dur", "program")
    )
    mine = np.flatnonzero((kind == Kind.MODULE) & (flags & SpanFlag.TRUNCATED == 0))
    if spans.clock.absolute or not len(mine):
        return None
    mine = mine[np.argsort(starts[mine], kind="stable")][:MODULES]
    named = tables.modules()
    ticks, num, den = starts[mine].tolist(), spans.clock.period_num, spans.clock.period_den
    zero_ns = None
    if spans.anchors:
        tick, unix_ns = spans.anchors[0]
        raw_ns = (opened.raw_before_ns + opened.raw_after_ns) // 2
        zero_ns = unix_ns - tick * num // den - opened.realtime_ns + raw_ns
    return Programs(
        clock,
        tuple(named.get(key, (0, ""))[1] for key in programs[mine].tolist()),
        tuple(ticks),
        tuple(tick * num // den for tick in ticks),
        tuple(dur * num // den for dur in durs[mine].tolist()),
        zero_ns,
    )


def pairs(seen: Programs, told: Sequence[Execution], ref: wire.ClockEpoch) -> list[wire.ClockSnapshot]:
    """Snapshots of the window's clock against `ref` (the epoch of MONOTONIC_RAW), flagged PAIRED; none where they would
    be a guess."""
    count = len(seen.names)
    if not count or count > len(told):
        return []
    codes: dict[str, int] = {}
    wanted = np.array([codes.setdefault(name, len(codes)) for name in seen.names])
    names = np.array([codes.get(item.name, -1) for item in told])
    enqueue = np.array([item.enqueue_ns for item in told], np.int64)
    end = np.array([item.end_ns for item in told], np.int64)
    start, dur = np.array(seen.start, np.int64), np.array(seen.dur, np.int64)
    slack = int(start[-1] - start[0]) * DRIFT_PPM // 1_000_000
    possible: list[tuple[int, int]] = []
    for offset in range(len(told) - count + 1):
        at = slice(offset, offset + count)
        if np.array_equal(names[at], wanted):
            low, high = int((enqueue[at] - start).max()), int((end[at] - dur - start).min())
            if low <= high + slack:
                possible.append((0 if seen.zero_ns is None else abs(high - seen.zero_ns), offset))
    possible.sort()
    if not possible or (seen.zero_ns is None and len(possible) > 1):
        return []
    if len(possible) > 1 and (possible[0][0] > NEAR_NS or possible[1][0] <= 2 * possible[0][0] + NEAR_NS):
        return []
    offset = possible[0][1]
    chosen = range(count) if count <= PAIRS else np.linspace(0, count - 1, PAIRS).astype(int).tolist()
    return [
        wire.ClockSnapshot(
            clock=seen.clock,
            ref=ref,
            value=seen.ticks[i],
            ref_before=int(enqueue[offset + i]),
            ref_after=int(end[offset + i]) - seen.dur[i],
            flags=ClockFlag.PAIRED,
        )
        for i in chosen
        if int(end[offset + i]) - seen.dur[i] >= int(enqueue[offset + i])
    ]
