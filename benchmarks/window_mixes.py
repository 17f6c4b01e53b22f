"""Do intervals of windows hold the truth on real timelines? Sessions of the example at ten op mixes, cut by our rules.

As window_truth.py: a session is recorded whole, which is the truth, and cut offline into 150 windows of DESIGN 5. Here
it is the stated 95 % intervals that are judged, of duty, of each program, and of the five largest ops shorter than W,
by windows alone and calibrated with the exact number of executions in the session (built-in CPU has no shim, but a
whole session knows). Ops are from a microsecond to a quarter of a second, by sizes and by how long steps wait.

A claim fails from 1.6 half widths on (99.8 %) where it also misses by more than 1 %, and of all claims of all mixes at
least 85 % must hold: windows of one session overlap, neighbours on the machine come and go. The last line is one JSON
object.

    python benchmarks/window_mixes.py [--mixes 0 5 9] [--seconds 40]
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from estimator_truth import rolled
from report import report
from window_truth import TOP_OPS, Session, cuts, record, union_ns, windows_block

from fleetscope.analysis import calibrate, estimate
from fleetscope.analysis.calibrate import Exact
from fleetscope.analysis.estimate import UNOBSERVABLE, Estimate
from fleetscope.schema.tables import PROGRAM_TOTAL

FAR, SMALL, HOLD = 1.6, 0.01, 0.85

MIXES = (
    (20, 1, 32, 1), (20, 1, 64, 1), (40, 1, 64, 8), (40, 4, 32, 2), (60, 2, 128, 2),
    (80, 2, 128, 4), (100, 6, 64, 4), (150, 1, 256, 4), (250, 2, 192, 8), (400, 1, 384, 8),
)  # fmt: skip
"""(shortest step in ms, layers, width, batch)."""

Truth = dict[tuple[int, int], int]


def truths(session: Session) -> tuple[float, Truth, dict[int, int], dict[int, int]]:
    """(duty, time by (program, op), longest span by op, executions by program) of the whole session, in numpy."""
    program, op = session.rows["program"].to_numpy(), session.rows["op"].to_numpy()
    times: Truth = Counter()
    longest: dict[tuple[int, int], int] = {}
    keys = list(zip(program.tolist(), op.tolist(), strict=True))
    for key, dur in zip(keys, session.dur.tolist(), strict=True):
        times[key] += dur
        longest[key] = max(longest.get(key, 0), dur)
    runs = set(zip(program.tolist(), session.rows["exec"].to_numpy().tolist(), strict=True))
    executions = Counter(number for number, _ in runs)
    return union_ns(session.start, session.dur) / session.length_ns, times, longest, executions  # type: ignore[return-value]


def judge(mix: tuple[int, ...], seconds: float, folder: Path) -> dict[str, Any]:
    period_ms, layers, width, batch = mix
    sizes = ["--layers", str(layers), "--width", str(width), "--batch", str(batch)]
    session = record(period_ms, seconds, folder, sizes)
    duty, times, longest, executions = truths(session)
    windows = cuts(session, f"window_mixes-{mix}")
    length = windows[0][1] - windows[0][0]
    ops, devices = rolled(windows_block(session, windows))
    rows = ops.drop_columns(["hist_index", "hist_count"]).to_pylist()
    (device,) = devices.to_pylist()
    totals = {row["program"]: row for row in rows if row["op"] == PROGRAM_TOTAL}
    # A ring has no edges: each execution counts once in it, as one that a shim saw.
    exact = {number: Exact(count, 1) for number, count in executions.items()}
    top = [key for key in sorted(times, key=lambda key: -times[key]) if longest[key] < 0.75 * length][:TOP_OPS]
    claims: list[tuple[str, float, Estimate]] = [("duty", duty, estimate.device_duty(device))]
    hidden = 0
    for row in rows:
        key, number = (row["program"], row["op"]), row["program"]
        hidden += row["op"] != PROGRAM_TOTAL and estimate.op_duty(row, device["windows"]).reason == UNOBSERVABLE
        if key in top:
            name, truth = f"op {key}", times[key] / session.length_ns
        elif row["op"] == PROGRAM_TOTAL:
            mine = session.rows["program"].to_numpy() == number
            name, truth = f"program {number}", union_ns(session.start[mine], session.dur[mine]) / session.length_ns
        else:
            continue
        if truth < 1e-4:
            continue  # a program of microseconds
        claims.append((name, truth, estimate.op_duty(row, device["windows"])))
        told, calibrated = calibrate.share(row, device["windows"], totals[number], exact[number], session.length_ns)
        if calibrated:
            claims.append((f"{name}, calibrated", truth, told))
    misses = {name: (abs(one.value - truth) / ((one.high - one.low) / 2), abs(one.value / truth - 1))
              for name, truth, one in claims if one.known}  # fmt: skip
    return {
        "mix": list(mix),
        "windows": len(windows),
        "window_ms": round(length / 1e6, 1),
        "duty": round(duty, 4),
        "longest_op_ms": round(max(longest.values()) / 1e6, 3),
        "claims": len(misses),
        "held": sum(half <= 1 for half, _ in misses.values()),
        "far": {
            name: [round(part, 3) for part in miss]
            for name, miss in misses.items()
            if miss[0] > FAR and miss[1] > SMALL
        },
        "without_interval": sum(not one.known for _, _, one in claims),
        "unobservable_ops": hidden,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mixes", type=int, nargs="+", default=list(range(len(MIXES))))
    parser.add_argument("--seconds", type=float, default=0, help="of each session; 0: enough for 150 windows")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for number in args.mixes:
            mix = MIXES[number]
            results.append(judge(mix, args.seconds or max(25.0, 150 * 1.3 * mix[0] / 1e3), Path(folder)))
            print(results[-1], flush=True)
    claims, held = (sum(result[name] for result in results) for name in ("claims", "held"))
    failed = [f"mix {result['mix']}: {name}: {miss}" for result in results for name, miss in result["far"].items()]
    if held < HOLD * claims:
        failed.append(f"{held} of {claims} intervals hold the truth")
    failed += [f"mix {result['mix']}: {result['windows']} windows" for result in results if result["windows"] < 150]
    return report("window_mixes", held / claims, "share of intervals", HOLD, failed=failed, results=results)


if __name__ == "__main__":
    sys.exit(main())
