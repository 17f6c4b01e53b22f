"""FLOPs and peaks of device_10s: from op tables as they are known, never guessed. Expected values by hand."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from fleetscope.agents.batches import Draft, sample_rows
from fleetscope.pipelines.dimensions import PEAK_LABEL
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import device_id, series_id
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import BatchFlag, Kind, SpanFlag, StepFlag

pytestmark = pytest.mark.fault

MS = 1_000_000
START = 1_000 * MS
PROGRAM = 5


def table(
    ops: dict[int, tuple[int | None, int | None, int | None]], shapes: dict[int, str] | None = None, program: int = -1
) -> bytes:
    """Ops without structure, as a capture's metadata gives them: (flops, model flops, HBM bytes) as declared. With
    `program` 0 all of them are its entry computation."""
    rows = [
        {
            "op": op,
            "name": f"op.{op}",
            "opcode": "custom-call",
            "category": "custom-call",
            "kind": int(Kind.COMPUTE),
            "computation": program,
            "entry": True,
            "shape": (shapes or {}).get(op, "f32[8]"),
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
        bench.log.append(bench.topics.programs, f"{program}/{number}".encode(), chunk.SerializeToString()).result(60)


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
    bench.log.append(bench.topics.programs, b"x", b"\xff\xff").result(60)
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


def test_flops_no_chip_does_in_the_time_are_those_of_another_program(bench: Any) -> None:
    # 300 us: 10^13 are 3.3e16 FLOP/s, 10^14 are 30 times the fastest chip there is.
    ship(bench, table({1: (10**13, 10**13, 0), 2: (10**14, 10**14, 0)}))
    bench.send(batch(bench.host("h1"), 0, [(Kind.COMPUTE, 1, 0, 300), (Kind.COMPUTE, 2, 300, 300)]))
    bench.drain()
    assert (total(bench, "flops"), total(bench, "flops_known_ns")) == (10**13, 300_000)


def samples_of(bench: Any, series_of: Any) -> dict[tuple[str, str], float]:
    return {
        (name, labels.get("dtype", "")): number
        for value in bench.log.read_compacted(bench.topics.metrics).values()
        for name, labels, number in series_of(wire.MetricsRecord.FromString(value))
    }


CLOCK = series_id("fleetscope_chip_clock_hertz", {"clock": "sm"})
MEMORY_CLOCK = series_id("fleetscope_chip_clock_hertz", {"clock": "memory"})


def clocks(host: Any, device: int, at_ns: list[int], series: int, hertz: list[int | float]) -> Any:
    draft = Draft(
        host.source, min(at_ns), max(at_ns) + 1, host.host_clock(), None,
        sample_rows(tick=at_ns, device=device, series=series, values=hertz),
        snapshots=host.brackets(None, (min(at_ns), max(at_ns) + 1)),
    )  # fmt: skip
    return host.number(draft)


def test_the_peak_at_the_clock_the_chip_ran_at(bench: Any, series_of: Any) -> None:
    """A V100 states its peak for 1 530 MHz; it ran at 1 020 and 1 530 in the window: five sixths."""
    ship(bench, table(OPS))
    host = bench.host("h1")
    real = host.device
    host.device = lambda index: real(index, "V100")
    device = device_id(host.device(0).key)
    bench.send(batch(host, 0, ROWS))
    bench.drain()
    assert (total(bench, "peak_flop") > 0, total(bench, "peak_flop_clock")) == (True, 0)
    bench.send(clocks(host, device, [START, START + 5 * MS], CLOCK, [1_020_000_000, 1_530_000_000.0]))
    bench.send(clocks(host, device, [START + 6 * MS], MEMORY_CLOCK, [877_000_000]))
    bench.send(batch(host, 1, ROWS))
    bench.drain()
    of_one = total(bench, "peak_flop") // 2
    assert total(bench, "peak_flop_clock") == of_one * 5 // 6
    found = samples_of(bench, series_of)
    assert found["fleetscope_device_clock_peak_flops_total", ""] == of_one * 5 // 6
    assert found["fleetscope_device_clocked_peak_flops_total", ""] == of_one, "not of what came before the clock"
    far = 40_000_000_000
    bench.send(batch(host, far // MS, ROWS))
    bench.drain()
    assert total(bench, "peak_flop_clock") == of_one * 5 // 6, "a clock of half a minute ago says nothing"


def test_flops_and_ideal_time_by_dtype(bench: Any, series_of: Any) -> None:
    ops: dict[int, Any] = {1: (10**9, 6 * 10**8, 0), 2: (5 * 10**8, 5 * 10**8, 0), 3: (0, 0, 0)}
    ship(bench, table(ops, {1: "bf16[8]", 2: "s8[8]"}))
    bench.send(batch(bench.host("h1"), 0, ROWS))
    bench.drain()
    found = samples_of(bench, series_of)
    assert {dtype for name, dtype in found if name == "fleetscope_run_dtype_flops_total"} == {"bf16", "s8"}
    assert found["fleetscope_run_dtype_flops_total", "bf16"] == 2 * 10**9
    assert found["fleetscope_run_dtype_model_flops_total", "bf16"] == 12 * 10**8
    # Of a TPU v5e: 197 TFLOP/s bf16, 394 TOP/s int8.
    assert found["fleetscope_run_dtype_ideal_seconds_total", "bf16"] == pytest.approx(2e9 / 197e12, abs=1e-9)
    assert found["fleetscope_run_dtype_model_ideal_seconds_total", "s8"] == pytest.approx(5e8 / 394e12, abs=1e-9)


WHOLE: dict[int, tuple[int | None, int | None, int | None]] = {1: (10**9, 6 * 10**8, 0), 2: (2 * 10**8, 2 * 10**8, 0)}
"""A program of 1.2 GFLOP, 0.8 without recomputation, most of it in f32, the rest in bf16."""
LABEL = 1 << 40


def counted(host: Any, index: int, programs: list[int], **more: Any) -> Any:
    """What the PJRT shim tells of millisecond `index`: an execution of 200 us of each of these, 100 us apart."""
    at = START + index * MS
    rows = {
        "kind": int(Kind.MODULE), "op": 0, "line": 4096, "program": programs,
        "start": [at + number * 300_000 for number in range(len(programs))], "dur": [200_000] * len(programs),
        "flags": int(SpanFlag.INFERRED_BEGIN),
    }  # fmt: skip
    return host.spans(0, at, at + MS, rows if programs else None, flags=int(BatchFlag.EXECUTIONS), **more)


def a100(bench: Any) -> Any:
    host = bench.host("h1")
    real = host.device
    host.device = lambda index: real(index, "A100")
    ship(bench, table(WHOLE, {2: "bf16[8]"}, program=0))
    return host


def load(program_id: int) -> Any:
    return wire.Announcement(program_load=wire.ProgramLoad(program_id=program_id, program=PROGRAM, module="jit_f"))


def test_counted_executions_have_the_flops_of_their_programs_and_the_peak_of_their_dtype(
    bench: Any, series_of: Any
) -> None:
    """Two of a known program, one of another. f32 products of an A100 are done in tf32, 156 TFLOP/s, bf16 at 312; what
    is idle in a later epoch could have been at the peak of what the process runs, not at that of bf16."""
    host = a100(bench)
    bench.send(counted(host, 0, [PROGRAM, 9, PROGRAM]))
    bench.drain()
    assert (total(bench, "watched_ran_ns"), total(bench, "watched_known_ns")) == (600_000, 400_000)
    assert (total(bench, "watched_flops"), total(bench, "watched_model_flops")) == (24 * 10**8, 16 * 10**8)
    bench.send(counted(host, 1, []))
    bench.drain()
    assert (total(bench, "watched_ns"), total(bench, "watched_peak_flop")) == (2 * MS, 2 * 156 * 10**9)
    assert [total(bench, name) for name in ("flops", "model_flops", "peak_flop", "op_ns")] == [0] * 4
    found = samples_of(bench, series_of)
    assert found["fleetscope_device_watched_flops_total", ""] == 24 * 10**8
    assert found["fleetscope_device_watched_peak_flops_total", ""] == 2 * 156 * 10**9
    assert found["fleetscope_device_execution_known_seconds_total", ""] == pytest.approx(4e-4)
    ideal = "fleetscope_run_dtype_watched_ideal_seconds_total"
    assert found[ideal, "f32"] == pytest.approx(2e9 / 156e12, abs=1e-9)
    assert found[ideal, "bf16"] == pytest.approx(4e8 / 312e12, abs=1e-9)
    model = "fleetscope_run_dtype_watched_model_ideal_seconds_total"
    assert found[model, "f32"] == pytest.approx(12e8 / 156e12, abs=1e-9)
    assert found["fleetscope_run_dtype_flops_total", "f32"] == 0, "those are of ops"
    assert found["fleetscope_utilization_unknown_total", ""] == 1, "a third of the time of the first epoch is unknown"


@pytest.mark.parametrize("told", [0, 1], ids=["before", "after"])
def test_executions_under_the_label_of_a_load_are_of_its_program(bench: Any, told: int) -> None:
    """The load is told with the first batch, which runs nothing, or after executions came under its label; a hundred
    programs that never run push none out that does."""
    host = a100(bench)
    others = [load(LABEL + number) for number in range(1, 101)]
    for index, programs in enumerate(([LABEL] * told, [LABEL], [LABEL])):
        announcements = [load(LABEL), load(7)] if index == told else others
        bench.send(counted(host, index, programs, announcements=announcements))
        bench.drain()
    assert total(bench, "watched_ran_ns") == (2 + told) * 200_000
    assert total(bench, "watched_known_ns") == 2 * 200_000
    assert total(bench, "watched_flops") == 2 * 12 * 10**8


def test_flops_no_chip_does_in_a_window_are_those_of_another_program(bench: Any) -> None:
    """Ten executions of 2 x 10^17 FLOPs in 10 s would be 2 x 10^17 FLOP/s; one is not more than any chip could do. Ten
    programs, three executions of each, would be 6 x 10^17 together, though none of them alone is too much."""
    host = bench.host("h1")
    ship(bench, table({1: (2 * 10**17, 2 * 10**17, 0)}, program=0))
    bench.send(counted(host, 0, [PROGRAM]))
    bench.drain()
    assert total(bench, "watched_flops") == 2 * 10**17
    bench.send(*(counted(host, index, [PROGRAM] * 3) for index in range(1, 4)))
    bench.drain()
    assert (total(bench, "watched_flops"), total(bench, "watched_known_ns")) == (2 * 10**17, 200_000)
    for program in range(20, 30):
        ship(bench, table({1: (2 * 10**17, 2 * 10**17, 0)}, program=0), program=program)
    bench.send(*(counted(host, program - 16, [program] * 3) for program in range(20, 30)))
    bench.drain()
    assert (total(bench, "watched_flops"), total(bench, "watched_known_ns")) == (14 * 10**17, 7 * 200_000)


def test_the_peak_of_watched_time_at_the_clock_the_chip_ran_at(bench: Any, series_of: Any) -> None:
    """Two thirds of the clock of a V100, whose f16 peak is 125 TFLOP/s."""
    host = bench.host("h1")
    real = host.device
    host.device = lambda index: real(index, "V100")
    ship(bench, table({1: (10**9, 10**9, 0)}, {1: "f16[8]"}, program=0))
    bench.send(clocks(host, device_id(host.device(0).key), [START], CLOCK, [1_020_000_000]))
    bench.send(counted(host, 0, [PROGRAM]))
    bench.drain()
    assert total(bench, "watched_peak_flop") == 125 * 10**9
    assert total(bench, "watched_peak_flop_clock") == 125 * 10**9 * 2 // 3
    found = samples_of(bench, series_of)
    assert found["fleetscope_device_watched_clock_peak_flops_total", ""] == 125 * 10**9 * 2 // 3
    assert found["fleetscope_device_watched_clocked_peak_flops_total", ""] == 125 * 10**9


LATE = [1900, 2350, 2351]


@pytest.mark.parametrize(
    ("sku", "dtype", "flops", "late"),
    [("A100", "f32", 2 * 10**8, LATE), ("A100", "f64", 10**9, LATE), ("cpu", "f32", 2 * 10**8, [])],
)
def test_steps_faster_than_the_data_sheet_allows_are_no_steps(
    bench: Any, series_of: Any, sku: str, dtype: str, flops: int, late: list[int]
) -> None:
    """1.2 GFLOP take an A100 7.7 us in f32: of completions due every 100 us, three were told 1 us apart. One GFLOP in
    f64 and one in bf16 take it 51 and 3 us, both in f64 would be 103. What a CPU measured is no bound."""
    host = bench.host("h1")
    real = host.device
    host.device = lambda index: real(index, sku)
    ship(bench, table({**WHOLE, 2: (flops, flops, 0)}, {1: f"{dtype}[8]", 2: "bf16[8]"}, program=0))
    said = wire.ProcessInfo(
        pid=host.pid, start_ticks=host.source.start_ticks, run="train", labels={PEAK_LABEL: "156e12"}
    )
    begins = [*range(0, 2000, 100), 2350, 2351, 2352, 2452, 2552]
    rows = {
        "kind": int(Kind.MODULE), "op": 0, "line": 4096, "program": PROGRAM,
        "start": [START + at * 1000 for at in begins],
        "dur": [1000] * len(begins), "flags": int(SpanFlag.INFERRED_BEGIN),
    }  # fmt: skip
    announcements = [wire.Announcement(process=said)]
    bench.send(host.spans(0, START, START + 3 * MS, rows, flags=int(BatchFlag.EXECUTIONS), announcements=announcements))
    bench.drain()
    steps = [row for row in bench.rows("step") if row["dur_ns"]]
    first = min(row["t_ns"] for row in steps)
    found = {row["t_ns"] - first for row in steps if row["flags"] & StepFlag.MISTIMED}
    assert sorted(round(at / 1000) for at in found) == late
    told = samples_of(bench, series_of)
    assert told["fleetscope_run_mistimed_steps_total", ""] == len(late)
    assert told["fleetscope_run_steps_total", ""] == 24 - len(late)
    assert told["fleetscope_run_step_seconds_total", ""] == pytest.approx(2552e-6 - (452e-6 if late else 0), abs=1e-7)
