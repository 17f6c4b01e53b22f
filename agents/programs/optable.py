"""HLO module bytes -> the rows of its op table (schema.tables.PROGRAM_OPS): structure enough for the cost pass."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from fleetscope.agents.programs.fingerprint import fingerprint
from fleetscope.agents.programs.kinds import base_opcode, category_of, kind_of
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
    """Program of serialized HloModuleProto or HloProto bytes. Raises HloUnreadable for anything else."""
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
    op_ordinal: dict[int, int] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            op_ordinal[instruction.id] = len(op_ordinal)
    opcodes = {c.id: frozenset(i.opcode for i in c.instructions) for c in module.computations}
    roots = {c.id: next((i.opcode for i in c.instructions if i.id == c.root_id), "") for c in module.computations}
    columns: dict[str, list[Any]] = {name: [] for name in PROGRAM_OPS.names}
    for computation in module.computations:
        for instruction in computation.instructions:
            called = [i for i in instruction.called_computation_ids if i in computation_ordinal]
            source_file, source_line = _source(module.stack_frame_index, instruction)
            fused = opcodes[called[0]] if called and base_opcode(instruction.opcode) == "fusion" else frozenset()
            row = {
                "op": op_ordinal[instruction.id],
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
                "dims": _dims(instruction),
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


def _backend(instruction: Instruction) -> dict[str, Any]:
    if instruction.backend_config[:1] != b"{":
        return {}
    try:
        config = json.loads(instruction.backend_config)
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def _trip_count(instruction: Instruction) -> int | None:
    if instruction.opcode != "while":
        return None
    known = _backend(instruction).get("known_trip_count")
    try:
        return int(known["n"]) if known else None
    except (KeyError, TypeError, ValueError):
        return None


def _dims(instruction: Instruction) -> str:
    """Attributes the cost pass reads, as JSON with sorted keys; "" when there is none."""
    out: dict[str, Any] = {}
    if instruction.HasField("dot_dimension_numbers"):
        dot = instruction.dot_dimension_numbers
        out["dot"] = {
            "lhs_contracting": list(dot.lhs_contracting_dimensions),
            "rhs_contracting": list(dot.rhs_contracting_dimensions),
            "lhs_batch": list(dot.lhs_batch_dimensions),
            "rhs_batch": list(dot.rhs_batch_dimensions),
        }
    if instruction.HasField("convolution_dimension_numbers"):
        conv = instruction.convolution_dimension_numbers
        out["conv"] = {
            "kernel_in": conv.kernel_input_feature_dimension,
            "kernel_spatial": list(conv.kernel_spatial_dimensions),
            "input_spatial": list(conv.input_spatial_dimensions),
            "output_spatial": list(conv.output_spatial_dimensions),
            "batch_groups": max(instruction.batch_group_count, 1),
        }
    if instruction.HasField("window"):
        out["window"] = [
            [d.size, d.stride, d.padding_low, d.padding_high, d.window_dilation or 1, d.base_dilation or 1]
            for d in instruction.window.dimensions
        ]
    if instruction.custom_call_target:
        out["target"] = instruction.custom_call_target
        gemm = _find(_backend(instruction), "dot_dimension_numbers")
        if gemm:
            keys = {"lhs": "lhs_contracting", "rhs": "rhs_contracting"}
            out["dot"] = {
                name: [int(i) for i in gemm.get(f"{side}_contracting_dimensions", [])] for side, name in keys.items()
            } | {f"{side}_batch": [int(i) for i in gemm.get(f"{side}_batch_dimensions", [])] for side in keys}
    if instruction.opcode in ("reduce", "reduce-window", "reduce-scatter"):
        out["dimensions"] = list(instruction.dimensions)
    return json.dumps(out, sort_keys=True) if out else ""


def _find(config: Any, key: str) -> dict[str, Any] | None:
    """The first value called `key` anywhere in nested dicts: each backend wraps its gemm configuration differently."""
    if not isinstance(config, dict):
        return None
    value = config.get(key)
    if isinstance(value, dict):
        return value
    for inner in config.values():
        found = _find(inner, key)
        if found is not None:
            return found
    return None
