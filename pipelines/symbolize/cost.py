"""The HLO cost pass: op table of a program (PROGRAM_OPS) -> OPS rows with FLOPs, model FLOPs, bytes and dtype.

A fusion costs what its instructions cost; a loop its body and condition times the trip count XLA knows; a call its
computation; a conditional lies between its branches, and is known where they agree (what a run really took is seen:
ops of the branch count by themselves). `flops` of a container is the whole of one occurrence: whoever adds rows up
counts a container only where nothing nested was seen inside it. `model_flops` leaves out recomputation (recompute.py).
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.symbolize.calls import callees_first, executions
from fleetscope.pipelines.symbolize.flops import instruction_cost
from fleetscope.pipelines.symbolize.recompute import REGION, Executed, copies, recomputed_shares, used_forward
from fleetscope.pipelines.symbolize.shapes import Array, arrays
from fleetscope.pipelines.symbolize.totals import Cost, Total, added, known, one_of, repeated, unknown
from fleetscope.pipelines.symbolize.traffic import SPACES, Piece, fused_touch, moved
from fleetscope.pipelines.symbolize.wire import wire_bytes
from fleetscope.schema.errors import ProgramInvalid
from fleetscope.schema.tables import OPS, PROGRAM_OPS

_READ = (
    "op", "name", "opcode", "computation", "entry", "shape", "operands", "called", "trip_count", "dims", "op_name",
    "declared_flops", "declared_model_flops", "declared_bytes", "declared_bytes_hbm",
)  # fmt: skip
_CALLS = ("fusion", "call", "async-start")
_RUNS = (*_CALLS, "while", "conditional")
"""Opcodes that run the computations they call; the others apply them to elements."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """One execution of a program on one device: its entry computation. None: not one number."""

    flops: int | None
    model_flops: int | None
    flops_min: int
    flops_max: int | None
    transcendentals: int
    wire_bytes: int | None
    unknown: tuple[str, ...]


_NOT_UNDERSTOOD = ProgramCost(None, None, 0, None, 0, None, ("no entry computation",))


class _Pass:
    """Costs of one program; each computation is costed once a round."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._index = {row["op"]: number for number, row in enumerate(rows)}
        self._arrays = [arrays(row["shape"]) for row in rows]
        self._members: dict[int, list[int]] = {}
        for number, row in enumerate(rows):
            if row["computation"] >= 0:
                self._members.setdefault(row["computation"], []).append(number)
        calls = {
            computation: [callee for number in numbers for callee in rows[number]["called"]]
            for computation, numbers in self._members.items()
        }
        self._order, self._cyclic = callees_first(calls)
        self._leaves: dict[int, Cost] = {}
        self._again: dict[int, tuple[int, int]] = {}
        self._copied: set[int] = set()
        self.totals: list[Total] = [Total()] * len(rows)
        self.computations: dict[int, Total] = {}
        self._round()
        if self._find_recomputation():
            self._round()

    def _round(self) -> None:
        self.computations = {}
        for computation in self._order:
            for number in self._members[computation]:
                self.totals[number] = self._op(number)
            members = (self.totals[number] for number in self._members[computation])
            self.computations[computation] = added(members, "fusion")

    def _called(self, row: Row) -> list[Total]:
        """Totals of what it calls. A computation that is not there, or reaches itself, is unknown."""
        return [
            self.computations.get(callee) or unknown("a call that cannot be followed")
            if callee not in self._cyclic
            else unknown("a computation that calls itself")
            for callee in row["called"]
        ]

    def _op(self, number: int) -> Total:
        row = self.rows[number]
        opcode = row["opcode"]
        if opcode in _RUNS and row["called"]:
            total = self._container(row, self._called(row))
            if number in self._copied:
                return replace(total, model_low=0, model_high=None if total.high is None else 0)
            return total
        cost = self._leaves.get(number) or self._leaf(number)
        if cost.flops is None:
            return unknown(_label(row), cost.dtype)
        model = cost.flops if cost.model is None else cost.model
        if number in self._copied:
            model = 0
        elif number in self._again:
            again, times = self._again[number]
            model -= model * again // times
        operands = [self._of(operand) for operand in row["operands"]]
        wire = wire_bytes(opcode, operands, _detail(row)) if cost.source in ("move", "reduction") else 0
        return known(cost.flops, model, cost.source, cost.dtype, cost.transcendentals, wire)

    def _container(self, row: Row, called: list[Total]) -> Total:
        opcode = row["opcode"]
        if opcode == "while":
            trips = row["trip_count"]
            return repeated(added(called, "loop"), trips if trips is None or trips >= 0 else None)
        if opcode == "conditional":
            return one_of(called)
        return added(called[:1], "fusion" if opcode == "fusion" else "call")

    def _leaf(self, number: int) -> Cost:
        row = self.rows[number]
        cost = instruction_cost(
            row["opcode"],
            self._arrays[number],
            [self._of(operand) for operand in row["operands"]],
            row["dims"],
            lambda: [total.flops for total in self._called(row)],
        )
        declared = row["declared_flops"]
        if cost.flops is None and declared is not None and declared >= 0:
            model = row["declared_model_flops"]
            cost = Cost(declared, "declared", cost.dtype, declared if model is None else min(max(model, 0), declared))
        self._leaves[number] = cost
        return cost

    def _of(self, op: int) -> tuple[Array, ...]:
        number = self._index.get(op)
        return self._arrays[number] if number is not None else ()

    def _find_recomputation(self) -> bool:
        self._copied = {
            self._index[op] for op in copies({row["op"]: row["name"] for row in self.rows if row["computation"] >= 0})
        }
        if any(REGION in row["op_name"] for row in self.rows):
            sites = {
                computation: [site for number in numbers for site in _sites(self.rows[number])]
                for computation, numbers in self._members.items()
            }
            entries = {row["computation"] for row in self.rows if row["entry"]}
            times = executions(self._order, sites, entries)
            executed = [
                Executed(number, row["opcode"], row["op_name"], cost.flops, times[row["computation"]])
                for number, cost in self._leaves.items()
                if cost.flops and times.get((row := self.rows[number])["computation"])
            ]
            forward = used_forward(
                [row["opcode"] for row in self.rows], [row["op_name"] for row in self.rows], self._sources()
            )
            self._again = recomputed_shares(executed, forward)
        return bool(self._copied or self._again)

    def _sources(self) -> dict[int, list[int]]:
        """Row -> rows whose values it takes; a fused parameter takes the operand, a fusion what its root makes."""
        found: dict[int, list[int]] = {}
        for number, row in enumerate(self.rows):
            taken = [source for operand in row["operands"] if (source := self._index.get(operand)) is not None]
            inside = self._members.get(row["called"][0], []) if row["opcode"] in _CALLS and row["called"] else []
            if not inside:
                found.setdefault(number, []).extend(taken)
                continue
            # The root is the last of its computation; of several results each is taken for all.
            found.setdefault(number, []).append(inside[-1])
            for member in inside:
                if self.rows[member]["opcode"] == "parameter":
                    position = _detail(self.rows[member]).get("parameter", 0)
                    if (
                        position < len(row["operands"])
                        and (source := self._index.get(row["operands"][position])) is not None
                    ):
                        found.setdefault(member, []).append(source)
        return found

    def piece(self, op: int) -> Piece | None:
        number = self._index.get(op)
        if number is None:
            return None
        return Piece(self._arrays[number], _detail(self.rows[number], '"spaces"').get("spaces", ()))

    def bytes_moved(self, row: Row) -> dict[int, int] | None:
        if row["opcode"] == "custom-call":
            return self._library_bytes(row)
        touched = None
        if row["opcode"] == "fusion" and row["called"]:
            members = [self.rows[number] for number in self._members.get(row["called"][0], ())]
            parameters = {
                member["op"]: _detail(member).get("parameter", 0)
                for member in members
                if member["opcode"] == "parameter"
            }
            touched = fused_touch(members, parameters, lambda op: sum(part.size_bytes for part in self._of(op)))
        return moved(row, self.piece, touched)

    def _library_bytes(self, row: Row) -> dict[int, int] | None:
        detail = _detail(row)
        declared = detail.get("cost", {}).get("bytes_accessed")
        if declared is not None:
            return {0: int(declared)}
        if not str(detail.get("target", "")).startswith(("__cu", "__onednn")):
            return None
        total: dict[int, int] = {}
        # What follows the first result is scratch memory.
        pieces = [self.piece(operand) for operand in row["operands"]]
        made = self.piece(row["op"])
        for piece in (*pieces, made and Piece(made.arrays[:1], made.spaces[:1])):
            if piece is not None:
                piece.add_to(total)
        return total


def _sites(row: Row) -> list[tuple[int, int]]:
    if row["opcode"] not in _RUNS:
        return []
    trips = row["trip_count"] if row["opcode"] == "while" else None
    callees = row["called"][:1] if row["opcode"] in _CALLS else row["called"]
    return [(callee, trips if trips and trips > 0 else 1) for callee in callees]


def _label(row: Row) -> str:
    if row["opcode"] != "custom-call":
        return str(row["opcode"])
    return f"custom-call {str(_detail(row).get('target', ''))[:80]}".strip()


def _detail(row: Row, needs: str = "") -> dict[str, Any]:
    """`dims` as an object; {} where the text does not hold `needs`."""
    if not row["dims"] or needs not in row["dims"]:
        return {}
    detail: dict[str, Any] = json.loads(row["dims"])
    return detail


@contextmanager
def _understood(program: int) -> Iterator[None]:
    """Whatever the pass stumbles over, it is the table that is wrong: dimensions that are not there, numbers beyond
    all shapes."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ProgramInvalid(f"program {program:#x}: {type(error).__name__}: {error}") from error


def cost_program(program_ops: pa.Table, program: int = 0, seen_ns: int = 0) -> tuple[pa.Table, ProgramCost]:
    """(OPS rows in the order of `program_ops`, cost of one execution); `program_ops` has schema PROGRAM_OPS.

    Rows without structure (computation -1: from a capture's metadata alone) take what the capture declares.
    ProgramInvalid if its parts contradict each other. Takes ~15 us an op.
    """
    with _understood(program):
        table = program_ops.cast(PROGRAM_OPS)
        rows: list[Row] = table.select(_READ).to_pylist()
        costs = _Pass(rows)
        return _ops(table, costs, program, seen_ns), _whole(costs)


def _whole(costs: _Pass) -> ProgramCost:
    entries = {row["computation"] for row in costs.rows if row["entry"]}
    total = costs.computations.get(next(iter(entries))) if len(entries) == 1 else None
    if total is None:
        return _NOT_UNDERSTOOD
    return ProgramCost(
        total.flops, total.model_flops, total.low, total.high, total.transcendentals, total.wire,
        tuple(sorted(total.unknown)),
    )  # fmt: skip


def _ops(table: pa.Table, costs: _Pass, program: int, seen_ns: int) -> pa.Table:
    made: dict[str, list[Any]] = {name: [] for name in _MADE}
    for number, row in enumerate(costs.rows):
        structured = row["computation"] >= 0
        total = costs.totals[number] if structured else _declared(row)
        spaces = costs.bytes_moved(row) if structured else None
        accessed = row["declared_bytes"]
        if accessed is None and spaces is not None:
            accessed = sum(spaces.values())
        hbm = row["declared_bytes_hbm"]
        if hbm is None and spaces is not None:
            hbm = spaces.get(0, 0)
        for name, value in zip(
            _MADE,
            (
                total.flops, total.model_flops, total.low, total.high, total.source, _int64(accessed), _int64(hbm),
                total.dtype, total.transcendentals if total.source != "unknown" else None, total.wire,
                None if spaces is None else _named(spaces), ", ".join(sorted(total.unknown)),
            ),
            strict=True,
        ):  # fmt: skip
            made[name].append(value)
    columns: dict[str, Any] = {**made, "program": [program] * table.num_rows, "seen_ns": [seen_ns] * table.num_rows}
    return pa.table(
        {field.name: columns.get(field.name) or table.column(field.name) for field in OPS}
        if table.num_rows
        else {field.name: [] for field in OPS},
        schema=OPS,
    )


_MADE = (
    "flops", "model_flops", "flops_min", "flops_max", "flops_source", "bytes_accessed", "bytes_hbm", "dtype",
    "transcendentals", "wire_bytes", "bytes_by_space", "unknown",
)  # fmt: skip


def _named(spaces: dict[int, int]) -> Sequence[tuple[str, int]]:
    return [(SPACES.get(space, f"space {space}"), size) for space, size in sorted(spaces.items()) if size < 1 << 62]


def _int64(value: int | None) -> int | None:
    """None, not an overflow, for bytes no memory holds."""
    return value if value is None or 0 <= value < 1 << 62 else None


def _declared(row: Row) -> Total:
    flops = row["declared_flops"]
    parts = arrays(row["shape"])
    dtype = parts[0].dtype if parts else ""
    if flops is None:
        return unknown(row["opcode"], dtype)
    model = row["declared_model_flops"] if row["declared_model_flops"] is not None else flops
    # A capture may count more model FLOPs than executed ones (operations the compiler made cheaper).
    return Total(flops, flops, model, model, "declared", dtype) if min(flops, model) >= 0 else unknown(row["opcode"])
