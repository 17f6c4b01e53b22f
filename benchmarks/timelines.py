"""Timelines of one device with known truth: the five op mixes of reference/window-estimators.md, in ns.

Executions follow each other, their ops without gaps inside; what differs is how long ops are, how they vary, and what
lies between executions. A timeline is closed to a ring, so that windows may begin anywhere on it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.profiler.placement import length
from fleetscope.schema.vocabulary import Kind

Int64s = NDArray[np.int64]
US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Line:
    """Spans of one line, by start; beyond the timeline's end they begin again."""

    start: Int64s
    dur: Int64s
    program: Int64s
    op: NDArray[np.int32]
    exec: Int64s
    kind: NDArray[np.uint8]
    once: int
    """So many rows are the timeline; the others repeat its begin."""


@dataclass(frozen=True)
class Timeline:
    modules: Line
    ops: Line
    length_ns: int
    window_ns: int
    executions: tuple[tuple[int, int, int], ...]
    """(program, executions, their time) of all of it: what a shim would count."""

    def totals(self) -> dict[int, int]:
        """Op -> its time."""
        ops = self.ops
        sums = np.bincount(ops.op[: ops.once], weights=ops.dur[: ops.once])
        return {int(op): int(sums[op]) for op in np.flatnonzero(sums)}

    def programs(self) -> dict[int, int]:
        """Program -> time of its ops."""
        ops = self.ops
        sums = np.bincount(ops.program[: ops.once], weights=ops.dur[: ops.once])
        return {int(program): int(sums[program]) for program in np.flatnonzero(sums)}


@dataclass(frozen=True)
class Made:
    """`programs`: median ns of each op; `order`: program of each execution; `gap`: ns after each."""

    programs: list[NDArray[np.float64]]
    order: Int64s
    gap: NDArray[np.float64]


def _tiny(rng: np.random.Generator) -> Made:
    count = 60_000
    return Made([np.linspace(5 * US, 10 * US, 6)], np.zeros(count, np.int64), rng.exponential(2 * MS, count))


def _long(rng: np.random.Generator) -> Made:
    count = 4_000
    return Made([np.array([0.2, 200, 5, 200, 1, 0.5]) * MS], np.zeros(count, np.int64), rng.exponential(30 * MS, count))


def _bursty(rng: np.random.Generator) -> Made:
    """Bursts of 12 executions on average, pauses of a Pareto law without a variance."""
    count = 60_000
    pause = rng.random(count) < 1 / 12
    gap = np.where(pause, 15 * MS * (rng.pareto(1.8, count) + 1), rng.exponential(0.2 * MS, count))
    return Made([np.array([0.1, 2, 0.5, 0.05, 0.3]) * MS], np.zeros(count, np.int64), gap)


def _two(rng: np.random.Generator) -> Made:
    """Training, and an evaluation of another program in 1 of 3 executions."""
    count = 30_000
    order = (rng.random(count) < 1 / 3).astype(np.int64)
    train, evaluation = np.array([4, 9, 0.5, 3, 7, 2, 1, 0.2]) * MS, np.array([30, 2, 11, 5, 20]) * MS
    return Made([train, evaluation], order, rng.exponential(6 * MS, count))


def _giant(rng: np.random.Generator) -> Made:
    """60 ops of a log-normal law and one of 250 ms."""
    count = 6_000
    tail = rng.lognormal(np.log(20 * US), 2.0, 60)
    return Made(
        [np.concatenate((tail[:30], [250 * MS], tail[30:]))], np.zeros(count, np.int64), rng.exponential(5 * MS, count)
    )


MIXES = {"tiny": _tiny, "long": _long, "bursty": _bursty, "two": _two, "giant": _giant}
SPREAD = 0.04
"""Standard deviation of an op's duration from one execution to the next."""


def timeline(mix: str, seed: int) -> Timeline:
    rng = np.random.default_rng([seed, list(MIXES).index(mix)])
    made = MIXES[mix](rng)
    sizes = np.array([len(ops) for ops in made.programs])
    number = np.concatenate([[0], np.cumsum(sizes)])
    per = sizes[made.order]
    owner = np.repeat(np.arange(len(made.order)), per)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(per) - per, per)
    op = number[made.order[owner]] + within
    median = np.concatenate(made.programs)[op]
    dur = np.maximum(median * (1 + SPREAD * rng.standard_normal(len(op))), 100).astype(np.int64)
    lasted = np.bincount(owner, weights=dur).astype(np.int64)
    gap = made.gap.astype(np.int64)
    begin = np.cumsum(lasted + gap) - lasted
    start = begin[owner] + np.cumsum(dur) - dur - np.repeat(np.cumsum(lasted) - lasted, per)
    whole = int(lasted.sum() + gap.sum())
    window = length(int(lasted.max()), 1.0, 1 << 40).ns
    program = made.order + 1
    modules = (begin, lasted, program, np.zeros(len(begin)), np.arange(len(begin)), np.full(len(begin), Kind.MODULE))
    ops = (start, dur, program[owner], op, owner, np.full(len(op), Kind.COMPUTE))
    counts = tuple(
        (int(one), int((program == one).sum()), int(lasted[program == one].sum())) for one in np.unique(program)
    )
    return Timeline(_ring(modules, whole, window), _ring(ops, whole, window), whole, window, counts)


def _ring(columns: tuple[Any, ...], whole: int, window: int) -> Line:
    start, dur, program, op, execution, kind = columns
    once = len(start)
    again = np.flatnonzero(start <= window)
    return Line(
        np.concatenate((start, start[again] + whole)),
        np.concatenate((dur, dur[again])),
        np.concatenate((program, program[again])).astype(np.int64),
        np.concatenate((op, op[again])).astype(np.int32),
        np.concatenate((execution, execution[again] + once)).astype(np.int64),
        np.concatenate((kind, kind[again])).astype(np.uint8),
        once,
    )
