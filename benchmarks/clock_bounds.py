"""Whether the truth lies inside every interval that is called guaranteed, in many fleets with everything that goes
wrong, and how wide the intervals are in an ordinary one.

Each run is a fleet of its own with a drift of 1-100 ppm, a random walk of up to 1e-7 / sqrt(s), a swing of up to 1
ppm, paths that lean by up to 100 us, loss up to 30 %, and one of: nothing more, a step of rate, a step of a clock, a
host that lies, a route that flips, hosts that join and leave. Intervals are relative to the fleet's reference; what a
host that lies says of itself is not judged. Width: 32 hosts, 6 peers, collectives that last 10 us; also without
collectives.
"""

import argparse
import time

import numpy as np
from clock_runs import judge, run
from clocklab.fleet import Collectives, Fleet
from clocklab.network import Network
from clocklab.oscillator import SECOND, Wander
from report import report

BUDGET_US = 50.0
FAULTS = ("none", "rate", "step", "lie", "flip", "churn", "false_collective")


def any_fleet(seed: int) -> tuple[Fleet, str, set[int]]:
    """(a fleet, what goes wrong in it, hosts that are not judged)."""
    rng = np.random.default_rng(seed)
    hosts, seconds = int(rng.integers(3, 10)), 120
    wander = Wander(
        drift_ppm=float(rng.choice([1, 10, 50, 100])),
        walk=float(10 ** rng.uniform(-9, -7)),
        swing_ppm=float(rng.uniform(0.02, 1.0)),
        period_s=(300.0, 3_600.0),
    )
    lean = float(rng.choice([0, 1, 5, 20, 100]))
    network = Network(
        base_us=(15.0 + lean / 2, 60.0 + lean / 2), asymmetry_us=lean, loss=float(rng.uniform(0, 0.3)),
        tail=float(rng.uniform(0, 0.05)), rate_hz=float(rng.choice([1, 2])), peers=int(rng.integers(2, 6)),
    )  # fmt: skip
    collectives = Collectives(size=hosts) if rng.random() < 0.5 else None
    fleet = Fleet(seed, hosts, seconds, wander, network, collectives, days_up=float(rng.choice([0.1, 30, 400])))
    fault, host, at = FAULTS[seed % len(FAULTS)], int(rng.integers(hosts)), float(rng.uniform(40, 80))
    unjudged: set[int] = set()
    if fault == "rate":
        fleet.crystals.step_rate(host, at, 5.0)
    elif fault == "step":
        size = float(rng.choice([50e3, 200e3, 1e6, 64e9]))
        fleet.crystals.step(host, at, size if size > 1e9 else size * float(rng.choice([-1, 1])))
    elif fault == "lie":
        fleet.lies.append((host, int(at * SECOND), int(rng.choice([1, -1]) * 10 ** rng.uniform(4, 7))))
        unjudged.add(host)
    elif fault == "flip":
        fleet.paths.flips.append((host, (host + 1) % hosts, int(at * SECOND), float(rng.uniform(10, 200))))
    elif fault == "churn":
        fleet.present[host] = [int(at * SECOND), 1 << 62]
        fleet.present[(host + 1) % hosts] = [-(1 << 62), int((at + 20) * SECOND)]
    elif fault == "false_collective":
        fleet.mistaken = (int(at * SECOND), int((at + 20) * SECOND))
    return fleet, fault, unjudged


def outside(fleet: Fleet, unjudged: set[int]) -> tuple[int, int]:
    """(intervals that do not hold the truth, intervals)."""
    wrong = total = 0
    for _, _, result in run(fleet):
        for pieces in (result.final, result.proved):
            if pieces.reference in unjudged:
                continue
            for share in (0.0, 0.25, 0.5, 0.75, 0.999):
                found = judge(fleet, pieces, share)
                if found is None:
                    continue
                proved = np.isfinite(found.lo) & np.isfinite(found.hi) & ~np.isin(found.node, list(unjudged))
                away = -found.off[proved]
                wrong += int(((away < found.lo[proved]) | (away > found.hi[proved])).sum())
                total += len(away)
    return wrong, total


def widths(seconds: int, collectives: Collectives | None) -> tuple[float, float, float]:
    """(p50, p99) of half the width of intervals as they are first published, us; the share of stretches with one."""
    fleet = Fleet(1, 32, seconds, network=Network(peers=6), collectives=collectives)
    halves, proved = [], []
    for hop, _, result in run(fleet):
        if hop > 10:
            kept = result.proved.guaranteed
            proved.append(float(kept.mean()))
            halves.append((result.proved.hi - result.proved.lo)[kept] / 2e3)
    half = np.concatenate(halves)
    return float(np.percentile(half, 50)), float(np.percentile(half, 99)), float(np.mean(proved))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--full", action="store_true", help="10^4 runs")
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--short", action="store_true", help="35 runs, 5 minutes of widths")
    options = parser.parse_args()
    runs = 10_000 if options.full else 35 if options.short else options.runs
    began = time.process_time()
    failed, total = [], 0
    for seed in range(options.first, options.first + runs):
        fleet, fault, unjudged = any_fleet(seed)
        wrong, count = outside(fleet, unjudged)
        total += count
        if wrong:
            failed.append(f"run {seed} ({fault}): the truth is outside {wrong} of {count} intervals")
    seconds = 300 if options.short else 1_800
    half, widest, proved = widths(seconds, Collectives(after_us=10.0))
    half_30, _, _ = widths(seconds, Collectives(after_us=30.0))
    half_probes, _, _ = widths(seconds, None)
    if half > BUDGET_US:
        failed.append(f"half width p50 {half:.1f} us over {BUDGET_US}")
    return report(
        "clock_bounds", round(half, 1), "us", BUDGET_US, failed=failed, runs=runs, intervals=total,
        half_p99=round(widest, 1), half_p50_collectives_of_30_us=round(half_30, 1),
        half_p50_probes_alone=round(half_probes, 1), proved=round(proved, 4),
        cpu_s=round(time.process_time() - began, 1),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
