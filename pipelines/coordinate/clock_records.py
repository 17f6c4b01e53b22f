"""Values of fleetscope.clocks -> what the clock of the fleet takes. What cannot be is refused whole, with a reason."""

from collections import Counter
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from fleetscope.pipelines.align.fleet import FleetClock
from fleetscope.pipelines.align.observed import Wall
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag, CollectiveFlag

RAW_CLOCK, WALL_CLOCK = "monotonic_raw", "realtime"
NS_LIMIT = 1 << 62
NAME_LIMIT = 256
SEQUENCES_KEPT = 128
"""Records of a host, two minutes of them, that may come in another order than they were made. Two ints a host, not a
set of them: 10 000 hosts."""

HostKey = tuple[str, str, str, int]
"""(cluster, host, boot id, resets of monotonic_raw): a node of the fleet."""


def epoch_of(key: HostKey) -> int:
    cluster, host, boot_id, resets = key
    source = wire.Source(cluster=cluster, host=host, boot_id=boot_id)
    return identity.epoch_id(source, wire.ClockEpoch(clock=RAW_CLOCK, resets=resets))


@dataclass(slots=True)
class _Heard:
    """Of one life of an agent: which records came. Bit i of `mask`: newest - i."""

    newest: int = -1
    mask: int = 0

    def take(self, sequence: int) -> str:
        """ "new", "duplicate", or "late": beyond what is remembered."""
        ahead = sequence - self.newest
        if ahead > 0:
            self.mask = (self.mask << min(ahead, SEQUENCES_KEPT) | 1) & ((1 << SEQUENCES_KEPT) - 1)
            self.newest = sequence
            return "new"
        if -ahead >= SEQUENCES_KEPT:
            return "late"
        known = self.mask >> -ahead & 1
        self.mask |= 1 << -ahead
        return "duplicate" if known else "new"


class Records:
    """Feeds one FleetClock. `refused` counts by reason; `hosts` names its nodes."""

    def __init__(self, clock: FleetClock) -> None:
        self.clock = clock
        self.refused: Counter[str] = Counter()
        self.duplicates = self.late = 0
        self.hosts: list[HostKey] = []
        self.newest: dict[int, int] = {}
        """Node -> raw ns of its newest record."""
        self.heard: set[int] = set()
        """Nodes of which records came, until somebody clears it."""
        self._nodes: dict[HostKey, int] = {}
        self._heard: dict[tuple[str, str, str, int], _Heard] = {}

    def node(self, key: HostKey) -> int:
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = self.clock.node(epoch_of(key))
            while len(self.hosts) <= found:
                self.hosts.append(key)
        return found

    def known(self, key: HostKey) -> int | None:
        """The node of a host that was met before."""
        return self._nodes.get(key)

    def take(self, value: bytes) -> None:
        """One message. Never raises for what is in it."""
        try:
            record = wire.ClockRecord.FromString(value)
        except DecodeError:
            self.refused["undecodable"] += 1
            return
        reason = impossible(record)
        if reason:
            self.refused[reason] += 1
            return
        source = record.source
        if record.at_ns:
            # Agents of before numbered nothing.
            life = (source.cluster, source.host, source.boot_id, source.incarnation)
            found = self._heard.setdefault(life, _Heard()).take(record.sequence)
            if found != "new":
                self.duplicates += found == "duplicate"
                self.late += found == "late"
                return
        node = self.node((source.cluster, source.host, source.boot_id, record.resets))
        self._walls(node, record)
        for probes in record.probes:
            peer = self.node((source.cluster, probes.peer, probes.boot_id, probes.resets))
            if peer != node:
                self.clock.observed.take_stamps(node, peer, probes.stamps)
        for seen in record.collectives:
            if seen.flags & CollectiveFlag.BARRIER_LIKE:
                self.clock.observed.take_collective(
                    seen.group, seen.sequence, node, seen.start_ns, seen.end_ns, seen.err_ns
                )
        self.newest[node] = max(record.at_ns, self.newest.get(node, record.at_ns))
        self.heard.add(node)

    def _walls(self, node: int, record: wire.ClockRecord) -> None:
        state = record.state
        told = state.max_error_ns
        if state.root_delay_ns or state.root_dispersion_ns:
            told = max(told, state.root_delay_ns // 2 + state.root_dispersion_ns + abs(state.last_offset_ns))
        max_error = told if record.HasField("state") and state.synchronized else -1
        for snapshot in record.snapshots:
            if snapshot.clock.clock != WALL_CLOCK or snapshot.flags & ClockFlag.SUSPECT:
                continue
            middle = (snapshot.ref_before + snapshot.ref_after) // 2
            half = (snapshot.ref_after - snapshot.ref_before + 1) // 2
            self.clock.observed.take_wall(Wall(node, middle, snapshot.value, half, max_error))


def published_maps(value: bytes) -> wire.ClockMaps | None:
    """One message of fleetscope.clock_maps, None where it is none that a solver can have told."""
    try:
        told = wire.ClockMaps.FromString(value)
    except DecodeError:
        return None
    lines = all(
        max(abs(piece.x0), abs(piece.y0)) < NS_LIMIT and piece.d and piece.n and 0.5 < piece.n / piece.d < 2
        for piece in told.pieces
    )
    return told if told.host and told.pieces and lines else None


def impossible(record: wire.ClockRecord) -> str:
    """Why a record cannot be; "" where it can."""
    source = record.source
    if not source.host or len(source.host) > NAME_LIMIT or len(source.boot_id) > NAME_LIMIT:
        return "unnamed"
    if abs(record.at_ns) >= NS_LIMIT:
        return "out_of_range"
    if record.HasField("state") and min(record.state.max_error_ns, record.state.root_delay_ns) < 0:
        return "negative_error"
    for snapshot in record.snapshots:
        if snapshot.ref_after < snapshot.ref_before:
            return "inverted_bracket"
        if max(abs(snapshot.value), abs(snapshot.ref_before), abs(snapshot.ref_after)) >= NS_LIMIT:
            return "out_of_range"
    return next(filter(None, map(_impossible_probes, record.probes)), "") or next(
        filter(None, map(_impossible_collective, record.collectives)), ""
    )


def _impossible_probes(probes: wire.PeerProbes) -> str:
    if not probes.peer or max(len(probes.peer), len(probes.boot_id)) > NAME_LIMIT:
        return "unnamed"
    if len(probes.stamps) % 4:
        return "torn_stamps"
    # Plain loops: a record has one or two exchanges a peer, and numpy's calls on four numbers take ten times as long.
    stamps = list(probes.stamps)
    if stamps and (min(stamps) <= -NS_LIMIT or max(stamps) >= NS_LIMIT):
        return "out_of_range"
    for at in range(0, len(stamps), 4):
        if stamps[at + 3] < stamps[at] or stamps[at + 2] < stamps[at + 1]:
            return "inverted_exchange"
    return ""


def _impossible_collective(seen: wire.CollectiveObservation) -> str:
    if max(abs(seen.start_ns), abs(seen.end_ns)) >= NS_LIMIT or not 0 <= seen.err_ns < NS_LIMIT:
        return "out_of_range"
    if seen.end_ns + seen.err_ns < seen.start_ns - seen.err_ns:
        return "inverted_collective"
    if seen.size < 2 or seen.rank >= seen.size:
        return "impossible_rank"
    return ""
