"""How far apart two hosts of a simulated fleet are on the fleet's clock, against the truth: final maps, and live ones
10 s beyond the middle of the newest hop. In the same run: what one anchor, the mean of midpoints, and a line through
the first and last exchange leave.

32 hosts, +-50 ppm, a swing of 0.5 ppm and a random walk, 5 peers drawn at random, 2 probes a second, base delay 15-60
us, exponential queues of 10 us, 2 % Pareto tails, forward minus backward delay uniform within +-5 us (clocklab). An
error is that of a pair of hosts, in us. `--svg FILE` draws errors and bounds of one host.
"""

import argparse
from pathlib import Path

import numpy as np
from clock_runs import judge, pair_errors, run
from clocklab.baselines import errors
from clocklab.fleet import Fleet
from report import report

BUDGETS = {"final_p50": 0.8, "final_p99": 3.0, "live_p99": 3.5}
WARM_HOPS = 10


def measure(seed: int, seconds: int, hosts: int) -> tuple[dict[str, float], list[tuple[float, float, float, float]]]:
    """({name: us}, [(s, error, lo, hi) us of host 1 against the reference])."""
    fleet = Fleet(seed, hosts, seconds)
    final, live, trace = [], [], []
    backwards = 0
    last = np.zeros(hosts, np.int64)
    for hop, _, result in run(fleet):
        for share in (0.1, 0.5, 0.9):
            found = judge(fleet, result.final, share)
            if found is not None and hop > WARM_HOPS:
                final.append(pair_errors(found.error))
                if share == 0.5 and found.node[1] == 1:
                    trace.append((hop * 10.0, -found.off[1] / 1e3, found.lo[1] / 1e3, found.hi[1] / 1e3))
        if len(result.final.node):
            backwards += int((result.final.y0 < last[result.final.node]).sum())
            backwards += int((result.final.y1 <= result.final.y0).sum())
            last[result.final.node] = result.final.y1
        found = judge(fleet, result.live, 0.0, ahead_ns=10_000_000_000)
        if found is not None and hop > WARM_HOPS:
            live.append(pair_errors(found.error))
    facts = {"backwards": float(backwards)}
    for name, values in (("final", np.concatenate(final)), ("live", np.concatenate(live))):
        for label, share in (("p50", 50), ("p99", 99), ("max", 100)):
            facts[f"{name}_{label}"] = round(float(np.percentile(values, share)) / 1e3, 3)
    for name, values in errors(fleet, seed).items():
        facts[f"{name}_p50"] = round(float(np.percentile(values, 50)) / 1e3, 1)
        facts[f"{name}_max"] = round(float(values.max()) / 1e3, 1)
    return facts, trace


def draw(trace: list[tuple[float, float, float, float]], path: Path) -> None:
    """Truth minus stated, and what was proved of it, over time."""
    width, height, top = 900, 260, max(max(abs(lo), abs(hi)) for _, _, lo, hi in trace if np.isfinite([lo, hi]).all())
    end = trace[-1][0]

    def at(second: float, us: float) -> str:
        return f"{second / end * width:.1f},{height / 2 - us / top * height * 0.48:.1f}"

    proved = [row for row in trace if np.isfinite(row[2:]).all()]
    band = [at(s, hi) for s, _, _, hi in proved] + [at(s, lo) for s, _, lo, _ in reversed(proved)]
    line = [at(s, error) for s, error, _, _ in trace]
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
        f'<polygon points="{" ".join(band)}" fill="#cfe3f5"/>'
        f'<polyline points="{" ".join(line)}" fill="none" stroke="#b03030" stroke-width="1.2"/>'
        f'<line x1="0" x2="{width}" y1="{height / 2}" y2="{height / 2}" stroke="#999" stroke-width="0.5"/>'
        f'<text x="6" y="14">+{top:.0f} us</text><text x="6" y="{height - 6}">-{top:.0f} us</text>'
        f'<text x="{width - 6}" y="{height - 6}" text-anchor="end">{end:.0f} s; band: proved, line: true - stated'
        "</text>"
        "</svg>\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--short", action="store_true", help="10 minutes of 16 hosts instead of 30 of 32")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    seconds, hosts = (600, 16) if options.short else (1_800, options.hosts)
    facts, trace = measure(options.seed, seconds, hosts)
    if options.svg:
        draw(trace, options.svg)
    failed = [f"{name} {facts[name]} us over {budget}" for name, budget in BUDGETS.items() if facts[name] > budget]
    failed += [f"{facts['backwards']:.0f} stretches run backwards"] * (facts["backwards"] > 0)
    return report(
        "clock_fleet",
        facts["final_p99"],
        "us",
        BUDGETS["final_p99"],
        failed=failed,
        hosts=hosts,
        seconds=seconds,
        **facts,
    )


if __name__ == "__main__":
    raise SystemExit(main())
