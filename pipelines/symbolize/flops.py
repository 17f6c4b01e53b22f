"""FLOPs of one HLO instruction from its shapes, as XLA's HloCostAnalysis counts them: a fused multiply-add is two.

Formulas: dot 2 x result elements x contracted size; convolution 2 x result features and batch x valid window positions
x input features of the kernel; elementwise one per result element, transcendental functions none (XLA counts those
apart); reduce one application of its computation per element combined. Data movement is 0. What is not understood is
None, never 0 (DESIGN 3.8).
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetscope.pipelines.symbolize.shapes import Array


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of one occurrence (None: unknown), the formula they come from, the element type whose peak applies."""

    flops: int | None
    source: str
    dtype: str = ""


MOVES = frozenset(
    """parameter constant get-tuple-element tuple bitcast bitcast-convert broadcast reshape transpose slice
    dynamic-slice dynamic-update-slice concatenate pad reverse gather copy copy-start copy-done iota after-all
    add-dependency infeed outfeed optimization-barrier partition-id replica-id get-dimension-size set-dimension-size
    domain send send-done recv recv-done all-gather all-gather-start all-gather-done all-to-all collective-permute
    collective-permute-start collective-permute-done collective-broadcast ragged-all-to-all all-reduce-done
    async-update async-done""".split()
)
"""Opcodes that compute nothing."""

TRANSCENDENTAL = frozenset(
    """atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power rsqrt sine sqrt tan
    tanh""".split()
)

ELEMENTWISE = frozenset(
    """abs add and ceil clamp compare complex convert divide floor imag is-finite maximum minimum multiply negate not or
    popcnt real remainder reduce-precision rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign stochastic-convert
    subtract xor count-leading-zeros""".split()
)

_MATMUL_TARGETS = ("matmul", "gemm", "dot")
_FREE_TARGETS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "AllocateBuffer")


def instruction_cost(
    opcode: str,
    result: Sequence[Array],
    operands: Sequence[Sequence[Array]],
    dims: str,
    applied: Callable[[], int | None],
) -> Cost:
    """Cost of one instruction that is no fusion, loop, branch or call.

    `applied`: FLOPs of one application of the computation it calls.
    """
    detail: dict[str, Any] = json.loads(dims) if dims else {}
    if opcode == "dot":
        return _dot(result, operands, detail.get("dot"), "dot")
    if opcode == "convolution":
        return _convolution(result, operands, detail)
    if opcode == "custom-call":
        return _custom_call(result, operands, detail)
    if opcode in TRANSCENDENTAL:
        return Cost(0, "transcendental", result[0].dtype if result else "")
    if opcode in MOVES:
        return Cost(0, "move", result[0].dtype if result else "")
    if opcode in ELEMENTWISE:
        return Cost(result[0].elements if result else 0, "elementwise", result[0].dtype if result else "")
    if opcode in ("map", "reduce", "all-reduce", "all-reduce-start", "reduce-scatter", "scatter", "reduce-window"):
        return _applying(opcode, result, operands, detail, applied())
    return Cost(None, "unknown", result[0].dtype if result else "")


def _dot(
    result: Sequence[Array], operands: Sequence[Sequence[Array]], numbers: dict[str, list[int]] | None, source: str
) -> Cost:
    if not result or len(operands) < 2 or not operands[0] or numbers is None:
        return Cost(None, "unknown")
    lhs = operands[0][0]
    contracting = numbers["lhs_contracting"]
    if any(not 0 <= d < len(lhs.dims) for d in contracting):
        return Cost(None, "unknown")
    return Cost(2 * result[0].elements * math.prod(lhs.dims[d] for d in contracting), source, lhs.dtype)


POSITIONS_LIMIT = 1 << 22
"""Of the smaller of kernel and result in one dimension: work of the pass grows with it."""


def _valid_positions(
    kernel: int, out: int, base: int, stride: int, low: int, window_dilation: int, base_dilation: int
) -> int | None:
    """Pairs (output, kernel position) that read a real input element rather than padding or a dilation hole.

    The pair (o, k) reads o * stride + k * window_dilation - low. The smaller of the two is tried value by value and
    the other counted: all pairs of a weight gradient over 480 000 samples would be gigabytes. None where even that is
    too much.
    """
    reach = (base - 1) * base_dilation + 1 if base else 0
    (tried, step), (counted, stride_) = sorted(((kernel, window_dilation), (out, stride)))
    if tried > POSITIONS_LIMIT or tried * step + counted * stride_ + abs(low) + reach >= 1 << 62:
        return None
    if min(step, stride_, base_dilation) <= 0:
        return None
    at = np.arange(tried, dtype=np.int64) * step - low
    common = math.gcd(stride_, base_dilation)
    period = base_dilation // common
    first = np.maximum(-(at // stride_), 0)
    last = np.minimum((reach - 1 - at) // stride_, counted - 1)
    # Which of [first, last] fall on an element: those congruent to `hit`, and none where the gcd does not divide.
    hit = (-at // common) % period * pow(stride_ // common, -1, period) % period
    found = (last - hit) // period - (first - 1 - hit) // period
    return int(np.maximum(found, 0)[at % common == 0].sum())


def _convolution(result: Sequence[Array], operands: Sequence[Sequence[Array]], detail: dict[str, Any]) -> Cost:
    conv, window = detail.get("conv"), detail.get("window")
    if conv is None or not result or len(operands) < 2 or not operands[0] or not operands[1]:
        return Cost(None, "unknown")
    base, kernel, out = operands[0][0], operands[1][0], result[0]
    positions = 1
    for i, (_size, stride, low, _high, dilation, base_dilation) in enumerate(window or []):
        dims = (kernel.dims[conv["kernel_spatial"][i]], out.dims[conv["output_spatial"][i]])
        source = base.dims[conv["input_spatial"][i]]
        valid = _valid_positions(*dims, source, stride, low, dilation, base_dilation)
        if valid is None:
            return Cost(None, "unknown", base.dtype)
        positions *= valid
    spatial = math.prod(out.dims[d] for d in conv["output_spatial"])
    outer = out.elements // spatial if spatial else 0
    flops = 2 * outer * positions * kernel.dims[conv["kernel_in"]] // conv["batch_groups"]
    return Cost(flops, "convolution", base.dtype)


def _custom_call(result: Sequence[Array], operands: Sequence[Sequence[Array]], detail: dict[str, Any]) -> Cost:
    target = str(detail.get("target", ""))
    if target in _FREE_TARGETS:
        return Cost(0, "move")
    if not any(word in target.lower() for word in _MATMUL_TARGETS):
        return Cost(None, "unknown", result[0].dtype if result else "")
    numbers = detail.get("dot")
    if numbers is None and operands and operands[0] and operands[0][0].dims:
        # A library matmul without dimension numbers contracts the last dimension of its left operand.
        numbers = {"lhs_contracting": [len(operands[0][0].dims) - 1]}
    return _dot(result, operands, numbers, "custom-call")


def _applying(
    opcode: str,
    result: Sequence[Array],
    operands: Sequence[Sequence[Array]],
    detail: dict[str, Any],
    applied: int | None,
) -> Cost:
    dtype = result[0].dtype if result else ""
    if applied is None or not result or not operands or not operands[0]:
        return Cost(None, "unknown", dtype)
    first = operands[0][0]
    if opcode == "map":
        return Cost(result[0].elements * applied, "elementwise", dtype)
    if opcode == "reduce":
        return Cost((first.elements - result[0].elements) * applied, "elementwise", dtype)
    if opcode == "reduce-window":
        window = math.prod(part[0] for part in detail.get("window", []))
        return Cost((window - 1) * result[0].elements * applied, "elementwise", dtype)
    if opcode == "scatter":
        updates = operands[len(operands) // 2 + 1] if len(operands) % 2 else operands[-1]
        return Cost((updates[0].elements if updates else 0) * applied, "elementwise", dtype)
    return Cost(sum(part.elements for part in result) * applied, "elementwise", dtype)
