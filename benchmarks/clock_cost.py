"""What the clock of a fleet costs the coordinator, records of the log to published maps, and how late maps are.

2 000 hosts that probe 5 peers once a second: every ClockRecord is decoded and checked, the hop solved, a ClockMaps
made for every host: CPU seconds for a second of the fleet; the same of 10 000 hosts, which one coordinator has to
bear. Then 10 000 hosts, drawn at random and in cells of 64 with one peer in 5 outside, solved alone: CPU by host must
not grow. Device counters never reach the coordinator (docs/design/0021), so the chips of a host cost it nothing; the
workers' line costs are benchmarks/clock_device.py's.
"""

import argparse
import time

import numpy as np
from clock_runs import BOOT, CLUSTER, RAW, WALL, feed, first_hop, settings
from clocklab.fleet import Collectives, Fleet
from clocklab.network import Network
from report import report

from fleetscope.pipelines.align.fleet import FleetClock
from fleetscope.pipelines.coordinate.clock_records import Records
from fleetscope.pipelines.coordinate.host_maps import host_maps, map_message
from fleetscope.pipelines.coordinate.solver import WAIT_S
from fleetscope.schema import wire_pb2 as wire

BUDGET_CORES, BUDGET_LATENCY_S = 1.0, 15.0
HOPS = 4


def messages(fleet: Fleet, hop: int) -> list[bytes]:
    """A record a host and second, as agents write them."""
    exchanges, _, walls = fleet.hop(hop)
    second = exchanges.sent_ns // 1_000_000_000
    order = np.lexsort((exchanges.b, exchanges.a, second))
    a, b, second, stamps = exchanges.a[order], exchanges.b[order], second[order], exchanges.stamps[order]
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(a) != 0) | (np.diff(second) != 0)])).tolist()
    made = []
    for begin, end in zip(starts, [*starts[1:], len(a)], strict=True):
        host = int(a[begin])
        source = wire.Source(cluster=CLUSTER, host=f"h{host}", boot_id=BOOT, incarnation=1)
        at = int(stamps[end - 1, 3])
        record = wire.ClockRecord(source=source, sequence=int(second[begin]), at_ns=at)
        record.state.max_error_ns = int(walls.max_error[host])
        record.state.synchronized = True
        raw = int(walls.raw[host])
        record.snapshots.add(clock=WALL, ref=RAW, value=int(walls.realtime[host]), ref_before=raw, ref_after=raw)
        for row in range(begin, end):
            record.probes.add(peer=f"h{int(b[row])}", boot_id=BOOT, stamps=stamps[row].tolist(), sent=1)
        made.append(record.SerializeToString())
    return made


def whole(hosts: int) -> dict[str, float]:
    """CPU and wall seconds of one hop: take, solve, tell."""
    fleet = Fleet(1, hosts, (HOPS + 1) * 10, network=Network(rate_hz=1.0), collectives=None)
    clock = FleetClock(settings(fleet))
    records = Records(clock)
    spent = {"take": 0.0, "solve": 0.0, "tell": 0.0}
    wall = 0.0
    for hop in range(HOPS):
        values = messages(fleet, hop)
        begun = time.process_time()
        for value in values:
            records.take(value)
        taken, wall_begun = time.process_time(), time.monotonic()
        result = clock.solve(first_hop(fleet) + hop)
        solved = time.process_time()
        kept = [
            list(host_maps(pieces, clock.epochs, result.number, final=False))
            for pieces in (result.provisional, result.live)
        ]
        for one, two in zip(*(part or kept[1] for part in kept), strict=False):
            # As many stretches as a message holds.
            map_message(records.hosts[one.node], one.epoch, [one] * 12 + [two], result, 0, "").SerializeToString()
        if hop == HOPS - 1:
            spent = {"take": taken - begun, "solve": solved - taken, "tell": time.process_time() - solved}
            wall = time.monotonic() - wall_begun
    return spent | {"cores": sum(spent.values()) / fleet.hop_s, "latency_s": WAIT_S + 1.0 + wall}


def solved_alone(hosts: int, cell: int = 0) -> float:
    """CPU seconds of one hop."""
    fleet = Fleet(2, hosts, 60, network=Network(rate_hz=1.0, redraw_s=1e9), collectives=Collectives(size=100))
    if cell:
        inside = np.random.default_rng(1).integers(1, cell, fleet.peers.of.shape)
        base = np.arange(hosts)[:, None] // cell * cell
        local = np.minimum(base + (np.arange(hosts)[:, None] - base + inside) % cell, hosts - 1)
        fleet.peers.of[:, 1:] = local[:, 1:]
        # One host in 16 has a peer outside its cell.
        alone = np.arange(hosts) % 16 != 0
        fleet.peers.of[alone, 0] = local[alone, 0]
    clock = FleetClock(settings(fleet))
    took = 0.0
    for hop in range(HOPS):
        feed(clock, fleet, hop)
        begun = time.process_time()
        clock.solve(first_hop(fleet) + hop)
        took = time.process_time() - begun
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="200 and 1 000 hosts")
    options = parser.parse_args()
    few, many = (200, 1_000) if options.short else (2_000, 10_000)
    found, fleet = whole(few), whole(many)
    cores = found["cores"] * 2_000 / few
    flat, small, cells = solved_alone(many), solved_alone(many // 5), solved_alone(many, 64)
    failed = [f"{cores:.2f} cores for 2 000 hosts"] * (cores > BUDGET_CORES)
    failed += [f"maps {fleet['latency_s']:.1f} s after their hop"] * (fleet["latency_s"] > BUDGET_LATENCY_S)
    failed += [f"{fleet['cores']:.2f} cores for {many} hosts: one coordinator cannot"] * (fleet["cores"] > 1)
    failed += [f"5x the hosts cost {flat / small:.1f}x"] * (flat > 10 * small)
    return report(
        "clock_cost", round(cores, 3), "cores", BUDGET_CORES, failed=failed, hosts=few,
        latency_s=round(found["latency_s"], 2), take_s=round(found["take"], 2), solve_s=round(found["solve"], 2),
        tell_s=round(found["tell"], 2), hosts_many=many, cores_many=round(fleet["cores"], 3),
        latency_many_s=round(fleet["latency_s"], 2), solve_alone_s=round(flat, 2),
        solve_fifth_s=round(small, 2), solve_cells_s=round(cells, 2),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
