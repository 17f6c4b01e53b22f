"""HLO module bytes -> the rows of its op table (schema.tables.PROGRAM_OPS): structure enough for the cost pass."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from fleetscope.agents.programs.attributes import attributes
from fleetscope.agents.programs.backend import backend_config
from fleetscope.agents.programs.fingerprint import fingerprint
from fleetscope.agents.programs.kinds import base_opcode, category_of, kind_of
from fleetscope.agents.programs.measure import check_size
from fleetscope.agents.programs.shapes import shape_text
from fleetscope.schema.errors import HloUnreadable
from fleetscope.schema.hlo_pb2 import HloModule, HloProto, Instruction, StackFrameIndex
from fleetscope.schema.tables import PROGRAM_OPS


@dataclass(frozen=True, slots=True)
class Program:
    """One compiled module. `ops` has schema PROGRAM_OPS; `module_id` is what events of this process call program_id."""

    program: int
    module: str
    module_id: int
    ops: pa.Table
    source: str = "hlo"


def read_program(data: bytes) -> Program:
    """Program of serialized HloModuleProto, HloModuleProtoWithConfig or HloProto bytes.

    Raises HloUnreadable for anything else, HloTooLarge for a module beyond all that compilers make.
    """
    check_size(data)
    module = _parse(data)
    if not module.computations or not any(computation.instructions for computation in module.computations):
        raise HloUnreadable(f"no computation in {len(data)} bytes of HLO")
    return Program(fingerprint(module), module.name, module.id, _rows(module))


def _parse(data: bytes) -> HloModule:
    # An HloProto holds the module as field 1, where an HloModule holds its name: only one of the two reads as a module.
    for kind in (HloModule, HloProto):
        try:
            message: Any = kind.FromString(data)
        except (DecodeError, RuntimeError):
            continue
        module: HloModule = message.hlo_module if kind is HloProto else message
        if module.computations:
            return module
    raise HloUnreadable(f"{len(data)} bytes are no HLO module")


def _rows(module: HloModule) -> pa.Table:
    computation_ordinal = {computation.id: i for i, computation in enumerate(module.computations)}
    every = (instruction for computation in module.computations for instruction in computation.instructions)
    op_ordinal = {instruction.id: ordinal for ordinal, instruction in enumerate(every)}
    opcodes = {c.id: frozenset(i.opcode for i in c.instructions) for c in module.computations}
    roots = {c.id: next((i.opcode for i in c.instructions if i.id == c.root_id), "") for c in module.computations}
    columns: dict[str, list[Any]] = {name: [] for name in PROGRAM_OPS.names}
    ordinals = count()
    for computation in module.computations:
        for instruction in computation.instructions:
            called = [i for i in instruction.called_computation_ids if i in computation_ordinal]
            source_file, source_line = _source(module.stack_frame_index, instruction)
            fused = opcodes[called[0]] if called and base_opcode(instruction.opcode) == "fusion" else frozenset()
            row = {
                # Ordinals are places, so a damaged module in which two have one id still names each once.
                "op": next(ordinals),
                "name": instruction.name,
                "opcode": instruction.opcode,
                "category": category_of(
                    instruction.opcode, instruction.fusion_kind, fused, instruction.custom_call_target
                ),
                "kind": int(kind_of(instruction.opcode, roots[called[0]] if called else "")),
                "computation": computation_ordinal[computation.id],
                "entry": computation.id == module.entry_computation_id,
                "shape": shape_text(instruction.shape),
                "operands": [op_ordinal.get(i, -1) for i in instruction.operand_ids],
                "called": [computation_ordinal[i] for i in called],
                "trip_count": _trip_count(instruction),
                "dims": attributes(
                    instruction, module.device_assignment, computation.id != module.entry_computation_id
                ),
                "op_name": instruction.metadata.op_name,
                "source_file": source_file,
                "source_line": source_line,
            }
            for name, column in columns.items():
                column.append(row.get(name))
    return pa.table(columns, schema=PROGRAM_OPS)


def _source(index: StackFrameIndex, instruction: Instruction) -> tuple[str, int]:
    """File and line of the innermost frame. Ids in the index start at 1; 0 is none."""
    metadata = instruction.metadata
    frame = metadata.stack_frame_id
    if 0 < frame <= len(index.stack_frames):
        location = index.stack_frames[frame - 1].file_location_id
        if 0 < location <= len(index.file_locations):
            found = index.file_locations[location - 1]
            if 0 < found.file_name_id <= len(index.file_names):
                return index.file_names[found.file_name_id - 1], found.line
    return metadata.source_file, metadata.source_line


def _trip_count(instruction: Instruction) -> int | None:
    if instruction.opcode != "while":
        return None
    known = backend_config(instruction).get("known_trip_count")
    try:
        trips = int(known["n"]) if known else -1
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return trips if 0 <= trips < 1 << 63 else None
