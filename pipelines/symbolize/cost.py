"""The HLO cost pass: op table of a program (PROGRAM_OPS) -> OPS rows with FLOPs, model FLOPs, bytes and dtype.

A fusion costs what its instructions cost; a loop its body and condition times the trip count XLA knows; a call its
computation; a conditional its branches where they agree. `flops` of a container is the whole of one occurrence: whoever
adds rows up counts a container only where nothing nested was seen inside it. A loop without a trip count is unknown.
`model_flops` leaves out recomputation: instructions whose op_name says rematted_computation (jax.checkpoint) and those
XLA itself duplicated (.remat in the name).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.symbolize.flops import Cost, instruction_cost
from fleetscope.pipelines.symbolize.shapes import Array, arrays
from fleetscope.schema.errors import ProgramInvalid
from fleetscope.schema.tables import OPS, PROGRAM_OPS

_RECOMPUTED = ("rematted_computation",)


@dataclass(frozen=True, slots=True)
class _Total:
    flops: int | None
    model: int | None
    source: str
    dtype: str


_NOTHING = _Total(0, 0, "move", "")


def _add(parts: list[_Total], source: str) -> _Total:
    """Sum of parts; unknown if one is. The dtype is that of the costliest part."""
    flops = None if any(part.flops is None for part in parts) else sum(part.flops or 0 for part in parts)
    model = None if any(part.model is None for part in parts) else sum(part.model or 0 for part in parts)
    costliest = max(parts, key=lambda part: part.flops or 0, default=_NOTHING)
    return _Total(flops, model, source, costliest.dtype)


class _Pass:
    """Costs of one program; each computation is costed once."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = {row["op"]: row for row in rows}
        self._arrays: dict[int, tuple[Array, ...]] = {row["op"]: arrays(row["shape"]) for row in rows}
        self._members: dict[int, list[dict[str, Any]]] = {}
        for row in rows:
            self._members.setdefault(row["computation"], []).append(row)
        self._computations: dict[int, _Total] = {}
        self._costing: set[int] = set()

    def computation(self, ordinal: int) -> _Total:
        if ordinal not in self._computations:
            if ordinal in self._costing:  # a damaged table may call itself
                return _Total(None, None, "unknown", "")
            self._costing.add(ordinal)
            self._computations[ordinal] = _add([self.op(row) for row in self._members.get(ordinal, [])], "fusion")
            self._costing.discard(ordinal)
        return self._computations[ordinal]

    def op(self, row: dict[str, Any]) -> _Total:
        opcode, called = row["opcode"], row["called"] or []
        if opcode in ("fusion", "call", "async-start") and called:
            total = self.computation(called[0])
            source = "fusion" if opcode == "fusion" else "call"
            return _Total(total.flops, self._model(row, total.model), source, total.dtype)
        if opcode == "while":
            return self._loop(row, called)
        if opcode == "conditional":
            return self._conditional([self.computation(ordinal) for ordinal in called])
        cost = self._plain(row, called)
        return _Total(cost.flops, self._model(row, cost.flops), cost.source, cost.dtype)

    def _plain(self, row: dict[str, Any], called: list[int]) -> Cost:
        operands = [self._arrays.get(operand, ()) for operand in row["operands"] or []]
        cost = instruction_cost(
            row["opcode"],
            self._arrays[row["op"]],
            operands,
            row["dims"],
            lambda: self.computation(called[0]).flops if called else None,
        )
        if cost.flops is None and row["declared_flops"] is not None:
            return Cost(row["declared_flops"], "declared", cost.dtype)
        return cost

    def _loop(self, row: dict[str, Any], called: list[int]) -> _Total:
        total = _add([self.computation(ordinal) for ordinal in called], "loop")
        trips = row["trip_count"]
        if trips is None:
            # Without a trip count only a loop that computes nothing has a known cost.
            return total if total.flops == 0 else _Total(None, None, "unknown", total.dtype)
        flops = None if total.flops is None else total.flops * trips
        model = None if total.model is None else total.model * trips
        return _Total(flops, model, "loop", total.dtype)

    def _conditional(self, branches: list[_Total]) -> _Total:
        if branches and all(branch.flops == branches[0].flops for branch in branches):
            return _Total(branches[0].flops, branches[0].model, "conditional", branches[0].dtype)
        return _Total(None, None, "unknown", branches[0].dtype if branches else "")

    def _model(self, row: dict[str, Any], flops: int | None) -> int | None:
        if ".remat" in row["name"] or any(word in row["op_name"] for word in _RECOMPUTED):
            return 0
        return flops

    def bytes_accessed(self, row: dict[str, Any]) -> int | None:
        if row["declared_bytes"] is not None:
            return int(row["declared_bytes"])
        if row["opcode"] in ("while", "conditional", "call", "custom-call"):
            return None
        if row["opcode"] in ("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"):
            return 0
        read = sum(array.size_bytes for operand in row["operands"] or [] for array in self._arrays.get(operand, ()))
        return read + sum(array.size_bytes for array in self._arrays[row["op"]])


def ops_table(program_ops: pa.Table, program: int, seen_ns: int = 0) -> pa.Table:
    """OPS rows of one program, in the order of `program_ops` (schema PROGRAM_OPS, any chunking).

    Rows without structure (computation -1: from a capture's metadata alone) take what the capture declares.
    ProgramInvalid if its parts contradict each other.
    """
    with _understood(program):
        return _ops_table(program_ops, program, seen_ns)


@contextmanager
def _understood(program: int) -> Iterator[None]:
    """Whatever the pass stumbles over, it is the table that is wrong: calls nested a thousand deep, dimensions that are
    not there, numbers beyond all shapes."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ProgramInvalid(f"program {program:#x}: {type(error).__name__}: {error}") from error


def _int64(value: int | None) -> int | None:
    """None, not an overflow, for FLOPs no machine could do."""
    return value if value is None or 0 <= value < 1 << 63 else None


def _ops_table(program_ops: pa.Table, program: int, seen_ns: int) -> pa.Table:
    rows = program_ops.cast(PROGRAM_OPS).to_pylist()
    costs = _Pass(rows)
    columns: dict[str, list[Any]] = {name: [] for name in OPS.names}
    for row in rows:
        structured = row["computation"] >= 0
        total = costs.op(row) if structured else _declared(row)
        out = {
            **{name: row.get(name) for name in OPS.names},
            "program": program,
            "flops": _int64(total.flops),
            "model_flops": _int64(total.model),
            "flops_source": total.source,
            "bytes_accessed": _int64(costs.bytes_accessed(row) if structured else row["declared_bytes"]),
            "bytes_hbm": row["declared_bytes_hbm"],
            "dtype": total.dtype,
            "seen_ns": seen_ns,
        }
        for name, column in columns.items():
            column.append(out[name])
    return pa.table(columns, schema=OPS)


def _declared(row: dict[str, Any]) -> _Total:
    flops = row["declared_flops"]
    parts = arrays(row["shape"])
    model = row["declared_model_flops"] if row["declared_model_flops"] is not None else flops
    return _Total(flops, model, "unknown" if flops is None else "declared", parts[0].dtype if parts else "")


def program_flops(program_ops: pa.Table) -> tuple[int | None, int | None]:
    """(flops, model_flops) of one execution of the program: its entry computation. None: some op is unknown.

    Raises ProgramInvalid as `ops_table` does.
    """
    rows = program_ops.cast(PROGRAM_OPS).to_pylist()
    entries = {row["computation"] for row in rows if row["entry"]}
    if len(entries) != 1:
        return None, None
    with _understood(0):
        total = _Pass(rows).computation(entries.pop())
    return _int64(total.flops), _int64(total.model)
