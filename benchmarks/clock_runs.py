"""A simulated fleet (clocklab) through the fleet's clock, hop by hop, and how far its maps are from the truth."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from clocklab.fleet import EPOCH_NS, Arrivals, Fleet, Walls
from numpy.typing import NDArray

from fleetscope.pipelines.align.fleet import FleetClock, HopResult, Settings
from fleetscope.pipelines.align.observed import Wall
from fleetscope.pipelines.align.polyline import Pieces
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import CollectiveFlag

Floats = NDArray[np.float64]
FIRST_EPOCH = 1_000


def settings(fleet: Fleet) -> Settings:
    return Settings(hop_ns=fleet.hop_s * 1_000_000_000)


def first_hop(fleet: Fleet) -> int:
    """Number of the hop that true time 0 lies in."""
    return EPOCH_NS // (fleet.hop_s * 1_000_000_000)


def feed(clock: FleetClock, fleet: Fleet, hop: int) -> None:
    """What the agents of the fleet tell of one hop."""
    exchanges, arrivals, walls = fleet.hop(hop)
    node = np.array([clock.node(FIRST_EPOCH + host) for host in range(fleet.hosts)])
    clock.observed.take_exchanges(node[exchanges.a], node[exchanges.b], exchanges.stamps)
    if len(arrivals.host):
        clock.observed.take_collective(
            arrivals.group, arrivals.sequence, node[arrivals.host], arrivals.start, arrivals.end, np.int64(0)
        )
    for host, raw, realtime, error in zip(walls.host, walls.raw, walls.realtime, walls.max_error, strict=True):
        clock.observed.take_wall(Wall(int(node[host]), int(raw), int(realtime), 0, int(error)))


def run(fleet: Fleet, clock: FleetClock | None = None) -> Iterator[tuple[int, FleetClock, HopResult]]:
    """(hop, clock, result) of all hops. Nodes are hosts."""
    clock = clock or FleetClock(settings(fleet))
    first = first_hop(fleet)
    for hop in range(int(fleet.seconds) // fleet.hop_s):
        feed(clock, fleet, hop)
        yield hop, clock, clock.solve(first + hop)


@dataclass(frozen=True, slots=True)
class Judged:
    """Of one set of stretches at one share of their length; arrays over nodes that have one.

    error: stated minus true, the common offset of all left in. off: stated minus true, against the reference host.
    """

    node: NDArray[np.int64]
    error: Floats
    off: Floats
    lo: Floats
    hi: Floats


def judge(fleet: Fleet, pieces: Pieces, share: float, *, ahead_ns: int | None = None) -> Judged | None:
    """At `share` of each stretch, or `ahead_ns` beyond its begin."""
    if not len(pieces.node) or pieces.reference not in pieces.node:
        return None
    run_ns = pieces.x1 - pieces.x0
    dx = np.full(len(run_ns), ahead_ns) if ahead_ns is not None else (run_ns * share).astype(np.int64)
    raw = pieces.x0 + dx
    rise = (pieces.y1 - pieces.y0) - run_ns
    stated = pieces.y0 + dx + np.rint(rise * (dx / run_ns)).astype(np.int64)
    error = (stated - EPOCH_NS - fleet.true(pieces.node, raw)).astype(np.float64)
    at = int(np.flatnonzero(pieces.node == pieces.reference)[0])
    return Judged(pieces.node, error, error - error[at], pieces.lo, pieces.hi)


def pair_errors(error: Floats) -> Floats:
    """|error| between each host and the next half of the ring: as many pairs as hosts, every host in two."""
    return np.abs(error - np.roll(error, len(error) // 2))


CLUSTER, BOOT = "lab", "boot"
RAW = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
WALL = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)


def host_epoch(host: int) -> int:
    return identity.epoch_id(wire.Source(cluster=CLUSTER, host=f"h{host}", boot_id=BOOT), RAW)


def told(fleet: Fleet, hop: int) -> list[wire.ClockRecord]:
    """What the agents of the fleet write to the log in one hop, a record a host and second, in order of time."""
    exchanges, arrivals, walls = fleet.hop(hop)
    made: list[wire.ClockRecord] = []
    for second in range(hop * fleet.hop_s, (hop + 1) * fleet.hop_s):
        end = np.full(fleet.hosts, (second + 1) * 1_000_000_000)
        present = fleet.here(np.arange(fleet.hosts), end - 1)
        at = fleet.crystals.read(np.arange(fleet.hosts), end)
        for host in np.flatnonzero(present).tolist():
            source = wire.Source(cluster=CLUSTER, host=f"h{host}", boot_id=BOOT, incarnation=1)
            record = wire.ClockRecord(source=source, sequence=second, at_ns=int(at[host]))
            mine = (exchanges.a == host) & (exchanges.sent_ns // 1_000_000_000 == second)
            for peer in np.unique(exchanges.b[mine]).tolist():
                stamps = exchanges.stamps[mine & (exchanges.b == peer)]
                record.probes.add(peer=f"h{peer}", boot_id=BOOT, stamps=stamps.ravel().tolist(), sent=len(stamps))
            if second == (hop + 1) * fleet.hop_s - 1:
                _tell_rest(record, host, arrivals, walls)
            made.append(record)
    return made


def _tell_rest(record: wire.ClockRecord, host: int, arrivals: Arrivals, walls: Walls) -> None:
    rows = np.flatnonzero(arrivals.host == host)
    for row in rows.tolist():
        record.collectives.add(
            group=int(arrivals.group[row]), sequence=int(arrivals.sequence[row]), rank=int(arrivals.rank[row]),
            size=int(arrivals.rank.max()) + 1, start_ns=int(arrivals.start[row]), end_ns=int(arrivals.end[row]),
            flags=CollectiveFlag.BARRIER_LIKE,
        )  # fmt: skip
    for row in np.flatnonzero(walls.host == host).tolist():
        raw = int(walls.raw[row])
        record.snapshots.add(clock=WALL, ref=RAW, value=int(walls.realtime[row]), ref_before=raw, ref_after=raw)
        record.state.synchronized = walls.max_error[row] >= 0
        record.state.max_error_ns = max(0, int(walls.max_error[row]))
