"""What device windows cost a job of 2 000 hosts: measured with 2 to 8 processes, then simulated from what was measured.

Measured, by training_cost's processes (a barrier a step, everything on against off in interleaved pairs, then windows
at K = 64): the cost at each N, how far this machine resolves it, and of every rank and window by how much each step
from the opening on was longer than the rank's usual one, waiting for others left out; beside them, as many steps
without a window, which tell what the machine does by itself.

Simulated: 2 000 hosts that open at the same step, each with one of the measured courses at random; a step of the job
takes as long as its slowest host. Once drawing from what was measured alone, once with an exponential tail beyond its
90th percentile, because 2 000 hosts see what 100 windows did not show; the larger counts. K is the coordinator's own
choice by its rule at default settings, from the job's stalls as ranks report them (trimmed mean of 32). The figure is
the share of time windows add to the job, its upper 95 % end over batches of windows. Beside it the same windows opened
by each host at a time of its own. The last line is one JSON object.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import report
from training_cost import NEIGHBOURS, interval, measure, ratios

from fleetscope.agents.profiler.stalls import Stalls, Steps
from fleetscope.pipelines.coordinate.cadence import Rank, steps_between
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import ProfilerConfig

BUDGET = 0.01
HOSTS = 2_000
Array = np.ndarray[Any, Any]


def courses(ranks: list[dict[str, Any]]) -> tuple[Array, Array, float]:
    """(with a window, without), each (courses, steps) in ns beyond the usual step; and the usual step in ns."""
    with_window, without, usual_ns = [], [], []
    length = 0
    for rank in ranks:
        begin = np.array([entry[0] for entry in rank["windowed"]])
        for opened, _, closed in rank["windows"]:
            length = max(length, int(np.searchsorted(begin, closed) - np.searchsorted(begin, opened)) + 3)
    for rank in ranks:
        begin = np.array([entry[0] for entry in rank["windowed"]])
        took = np.array([entry[1] for entry in rank["windowed"]], float)
        opens = [int(np.searchsorted(begin, opened)) - 1 for opened, _, _ in rank["windows"]]
        near = np.zeros(len(took), bool)
        for at in opens:
            near[max(0, at) : at + length] = True
        for at in opens:
            around = np.flatnonzero(~near[max(0, at - 2 * NEIGHBOURS) : at + 2 * NEIGHBOURS]) + max(
                0, at - 2 * NEIGHBOURS
            )
            if at < 0 or at + length > len(took) or len(around) < length:
                continue
            usual = float(np.median(took[around]))
            usual_ns.append(usual)
            with_window.append(took[at : at + length] - usual)
            without.append(took[around[:length]] - usual)
    return np.array(with_window), np.array(without), statistics.median(usual_ns)


class Pool:
    """Draws courses of many hosts; with `tail`, values beyond the 90th percentile of a step come from an exponential
    of the same mean excess, so that they are not bounded by the largest that was measured."""

    def __init__(self, measured: Array, tail: bool, dice: np.random.Generator) -> None:
        self._measured, self._tail, self._dice = measured, tail, dice
        self._edge = np.quantile(measured, 0.9, axis=0)
        beyond = np.where(measured > self._edge, measured - self._edge, np.nan)
        counts = np.isfinite(beyond).sum(axis=0)
        self._excess = np.nansum(beyond, axis=0) / np.maximum(counts, 1)

    def draw(self, hosts: int) -> Array:
        """(hosts, steps)"""
        drawn = self._measured[self._dice.integers(0, len(self._measured), hosts)]
        if not self._tail:
            return drawn
        fresh = self._edge + self._dice.exponential(1.0, drawn.shape) * np.maximum(self._excess, 1.0)
        return np.where(drawn > self._edge, fresh, drawn)


def job_stalls(window: Pool, idle: Pool, windows: int, hosts: int) -> Array:
    """What each of so many windows adds to the job, ns: slowest hosts with it, less slowest hosts without."""
    return np.array([(window.draw(hosts).max(axis=0) - idle.draw(hosts).max(axis=0)).sum() for _ in range(windows)])


def reported(stalls: Array, step_ns: float) -> int:
    """The stall a rank of this job reports: each rank's steps are as long as the job's, a barrier makes them so."""
    kept = Stalls((1, 1))
    for number, stall in enumerate(stalls[:32]):
        begun = 1000 * (number + 1)
        kept.opened(Steps(begun, 0, begun, int(step_ns), 0, 10**6))
        kept.closed(Steps(begun, 0, begun + 20, int(step_ns), 0, 10**6))
        kept.look(Steps(begun, int(30 * step_ns + stall), begun + 30, int(step_ns), 0, 10**6))
    return kept.mean_ns


def chosen_k(stall_ns: int, step_ns: float) -> int:
    """The coordinator's K at default settings."""
    defaults = ProfilerConfig()
    said = wire.RankReport(period_ns=int(step_ns), stalls=32, stall_ns=stall_ns, windows=32)
    return steps_between(defaults.window_s, defaults.window_budget, [Rank(said, 0.0)])


def unsynchronised(window: Pool, idle: Pool, every: int, length: int, hosts: int, dice: np.random.Generator) -> float:
    """ns a step of the job is longer, with every host in a window by its own clock."""
    added = []
    for _ in range(200):
        inside = int(dice.binomial(hosts, min(1.0, length / every)))
        rest = float(idle.draw(hosts - inside)[:, 0].max())
        before = float(idle.draw(hosts)[:, 0].max())
        steps = window.draw(inside)[np.arange(inside), dice.integers(0, length, inside)] if inside else np.array([rest])
        added.append(max(rest, float(steps.max())) - before)
    return statistics.fmean(added)


def simulate(measured: tuple[Array, Array, float], args: argparse.Namespace) -> dict[str, Any]:
    with_window, without, step_ns = measured
    found: dict[str, Any] = {}
    for name, tail in (("as_measured", False), ("with_tail", True)):
        dice = np.random.default_rng(args.seed)
        window, idle = Pool(with_window, tail, dice), Pool(without, tail, dice)
        stalls = job_stalls(window, idle, args.windows, args.hosts)
        said = reported(stalls, step_ns)
        every = chosen_k(said, step_ns)
        shares = stalls.reshape(20, -1).mean(axis=1) / (every * step_ns)
        low, high = float(np.quantile(shares, 0.025)), float(np.quantile(shares, 0.975))
        apart = unsynchronised(window, idle, every, with_window.shape[1], args.hosts, dice) / step_ns
        found[name] = {
            "job_stall_ms": round(float(stalls.mean()) / 1e6, 2),
            "reported_stall_ms": round(said / 1e6, 2),
            "k": every,
            "period_s": round(every * step_ns / 1e9, 1),
            "cost": round(float(shares.mean()), 6),
            "interval": [round(low, 6), round(high, 6)],
            "cost_if_each_at_its_own_time": round(apart, 5),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="pairs of an on and an off block at N = 2")
    parser.add_argument("--steps", type=int, default=60, help="steps of a block at N = 2")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--hosts", type=int, default=HOSTS)
    parser.add_argument("--windows", type=int, default=400, help="simulated; a multiple of 20")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900.0)
    args = parser.parse_args()
    scaling: dict[str, Any] = {}
    measured = None
    for count in args.ranks:
        own = argparse.Namespace(**vars(args))
        own.ranks = count
        if count > 2:
            own.pairs, own.steps = max(8, args.pairs // 4), max(16, args.steps // 3)
        with tempfile.TemporaryDirectory() as folder:
            ranks = measure(own, Path(folder))
        if len(ranks) != count:
            return report("scale_cost", 0, "ratio", BUDGET, failed=[f"a rank of {count} died"])
        wall = ratios(ranks, own.pairs, 1)
        low, high = interval(wall)
        step_ns = statistics.median(entry[1] for rank in ranks for block in rank["off"] for entry in block)
        scaling[str(count)] = {
            "step_ms": round(step_ns / 1e6, 2),
            "cost": round(statistics.median(wall), 4),
            "interval": [round(low, 4), round(high, 4)],
            "resolves": round((high - low) / 2, 4),
            "windows": sum(len(rank["windows"]) for rank in ranks),
        }
        print(f"N = {count}: {scaling[str(count)]}", flush=True)
        if measured is None:
            measured = courses(ranks)
    assert measured is not None
    if len(measured[0]) < 20:
        return report(
            "scale_cost", 0, "ratio", BUDGET, failed=[f"{len(measured[0])} windows measured"], scaling=scaling
        )
    found = simulate(measured, args)
    upper = max(entry["interval"][1] for entry in found.values())
    unresolved = [n for n, entry in scaling.items() if entry["resolves"] > BUDGET]
    if unresolved:
        print(
            f"UNRESOLVED at N = {', '.join(unresolved)}: this machine tells wall times apart no better than the budget."
        )
    own_stall = measured[0].sum(axis=1) - measured[1].sum(axis=1)
    return report(
        "scale_cost", upper, "share of time at 2 000 hosts", BUDGET, hosts=args.hosts, courses=len(measured[0]),
        steps_a_course=int(measured[0].shape[1]), host_stall_ms_p50=round(float(np.median(own_stall)) / 1e6, 2),
        host_stall_ms_p95=round(float(np.quantile(own_stall, 0.95)) / 1e6, 2), simulated=found, scaling=scaling,
        unresolved=unresolved,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
