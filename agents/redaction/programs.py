"""An op table as it may be told."""

import json
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from fleetscope.agents.programs.optable import Program
from fleetscope.agents.redaction.policy import DROPPED, Redaction
from fleetscope.agents.redaction.words import public_word


def redacted(program: Program, redaction: Redaction) -> Program:
    """The program with the names of its module, instructions, scopes, custom calls and files as the policy has them.

    Its fingerprint stays: it is of the whole module, and nobody finds a name from it without the rest.
    """
    if not (redaction.hides("programs") or redaction.hides("ops") or redaction.hides("sources")):
        return program
    ops = program.ops
    if redaction.hides("ops"):
        ops = _each(ops, "name", redaction.instruction)
        # What was made of a name, where the program's HLO is not known.
        ops = _each(ops, "opcode", lambda opcode: opcode if public_word(opcode) else "")
        ops = _each(ops, "op_name", redaction.scope)
        ops = _each(ops, "dims", lambda text: _dims(text, redaction))
    if redaction.hides("sources"):
        ops = _sources(ops, redaction)
    return replace(program, module=redaction.of("programs", program.module), ops=ops)


def _put(ops: pa.Table, column: str, values: list[object]) -> pa.Table:
    at = ops.schema.get_field_index(column)
    return ops.set_column(at, ops.schema.field(at), pa.array(values, ops.schema.field(at).type))


def _each(ops: pa.Table, column: str, change: Callable[[str], str]) -> pa.Table:
    return _put(ops, column, [None if text is None else change(text) for text in ops.column(column).to_pylist()])


def _dims(text: str, redaction: Redaction) -> str:
    if '"target"' not in text:
        return text
    found = json.loads(text)
    found["target"] = redaction.target(found["target"])
    return json.dumps(found, sort_keys=True)


def _sources(ops: pa.Table, redaction: Redaction) -> pa.Table:
    told = [redaction.of("sources", file or "") for file in ops.column("source_file").to_pylist()]
    lines = ops.column("source_line").to_pylist()
    lines = [0 if file == DROPPED else line for file, line in zip(told, lines, strict=True)]
    ops = _put(ops, "source_file", ["" if file == DROPPED else file for file in told])
    return _put(ops, "source_line", lines)
