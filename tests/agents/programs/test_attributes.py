"""What op tables say of instructions, from modules made by hand: library calls, kernels, groups, and damage."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from typing import Any

import pytest

from fleetscope.agents.programs import measure
from fleetscope.agents.programs.optable import read_program
from fleetscope.schema import hlo_pb2 as hlo
from fleetscope.schema.errors import HloTooLarge, HloUnreadable

pytestmark = pytest.mark.unit


def module(*instructions: hlo.Instruction, **about: Any) -> hlo.HloModule:
    for number, instruction in enumerate(instructions, 1):
        instruction.id = instruction.id or number
        instruction.name = instruction.name or f"{instruction.opcode}.{number}"
        if not instruction.HasField("shape"):
            instruction.shape.CopyFrom(hlo.Shape(element_type=11, dimensions=[8]))
    entry = hlo.Computation(name="main", id=7, root_id=len(instructions), instructions=instructions)
    return hlo.HloModule(name="jit_f", id=3, computations=[entry], entry_computation_id=7, **about)


def detail(instruction: hlo.Instruction, **about: Any) -> Any:
    row = read_program(module(instruction, **about).SerializeToString()).ops.to_pylist()[0]
    return json.loads(row["dims"]) if row["dims"] else {}


def groups(*sizes: int) -> list[hlo.ReplicaGroup]:
    return [hlo.ReplicaGroup(replica_ids=range(size)) for size in sizes]


MESH = hlo.MeshAxesReplicaGroupList(
    mesh=hlo.MeshAxesReplicaGroupList.Mesh(
        axes=[
            hlo.MeshAxesReplicaGroupList.MeshAxis(name="a", size=2),
            hlo.MeshAxesReplicaGroupList.MeshAxis(name="b", size=6),
        ]
    ),
    axes=[
        hlo.MeshAxesReplicaGroupList.AxisRef(mesh_axis_index=0),
        hlo.MeshAxesReplicaGroupList.AxisRef(
            mesh_axis_index=1, sub_axis_info=hlo.MeshAxesReplicaGroupList.SubAxis(pre_size=1, size=3)
        ),
    ],
)
IOTA = hlo.CollectiveDeviceList.IotaReplicaGroupList(num_replica_groups=16, num_devices_per_group=32)
DEVICES = hlo.DeviceAssignment(replica_count=4, computation_count=8)


@pytest.mark.parametrize(
    ("instruction", "size"),
    [
        (hlo.Instruction(opcode="all-reduce", replica_groups=groups(4, 4)), 4),
        (hlo.Instruction(opcode="all-gather", replica_groups=groups(2, 5)), 5),
        (
            hlo.Instruction(
                opcode="all-to-all", collective_device_list=hlo.CollectiveDeviceList(replica_groups=groups(8))
            ),
            8,
        ),
        (
            hlo.Instruction(
                opcode="reduce-scatter", collective_device_list=hlo.CollectiveDeviceList(iota_replica_group_list=IOTA)
            ),
            32,
        ),
        (hlo.Instruction(opcode="all-reduce", mesh_axes_replica_group_list=MESH), 6),
        (hlo.Instruction(opcode="all-reduce"), 4),
        (hlo.Instruction(opcode="all-reduce-start", channel_id=1), 32),
    ],
)
def test_the_size_of_a_group_however_it_is_said(instruction: hlo.Instruction, size: int) -> None:
    assert detail(instruction, device_assignment=DEVICES)["group"] == size


def test_a_gemm_an_attention_and_a_kernel_that_declares_its_cost() -> None:
    numbers = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}
    gemm = {"gemm_backend_config": {"selected_algorithm": "7", "dot_dimension_numbers": numbers}}
    found = detail(_custom("__cublas$gemm", json.dumps(gemm)))
    assert found["dot"]["lhs_contracting"] == [1]
    attention = {"cudnn_fmha_backend_config": {"intermediate_tensor_shape": {"dimensions": ["2", "6", "64", "96"]}}}
    assert detail(_custom("__cudnn$fmhaSoftmax", json.dumps(attention)))["scores"] == [2, 6, 64, 96]
    cost = {"flops": 12, "transcendentals": 3, "bytes_accessed": 4}
    mosaic = {"custom_call_config": {"body": "AA==", "cost_estimate": cost}}
    assert detail(_custom("tpu_custom_call", json.dumps(mosaic)))["cost"] == cost
    attributes = hlo.FrontendAttributes(map={"cost_estimate": json.dumps(cost).encode()})
    assert detail(hlo.Instruction(opcode="custom-call", frontend_attributes=attributes))["cost"] == cost
    text = "{cost_estimate = {flops = 12 : i64, transcendentals = 3 : i64, bytes_accessed = 4 : i64}}"
    assert detail(_custom("__gpu$xla.gpu.triton", text))["cost"] == cost


def _custom(target: str, config: str) -> hlo.Instruction:
    return hlo.Instruction(opcode="custom-call", custom_call_target=target, backend_config=config.encode())


@pytest.mark.parametrize("config", ["{", "[" * 5000, '{"cost_estimate": {"flops": -5}}', '{"known_trip_count": 3}'])
def test_configurations_that_say_nothing_believable_say_nothing(config: str) -> None:
    assert "cost" not in detail(_custom("f", config))
    loop = hlo.Instruction(opcode="while", backend_config=config.encode())
    assert read_program(module(loop).SerializeToString()).ops.column("trip_count").to_pylist() == [None]


@pytest.mark.parametrize(("said", "trips"), [("12", 12), (str(1 << 60), 1 << 60), (str(1 << 70), None), ("-1", None)])
def test_trip_counts_that_fit_no_column_are_unknown(said: str, trips: int | None) -> None:
    loop = hlo.Instruction(opcode="while", backend_config=json.dumps({"known_trip_count": {"n": said}}).encode())
    assert read_program(module(loop).SerializeToString()).ops.column("trip_count").to_pylist() == [trips]


def test_what_an_autotuner_chose_is_no_other_program_and_another_product_is() -> None:
    def program(algorithm: str, contracted: str = "1") -> int:
        numbers = {"lhs_contracting_dimensions": [contracted], "rhs_contracting_dimensions": ["0"]}
        config = {"gemm_backend_config": {"selected_algorithm": algorithm, "dot_dimension_numbers": numbers}}
        return read_program(module(_custom("__cublas$gemm", json.dumps(config))).SerializeToString()).program

    assert program("-621293885") == program("17")
    assert program("17", "0") != program("17")


def test_memory_spaces_of_a_tuple() -> None:
    inner = hlo.Shape(element_type=11, dimensions=[4], layout=hlo.Layout(memory_space=1))
    shape = hlo.Shape(element_type=13, tuple_shapes=[inner, hlo.Shape(element_type=11, dimensions=[2])])
    assert detail(hlo.Instruction(opcode="copy-start", shape=shape))["spaces"] == [1, 0]


@pytest.mark.fault
def test_a_module_of_a_million_instructions_is_refused_in_bounded_time_and_memory() -> None:
    one = hlo.Instruction(opcode="add", name="a", id=1).SerializeToString()
    body = b"".join(b"\x12" + bytes([len(one)]) + one for _ in range(1_000_000))
    prefix = b"\x1a" + _varint(len(body))
    tracemalloc.start()
    begin = time.process_time()
    with pytest.raises(HloTooLarge, match="FS3061"):
        read_program(prefix + body)
    with pytest.raises(HloTooLarge, match="FS3061"):  # as HloProto
        read_program(b"\x0a" + _varint(len(prefix) + len(body)) + prefix + body)
    spent, (_, peak) = time.process_time() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20, "beside the bytes themselves"
    assert spent < 10
    assert measure.INSTRUCTIONS_LIMIT < 1_000_000


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@pytest.mark.fault
def test_a_damaged_module_is_a_numbered_error_or_a_table() -> None:
    whole = module(
        hlo.Instruction(opcode="all-reduce", mesh_axes_replica_group_list=MESH, called_computation_ids=[7]),
        _custom("__cublas$gemm", '{"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}'),
        hlo.Instruction(opcode="while", operand_ids=[1, 2], called_computation_ids=[7, 99]),
    ).SerializeToString()
    rng = random.Random(1)
    for _ in range(1000):
        data = bytearray(whole[: rng.randrange(1, len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            program = read_program(bytes(data))
        except (HloTooLarge, HloUnreadable):
            continue
        ordinals = program.ops.column("op").to_pylist()
        assert ordinals == list(range(len(ordinals)))
