"""(program id of the process, op name) -> (program, op, kind), the identity that spans carry.

Events name an op by the module's id in their process and the instruction's name. The op table of the module,
harvested or found in the capture, gives fingerprint and ordinal. Until it is known the pair gets a provisional
program with ordinals of its own, whose table is published like any other, so that such spans have names at once;
`program_loads` says later which fingerprint it was.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches import clean_text
from fleetscope.agents.programs.optable import Program
from fleetscope.agents.xspace.kinds import kind_of_op_name, opcode_of
from fleetscope.agents.xspace.views import Ints, Texts
from fleetscope.schema.identity import key_hash
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import Kind


@dataclass(frozen=True, slots=True)
class Resolved:
    """One entry a row; `program` 0 where there was no op name."""

    program: Ints
    op: Ints
    kind: NDArray[np.uint8]
    provisional: NDArray[np.bool_]


@dataclass(slots=True)
class _Provisional:
    program: int
    module: str
    ops: dict[str, int] = field(default_factory=dict)
    published: int = 0


class OpTables:
    """Programs of one process, and the provisional ones of what is not known yet. Not thread-safe.

    `scope` tells processes apart (program ids count up in each): provisional programs of two scopes never meet.
    """

    def __init__(self, scope: str, programs: Iterable[Program] = (), told: Callable[[str], str] = str) -> None:
        """`told`: what may be told of the name of a kernel that belongs to no program."""
        self._scope = scope
        self.told = told
        self._programs: dict[int, Program] = {}
        self._names: dict[int, dict[str, tuple[int, int]]] = {}
        self._provisional: dict[int, _Provisional] = {}
        for program in programs:
            self.add(program)

    def add(self, program: Program) -> None:
        """Spans that come later use it."""
        self._programs[program.module_id] = program
        columns = (program.ops.column(name).to_pylist() for name in ("name", "op", "kind"))
        self._names[program.module_id] = {name: (op, kind) for name, op, kind in zip(*columns, strict=True)}

    def programs(self) -> list[Program]:
        return list(self._programs.values())

    def program_of(self, program_id: int, module: str = "") -> tuple[int, bool]:
        """(program, provisional) of a module as a whole."""
        known = self._programs.get(program_id)
        return (known.program, False) if known else (self._provisional_of(program_id, module).program, True)

    def resolve(self, program_ids: Ints, names: Texts, modules: Texts | None = None) -> Resolved:
        """Identity of each row. `modules` names programs that are not known yet."""
        rows = len(program_ids)
        out = Resolved(
            np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros(rows, np.uint8), np.zeros(rows, np.bool_)
        )
        named = np.flatnonzero(names.codes >= 0)
        if not len(named):
            return out
        ids, id_index = np.unique(program_ids[named], return_inverse=True)
        pairs, first, inverse = np.unique(
            (id_index.astype(np.int64) << 32) | names.codes[named], return_index=True, return_inverse=True
        )
        texts = names.at(pairs & 0xFFFFFFFF)
        of_module = [""] * len(pairs)
        if modules is not None and np.any(modules.codes >= 0):
            codes = modules.codes[named][first]
            for i, text in zip(np.flatnonzero(codes >= 0), modules.at(codes[codes >= 0]), strict=True):
                of_module[i] = text
        found = [
            self._find(int(ids[pair >> 32]), text, module)
            for pair, text, module in zip(pairs.tolist(), texts, of_module, strict=True)
        ]
        program, op, kind, provisional = zip(*found, strict=True)
        out.program[named] = np.array(program, np.int64)[inverse]
        out.op[named] = np.array(op, np.int64)[inverse]
        out.kind[named] = np.array(kind, np.uint8)[inverse]
        out.provisional[named] = np.array(provisional)[inverse]
        return out

    def _find(self, program_id: int, name: str, module: str) -> tuple[int, int, int, bool]:
        known = self._names.get(program_id, {}).get(name)
        if known is not None:
            return self._programs[program_id].program, known[0], known[1], False
        provisional = self._provisional_of(program_id, module)
        op = provisional.ops.setdefault(name, len(provisional.ops))
        return provisional.program, op, int(kind_of_op_name(name)), True

    def _provisional_of(self, program_id: int, module: str) -> _Provisional:
        known = self._provisional.get(program_id)
        if known is None:
            program = key_hash("provisional", self._scope, program_id)
            known = self._provisional[program_id] = _Provisional(program, clean_text(module))
        known.module = known.module or clean_text(module)  # its ops may have come first
        return known

    def modules(self) -> dict[int, tuple[int, str]]:
        """Program, known or provisional -> (program id, module name)."""
        provisional = {entry.program: (id_, entry.module) for id_, entry in self._provisional.items()}
        return provisional | {known.program: (id_, known.module) for id_, known in self._programs.items()}

    def provisional_for(self, program_id: int) -> int | None:
        """The provisional program that spans of a module carry so far, if any do."""
        entry = self._provisional.get(program_id)
        return None if entry is None else entry.program

    def new_provisional(self) -> list[Program]:
        """Provisional programs that have ops not given out before, whole. `module_id` is the process's program id."""
        out = []
        for program_id, entry in self._provisional.items():
            if len(entry.ops) > entry.published:
                entry.published = len(entry.ops)
                ops = op_rows([{"name": clean_text(name), "opcode": opcode_of(name)} for name in entry.ops])
                out.append(Program(entry.program, entry.module, program_id, ops, "provisional"))
        return out


def op_rows(rows: list[dict[str, Any]]) -> pa.Table:
    """PROGRAM_OPS from what is known of each op; ordinals by position, kind by name where not given."""
    empty: dict[str, Any] = {
        "opcode": "", "category": "", "computation": 0, "entry": True, "shape": "", "operands": [], "called": [],
        "trip_count": None, "dims": "", "op_name": "", "source_file": "", "source_line": 0,
        "declared_flops": None, "declared_model_flops": None, "declared_bytes": None, "declared_bytes_hbm": None,
    }  # fmt: skip
    full = [{**empty, "op": i, "kind": int(kind_of_op_name(row["name"])), **row} for i, row in enumerate(rows)]
    return pa.Table.from_pylist(full, schema=PROGRAM_OPS)


def kinds_or(kinds: NDArray[np.uint8], otherwise: Kind) -> NDArray[np.uint8]:
    """`otherwise` in place of 0, which is a row without an op."""
    return np.where(kinds == 0, np.uint8(otherwise), kinds)
