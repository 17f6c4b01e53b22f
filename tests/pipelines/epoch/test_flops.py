"""FLOPs and peaks of device_10s: from op tables as they are known, never guessed. Expected values by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fleetscope.pipelines.dimensions import PEAK_LABEL
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import Kind

pytestmark = pytest.mark.fault

MS = 1_000_000
START = 1_000 * MS
PROGRAM = 5


def table(ops: dict[int, tuple[int | None, int | None, int | None]]) -> bytes:
    """Ops without structure, as a capture's metadata gives them: (flops, model flops, HBM bytes) as declared."""
    rows = [
        {
            "op": op,
            "name": f"op.{op}",
            "opcode": "custom-call",
            "category": "custom-call",
            "kind": int(Kind.COMPUTE),
            "computation": -1,
            "entry": True,
            "shape": "f32[8]",
            "operands": [],
            "called": [],
            "dims": "{}",
            "op_name": "",
            "source_file": "",
            "source_line": 0,
            "declared_flops": flops,
            "declared_model_flops": model,
            "declared_bytes": moved,
            "declared_bytes_hbm": moved,
        }
        for op, (flops, model, moved) in ops.items()
    ]
    found = pa.Table.from_pylist(rows, schema=PROGRAM_OPS)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as stream:
        stream.write_table(found)
    return bytes(sink.getvalue().to_pybytes())


def rows_of(ops: bytes) -> int:
    try:
        return int(pa.ipc.open_stream(ops).read_all().num_rows)
    except pa.ArrowInvalid:
        return 1


def ship(bench: Any, *parts: bytes, program: int = PROGRAM, version: int = 1, order: int = 1) -> None:
    for number, ops in list(enumerate(parts))[::order]:
        chunk = wire.ProgramChunk(
            version=version, program=program, module="jit_f", chunk=number, chunks=len(parts), rows=rows_of(ops),
            source="hlo", ops=ops,
        )  # fmt: skip
        bench.log.append(bench.topics.programs, f"{program}/{number}".encode(), chunk.SerializeToString()).result(5)


def batch(host: Any, index: int, rows: list[tuple[Kind, int, int, int]], **more: Any) -> Any:
    """`rows`: kind, op, begin and duration in us from the begin of millisecond `index`."""
    at = START + index * MS
    columns = {
        "kind": [row[0] for row in rows],
        "op": [row[1] for row in rows],
        "start": [at + row[2] * 1000 for row in rows],
        "dur": [row[3] * 1000 for row in rows],
        "line": 0,
        "program": PROGRAM,
    }
    return host.spans(0, at, at + MS, columns, **more)


def total(bench: Any, name: str) -> int:
    return sum(row[name] for row in bench.rows("device_10s"))


ROWS = [(Kind.COMPUTE, 1, 0, 300), (Kind.COMPUTE, 1, 300, 300), (Kind.COMPUTE, 2, 600, 100), (Kind.COPY, 3, 700, 200)]
OPS: dict[int, tuple[int | None, int | None, int | None]] = {1: (1000, 600, 64), 2: (None, None, None), 3: (0, 0, 4096)}


def test_known_ops_count_and_unknown_ones_lower_the_coverage(bench: Any) -> None:
    ship(bench, table(OPS))
    bench.send(batch(bench.host("h1"), 0, ROWS))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "model_flops")) == (2000, 1200)
    assert total(bench, "bytes_hbm") == 2 * 64 + 4096
    assert (total(bench, "flops_known_ns"), total(bench, "op_ns")) == (800_000, 900_000)


def test_a_table_that_comes_late_counts_from_then_on(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(batch(host, 0, ROWS))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "flops_known_ns"), total(bench, "op_ns")) == (0, 0, 900_000)
    ship(bench, table(OPS))
    bench.send(batch(host, 1, ROWS))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "flops_known_ns"), total(bench, "op_ns")) == (2000, 800_000, 1_800_000)
    ship(bench, table({**OPS, 2: (7, 7, 7)}))
    bench.send(batch(host, 2, ROWS))
    bench.drain()
    assert total(bench, "flops") == 4007


def test_chunks_in_any_order_make_one_table(bench: Any) -> None:
    ship(bench, table({1: OPS[1]}), table({2: OPS[2], 3: OPS[3]}), order=-1)
    bench.send(batch(bench.host("h1"), 0, ROWS))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "flops_known_ns")) == (2000, 800_000)


def test_what_is_no_op_table_leaves_its_ops_unknown(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    bench.log.append(bench.topics.programs, b"x", b"\xff\xff").result(5)
    ship(bench, table(OPS), version=9)
    ship(bench, b"no arrow")
    wrong = pa.Table.from_pylist([{"op": 1}])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, wrong.schema) as stream:
        stream.write_table(wrong)
    ship(bench, sink.getvalue().to_pybytes())
    bench.send(batch(bench.host("h1"), 0, ROWS))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "op_ns")) == (0, 900_000)
    assert caplog.text.count(bench.topics.programs) >= 4


def test_a_loop_counts_only_where_nothing_inside_it_was_seen(bench: Any) -> None:
    ship(bench, table({1: (1000, 1000, 0), 4: (5000, 5000, 0)}))
    seen = [(Kind.CONTAINER, 4, 0, 400), (Kind.COMPUTE, 1, 100, 200), (Kind.CONTAINER, 4, 500, 400)]
    bench.send(batch(bench.host("h1"), 0, seen))
    bench.drain()
    assert total(bench, "flops") == 1000 + 5000
    assert (total(bench, "flops_known_ns"), total(bench, "op_ns")) == (800_000, 800_000)


@pytest.mark.parametrize(
    ("sku", "labels", "peak"),
    [
        ("TPU v5e", {}, 197_000_000_000),  # 197 TFLOP/s for 1 ms
        ("TPU v5 lite", {}, 197_000_000_000),  # what the runtime calls it
        ("cpu", {PEAK_LABEL: "5e10"}, 50_000_000),
        ("cpu", {}, 0),
        ("cpu", {PEAK_LABEL: "fast"}, 0),
    ],
)
def test_peak_of_the_observed_time(bench: Any, sku: str, labels: dict[str, str], peak: int) -> None:
    host = bench.host("h1")
    real = host.device
    host.device = lambda index: real(index, sku)
    said = wire.Announcement(
        process=wire.ProcessInfo(pid=host.pid, start_ticks=host.source.start_ticks, run="train", labels=labels)
    )
    bench.send(batch(host, 0, ROWS, announcements=[said]))
    bench.drain()
    assert total(bench, "peak_flop") == peak
    reasons = {
        sample.labels["reason"]: sample.int_value
        for value in bench.log.read_compacted(bench.topics.metrics).values()
        for sample in wire.MetricsRecord.FromString(value).samples
        if sample.name == "fleetscope_utilization_unknown_total"
    }
    assert reasons == {"flops_unknown": 1}
