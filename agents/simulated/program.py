"""The step program every simulated chip runs: the pinned generator of DESIGN 10, with op table and known FLOPs.

Three lines; 90 % compute, 7 % collectives, 3 % copies; 8 % of line 0's ops are containers of 3 to 19 following ops,
depth <= 3; op medians log-normal (20 us, sigma 1.2). The last op is the all-reduce on line 0 where all chips of a run
end a step.
"""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.programs.optable import Program
from fleetscope.schema.identity import key_hash
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import Kind

LINES = 3
MEDIAN_NS, SIGMA = 20_000.0, 1.2
PEAK_SHARE, PEAK_FLOPS = 0.4 / LINES, 918e12
"""All lines full of dots would run at 40 % of a TPU v6e's peak: FLOPs follow from the median durations."""
_K = 1024
_NAMES = {Kind.COMPUTE: "dot", Kind.COLLECTIVE: "all-gather", Kind.COPY: "copy", Kind.CONTAINER: "while"}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a step, as positions in a sequence of opens, leaves and closes in depth-first order.

    `op[i]` opened at `opened[i]`; a container closes at `closed[i]`, a leaf where it opened. `leaf` marks positions
    that take time: gap + duration of `token_op`.
    """

    token_op: NDArray[np.int64]
    leaf: NDArray[np.bool_]
    op: NDArray[np.int64]
    opened: NDArray[np.int64]
    closed: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepProgram:
    """Structure, medians (ns) and kinds by op; `barrier` is the op of the closing all-reduce."""

    lines: tuple[Line, ...]
    median_ns: NDArray[np.float64]
    kind: NDArray[np.uint8]
    barrier: int
    table: Program
    flops: int
    """Of one step on one chip."""


def _line(rng: np.random.Generator, first: int, count: int, container_share: float) -> tuple[Line, set[int]]:
    tokens: list[tuple[int, int]] = []  # (op, 0 open or leaf, 1 close)
    until: list[tuple[int, int]] = []
    containers: set[int] = set()
    for index in range(count):
        while until and until[-1][0] < index:
            tokens.append((until.pop()[1], 1))
        tokens.append((first + index, 0))
        if len(until) < 3 and rng.random() < container_share:
            last = min(index + int(rng.integers(3, 20)), count - 1, until[-1][0] if until else count)
            if last > index:
                until.append((last, first + index))
                containers.add(first + index)
    while until:
        tokens.append((until.pop()[1], 1))
    op = np.array([token[0] for token in tokens], np.int64)
    closes = np.array([token[1] == 1 for token in tokens])
    opened = np.flatnonzero(~closes)
    closing = {int(op[position]): int(position) for position in np.flatnonzero(closes)}
    closed = np.array([closing.get(int(op[position]), int(position)) for position in opened], np.int64)
    leaf = ~closes & ~np.isin(op, np.array(sorted(containers), np.int64))
    return Line(op, leaf, op[opened], opened, closed), containers


def make_program(seed: int, ops: int, line_ns: float = 0.0) -> StepProgram:
    """The program of `seed` with `ops` ops a step (at least 10).

    With `line_ns` its durations are scaled so that the longest line takes about that long.
    """
    rng = np.random.default_rng([seed, 7])
    shares = np.full(LINES, (ops - 1) // LINES)
    shares[0] += ops - 1 - shares.sum()
    lines, containers, first = [], set(), 0
    for number, count in enumerate(shares.tolist()):
        line, found = _line(rng, first, count, 0.08 if number == 0 else 0.0)
        lines.append(line)
        containers |= found
        first += count
    median = MEDIAN_NS * np.exp(SIGMA * rng.standard_normal(ops))
    if line_ns:
        median *= line_ns / max(float(median[line.token_op[line.leaf]].sum()) for line in lines)
    draw = rng.random(ops)
    kind = np.where(draw < 0.90, Kind.COMPUTE, np.where(draw < 0.97, Kind.COLLECTIVE, Kind.COPY)).astype(np.uint8)
    kind[sorted(containers)] = Kind.CONTAINER
    kind[ops - 1] = Kind.COLLECTIVE
    table, flops = _op_table(seed, median, kind)
    return StepProgram(tuple(lines), median, kind, ops - 1, table, flops)


def _op_table(seed: int, median: NDArray[np.float64], kind: NDArray[np.uint8]) -> tuple[Program, int]:
    """PROGRAM_OPS rows: the ops, then a parameter for each dot's left operand and one for the common right one."""
    ops = len(kind)
    rows: list[dict[str, object]] = []
    parameters: list[dict[str, object]] = []
    right = ops
    flops = 0
    dims = json.dumps({"dot": {"lhs_contracting": [1], "rhs_contracting": [0], "lhs_batch": [], "rhs_batch": []}})
    for op in range(ops):
        what = Kind(int(kind[op]))
        opcode = "all-reduce" if op == ops - 1 else _NAMES[what]
        row = _row(op, f"{opcode}.{op}", opcode, what)
        if what is Kind.COMPUTE:
            m = max(1, round(PEAK_SHARE * PEAK_FLOPS * median[op] * 1e-9 / (2 * _K * _K)))
            left = right + 1 + len(parameters)
            parameters.append(_row(left, f"p.{op}", "parameter", Kind.COMPUTE) | {"shape": f"bf16[{m},{_K}]"})
            row |= {"shape": f"bf16[{m},{_K}]", "operands": [left, right], "dims": dims, "category": "convolution"}
            flops += 2 * m * _K * _K
        rows.append(row)
    rows.append(_row(right, "weights", "parameter", Kind.COMPUTE) | {"shape": f"bf16[{_K},{_K}]"})
    # What all-reduces apply: x + y, a computation of its own.
    first = right + 1 + len(parameters)
    applied = [_row(first + i, name, "parameter", Kind.COMPUTE) for i, name in enumerate(("x", "y"))]
    applied.append(_row(first + 2, "add", "add", Kind.COMPUTE) | {"operands": [first, first + 1]})
    for row in applied:
        row |= {"computation": 1, "entry": False, "shape": "bf16[]"}
    # What a container holds stands beside it, so its own body is empty, and runs once: its cost is known, and none.
    applied.append(_row(first + 3, "state", "parameter", Kind.COMPUTE) | {"computation": 2, "entry": False})
    for row in rows:
        if row["opcode"] == "while":
            row |= {"called": [2], "trip_count": 1}
    rows[ops - 1] |= {"called": [1], "operands": [right]}
    flops += 128
    table = pa.Table.from_pylist(rows + parameters + applied, schema=PROGRAM_OPS)
    return Program(key_hash("simulated program", seed, ops), "jit_train_step", 1, table, "hlo"), flops


def _row(op: int, name: str, opcode: str, kind: Kind) -> dict[str, object]:
    return {
        "op": op, "name": name, "opcode": opcode, "category": opcode, "kind": int(kind), "computation": 0,
        "entry": True,
        "shape": "bf16[128]", "operands": [], "called": [], "dims": "", "op_name": f"jit(train_step)/{opcode}",
        "source_file": "train.py", "source_line": 100 + op,
    }  # fmt: skip
