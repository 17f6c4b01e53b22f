"""Steps of one host's clock: whether they are flagged within one hop, and on that host; and how often something is
flagged in a day in which nothing happened.

"Within one hop": in the result of the hop it happened in or of the next. Sizes below 50 us are printed, not judged.
"""

import argparse

import numpy as np
from clock_runs import run
from clocklab.fleet import Fleet
from clocklab.oscillator import Wander
from report import report

SIZES_US = (20, 30, 50, 100, 200, 1_000)
HOSTS = 16


def flagged(seed: int, size_us: float) -> tuple[bool, bool]:
    """(the host that stepped was flagged in time, somebody else was)."""
    rng = np.random.default_rng(seed)
    fleet = Fleet(seed, HOSTS, 200, Wander(walk=float(10 ** rng.uniform(-9, -8))))
    host, at = int(rng.integers(HOSTS)), float(rng.uniform(120, 160))
    fleet.crystals.step(host, at, size_us * 1e3 * float(rng.choice([-1, 1])))
    hit = other = False
    for hop, _, result in run(fleet):
        for verdict in result.verdicts:
            hit |= verdict.node == host and int(at) // 10 <= hop <= int(at) // 10 + 1
            other |= verdict.node >= 0 and host not in (verdict.node, *verdict.proof)
    return hit, other


def alarms(seed: int, seconds: int) -> int:
    """Verdicts in a fleet in which nothing happens."""
    fleet = Fleet(seed, HOSTS, seconds, Wander(walk=1e-8, swing_ppm=0.5))
    return sum(len(result.verdicts) for _, _, result in run(fleet))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=50, help="of each size")
    parser.add_argument("--hours", type=float, default=24.0, help="in which nothing happens")
    parser.add_argument("--short", action="store_true", help="3 runs of each size, half an hour")
    options = parser.parse_args()
    runs, hours = (3, 0.5) if options.short else (options.runs, options.hours)
    shares, failed = {}, []
    for size in SIZES_US:
        found = [flagged(1_000 * size + seed, size) for seed in range(runs)]
        shares[f"flagged_{size}_us"] = sum(hit for hit, _ in found) / runs
        shares[f"others_{size}_us"] = sum(other for _, other in found) / runs
        if size >= 50 and (shares[f"flagged_{size}_us"] < 1 or shares[f"others_{size}_us"] > 0):
            failed.append(f"steps of {size} us: {shares[f'flagged_{size}_us']:.0%} flagged on the right host")
    false = alarms(1, int(hours * 3_600))
    failed += [f"{false} false alarms in {hours} h"] * (false > 0)
    return report(
        "clock_steps",
        shares["flagged_50_us"],
        "share",
        1.0,
        failed=failed,
        runs=runs,
        hours=hours,
        false_alarms=false,
        **shares,
    )


if __name__ == "__main__":
    raise SystemExit(main())
