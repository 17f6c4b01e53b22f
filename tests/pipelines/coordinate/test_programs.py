"""Symbols: op tables from the topic become rows, whatever the order of chunks, restarts and bad messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.pipelines.coordinate.programs import Programs
from fleetscope.pipelines.symbolize.assembly import parse_chunk
from fleetscope.schema.errors import ProgramInvalid
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import WIRE_VERSION, Kind
from fleetscope.schema.wire_pb2 import ProgramChunk
from fleetscope.sinks.lake.fold import read_rows
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.tables import LakeTable
from fleetscope.transport import Log, TopicSpec, open_log

pytestmark = pytest.mark.unit

TOPIC = "t.programs"

# y[4,8] = x[4,16] . w[16,8]: 2 * 4 * 8 * 16 FLOPs, by hand
_DOT_FLOPS = 2 * 4 * 8 * 16


def _ops(name: str = "dot.2") -> pa.Table:
    def row(op: int, opcode: str, shape: str, **more: Any) -> dict[str, Any]:
        base = {
            "op": op, "name": f"{opcode}.{op}", "opcode": opcode, "category": opcode, "kind": int(Kind.COMPUTE),
            "computation": 0, "entry": True, "shape": shape, "operands": [], "called": [], "trip_count": None,
            "dims": "", "op_name": f"jit(f)/{opcode}", "source_file": "f.py", "source_line": 7, "declared_flops": None,
            "declared_model_flops": None, "declared_bytes": None, "declared_bytes_hbm": None,
        }  # fmt: skip
        return {**base, **more}

    dims = '{"dot":{"lhs_batch":[],"lhs_contracting":[1],"rhs_batch":[],"rhs_contracting":[0]}}'
    rows = [
        row(0, "parameter", "f32[4,16]{1,0}"),
        row(1, "parameter", "f32[16,8]{1,0}"),
        row(2, "dot", "f32[4,8]{1,0}", name=name, operands=[0, 1], dims=dims),
    ]
    return pa.Table.from_pylist(rows, PROGRAM_OPS)


def _chunks(program: int, rows: pa.Table, count: int = 1, source: str = "hlo") -> list[bytes]:
    out = []
    size = -(-rows.num_rows // count)
    for number in range(count):
        part = rows.slice(number * size, size)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, PROGRAM_OPS) as writer:
            writer.write_table(part)
        chunk = ProgramChunk(
            version=WIRE_VERSION, program=program, module="jit_f", chunk=number, chunks=count, rows=part.num_rows,
            first_op=number * size, source=source, ops=sink.getvalue().to_pybytes(),
        )  # fmt: skip
        out.append(chunk.SerializeToString())
    return out


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log((tmp_path / "log").as_uri()) as opened:
        opened.create_topics([TopicSpec(TOPIC, compacted=True)])
        yield opened


def _append(log: Log, *values: bytes) -> None:
    for index, value in enumerate(values):
        log.append(TOPIC, f"{index}-{hash(value)}".encode(), value)
    log.flush()


def _follow(log: Log, folder: LocalFolder) -> Programs:
    return Programs(log, TOPIC, LakeTable(folder, "ops"), LakeTable(folder, "programs"))


def _table(folder: LocalFolder, name: str) -> list[dict[str, Any]]:
    table = LakeTable(folder, name)
    table.refresh()
    paths = [item.path for item in table.live()]
    rows: list[dict[str, Any]] = read_rows(folder, name, paths).to_pylist() if paths else []
    return rows


def test_a_program_in_chunks_becomes_rows_with_its_costs(log: Log, folder: LocalFolder) -> None:
    programs = _follow(log, folder)
    assert programs.poll() == 0
    last, *others = reversed(_chunks(11, _ops(), count=3))
    _append(log, *others)
    assert programs.poll() == 0
    _append(log, last)
    assert programs.poll() == 1
    ops = sorted(_table(folder, "ops"), key=lambda row: row["op"])
    assert [(row["name"], row["entry"]) for row in ops] == [
        ("parameter.0", True), ("parameter.1", True), ("dot.2", True),
    ]  # fmt: skip
    assert (ops[2]["program"], ops[2]["flops"], ops[2]["source_line"]) == (11, _DOT_FLOPS, 7)
    (program,) = _table(folder, "programs")
    assert (program["program"], program["module"], program["ops"]) == (11, "jit_f", 3)
    assert (program["flops"], program["flops_known"], program["source"]) == (_DOT_FLOPS, True, "hlo")


def test_a_restarted_coordinator_goes_on_where_it_was_and_completes_what_was_open(
    log: Log, folder: LocalFolder
) -> None:
    first = _follow(log, folder)
    begun, finished = _chunks(12, _ops(), count=2)
    _append(log, *_chunks(10, _ops()), begun, *_chunks(11, _ops()))
    assert first.poll() == 2
    first.close()
    second = _follow(log, folder)
    _append(log, finished)
    assert second.poll() >= 1
    assert sorted(row["program"] for row in _table(folder, "programs")) == [10, 11, 12]
    assert len(_table(folder, "ops")) == 9
    third = _follow(log, folder)
    assert third.poll() == 0  # nothing is open: it begins at the end


def test_a_program_sent_again_replaces_its_rows(log: Log, folder: LocalFolder) -> None:
    programs = _follow(log, folder)
    _append(log, *_chunks(11, _ops()))
    programs.poll()
    _append(log, *_chunks(11, _ops("renamed"), count=2))
    programs.poll()
    assert len(_table(folder, "ops")) == 3
    assert [row["name"] for row in _table(folder, "ops") if row["op"] == 2] == ["renamed"]


def test_what_a_capture_says_never_replaces_the_module(log: Log, folder: LocalFolder) -> None:
    programs = _follow(log, folder)
    _append(log, *_chunks(11, _ops(), source="xplane_metadata"))
    _append(log, *_chunks(11, _ops("from module")))
    _append(log, *_chunks(11, _ops("from capture"), source="xplane_metadata"))
    programs.poll()
    restarted = _follow(log, folder)
    _append(log, *_chunks(11, _ops("from capture again"), source="xplane_metadata"))
    restarted.poll()
    assert [row["name"] for row in _table(folder, "ops") if row["op"] == 2] == ["from module"]


def test_bad_messages_are_counted_and_passed(log: Log, folder: LocalFolder) -> None:
    programs = _follow(log, folder)
    good = _chunks(11, _ops())
    wrong_rows = ProgramChunk.FromString(good[0])
    wrong_rows.program, wrong_rows.rows = 12, 99
    not_arrow = ProgramChunk.FromString(good[0])
    not_arrow.program, not_arrow.ops = 13, b"\x00\xff" * 40
    _append(log, b"\xff\xff\xff", wrong_rows.SerializeToString(), not_arrow.SerializeToString(), *good)
    assert programs.poll() == 1
    assert programs.refused == 3
    assert [row["program"] for row in _table(folder, "programs")] == [11]


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"version": 0}, ""), ({"version": WIRE_VERSION + 1}, "version 2"), ({"chunk": 1}, "chunk 1 of 1")],
)
def test_versions_and_chunk_numbers(changes: dict[str, int], message: str) -> None:
    chunk = ProgramChunk.FromString(_chunks(1, _ops())[0])
    for name, value in changes.items():
        setattr(chunk, name, value)
    if not message:
        assert parse_chunk(chunk.SerializeToString()).program == 1  # N - 1 is read
        return
    with pytest.raises(ProgramInvalid, match=f"FS4030.*{message}"):
        parse_chunk(chunk.SerializeToString())
