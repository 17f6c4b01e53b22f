"""Rules of the conversion on captures of a few events, each written by hand."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.agents.programs.optable import Program
from fleetscope.agents.xspace import Capture, DeviceSpans, OpTables, convert, programs_of, read_xspace
from fleetscope.agents.xspace.optables import op_rows
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag

START = 10**18
Write = Callable[..., bytes]


def converted(data: bytes, *programs: Program, **options: Any) -> Capture:
    return convert(read_xspace(data, "test"), OpTables("test", programs), **options)


def rows(spans: DeviceSpans, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row[column] for column in columns) for row in spans.rows.to_pylist()]


def table(module_id: int, *names: str, program: int = 77) -> Program:
    return Program(program, "jit_f", module_id, op_rows([{"name": name, "opcode": name} for name in names]))


@pytest.mark.unit
def test_gpu_counts_streams_alone(plane: Any, xspace_bytes: Write) -> None:
    kernel = {"name": "gemm", "at": 1_000, "dur": 5_000, "correlation_id": 9}
    gpu = plane("/device:GPU:3")
    for line in ("Stream #7(Compute)", "XLA Ops", "XLA Modules", "Steps", "TensorFlow Ops", "Framework Name Scope"):
        gpu.line(line, [kernel], timestamp_ns=50)
    [device] = converted(xspace_bytes(gpu)).devices
    assert rows(device, "start", "dur", "line", "kind", "flow") == [(START + 51, 5, 7, Kind.COMPUTE, 9)]
    assert device.skipped == dict.fromkeys(
        ("XLA Ops", "XLA Modules", "Steps", "TensorFlow Ops", "Framework Name Scope"), 1
    )


@pytest.mark.unit
def test_other_accelerators_with_an_op_line_are_devices_too(plane: Any, xspace_bytes: Write) -> None:
    xpu = plane("/device:XPU:0").line("XLA Ops", [{"name": "op", "at": 1000, "dur": 2000}])
    custom = plane("/device:CUSTOM:Megascale Trace").line("XLA Ops", [{"name": "op", "at": 1000, "dur": 2000}])
    [device] = converted(xspace_bytes(xpu, custom)).devices
    assert (device.platform, device.name, device.rows.num_rows) == ("xpu", "/device:XPU:0", 1)
    assert device.sku == "", "not a GPU of unknown kind"


@pytest.mark.unit
def test_a_third_party_s_module_line_is_its_executions(plane: Any, xspace_bytes: Write) -> None:
    """Without streams nothing was derived: begins are told, ops run in the execution that encloses them."""
    xpu = plane("/device:XPU:0")
    runs = [{"name": "jit_f(5)", "at": at, "dur": 6000, "run_id": run} for at, run in ((1000, 7), (9000, 8))]
    xpu.line("XLA Modules", runs)
    ops = [{"name": "op", "hlo_op": "add.1", "program_id": 5, "at": at, "dur": 2000} for at in (2000, 7000, 12000)]
    xpu.line("XLA Ops", ops)
    [device] = converted(xspace_bytes(xpu)).devices
    told = rows(device, "start", "dur", "line", "kind", "exec", "flags")
    module, work, flag = Kind.MODULE, Kind.COMPUTE, int(SpanFlag.PROVISIONAL_PROGRAM)
    expected = [(START + 2, 2, 0, work, 7, flag), (START + 7, 2, 0, work, -1, flag), (START + 12, 2, 0, work, 8, flag)]
    expected += [(START + 1, 6, 1, module, 7, flag), (START + 9, 6, 1, module, 8, flag)]
    assert sorted(told, key=lambda row: (row[2], row[0])) == expected
    assert len(set(rows(device, "program"))) == 1, "ops and executions name one program"
    assert (device.executions, device.lines, device.skipped) == (2, {0: "XLA Ops", 1: "XLA Modules"}, {})


@pytest.mark.unit
@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"name": "MemcpyH2D"}, Kind.COPY),
        ({"name": "anything", "memcpy_details": "size:4 dest:4 async:1"}, Kind.COPY),
        ({"name": "__amd_rocclr_copyBuffer.kd"}, Kind.COPY),
        ({"name": "Memset"}, Kind.COPY),
        ({"name": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}, Kind.COLLECTIVE),
        ({"name": "ncclKernel_AllGather_RING_LL_Sum_int8_t"}, Kind.COLLECTIVE),
        ({"name": "void cutlass::Kernel<sm80>"}, Kind.COMPUTE),
        ({"name": "k", "hlo_op": "copy.1", "program_id": 5}, Kind.COPY),
        ({"name": "k", "hlo_op": "all-reduce-start.3", "program_id": 5}, Kind.COLLECTIVE),
        ({"name": "k", "hlo_op": "loop_add_fusion", "program_id": 5}, Kind.COMPUTE),
    ],
)
def test_kind_of_gpu_work(plane: Any, xspace_bytes: Write, event: dict[str, Any], kind: Kind) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{**event, "at": 0, "dur": 1000}])
    [device] = converted(xspace_bytes(gpu)).devices
    assert rows(device, "kind") == [(kind,)]


@pytest.mark.unit
def test_picoseconds_get_a_clock_of_the_session(plane: Any, xspace_bytes: Write) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{"name": "k", "at": 1_500, "dur": 1}], timestamp_ns=2)
    [device] = converted(xspace_bytes(gpu)).devices
    assert (device.clock.name, device.clock.period_num, device.clock.period_den) == ("xspace_session", 1, 1000)
    assert rows(device, "start", "dur") == [(3_500, 1)]


@pytest.mark.unit
def test_line_times_that_are_unix_time_already(plane: Any, xspace_bytes: Write) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{"name": "k", "at": 1_000, "dur": 0}], timestamp_ns=START + 5)
    assert rows(converted(xspace_bytes(gpu)).devices[0], "start") == [(START + 6,)]


@pytest.mark.unit
def test_a_capture_that_does_not_say_when_it_began(plane: Any, xspace_bytes: Write) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{"name": "k", "at": 1_000, "dur": 0}])
    capture = converted(xspace_bytes(gpu, start_ns=None), start_ns=400)
    assert not capture.session.stated
    assert rows(capture.devices[0], "start") == [(401,)]


@pytest.mark.unit
def test_known_programs_give_fingerprint_and_ordinal(plane: Any, xspace_bytes: Write) -> None:
    events = [
        {"name": "k", "at": 0, "dur": 1000, "hlo_op": "add.2", "hlo_module": "jit_f", "program_id": 5},
        {"name": "k", "at": 2000, "dur": 1000, "hlo_op": "mul", "hlo_module": "jit_f", "program_id": 5},
        {"name": "lib", "at": 4000, "dur": 1000},
    ]
    gpu = plane("/device:GPU:0").line("Stream #1", events)
    [device] = converted(xspace_bytes(gpu), table(5, "mul", "add.2")).devices
    assert rows(device, "program", "op", "flags") == [(77, 1, 0), (77, 0, 0), (name_program("lib"), 0, 0)]
    assert device.names == {name_program("lib"): "lib"}


@pytest.mark.unit
def test_unknown_programs_are_provisional_and_stable(plane: Any, xspace_bytes: Write) -> None:
    def window(*names: str) -> bytes:
        events = [
            {"name": "k", "at": i * 2000, "dur": 1000, "hlo_op": name, "hlo_module": "jit_f", "program_id": 5}
            for i, name in enumerate(names)
        ]
        return xspace_bytes(plane("/device:GPU:0").line("Stream #1", events))

    tables = OpTables("process 1")
    [first] = convert(read_xspace(window("add", "mul"), "1"), tables).devices
    [second] = convert(read_xspace(window("mul", "dot.3"), "2"), tables).devices
    program = first.rows.column("program")[0].as_py()
    assert rows(first, "program", "op") == [(program, 0), (program, 1)]
    assert rows(second, "program", "op") == [(program, 1), (program, 2)]
    assert set(first.rows.column("flags").to_pylist()) == {SpanFlag.PROVISIONAL_PROGRAM}
    [published] = tables.new_provisional()
    assert (published.program, published.module, published.module_id) == (program, "jit_f", 5)
    assert published.source == "provisional"
    assert published.ops.column("name").to_pylist() == ["add", "mul", "dot.3"]
    assert tables.new_provisional() == []
    # Another process counts its programs up from the same numbers.
    other = converted(window("add")).devices[0].rows.column("program")[0].as_py()
    assert other != program
    # Once the program is harvested, its own ordinals are used.
    tables.add(table(5, "dot.3", "add", "mul"))
    [third] = convert(read_xspace(window("mul", "dot.3"), "3"), tables).devices
    assert rows(third, "program", "op", "flags") == [(77, 2, 0), (77, 0, 0)]


def thunk(name: str, at: int, dur: int, run: int, ordinal: int = 0) -> dict[str, Any]:
    return {
        "name": name, "at": at, "dur": dur, "hlo_op": name, "hlo_module": "jit_f", "program_id": 4, "run_id": run,
        "device_ordinal": ordinal,
    }  # fmt: skip


@pytest.mark.unit
def test_cpu_devices_executions_and_what_the_capture_cut(plane: Any, xspace_bytes: Write) -> None:
    host = plane("/host:CPU")
    host.line("pool/1", [thunk("a", 0, 1000, 1), thunk("b", 9000, 1000, 2), thunk("a", 7000, 1000, 2)], id_=11)
    host.line("pool/2", [thunk("b", 20_000, 3000, 3), thunk("a", 21_000, 9000, 4, ordinal=1)], id_=1 << 40)
    host.line("main", [{"name": "dispatch", "at": 0, "dur": 500_000}], id_=12)
    capture = converted(xspace_bytes(host), table(4, "a", "b"))
    assert [(device.name, device.executions) for device in capture.devices] == [("cpu:0", 3), ("cpu:1", 1)]
    first = capture.devices[0]
    assert [row for row in rows(first, "kind", "start", "dur", "exec", "flags") if row[0] == Kind.MODULE] == [
        (Kind.MODULE, START + 0, 1, 1, SpanFlag.INFERRED_BEGIN | SpanFlag.TRUNCATED),
        (Kind.MODULE, START + 7, 3, 2, SpanFlag.INFERRED_BEGIN),
        (Kind.MODULE, START + 20, 3, 3, SpanFlag.INFERRED_BEGIN | SpanFlag.TRUNCATED),
    ]
    assert [row for row in rows(first, "kind", "line", "op", "exec") if row[0] == Kind.COMPUTE] == [
        (Kind.COMPUTE, 11, 0, 1), (Kind.COMPUTE, 11, 0, 2), (Kind.COMPUTE, 11, 1, 2), (Kind.COMPUTE, 256, 1, 3),
    ]  # fmt: skip
    assert first.lines == {0: "executions", 11: "pool/1", 256: "pool/2"}
    assert capture.host is not None
    assert list(capture.host.names.values()) == ["dispatch"]


@pytest.mark.unit
def test_kernel_launches_are_host_work(plane: Any, xspace_bytes: Write) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{"name": "k", "at": 5000, "dur": 1000, "correlation_id": 3}])
    launch = {"name": "hipLaunch", "at": 0, "dur": 1000, "hlo_op": "add", "program_id": 4, "correlation_id": 3}
    capture = converted(xspace_bytes(gpu, plane("/host:CPU").line("t", [launch], id_=5)))
    assert [device.name for device in capture.devices] == ["/device:GPU:0"]
    assert capture.host is not None
    assert capture.host.rows.column("kind").to_pylist() == [Kind.HOST]
    assert capture.host.rows.column("flow").to_pylist() == [3] == capture.devices[0].rows.column("flow").to_pylist()


@pytest.mark.unit
def test_host_steps_and_links(plane: Any, xspace_bytes: Write) -> None:
    main = [
        {"name": "train", "at": 0, "dur": 10_000, "_r": 1, "step_num": 41},
        {"name": "put", "at": 1000, "dur": 1000, "_pt": 5, "_p": 99},
        {"name": "train", "at": 20_000, "dur": 10_000, "_r": 1, "step_num": 42},
        {"name": "between", "at": 15_000, "dur": 1000},
        {"name": "crosses", "at": 29_000, "dur": 9000},
    ]
    worker = [
        {"name": "take", "at": 2000, "dur": 1000, "_ct": 5, "_c": 99},
        {"name": "other", "at": 3000, "_ct": 6, "_c": 99},
    ]
    data = xspace_bytes(plane("/host:CPU").line("main", main, id_=1).line("worker", worker, id_=2))
    host = converted(data).host
    assert host is not None
    found = {
        host.names[row["program"]] + str(row["start"] - START): (row["kind"], row["step"], row["flow"])
        for row in host.rows.to_pylist()
    }
    link = found["put1"][2]
    assert link != 0
    assert found == {
        "train0": (Kind.STEP, 41, 0),
        "put1": (Kind.HOST, 41, link),
        "between15": (Kind.HOST, -1, 0),
        "train20": (Kind.STEP, 42, 0),
        "crosses29": (Kind.HOST, -1, 0),
        "take2": (Kind.HOST, -1, link),
        "other3": (Kind.HOST, -1, found["other3"][2]),
    }
    assert found["other3"][2] not in (0, link)
    assert converted(data, host=False).host is None


def tpu_op(kind: int, at: int, dur: int, raw: int, raw_dur: int) -> dict[str, Any]:
    return {"kind": kind, "at": at, "dur": dur, "device_offset_ps": raw, "device_duration_ps": raw_dur}


@pytest.mark.unit
def test_tpu_raw_time_modules_steps_and_what_has_no_raw_time(plane: Any, xspace_bytes: Write) -> None:
    tpu = plane("/device:TPU:0").stats(device_type_string="TPU v6 Lite")
    add = tpu.kind(
        "%add.1 = f32[8]{0} add(...)", display="add.1", program_id=-7, hlo_category="non-fusion elementwise", flops=8
    )
    reduce_ = tpu.kind("%ar = f32[8] all-reduce(...)", display="ar", program_id=-7, hlo_category="all-reduce")
    module = tpu.kind(f"jit_f({(1 << 64) - 7})")
    tpu.line(
        "XLA Modules",
        [
            {"kind": module, "at": 10_000, "dur": 90_000, "run_id": 5},
            {"kind": module, "at": 200_000, "dur": 12_500, "run_id": 6},
        ],
        id_=2,
    )
    tpu.line("Steps", [{"name": "17", "at": 0, "dur": 150_000}], id_=1)
    tpu.line(
        "XLA Ops",
        [
            tpu_op(add, 10_000, 20_000, 2_500, 12_500),
            tpu_op(reduce_, 50_000, 0, 25_000, 3_750),
            {"kind": add, "at": 60_000, "dur": 1},
        ],
        id_=3,
    )
    tpu.line("Async XLA Ops", [{"name": "copy", "at": 0, "dur": 10}], id_=4)
    space = read_xspace(xspace_bytes(tpu), "test")
    programs, unreadable = programs_of(space)
    assert unreadable == 0
    [program] = programs
    assert (program.module, program.module_id, program.source) == ("jit_f", -7, "xplane_metadata")
    assert program.ops.select(["name", "category", "kind", "declared_flops"]).to_pylist() == [
        {"name": "add.1", "category": "non-fusion elementwise", "kind": Kind.COMPUTE, "declared_flops": 8},
        {"name": "ar", "category": "all-reduce", "kind": Kind.COLLECTIVE, "declared_flops": None},
    ]
    [device] = convert(space, OpTables("test", programs)).devices
    inferred = SpanFlag.INFERRED_BEGIN
    id_ = program.program
    assert rows(device, "line", "start", "dur", "kind", "program", "op", "exec", "step", "flags") == [
        (1, 2, 21, Kind.STEP, name_program("step"), 0, -1, 17, 0),
        (2, 2, 21, Kind.MODULE, id_, 0, 5, -1, inferred),
        # No op in it: its own length, shifted like the op nearest to it (aligned 50 000 ps = raw 25 000 ps).
        (2, 140, 10, Kind.MODULE, id_, 0, 6, -1, inferred),
        (3, 2, 10, Kind.COMPUTE, id_, 0, 5, 17, 0),
        (3, 20, 3, Kind.COLLECTIVE, id_, 1, 5, 17, 0),
    ]
    assert device.skipped == {"Async XLA Ops": 1, "no raw device time": 1}
    assert device.sku == "TPU v6 Lite"


@pytest.mark.unit
def test_sparse_cores_belong_to_their_chip(plane: Any, xspace_bytes: Write) -> None:
    core = plane("/device:TPU:1")
    core.line("XLA Ops", [tpu_op(core.kind("%a = f32[] add()", display="a"), 0, 1250, 0, 1250)], id_=3)
    sparse = plane("/device:TPU:1 SparseCore [x] 0")
    sparse.line(
        "Sparse Core Ops", [tpu_op(sparse.kind("%s = f32[] gather()", display="s"), 0, 2500, 1250, 2500)], id_=3
    )
    [device] = converted(xspace_bytes(core, sparse)).devices
    assert device.lines == {3: "XLA Ops", 4: "Sparse Core Ops"}
    assert rows(device, "line", "start", "dur", "kind") == [(3, 0, 1, Kind.COMPUTE), (4, 1, 2, Kind.SPARSE_CORE)]


@pytest.mark.unit
def test_hostile_names_are_cleaned(plane: Any, xspace_bytes: Write) -> None:
    name = "<b>\0\x1b[31m" + "n" * (1 << 20)
    capture = converted(xspace_bytes(plane("/host:CPU").line("t", [{"name": name, "at": 0, "dur": 1000}])))
    assert capture.host is not None
    [kept] = capture.host.names.values()
    assert len(kept.encode()) <= 1024
    assert "\0" not in kept
    assert "\x1b" not in kept


@pytest.mark.unit
def test_negative_durations_are_kept_and_flagged(plane: Any, xspace_bytes: Write) -> None:
    gpu = plane("/device:GPU:0").line("Stream #1", [{"name": "k", "at": 5000, "dur": -2000}])
    [device] = converted(xspace_bytes(gpu)).devices
    assert rows(device, "dur", "flags") == [(-2, SpanFlag.NEGATIVE_DURATION)]


@pytest.mark.unit
def test_an_empty_capture_has_no_devices(xspace_bytes: Write) -> None:
    capture = converted(xspace_bytes())
    assert (list(capture.devices), capture.host) == ([], None)
    assert converted(b"").devices == []


@pytest.mark.unit
def test_wire_rows_have_the_schema_of_the_wire(imported: Callable[[str], Any]) -> None:
    from fleetscope.schema.payloads import WIRE_SPANS

    for name in ("v6e", "cpu"):
        for device in imported(name).capture.devices:
            assert device.rows.schema.equals(pa.schema([f.remove_metadata() for f in WIRE_SPANS]))
