"""Series of the fleet's clock, told to exporters through fleetscope.metrics after each hop."""

from collections import Counter
from collections.abc import Iterator

from fleetscope.pipelines.coordinate.solver import Solver
from fleetscope.schema.metrics import metric
from fleetscope.schema.vocabulary import COORDINATOR_CHAIN, GUARANTEED
from fleetscope.schema.wire_pb2 import MetricsRecord

HOSTS_A_RECORD = 2_000
"""A record of 10 000 hosts would not fit one message."""
WORST_PATHS = 100
PROVED_HOPS = 3
"""What was proved longer ago says nothing of now."""

Sample = tuple[str, dict[str, str], float]


def clock_records(solver: Solver, refused: Counter[str], steps: Counter[int], now_ns: int) -> list[MetricsRecord]:
    """Of the newest hop, each under its `clock_key`. `refused`: maps; `steps`: of each clock epoch so far.

    The epoch is (term, hop): what a coordinator that lost its term still says is older.
    """
    result = solver.result
    if result is None:
        return []
    epoch = solver.term << 40 | max(result.number, 0)
    nodes = sorted(solver.maps)
    parts = [nodes[at : at + HOSTS_A_RECORD] for at in range(0, len(nodes), HOSTS_A_RECORD)]
    records = []
    for part, samples in enumerate([_fleet(solver, refused), *(_hosts(solver, own, steps) for own in parts)], 1):
        record = MetricsRecord(chain=COORDINATOR_CHAIN, epoch=epoch, now_ns=now_ns, event_ns=now_ns, part=part)
        for name, labels, value in samples:
            record.samples.add(name=metric(name).name, labels=labels, value=value)
        records.append(record)
    return records


def clock_key(record: MetricsRecord) -> bytes:
    """Of the compacted topic."""
    return f"clocks/{record.part}".encode()


def _fleet(solver: Solver, refused: Counter[str]) -> Iterator[Sample]:
    clock, result = solver.clock, solver.result
    assert result is not None
    yield "fleetscope_clock_nodes", {}, float(len(solver.maps))
    yield "fleetscope_clock_edges", {}, float(len(clock.pairs))
    yield "fleetscope_clock_hop", {}, float(result.number)
    yield "fleetscope_clock_map_latency_seconds", {}, solver.latency_s
    yield "fleetscope_clock_proofs_total", {}, float(clock.counters["proofs"])
    for reason, count in sorted((solver.records.refused + refused).items()):
        yield "fleetscope_clock_records_refused_total", {"reason": reason}, float(count)
    if result.utc is not None:
        yield "fleetscope_clock_utc_offset_seconds", {}, result.utc.middle_ns / 1e9
        yield "fleetscope_clock_utc_bound_seconds", {}, (result.utc.hi_ns - result.utc.lo_ns) / 2e9
    paths = clock.pairs.asymmetry().worst(WORST_PATHS)
    for a, b, ns in zip(paths.a.tolist(), paths.b.tolist(), paths.ns.tolist(), strict=True):
        yield "fleetscope_clock_asymmetry_seconds", {"host": _name(solver, a), "peer": _name(solver, b)}, ns / 1e9


def _hosts(solver: Solver, nodes: list[int], steps: Counter[int]) -> Iterator[Sample]:
    result = solver.result
    assert result is not None
    barred = {verdict.node: verdict.kind.value for verdict in result.verdicts if verdict.node >= 0}
    for node in nodes:
        # A stretch is proved a hop after it was estimated: the newest map never is.
        late = [made for made in solver.maps[node] if made.version >= result.number - PROVED_HOPS]
        proved = [made for made in late[-PROVED_HOPS:] if made.quality == GUARANTEED]
        host, newest = _name(solver, node), next(reversed(proved or late), None)
        quality = "unsynced" if newest is None else newest.quality
        yield "fleetscope_clock_host_quality", {"host": host, "quality": quality}, 1.0
        if newest is not None and quality == GUARANTEED:
            yield "fleetscope_clock_host_bound_seconds", {"host": host}, newest.err_ns / 1e9
        yield "fleetscope_clock_steps_total", {"host": host}, float(steps[solver.clock.epochs[node]])
        if node in barred:
            yield "fleetscope_clock_quarantined", {"host": host, "reason": barred[node]}, 1.0


def _name(solver: Solver, node: int) -> str:
    return solver.records.hosts[node][1]
