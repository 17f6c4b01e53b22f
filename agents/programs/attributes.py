"""Attributes of an instruction that the cost pass reads: column `dims` of PROGRAM_OPS, JSON with sorted keys.

Keys: dot, ragged, conv, window, fft, target, scores, cost, dimensions, group, sources, k, precision, spaces, parameter,
transpose_a.
`docs/design/0012-program-cost.md` says what each holds.
"""

import json
from typing import Any

from fleetscope.agents.programs.backend import backend_config, declared_cost, find
from fleetscope.agents.programs.groups import group_size
from fleetscope.agents.programs.kinds import COLLECTIVE, base_opcode
from fleetscope.schema.hlo_pb2 import ConvolutionDimensions, DeviceAssignment, DotDimensions, Instruction, Shape

_DIMENSIONED = ("reduce", "reduce-window", "reduce-scatter", "sort")
_SPACES_LIMIT = 4096


def attributes(instruction: Instruction, devices: DeviceAssignment, fused: bool) -> str:
    """`fused`: it stands in a computation that others call, where the order of parameters is wanted."""
    out: dict[str, Any] = {}
    opcode = instruction.opcode
    if opcode == "parameter":
        if fused:
            out["parameter"] = instruction.parameter_number
    elif opcode == "custom-call":
        _custom_call(instruction, out)
    elif base_opcode(opcode) in COLLECTIVE:
        size = group_size(instruction, devices)
        if size:
            out["group"] = size
        if instruction.source_target_pairs:
            out["sources"] = len({pair.source for pair in instruction.source_target_pairs})
    _numbers(instruction, out)
    if opcode in _DIMENSIONED:
        out["dimensions"] = list(instruction.dimensions)
    if instruction.k:
        out["k"] = instruction.k
    if instruction.HasField("precision_config"):
        precision = max(instruction.precision_config.operand_precision, default=0)
        if precision:
            out["precision"] = precision
    spaces = _spaces(instruction.shape)
    if any(spaces):
        out["spaces"] = spaces
    return json.dumps(out, sort_keys=True) if out else ""


def _numbers(instruction: Instruction, out: dict[str, Any]) -> None:
    if instruction.HasField("dot_dimension_numbers"):
        out["dot"] = _dot(instruction.dot_dimension_numbers)
    if instruction.HasField("ragged_dot_dimension_numbers"):
        ragged = instruction.ragged_dot_dimension_numbers
        out["dot"] = _dot(ragged.dot_dimension_numbers)
        out["ragged"] = list(ragged.lhs_ragged_dimensions)
    if instruction.HasField("convolution_dimension_numbers"):
        out["conv"] = _conv(instruction.convolution_dimension_numbers)
    if instruction.HasField("window"):
        out["window"] = [
            [d.size, d.stride, d.padding_low, d.padding_high, d.window_dilation or 1, d.base_dilation or 1]
            for d in instruction.window.dimensions
        ]
    if instruction.opcode == "fft":
        out["fft"] = [instruction.fft_type, *instruction.fft_length]


def _dot(dot: DotDimensions) -> dict[str, list[int]]:
    return {
        "lhs_contracting": list(dot.lhs_contracting_dimensions),
        "rhs_contracting": list(dot.rhs_contracting_dimensions),
        "lhs_batch": list(dot.lhs_batch_dimensions),
        "rhs_batch": list(dot.rhs_batch_dimensions),
    }


def _conv(conv: ConvolutionDimensions) -> dict[str, Any]:
    return {
        "kernel_in": conv.kernel_input_feature_dimension,
        "kernel_spatial": list(conv.kernel_spatial_dimensions),
        "input_spatial": list(conv.input_spatial_dimensions),
        "output_spatial": list(conv.output_spatial_dimensions),
    }


def _custom_call(instruction: Instruction, out: dict[str, Any]) -> None:
    out["target"] = instruction.custom_call_target
    config = backend_config(instruction)
    cost = declared_cost(instruction, config)
    if cost:
        out["cost"] = cost
    gemm = find(config, "dot_dimension_numbers")
    if gemm is not None:
        out["dot"] = _json_dot(gemm)
    onednn = find(config, "onednn_matmul_config")
    if onednn is not None and onednn.get("transpose_a") is True:
        out["transpose_a"] = True
    attention = find(config, "cudnn_fmha_backend_config")
    if attention is not None:
        scores = attention.get("intermediate_tensor_shape")
        if isinstance(scores, dict):
            out["scores"] = _integers(scores.get("dimensions"))


def _json_dot(gemm: dict[str, Any]) -> dict[str, list[int]]:
    keys = {"lhs_contracting": "lhs_contracting_dimensions", "rhs_contracting": "rhs_contracting_dimensions"}
    keys |= {"lhs_batch": "lhs_batch_dimensions", "rhs_batch": "rhs_batch_dimensions"}
    return {name: _integers(gemm.get(key)) for name, key in keys.items()}


def _integers(values: Any) -> list[int]:
    """Protobuf's JSON writes int64 as text."""
    try:
        return [int(value) for value in values or []]
    except (TypeError, ValueError):
        return []


def _spaces(shape: Shape) -> list[int]:
    """Memory space of each array of a shape, tuples flattened as their text is; [] for one of too many."""
    out: list[int] = []
    pending = [shape]
    while pending and len(out) <= _SPACES_LIMIT:
        part = pending.pop()
        if part.element_type == 13:
            pending.extend(reversed(part.tuple_shapes))
        elif part.element_type not in (14, 17):
            out.append(part.layout.memory_space)
    return out if len(out) <= _SPACES_LIMIT else []
