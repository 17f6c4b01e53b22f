"""Op tables nobody should have sent: each costs its own program its costs, and nothing else; both readers go on."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.coordinate.programs import Programs
from fleetscope.pipelines.flops import OpTables
from fleetscope.pipelines.symbolize.assembly import PENDING_BYTES, Assembly
from fleetscope.pipelines.symbolize.convolution import valid_positions
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import WIRE_VERSION, Kind
from fleetscope.schema.wire_pb2 import ProgramChunk
from fleetscope.sinks.lake.fold import read_rows
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.tables import LakeTable
from fleetscope.transport import Log, TopicSpec, open_log

TOPIC = "t.programs"
GOOD = 11
CONV = {"batch_groups": 1, "kernel_in": 0, "kernel_spatial": [1], "output_spatial": [1], "input_spatial": [1]}


def _row(op: int, opcode: str, shape: str = "f32[4,16]", **more: Any) -> dict[str, Any]:
    base = {
        "op": op, "name": f"{opcode}.{op}", "opcode": opcode, "category": opcode, "kind": int(Kind.COMPUTE),
        "computation": 0, "entry": True, "shape": shape, "operands": [], "called": [], "trip_count": None,
        "dims": "", "op_name": f"jit(f)/{opcode}", "source_file": "f.py", "source_line": 7, "declared_flops": None,
        "declared_model_flops": None, "declared_bytes": None, "declared_bytes_hbm": None,
    }  # fmt: skip
    return {**base, **more}


def _calls(depth: int) -> list[dict[str, Any]]:
    return [_row(i, "call", computation=i, entry=i == 0, called=[i + 1]) for i in range(depth)]


def _dot(**more: Any) -> list[dict[str, Any]]:
    numbers = {"lhs_contracting": [1], "rhs_contracting": [0], "lhs_batch": [], "rhs_batch": []}
    operands = [_row(0, "parameter"), _row(1, "parameter", "f32[16,8]")]
    return [*operands, _row(2, "dot", **{"operands": [0, 1], "dims": json.dumps({"dot": numbers}), **more})]


HOSTILE: dict[str, list[dict[str, Any]]] = {
    "calls itself": [_row(0, "call", called=[0])],
    "two loops call each other": [
        _row(0, "while", called=[1], trip_count=1 << 62),
        _row(1, "while", computation=1, called=[0], trip_count=1 << 62),
    ],
    "calls 5 000 deep": _calls(5000),
    "calls what is not there": [_row(0, "fusion", called=[17])],
    "dims are no JSON": _dot(dims="{{{"),
    "dims nested without end": _dot(dims="[" * 100_000),
    "dims of another kind": _dot(dims="[1, 2]"),
    "dims name no numbers": _dot(dims='{"dot": {"lhs_contracting": ["a"]}}'),
    "dims count from the end": _dot(dims='{"dot": {"lhs_contracting": [-40]}}'),
    "shape of 10^40 elements": _dot(shape="f32[" + ",".join(["9999999999"] * 4) + "]"),
    "shape of a number of 10 000 digits": _dot(shape="f32[" + "9" * 10_000 + "]"),
    "convolution of 10^12 positions": [
        _row(0, "parameter", "f32[1,1000000000000]"), _row(1, "parameter", "f32[1,1000000000000]"),
        _row(2, "convolution", "f32[1,1000000000000]", operands=[0, 1],
             dims=json.dumps({"conv": CONV, "window": [[1, 1, 0, 0, 1, 1]]})),
    ],
    "convolution without steps": [
        _row(0, "parameter", "f32[1,8]"), _row(1, "parameter", "f32[1,8]"),
        _row(2, "convolution", "f32[1,8]", operands=[0, 1],
             dims=json.dumps({"conv": {**CONV, "batch_groups": 0}, "window": [[1, 0, 0, 0, 0, 0]]})),
    ],
    "operands that are not there": _dot(operands=[1 << 30, -5]),
    "ordinals that are negative": [_row(-3, "add")],
    "ordinals of 2^30": [_row(1 << 30, "add")],
    "the same ordinal twice": [_row(1, "add"), _row(1, "add")],
    "trips without end": [
        _row(0, "while", called=[1], trip_count=(1 << 63) - 1),
        *[{**row, "computation": 1, "op": row["op"] + 1} for row in _dot(operands=[1, 2])],
    ],
    "trips that are negative": [_row(0, "while", called=[1], trip_count=-5), _row(1, "add", computation=1)],
    "declared FLOPs below zero": [_row(0, "custom-call", declared_flops=-(1 << 63), computation=-1)],
    "no rows": [],
}  # fmt: skip


def _chunk(program: int, ops: list[dict[str, Any]], **fields: Any) -> ProgramChunk:
    table = pa.Table.from_pylist(ops, PROGRAM_OPS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PROGRAM_OPS, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table, max_chunksize=1 << 24)
        if not ops:
            writer.write_batch(pa.RecordBatch.from_pylist([], PROGRAM_OPS))
    chunk = ProgramChunk(
        version=WIRE_VERSION, program=program, module="jit_f", chunks=1, rows=len(ops), source="hlo",
        ops=sink.getvalue().to_pybytes(),
    )  # fmt: skip
    for name, value in fields.items():
        setattr(chunk, name, value)
    return chunk


def _with_column(chunk: ProgramChunk, name: str, values: pa.Array) -> ProgramChunk:
    table = pa.ipc.open_stream(chunk.ops).read_all()
    field = pa.field(name, values.type)
    table = table.set_column(table.schema.get_field_index(name), field, values)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    chunk.ops = sink.getvalue().to_pybytes()
    return chunk


CHUNKS: dict[str, Callable[[], bytes]] = {
    "random bytes": lambda: b"\xff\xfe" * 30,
    "2^32 - 1 chunks": lambda: _chunk(99, _dot(), chunks=2**32 - 1).SerializeToString(),
    "chunk 7 of 1": lambda: _chunk(99, _dot(), chunk=7).SerializeToString(),
    "version 99": lambda: _chunk(99, _dot(), version=99).SerializeToString(),
    "rows that are not there": lambda: _chunk(99, _dot(), rows=2**32 - 1).SerializeToString(),
    "a bomb": lambda: _chunk(99, [_row(i, "add") for i in range(20_000)], rows=3).SerializeToString(),
    "other columns": lambda: _with_column(_chunk(99, _dot()), "op", pa.array([1.5, 2.5, 3.5])).SerializeToString(),
    "nulls": lambda: _with_column(_chunk(99, _dot()), "op_name", pa.nulls(3, pa.string())).SerializeToString(),
    "no UTF-8": lambda: _with_column(
        _chunk(99, _dot()), "name", pa.array([b"\xff\xfe"] * 3, pa.binary()).view(pa.string())
    ).SerializeToString(),
}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log((tmp_path / "log").as_uri()) as opened:
        opened.create_topics([TopicSpec(TOPIC, compacted=True)])
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "lake")


@pytest.mark.fault
@pytest.mark.parametrize("name", [*HOSTILE, *CHUNKS])
def test_a_hostile_table_costs_only_itself(
    log: Log, folder: LocalFolder, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad = CHUNKS[name]() if name in CHUNKS else _chunk(99, HOSTILE[name]).SerializeToString()
    before, after = _chunk(GOOD, _dot(shape="f32[4,8]")), _chunk(GOOD + 1, _dot(shape="f32[4,8]"))
    for key, value in enumerate((before.SerializeToString(), bad, after.SerializeToString())):
        log.append(TOPIC, str(key).encode(), value)
    log.flush()

    with caplog.at_level(logging.ERROR):
        worker = OpTables(log, TOPIC)
        worker.refresh(log.end_offsets(TOPIC))
        for program in (GOOD, GOOD + 1):
            costs = worker.get(program)
            assert costs is not None
            assert costs.flops[2] == 2 * 4 * 8 * 16
        coordinator = Programs(log, TOPIC, LakeTable(folder, "ops"), LakeTable(folder, "programs"))
        coordinator.poll()
        table = LakeTable(folder, "programs")
        table.refresh()
        found = read_rows(folder, "programs", [item.path for item in table.live()]).to_pylist()
        assert {GOOD, GOOD + 1} <= {row["program"] for row in found}
        assert all(row["flops"] is None or row["flops"] >= 0 for row in found)
        coordinator.close()


@pytest.mark.unit
def test_programs_that_never_become_complete_do_not_fill_the_memory() -> None:
    assembly = Assembly()
    ops = bytes(1 << 20)
    for program in range(4 * (PENDING_BYTES >> 20)):
        assert assembly.take(ProgramChunk(program=program, chunk=0, chunks=2, ops=ops), program) is None
    newest = 4 * (PENDING_BYTES >> 20) - 1
    assert assembly.first_offset == newest + 1 - (PENDING_BYTES >> 20)
    whole = assembly.take(ProgramChunk(program=newest, chunk=1, chunks=2, ops=ops), 1 << 20)
    assert whole is not None
    assert [part.chunk for part in whole] == [0, 1]


@pytest.mark.unit
def test_costs_of_programs_nobody_runs_any_more_are_forgotten(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetscope.pipelines.flops.OPS_KEPT", 9)
    tables = OpTables(log, TOPIC)
    for program in range(1, 6):
        log.append(TOPIC, str(program).encode(), _chunk(program, _dot()).SerializeToString()).result(60)
        tables.refresh(log.end_offsets(TOPIC))
        assert tables.get(1) is not None, "it is asked for all the time"
    assert [program for program in range(1, 6) if tables.get(program) is not None] == [1, 4, 5]


@pytest.mark.property
@settings(max_examples=300, deadline=None)
@given(
    kernel=st.integers(0, 9), out=st.integers(0, 12), base=st.integers(0, 9), stride=st.integers(1, 4),
    low=st.integers(-6, 12), dilation=st.integers(1, 4), base_dilation=st.integers(1, 5),
)  # fmt: skip
def test_valid_positions_are_those_one_counts(
    kernel: int, out: int, base: int, stride: int, low: int, dilation: int, base_dilation: int
) -> None:
    elements = {index * base_dilation for index in range(base)}
    pairs = itertools.product(range(out), range(kernel))
    counted = sum(o * stride + k * dilation - low in elements for o, k in pairs)
    assert valid_positions(kernel, out, base, stride, low, dilation, base_dilation) == counted
