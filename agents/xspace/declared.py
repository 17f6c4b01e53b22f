"""What a capture itself declares of its ops: FLOPs, bytes by memory space, category, source (stats of event metadata).

TPU captures declare all of it, one execution of the op each. It completes the op tables read from the capture's HLO
protos, and stands in for them where there are none.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from fleetscope.agents.batches import clean_text
from fleetscope.agents.programs.measure import varint
from fleetscope.agents.programs.optable import Program, read_program
from fleetscope.agents.xspace.kinds import instruction_of, kind_of_category, opcode_of
from fleetscope.agents.xspace.optables import op_rows
from fleetscope.agents.xspace.views import ints, present
from fleetscope.native.xspace import XSpace
from fleetscope.schema.errors import HloTooLarge, HloUnreadable
from fleetscope.schema.tables import PROGRAM_OPS

HBM = 1
"""Memory space of device memory in memory_access_breakdown."""


def bytes_of_space(breakdown: bytes, space: int) -> int:
    """Bytes read and written in one memory space: repeated field 1 {operation = 1, memory_space = 2, bytes = 3}.

    Message MemoryAccessed of openxla/xla plugin/xprof/protobuf/op_metrics.proto. Malformed bytes count as far as they
    go.
    """
    total = at = 0
    try:
        while at < len(breakdown):
            tag, at = varint(breakdown, at)
            if tag != 0x0A:
                return total
            size, at = varint(breakdown, at)
            end = at + size
            fields = {}
            while at < end:
                tag, at = varint(breakdown, at)
                fields[tag], at = varint(breakdown, at)
            if fields.get(0x10, 0) == space:
                total += fields.get(0x18, 0)
    except IndexError:
        return total
    return total


def declared_ops(space: XSpace) -> dict[int, dict[str, dict[str, Any]]]:
    """program id -> op name -> PROGRAM_OPS values. Planes of one capture declare the same; the first counts."""
    metadata = space.event_metadata
    rows = np.flatnonzero(present(metadata.column("program_id")) & present(metadata.column("hlo_category")))
    out: dict[int, dict[str, dict[str, Any]]] = {}
    for row in metadata.take(rows).drop_columns(["hlo_proto"]).to_pylist():
        name = row["display_name"] or instruction_of(row["name"])
        file, _, line = (row["source"] or "").rpartition(":")
        breakdown = row["memory_access_breakdown"]
        out.setdefault(row["program_id"], {}).setdefault(
            name,
            {
                "name": clean_text(name),
                "opcode": opcode_of(name),
                "category": row["hlo_category"],
                "kind": int(kind_of_category(row["hlo_category"])),
                "shape": clean_text(row["shape_with_layout"] or ""),
                "op_name": clean_text((row["tf_op"] or "").removesuffix(":")),
                "source_file": clean_text(file),
                "source_line": int(line) if line.isdigit() and len(line) < 10 else 0,
                "declared_flops": row["flops"],
                "declared_model_flops": row["model_flops"] if row["model_flops"] is not None else row["flops"],
                "declared_bytes": row["bytes_accessed"],
                "declared_bytes_hbm": _bounded(None if breakdown is None else bytes_of_space(breakdown, HBM)),
            },
        )
    return out


def _bounded(value: int | None) -> int | None:
    """Garbage that no column holds is not known."""
    return value if value is None or value < 1 << 62 else None


_DECLARED = ("category", "declared_flops", "declared_model_flops", "declared_bytes", "declared_bytes_hbm")


def _complete(program: Program, declared: dict[str, dict[str, Any]]) -> Program:
    """The table of an HLO proto with what the capture declares; a category XProf computed beats ours."""
    names = program.ops.column("name").to_pylist()
    if not any(name in declared for name in names):
        return program
    ops = program.ops
    for column in _DECLARED:
        old = ops.column(column).to_pylist()
        values = [declared[name][column] if name in declared else value for name, value in zip(names, old, strict=True)]
        at = PROGRAM_OPS.get_field_index(column)
        ops = ops.set_column(at, PROGRAM_OPS.field(at), pa.array(values, PROGRAM_OPS.field(at).type))
    return replace(program, ops=ops)


def _from_declared(program_id: int, module: str, ops: dict[str, dict[str, Any]]) -> Program:
    rows = [ops[name] for name in sorted(ops)]
    digest = xxhash.xxh3_64(
        repr([(row["name"], row["category"], row["shape"], row["declared_flops"]) for row in rows]).encode()
    )
    value = digest.intdigest()
    signed = value - (1 << 64) if value >= 1 << 63 else value
    return Program(signed or 1, module, program_id, op_rows(rows), "xplane_metadata")


def programs_of(space: XSpace) -> tuple[list[Program], int]:
    """Programs of a capture, and how many of its HLO protos could not be read."""
    declared = declared_ops(space)
    metadata = space.event_metadata
    module_names = _modules(space)
    programs: dict[int, Program] = {}
    unreadable = 0
    protos = metadata.column("hlo_proto")
    ids = ints(metadata.column("id"))
    for row in np.flatnonzero(present(protos)).tolist():
        program_id = int(ids[row])
        try:
            program = read_program(protos[row].as_py())
        except (HloTooLarge, HloUnreadable):
            unreadable += 1
            continue
        program = replace(program, module_id=program_id)
        programs[program_id] = _complete(program, declared.get(program_id, {}))
    for program_id, ops in declared.items():
        if program_id not in programs:
            programs[program_id] = _from_declared(program_id, module_names.get(program_id, ""), ops)
    return list(programs.values()), unreadable


def module_of(name: str) -> tuple[str, int | None]:
    """jit_f(12190760917235803885) -> (jit_f, program id as a signed 64-bit number); None where the name has none."""
    head, bracket, tail = name.rpartition("(")
    digits = tail.removesuffix(")")
    if not bracket or not tail.endswith(")") or not digits.isdigit() or int(digits) >= 1 << 64:
        return name, None
    value = int(digits)
    return head, value - (1 << 64) if value >= 1 << 63 else value


def _modules(space: XSpace) -> dict[int, str]:
    out = {}
    for name in space.event_metadata.column("name").to_pylist():
        module, program_id = module_of(name) if name.endswith(")") else (name, None)
        if program_id is not None:
            out[program_id] = clean_text(module)
    return out
