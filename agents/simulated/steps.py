"""One step of the whole fleet at once: where every op of every chip begins and ends, in true ns."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.simulated.program import StepProgram
from fleetscope.schema.vocabulary import Kind

NOISE = 0.02
GAP_NS = 300
BARRIER_NS = 5_000
"""Time the closing all-reduce needs after the last chip arrived."""


@dataclass(frozen=True, slots=True)
class FleetStep:
    """Arrays of shape (chips, rows): begin and end in true ns. `op`, `line` and `kind` are the same for every chip.

    The last row is the program's execution as a whole, on the line behind the ops' lines.
    """

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    op: NDArray[np.int64]
    line: NDArray[np.int32]
    kind: NDArray[np.uint8]
    barrier: int
    """Row of the closing all-reduce: no chip leaves it before all have entered."""

    @property
    def last(self) -> int:
        return int(self.end.max())


def fleet_step(
    program: StepProgram, rng: np.random.Generator, start: NDArray[np.int64], slowdown: NDArray[np.float64]
) -> FleetStep:
    """A step that chip c begins at start[c] (true ns), its ops `slowdown[c]` times as long as nominal.

    Chips that are done wait inside the all-reduce until the slowest arrives: that is how a straggler shows.
    """
    begins, ends, arrival = [], [], start.copy()
    first_line_end = start.copy()
    for number, line in enumerate(program.lines):
        shape = (len(start), len(line.token_op))
        nominal = program.median_ns[line.token_op] * slowdown[:, None]
        noise = np.maximum(nominal * (1 + NOISE * rng.standard_normal(shape)), 1).astype(np.int64)
        noise[:, ~line.leaf] = 0
        at = start[:, None] + np.cumsum(rng.integers(0, GAP_NS + 1, shape) + noise, axis=1)
        begins.append(at[:, line.opened] - noise[:, line.opened])
        ends.append(at[:, line.closed])
        arrival = np.maximum(arrival, at[:, -1])
        if number == 0:
            first_line_end = at[:, -1]
    skew = np.minimum(rng.exponential(1_000, len(start)), 20_000).astype(np.int64)
    done = int(arrival.max()) + BARRIER_NS + skew
    begins[0] = np.concatenate([begins[0], first_line_end[:, None]], axis=1)
    ends[0] = np.concatenate([ends[0], done[:, None]], axis=1)
    ops = [line.op for line in program.lines]
    ops[0] = np.append(ops[0], program.barrier)
    barrier = len(ops[0]) - 1
    lines = np.concatenate([np.full(len(op), number, np.int32) for number, op in enumerate(ops)])
    begin, end, op = np.concatenate(begins, axis=1), np.concatenate(ends, axis=1), np.concatenate(ops)
    return FleetStep(
        begin=np.concatenate([begin, begin.min(axis=1, keepdims=True)], axis=1),
        end=np.concatenate([end, end.max(axis=1, keepdims=True)], axis=1),
        op=np.append(op, 0),
        line=np.append(lines, np.int32(len(program.lines))),
        kind=np.append(program.kind[op], np.uint8(Kind.MODULE)),
        barrier=barrier,
    )
