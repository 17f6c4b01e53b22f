"""FLOPs of single instructions and library calls, each expected value worked out by hand from its definition."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.pipelines.symbolize.cost import cost_program
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import Kind

pytestmark = pytest.mark.unit

ADD = 90
"""Computation that applies x + y."""


def op(number: int, opcode: str, shape: str, **more: Any) -> dict[str, Any]:
    detail = more.pop("detail", None)
    base = {
        "op": number, "name": f"{opcode}.{number}", "opcode": opcode, "category": opcode, "kind": int(Kind.COMPUTE),
        "computation": 0, "entry": True, "shape": shape, "operands": [], "called": [], "trip_count": None,
        "dims": json.dumps(detail) if detail else "", "op_name": "", "source_file": "", "source_line": 0,
    }  # fmt: skip
    return {**base, **more}


def adding(first: int = 900) -> list[dict[str, Any]]:
    inside = {"computation": ADD, "entry": False}
    return [
        op(first, "parameter", "f32[]", **inside), op(first + 1, "parameter", "f32[]", **inside),
        op(first + 2, "add", "f32[]", operands=[first, first + 1], **inside),
    ]  # fmt: skip


def row(opcode: str, shape: str, operands: list[str], *more: dict[str, Any], **about: Any) -> dict[str, Any]:
    """The OPS row of one instruction of these operand shapes."""
    values = [op(number, "parameter", text) for number, text in enumerate(operands)]
    one = op(50, opcode, shape, operands=list(range(len(operands))), **about)
    table = pa.Table.from_pylist([*values, one, *more], PROGRAM_OPS)
    found = cost_program(table)[0].to_pylist()
    return next(line for line in found if line["op"] == 50)


GEMM = {"lhs_contracting": [1], "rhs_contracting": [0], "lhs_batch": [], "rhs_batch": []}
CONV = {"kernel_in": 2, "kernel_spatial": [0, 1], "input_spatial": [1, 2], "output_spatial": [1, 2]}
SAME3 = [[3, 1, 1, 1, 1, 1]] * 2
PAIRS = sum(0 <= o + k - 1 < 8 for o, k in itertools.product(range(8), range(3)))
CONV_FLOPS = 2 * 2 * 5 * 7 * PAIRS**2
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "complex product": (8 * 3 * 4 * 5, {
        "opcode": "dot", "shape": "c64[3,5]", "operands": ["c64[3,4]", "c64[4,5]"], "detail": {"dot": GEMM}}),
    "ragged product, groups of rows": (2 * 10 * 6 * 8, {
        "opcode": "ragged-dot", "shape": "f32[10,8]", "operands": ["f32[10,6]", "f32[4,6,8]", "s32[4]"],
        "detail": {"dot": {**GEMM, "rhs_contracting": [1]}, "ragged": [0]}}),
    "ragged product, groups of the sum": (2 * 10 * 6 * 8, {
        "opcode": "ragged-dot", "shape": "f32[4,6,8]", "operands": ["f32[10,6]", "f32[10,8]", "s32[4]"],
        "detail": {"dot": {**GEMM, "lhs_contracting": [0]}, "ragged": [0]}}),
    "complex FFT of 1 024": (5 * 3 * 1024 * 10, {
        "opcode": "fft", "shape": "c64[3,1024]", "operands": ["c64[3,1024]"], "detail": {"fft": [0, 1024]}}),
    "real FFT of 1 024": (5 * 3 * 1024 * 10 // 2, {
        "opcode": "fft", "shape": "c64[3,513]", "operands": ["f32[3,1024]"], "detail": {"fft": [2, 1024]}}),
    "real inverse in two dimensions": (5 * 16 * 32 * 9 // 2, {
        "opcode": "fft", "shape": "f32[16,32]", "operands": ["c64[16,17]"], "detail": {"fft": [3, 16, 32]}}),
    "reduce": (63 * 5, {
        "opcode": "reduce", "shape": "f32[5]", "operands": ["f32[5,64]", "f32[]"], "called": [ADD]}),
    "all-reduce": (640, {
        "opcode": "all-reduce", "shape": "f32[640]", "operands": ["f32[640]"], "called": [ADD],
        "detail": {"group": 4}}),
    "scatter": (21, {
        "opcode": "scatter", "shape": "f32[64,3]", "operands": ["f32[64,3]", "s32[7,1]", "f32[7,3]"],
        "called": [ADD]}),
    "gather": (0, {"opcode": "gather", "shape": "f32[7,3]", "operands": ["f32[64,3]", "s32[7,1]"]}),
    "pooling of 2 with a border": (2 * 9 - 2 - 9, {
        # Nine windows of two over eight elements and a border on each side: the outer two hold one element.
        "opcode": "reduce-window", "shape": "f32[9]", "operands": ["f32[8]", "f32[]"], "called": [ADD],
        "detail": {"window": [[2, 1, 1, 1, 1, 1]]}}),
    "sort of 1 024 in rows of 64": (1024 * 6, {
        "opcode": "sort", "shape": "f32[16,64]", "operands": ["f32[16,64]"], "called": [ADD],
        "detail": {"dimensions": [1]}}),
    "transcendental": (0, {"opcode": "tanh", "shape": "f32[9]", "operands": ["f32[9]"]}),
    "complex multiply": (6 * 9, {"opcode": "multiply", "shape": "c64[9]", "operands": ["c64[9]", "c64[9]"]}),
    "Cholesky": (2 * 12**3 // 3, {"opcode": "cholesky", "shape": "f32[2,12,12]", "operands": ["f32[2,12,12]"]}),
    "LAPACK's LU": (2 * 30**3 // 3, {
        "opcode": "custom-call", "shape": "(f32[30,30], s32[30], s32[])", "operands": ["f32[30,30]"],
        "detail": {"target": "lapack_sgetrf_ffi"}}),
    "cuSOLVER's QR": (2 * 40 * 30**2 - 2 * 30**3 // 3, {
        "opcode": "custom-call", "shape": "(f32[40,30], f32[30])", "operands": ["f32[40,30]"],
        "detail": {"target": "cusolver_geqrf_ffi"}}),
    "cuBLAS": (2 * 16 * 8 * 32, {
        "opcode": "custom-call", "shape": "(bf16[16,8], s8[4096])", "operands": ["bf16[16,32]", "bf16[32,8]"],
        "detail": {"target": "__cublas$gemm", "dot": GEMM}}),
    "cuBLASLt of 8-bit floats": (2 * 16 * 8 * 32, {
        "opcode": "custom-call", "shape": "(bf16[16,8], s8[4096])",
        "operands": ["f8e4m3fn[16,32]", "f8e4m3fn[8,32]", "f32[]", "f32[]"],
        "detail": {"target": "__cublas$lt$matmul$f8", "dot": {**GEMM, "rhs_contracting": [1]}}}),
    "oneDNN, transposed": (2 * 16 * 8 * 32, {
        "opcode": "custom-call", "shape": "f32[16,8]", "operands": ["f32[32,16]", "f32[32,8]"],
        "detail": {"target": "__onednn$matmul", "transpose_a": True}}),
    "cuDNN forward": (CONV_FLOPS, {
        "opcode": "custom-call", "shape": "(f32[2,8,8,7], u8[0])", "operands": ["f32[2,8,8,5]", "f32[3,3,5,7]"],
        "detail": {"target": "__cudnn$convForward", "conv": CONV, "window": SAME3}}),
    "cuDNN by input": (CONV_FLOPS, {
        "opcode": "custom-call", "shape": "(f32[2,8,8,5], u8[0])", "operands": ["f32[2,8,8,7]", "f32[3,3,5,7]"],
        "detail": {"target": "__cudnn$convBackwardInput", "conv": CONV, "window": SAME3}}),
    "cuDNN by filter": (CONV_FLOPS, {
        "opcode": "custom-call", "shape": "(f32[3,3,5,7], u8[0])", "operands": ["f32[2,8,8,5]", "f32[2,8,8,7]"],
        "detail": {"target": "__cudnn$convBackwardFilter", "conv": CONV, "window": SAME3}}),
    "cuDNN attention": (2 * 2 * 6 * 64 * 96 * (32 + 32), {
        "opcode": "custom-call", "shape": "(bf16[2,6,64,32], u8[0])",
        "operands": ["bf16[2,6,64,32]", "bf16[2,6,96,32]", "bf16[2,6,96,32]"],
        "detail": {"target": "__cudnn$fmhaSoftmax", "scores": [2, 6, 64, 96]}}),
    "cuDNN attention, backward": (2 * 2 * 6 * 64 * 96 * 5 * 32, {
        "opcode": "custom-call", "shape": "(bf16[2,6,64,32], bf16[2,6,96,32], bf16[2,6,96,32], u8[0])",
        "operands": ["bf16[2,6,64,32]", "bf16[2,6,96,32]", "bf16[2,6,96,32]", "f32[2,6,64]", "bf16[2,6,64,32]"],
        "detail": {"target": "__cudnn$fmhaSoftmaxBackward", "scores": [2, 6, 64, 96]}}),
    "Mosaic kernel that declares": (269221888, {
        "opcode": "custom-call", "shape": "f32[8]", "operands": ["f32[8]"],
        "detail": {"target": "tpu_custom_call", "cost": {"flops": 269221888, "bytes_accessed": 5242880}}}),
    "TopK of 8 in 1 024": (2 * 1024 * 3, {
        "opcode": "custom-call", "shape": "(f32[2,8], s32[2,8])", "operands": ["f32[2,1024]"],
        "detail": {"target": "TopK"}}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_flops(name: str) -> None:
    expected, about = CASES[name]
    opcode, shape, operands = (about[key] for key in ("opcode", "shape", "operands"))
    rest = {key: value for key, value in about.items() if key not in ("opcode", "shape", "operands")}
    found = row(opcode, shape, operands, *adding(), **rest)
    assert found["flops"] == expected
    assert found["flops_min"] == found["flops_max"] == expected
    assert found["unknown"] == ""


def test_what_attention_computes_again_backward_is_no_model_flop() -> None:
    _, about = CASES["cuDNN attention, backward"]
    found = row(about["opcode"], about["shape"], about["operands"], detail=about["detail"])
    assert found["flops"] - found["model_flops"] == 2 * 2 * 6 * 64 * 96 * 32, "scores from q and k"


@pytest.mark.parametrize(
    ("opcode", "detail", "label"),
    [
        ("quantum-walk", None, "quantum-walk"),
        ("custom-call", {"target": "lapack_ssyevd_ffi"}, "custom-call lapack_ssyevd_ffi"),
        ("custom-call", {"target": "__gpu$xla.gpu.triton"}, "custom-call __gpu$xla.gpu.triton"),
        ("fft", None, "fft"),
        ("reduce", None, "reduce"),
    ],
)
def test_the_unknown_stays_unknown_and_is_named(opcode: str, detail: Any, label: str) -> None:
    found = row(opcode, "f32[8]", ["f32[8]"], detail=detail)
    assert (found["flops"], found["model_flops"], found["flops_min"], found["flops_max"]) == (None, None, 0, None)
    assert found["unknown"] == label


def test_f32_products_of_the_highest_precision_have_a_peak_of_their_own() -> None:
    plain = row("dot", "f32[3,5]", ["f32[3,4]", "f32[4,5]"], detail={"dot": GEMM})
    highest = row("dot", "f32[3,5]", ["f32[3,4]", "f32[4,5]"], detail={"dot": GEMM, "precision": 2})
    assert (plain["dtype"], highest["dtype"]) == ("f32", "fp32")


WIRE = {
    "all-reduce": 2 * 3 * 4000 // 4,
    "all-gather": 3 * 4000,
    "reduce-scatter": 3 * 4000 // 4,
    "all-to-all": 3 * 4000 // 4,
    "collective-permute": 4000,
    "all-reduce-start": 2 * 3 * 4000 // 4,
    "all-gather-start": 3 * 4000,
    "all-gather-done": 0,
}


@pytest.mark.parametrize("opcode", list(WIRE))
def test_bytes_on_the_wire(opcode: str) -> None:
    found = row(opcode, "f32[1000]", ["f32[1000]"], *adding(), called=[ADD], detail={"group": 4})
    assert found["wire_bytes"] == WIRE[opcode]


def test_bytes_on_the_wire_are_unknown_without_a_group_and_not_0() -> None:
    assert row("all-gather", "f32[1000]", ["f32[250]"])["wire_bytes"] is None


def test_bytes_by_memory_space() -> None:
    rows = [
        op(0, "parameter", "f32[100]", detail={"spaces": [5]}), op(1, "parameter", "f32[100]"),
        op(2, "add", "f32[100]", operands=[0, 1], detail={"spaces": [1]}),
    ]  # fmt: skip
    found = cost_program(pa.Table.from_pylist(rows, PROGRAM_OPS))[0].to_pylist()[2]
    assert dict(found["bytes_by_space"]) == {"hbm": 400, "alternate": 400, "host": 400}
    assert (found["bytes_accessed"], found["bytes_hbm"]) == (1200, 400)


def test_a_fusion_reads_of_a_parameter_what_its_slice_takes_and_writes_what_it_updates() -> None:
    inside = {"computation": 1, "entry": False}
    rows = [
        op(0, "parameter", "f32[64,100]", detail={"parameter": 0}, **inside),
        op(1, "parameter", "s32[]", detail={"parameter": 1}, **inside),
        op(2, "dynamic-slice", "f32[1,100]", operands=[0, 1], **inside),
        op(3, "parameter", "f32[64,100]", detail={"parameter": 2}, **inside),
        op(4, "dynamic-update-slice", "f32[64,100]", operands=[3, 2, 1], **inside),
        op(5, "parameter", "f32[64,100]"), op(6, "parameter", "s32[]"), op(7, "parameter", "f32[64,100]"),
        op(8, "fusion", "f32[64,100]", operands=[5, 6, 7], called=[1]),
    ]  # fmt: skip
    found = cost_program(pa.Table.from_pylist(rows, PROGRAM_OPS))[0].to_pylist()[8]
    assert found["bytes_accessed"] == 400 + 4 + 400


def _branches(first: int, second: int) -> pa.Table:
    rows = [op(0, "parameter", "pred[]"), op(9, "conditional", "f32[1]", operands=[0], called=[1, 2])]
    for computation, size in ((1, first), (2, second)):
        rows.append(op(10 + computation, "negate", f"f32[{size}]", computation=computation, entry=False))
    return pa.Table.from_pylist(rows, PROGRAM_OPS)


def test_a_conditional_lies_between_its_branches() -> None:
    table, whole = cost_program(_branches(10, 1000))
    found = table.to_pylist()[1]
    assert (found["flops"], found["flops_min"], found["flops_max"]) == (None, 10, 1000)
    assert (whole.flops, whole.flops_min, whole.flops_max, whole.unknown) == (None, 10, 1000, ("conditional",))
    assert cost_program(_branches(70, 70))[1].flops == 70


def test_loops_nest_and_one_without_a_trip_count_is_bounded_below_only() -> None:
    def nested(inner: int | None, outer: int | None) -> Any:
        rows = [
            op(0, "negate", "f32[7]", computation=2, entry=False),
            op(1, "while", "f32[7]", computation=1, entry=False, called=[2], trip_count=inner),
            op(2, "negate", "f32[5]", computation=1, entry=False),
            op(3, "while", "f32[7]", called=[1], trip_count=outer),
            op(4, "negate", "f32[3]"),
        ]
        return cost_program(pa.Table.from_pylist(rows, PROGRAM_OPS))[1]

    assert nested(11, 13).flops == 13 * (11 * 7 + 5) + 3
    unsure = nested(None, 13)
    assert (unsure.flops, unsure.flops_min, unsure.flops_max) == (None, 13 * 5 + 3, None)
    assert unsure.unknown == ("while without a trip count",)
    huge = nested(1 << 60, 1 << 60)
    assert huge.flops is None
    assert huge.flops_max is None
    assert 0 <= huge.flops_min < 1 << 60


def test_a_computation_that_calls_itself_is_unknown_and_the_rest_is_not() -> None:
    rows = [
        op(0, "call", "f32[7]", computation=1, entry=False, called=[2]),
        op(1, "call", "f32[7]", computation=2, entry=False, called=[1]),
        op(2, "call", "f32[7]", called=[1]),
        op(3, "negate", "f32[3]"),
    ]
    table, whole = cost_program(pa.Table.from_pylist(rows, PROGRAM_OPS))
    assert table.column("flops").to_pylist() == [None, None, None, 3]
    assert whole.flops is None
    assert whole.flops_min == 3


def test_copies_of_xla_count_as_recomputed_only_beside_their_original() -> None:
    rows = [
        op(0, "negate", "f32[7]", name="negate.3"),
        op(1, "negate", "f32[7]", name="negate.3.remat2"),
        op(2, "negate", "f32[7]", name="negate.4.remat"),
    ]
    found = cost_program(pa.Table.from_pylist(rows, PROGRAM_OPS))[0]
    assert found.column("flops").to_pylist() == [7, 7, 7]
    assert found.column("model_flops").to_pylist() == [7, 0, 7]
