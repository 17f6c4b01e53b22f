"""An op that no window can show, from spans and executions through log, worker and coordinator to `ops`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fleetscope.agents.batches import Draft, span_rows
from fleetscope.analysis.estimate import UNOBSERVABLE
from fleetscope.analysis.ops import op_table
from fleetscope.analysis.scope import Scope
from fleetscope.pipelines.coordinate.rounds import Coordinator
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import BatchFlag, Kind
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.contract

MS = 1_000_000
PROGRAM, GIANT, SMALL = 5, 1, 2
W_MS, RUNS, WINDOWS = 200, 33, 16
EXECUTION_MS, SMALL_MS = 1000, 5


def _op_table() -> bytes:
    blank: dict[str, Any] = {"kind": int(Kind.COMPUTE), "opcode": "custom-call", "computation": -1, "shape": "f32[8]"}
    blank |= dict.fromkeys(("category", "op_name", "source_file", "dims"), "") | {"operands": [], "called": []}
    rows = [
        {**blank, "op": op, "name": name, "entry": True, "source_line": 0}
        for op, name in ((0, "p0"), (GIANT, "sort.1"), (SMALL, "fusion.2"))
    ]
    rows[0]["opcode"] = "parameter"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PROGRAM_OPS) as stream:
        stream.write_table(pa.Table.from_pylist(rows, PROGRAM_OPS))
    chunk = wire.ProgramChunk(
        version=1, program=PROGRAM, module="jit_f", chunks=1, rows=3, source="hlo", ops=sink.getvalue().to_pybytes()
    )
    return chunk.SerializeToString()


def _executions(host: Any) -> Any:
    """Back to back, a second each, as a shim tells them."""
    rows = span_rows(
        start=[k * EXECUTION_MS * MS for k in range(RUNS)], dur=EXECUTION_MS * MS, line=4096, kind=int(Kind.MODULE),
        program=PROGRAM, exec=list(range(RUNS)),
    )  # fmt: skip
    end = RUNS * EXECUTION_MS * MS
    brackets = host.brackets(None, (0, end))
    return host.number(
        Draft(host.source, 0, end, host.host_clock(), host.device(0), rows, snapshots=brackets,
              flags=int(BatchFlag.EXECUTIONS))
    )  # fmt: skip


def _window(host: Any, number: int, giant_ms: int) -> Any:
    """0.2 s from another phase of every second execution: what lies wholly inside. The giant op comes first."""
    begin = 2 * number * EXECUTION_MS + (2 * number + 1) * EXECUTION_MS // (2 * WINDOWS)
    begin += 2 - begin % SMALL_MS  # on no edge of an op: 39 of them lie inside, and each stands for 1 / 39
    ops = []
    for k in (2 * number, 2 * number + 1):
        at = k * EXECUTION_MS
        ops += [(GIANT, at, giant_ms)] if giant_ms else []
        ops += [(SMALL, ms, SMALL_MS) for ms in range(at + giant_ms, at + EXECUTION_MS, SMALL_MS)]
    seen = [op for op in ops if begin <= op[1] and op[1] + op[2] <= begin + W_MS]
    rows = {
        "start": [op[1] * MS for op in seen], "dur": [op[2] * MS for op in seen], "op": [op[0] for op in seen],
        "line": 0, "kind": int(Kind.COMPUTE), "program": PROGRAM, "weight": 0,
    }  # fmt: skip
    window = wire.Window(id=number + 1, length_ticks=W_MS * MS * 4 // 5, step=-1)
    return host.spans(0, begin * MS, (begin + W_MS) * MS, rows, window=window)


@pytest.mark.parametrize(("giant_ms", "named"), [(700, ["sort.1"]), (0, [])], ids=["0.7 s", "not run"])
def test_an_op_longer_than_every_window_is_named_and_one_that_does_not_run_is_not(
    bench: Any, giant_ms: int, named: list[str]
) -> None:
    host = bench.host("h1")
    bench.log.append(bench.topics.programs, b"5/0", _op_table()).result(60)
    bench.send(_executions(host), *(_window(host, number, giant_ms) for number in range(WINDOWS)))
    bench.drain()
    coordinator = Coordinator(bench.config, log=bench.log)
    coordinator.round_once()
    rows = op_table(Snapshot.open(bench.store), Scope()).to_pylist()
    assert [row["op"] for row in rows if row["reason"] == UNOBSERVABLE] == named
    (small,) = (row for row in rows if row["op"] == "fusion.2")
    assert small["low_ratio"] - 1e-6 <= 1 - giant_ms / EXECUTION_MS <= small["high_ratio"] + 1e-6
    for row in rows[: len(named)]:
        # Less than is missing, by the upper end of what was seen.
        assert 0.3 < row["residual_ratio"] < 0.7
