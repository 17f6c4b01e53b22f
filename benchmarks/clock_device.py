"""A device's counter placed on its host's clock: error, bound, segments, live and final, beside what others do.

    .venv/bin/python benchmarks/clock_device.py [--runs 40] [--seconds 3600] [--every]

`--every`: the faults of issue 7 too (drifts, wander, bracket tails, rate steps, losses, fraction bits), 1/10 of the
runs each. 10^4 runs of ten minutes: `--runs 10000 --seconds 600` (an hour of CPU). `--svg FILE` draws error
and bound of the final map of one run. Truth is the simulator's.
"""

import argparse
import itertools
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from clock_fleet import draw
from clocklab.anchors import ANCHORS
from clocklab.brackets import Widths
from clocklab.counters import SHAPES
from clocklab.device import UPTIME_NS, DeviceRun
from clocklab.oscillator import SECOND, Int64s, Wander
from clocklab.windows import Window
from report import report

from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.enqueue import Slopes, place_window, shared
from fleetscope.pipelines.align.line import LongestLine
from fleetscope.pipelines.align.piece import Behaviour, Bracket, Outcome, Piece, widen
from fleetscope.schema.rational import apply

BATCH_S = 2
PROBES = 10
"""Moments a second at which rows are placed."""
LEARNING_S = 60
"""Live errors count from here: a clock is known by its nominal rate alone before."""


@dataclass(slots=True)
class Figures:
    """Of some runs. Errors in ns."""

    live: list[Int64s] = field(default_factory=list)
    final: list[Int64s] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    lines: list[float] = field(default_factory=list)
    live_lines: list[float] = field(default_factory=list)
    outside: int = 0
    backwards: int = 0
    unplaced: int = 0

    def of(self, name: str) -> Int64s:
        return np.concatenate(getattr(self, name)) if getattr(self, name) else np.zeros(1, np.int64)


def place(pieces: list[Piece], x: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(stated ns, error bound, which of `x`) by pieces that join; ticks that none holds are left out."""
    begins = np.array([piece.begin for piece in pieces], np.int64)
    which = np.searchsorted(begins, x, side="right") - 1
    held = (which >= 0) & (x < pieces[-1].end)
    which, x = which[held], x[held]
    x0, y0, n, d, err = (
        np.array([getattr(piece, name) for piece in pieces], np.int64)[which] for name in ("x0", "y0", "n", "d", "err")
    )
    return apply(x, x0, y0, n, d), err, np.flatnonzero(held)


def judge(run: DeviceRun, figures: Figures, live: bool = True) -> None:
    """Feed the reads of one run in order; what is placed is compared with the truth."""
    num, den = run.shape.period_num, run.shape.period_den
    period = -(-num // den)
    brackets = [
        Bracket(x, before - period, after)
        for x, before, after in zip(run.tick.tolist(), run.before.tolist(), run.after.tolist(), strict=True)
    ]
    true, x = run.probes(PROBES)
    told_at = run.told()
    line, longest = BracketLine(num, den, Behaviour()), LongestLine(num, den, Behaviour())
    final: list[Piece] = []
    stated, bound, told = np.zeros(len(x), np.int64), np.zeros(len(x), np.int64), set()
    fed, last = 0, 0
    step = BATCH_S * PROBES * max(1, run.every_ns // (BATCH_S * SECOND))
    for begin in range(0, len(x), step):
        end = min(begin + step, len(x))
        while fed < len(told_at) and (fed == 0 or told_at[fed - 1][0] < true[end - 1] - UPTIME_NS):
            bracket = brackets[told_at[fed][1]]
            if line.add(bracket) is Outcome.TAKEN:
                final += longest.add(bracket, line.slope())
                last = bracket.x
            fed += 1
        if live:
            pieces = line.reach(int(x[begin]), int(x[end - 1]) + 1)
            told |= {(piece.x0, piece.y0, piece.n, piece.d) for piece in pieces}
            begins = [piece.begin for piece in pieces]
            for i in range(begin, end):
                piece = pieces[max(bisect_right(begins, int(x[i])) - 1, 0)]
                stated[i], bound[i] = piece.floor_at(int(x[i])), piece.err
    # Told so far; what a reset would cut off is judged by its bound, but no live map ever ends there.
    told_to = final[-1].end if final else 0
    final += longest.cut()
    hours = run.seconds / 3600
    figures.lines.append(len(final) / hours)
    y, err, held = place(final, x)
    off = y - true[held]
    # A row began at most a period before the moment it is asked for, and times are whole ns.
    figures.outside += int((np.abs(off) > err + period + 1).sum())
    figures.backwards += int((np.diff(y) < 0).sum()) + sum(
        a.end != b.begin or a.floor_at(a.end - 1) > b.floor_at(b.begin) for a, b in itertools.pairwise(final)
    )
    # The last reads of a run may be told after it.
    figures.unplaced += int((x < last).sum()) - int((x[held] < last).sum())
    figures.final.append(np.abs(off[x[held] < told_to]))
    figures.bounds.append(int(np.median(err)))
    if live:
        off = stated - true
        figures.outside += int((np.abs(off) > bound + period + 1).sum())
        figures.backwards += int((np.diff(stated) < 0).sum())
        figures.live.append(np.abs(off[LEARNING_S * PROBES :]))
        figures.live_lines.append(len(told) / hours)


HARD: dict[str, dict[str, Any]] = {
    "drift 1 ppm": {"drift_ppm": 1.0},
    "drift -100 ppm": {"drift_ppm": -100.0},
    "walk 1e-7": {"wander": Wander(walk=1e-7, swing_ppm=0.2, period_s=(300.0, 3600.0))},
    "swing 1 ppm": {"wander": Wander(walk=1e-9, swing_ppm=1.0, period_s=(300.0, 3600.0))},
    "rate step 5 ppm": {"step_ppm": 5.0},
    "50 ns brackets": {"widths": Widths(40, 10, slow_ns=3_000)},
    "20 us brackets": {"widths": Widths(12_000, 8_000)},
    "lognormal tail": {"widths": Widths(tail="lognormal")},
    "Pareto tail": {"widths": Widths(tail="pareto")},
    "0.1 Hz": {"every_ns": 10 * SECOND},
    "loss 30 %": {"loss": 0.3},
    "late by up to an hour": {"late": 0.1},
    "changed places, told twice": {"late": 0.3, "late_ns": 3 * SECOND, "twice": 0.2},
    **{
        f"{shape.modulus.bit_length() - 1} bits, {shape.fraction_bits} of fraction": {"shape": shape}
        for shape in SHAPES
    },
}


WINDOWS: dict[str, dict[str, Any]] = {
    "20 pairs": {},
    "3 in flight": {"run_ahead": 3, "busy": 0.95},
    "1 of 10 pairs wrong": {"wrong": 0.1},
    "5 ms steps": {"step_ns": 5_000_000},
    "-100 ppm": {"ppm": -100.0},
    "400 pairs": {"pairs": 400},
}


def windows(count: int, **given: Any) -> dict[str, float]:
    """Windows of a device nobody reads, each placed by its pairs and by the rate of the eight before it."""
    nominal, known = widen((5, 4), Behaviour().drift_ppb), list[Slopes]()
    errors, halves, inside, unplaced = [0.0], [0.0], 0, 0
    for seed in range(count):
        window = Window(seed, **given)
        length = window.ticks * 5 // 4
        rows = zip(window.begin.tolist(), window.enqueue.tolist(), (window.complete - length).tolist(), strict=True)
        begin, end = int(window.begin[0]), int((window.begin + window.ticks).max())
        placed = place_window(
            [Bracket(*row) for row in rows], nominal, begin, end, shared(known[-8:], nominal) if known else None
        )
        if placed is None:
            unplaced += 1
            continue
        known.append(placed.slopes)
        x = np.linspace(begin, end - 1, 25).astype(np.int64)
        piece = placed.piece
        off = np.abs(apply(x, piece.x0, piece.y0, piece.n, piece.d) - window.true_ns(x))
        errors.append(float(off.max()) / 1e3)
        halves.append(piece.err / 1e3)
        inside += bool((off <= piece.err).all())
    return {
        "error_p50_us": round(float(np.percentile(errors, 50)), 1),
        "error_p99_us": round(float(np.percentile(errors, 99)), 1),
        "interval_p50_us": round(float(np.percentile(halves, 50)), 1),
        "inside": round(inside / max(count - unplaced, 1), 4),
        "unplaced": unplaced,
    }


def trace(run: DeviceRun) -> list[tuple[float, float, float, float]]:
    """(second, true - stated, what is proved of it: from, to) of the final map, in us, every six seconds."""
    num, den = run.shape.period_num, run.shape.period_den
    longest, pieces = LongestLine(num, den, Behaviour()), list[Piece]()
    for x, before, after in zip(run.tick.tolist(), run.before.tolist(), run.after.tolist(), strict=True):
        pieces += longest.add(Bracket(x, before + num // -den, after))
    true, x = run.probes(PROBES)
    y, err, held = place([*pieces, *longest.cut()], x)
    rows = zip(true[held] - UPTIME_NS, true[held] - y, err, strict=True)
    return [(at / 1e9, off / 1e3, -bound / 1e3, bound / 1e3) for at, off, bound in rows][:: 6 * PROBES]


def percentile(values: Int64s, share: float) -> float:
    return round(float(np.percentile(values, share)) / 1e3, 3)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    if options.svg:
        draw(trace(DeviceRun(1, 1_800)), options.svg)
    figures, others = Figures(), {name: [0.0] for name in ANCHORS}
    for seed in range(options.runs):
        run = DeviceRun(seed, options.seconds)
        judge(run, figures)
        true, x = run.probes(PROBES)
        for name, anchor in ANCHORS.items():
            off = anchor(run.shape, run.tick, run.before, run.after, x) - true
            others[name].append(float(np.abs(off).max()) / 1e3)
    live, final = figures.of("live"), figures.of("final")
    segments = float(np.mean(figures.lines))
    facts: dict[str, Any] = {
        "runs": options.runs,
        "final_us": {"p50": percentile(final, 50), "p99": percentile(final, 99), "max": percentile(final, 100)},
        "live_us": {"p50": percentile(live, 50), "p99": percentile(live, 99), "max": percentile(live, 100)},
        "segments_an_hour": round(segments, 1),
        "segments_worst_run": max(figures.lines),
        "live_lines_an_hour": round(float(np.mean(figures.live_lines)), 1),
        "bound_p50_us": round(float(np.median(figures.bounds)) / 1e3, 2),
        "others_max_us": {name: round(max(worst), 1) for name, worst in others.items()},
    }
    limits = {
        "final p99": (facts["final_us"]["p99"], 0.6),
        "final max": (facts["final_us"]["max"], 1.0),
        "segments an hour": (segments, 50),
        "live p99": (facts["live_us"]["p99"], 2.0),
    }
    failed = [f"{name} {value} over {limit}" for name, (value, limit) in limits.items() if value > limit]
    for name, given in WINDOWS.items():
        count = min(10 * options.runs, 2_000)
        found = facts[f"window, {name}"] = windows(count, **given)
        if found["inside"] < 0.95 or found["unplaced"] > 0.05 * count:
            failed.append(f"window, {name}: {found}")
    total = figures.outside, figures.backwards, figures.unplaced
    if options.every:
        for name, given in HARD.items():
            hard = Figures()
            for seed in range(max(options.runs // 10, 2)):
                judge(DeviceRun(seed, options.seconds, **given), hard)
            facts[name] = {
                "final_p99_us": percentile(hard.of("final"), 99),
                "live_p99_us": percentile(hard.of("live"), 99),
                "segments_an_hour": round(float(np.mean(hard.lines)), 1),
                "bound_p50_us": round(float(np.median(hard.bounds)) / 1e3, 2),
            }
            total = total[0] + hard.outside, total[1] + hard.backwards, total[2] + hard.unplaced
    for name, count in zip(("outside_bound", "backwards", "unplaced"), total, strict=True):
        facts[name] = count
        failed += [f"{count} rows: {name}"] * bool(count)
    return report("clock_device", facts["final_us"]["p99"], "us", 0.6, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
