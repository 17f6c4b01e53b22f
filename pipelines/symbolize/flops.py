"""FLOPs of one HLO instruction from its shapes: a fused multiply-add is two.

Formulas (those of XLA's HloCostAnalysis where not said otherwise): dot 2 x result elements x contracted size;
convolution by products with real elements; elementwise one per result element; reductions one application of their
computation per combined element; FFT 5 N log2 N of complex and half of real values (radix-2 count, as FFTW reports its
speed); sort n log2 n comparisons; Cholesky n^3 / 3; triangular solve n^2 a column. Transcendental functions are no
FLOPs and counted beside them. Complex values count their real operations. Data movement is 0. What is not understood
is None, never 0 (DESIGN 3.8).
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

from fleetscope.pipelines.symbolize.convolution import convolution_flops, window_positions
from fleetscope.pipelines.symbolize.libraries import library_cost
from fleetscope.pipelines.symbolize.shapes import COMPLEX, Array, Shapes, multiply_add
from fleetscope.pipelines.symbolize.totals import Cost

HIGH_PRECISION = 2
"""PrecisionConfig.HIGHEST: products of f32 as f32, not as tf32 or bf16."""


MOVES = frozenset(
    """parameter constant get-tuple-element tuple bitcast bitcast-convert broadcast reshape transpose slice
    dynamic-slice dynamic-update-slice concatenate pad reverse gather copy copy-start copy-done iota after-all
    add-dependency infeed outfeed optimization-barrier opt-barrier partition-id replica-id get-dimension-size
    set-dimension-size dynamic-reshape domain send send-done recv recv-done all-gather all-gather-start
    all-gather-done all-to-all collective-permute collective-permute-start collective-permute-done
    collective-broadcast ragged-all-to-all all-reduce-done async-update async-done trace""".split()
)
"""Opcodes that compute nothing."""

TRANSCENDENTAL = frozenset(
    """acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log log-plus-one
    logistic power rsqrt sine sinh sqrt tan tanh""".split()
)

ELEMENTWISE = frozenset(
    """abs add and ceil clamp compare complex convert divide floor imag is-finite maximum minimum multiply negate not or
    popcnt real remainder reduce-precision rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even select shift-left shift-right-arithmetic shift-right-logical sign stochastic-convert
    subtract xor count-leading-zeros""".split()
)

_COMPLEX_ELEMENT = {"multiply": 6, "divide": 11}
"""Real operations on complex numbers: (ac - bd) + i (ad + bc); a quotient is a product with the conjugate, a squared
modulus and two quotients. All others: one a part."""

_APPLYING = frozenset(("map", "reduce", "all-reduce", "all-reduce-start", "reduce-scatter", "scatter", "reduce-window"))


def instruction_cost(
    opcode: str,
    result: Sequence[Array],
    operands: Shapes,
    dims: str,
    applied: Callable[[], Sequence[int | None]],
) -> Cost:
    """Cost of a leaf instruction. `operands`: arrays of each operand; `dims`: PROGRAM_OPS.dims; `applied()`: FLOPs of
    one application of each computation the instruction calls."""
    if opcode in MOVES:
        return Cost(0, "move", result[0].dtype if result else "")
    dtype = result[0].dtype if result else ""
    if opcode in TRANSCENDENTAL:
        return Cost(0, "transcendental", dtype, transcendentals=result[0].elements if result else 0)
    if opcode in ELEMENTWISE:
        return Cost(_elementwise(opcode, result, operands), "elementwise", dtype)
    detail: dict[str, Any] = json.loads(dims) if dims else {}
    if opcode in ("dot", "ragged-dot"):
        return _dot(result, operands, detail)
    if opcode == "convolution":
        return _convolution(result, operands, detail)
    if opcode == "custom-call":
        return library_cost(result, operands, detail) or Cost(None, "unknown", dtype)
    if opcode in _APPLYING:
        called = applied()
        return Cost(_applying(opcode, result, operands, detail, called[0] if called else None), "reduction", dtype)
    return Cost(_other(opcode, result, operands, detail, applied), opcode, dtype)


def _elementwise(opcode: str, result: Sequence[Array], operands: Shapes) -> int:
    if not result:
        return 0
    if result[0].dtype in COMPLEX:
        return result[0].elements * _COMPLEX_ELEMENT.get(opcode, 2)
    return result[0].elements


def _dot(result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> Cost:
    numbers = detail.get("dot")
    if not result or len(operands) < 2 or not operands[0] or numbers is None:
        return Cost(None, "unknown")
    lhs = operands[0][0]
    contracting = numbers["lhs_contracting"]
    if any(not 0 <= d < len(lhs.dims) for d in contracting):
        return Cost(None, "unknown")
    flops = multiply_add(lhs.dtype) * result[0].elements * math.prod(lhs.dims[d] for d in contracting)
    ragged = detail.get("ragged")
    if ragged and set(ragged) & set(contracting) and result[0].dims:
        # Groups divide the contracted dimension between them: each result of the group dimension sums its own part.
        flops //= max(result[0].dims[0], 1)
    # A key of peak_flops of its own: what a chip does for f32 by default is its faster approximate product.
    highest = lhs.dtype == "f32" and detail.get("precision", 0) >= HIGH_PRECISION
    return Cost(flops, "dot", "fp32" if highest else lhs.dtype)


def _convolution(result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> Cost:
    if not result or len(operands) < 2 or not operands[0] or not operands[1]:
        return Cost(None, "unknown")
    base = operands[0][0]
    flops = convolution_flops(base.dims, operands[1][0].dims, result[0].dims, detail)
    if flops is None:
        return Cost(None, "unknown", base.dtype)
    return Cost(flops * multiply_add(base.dtype) // 2, "convolution", base.dtype)


def _applying(
    opcode: str, result: Sequence[Array], operands: Shapes, detail: dict[str, Any], applied: int | None
) -> int | None:
    if applied is None or not result or not operands or not operands[0]:
        return None
    first = operands[0][0]
    if opcode == "map":
        return result[0].elements * applied
    if opcode == "reduce":
        return max(first.elements - result[0].elements, 0) * applied
    if opcode == "reduce-window":
        positions = _pooled(first, result[0], detail)
        return None if positions is None else max(positions - result[0].elements, 0) * applied
    if opcode == "scatter":
        updates = operands[len(operands) // 2 + 1] if len(operands) % 2 else operands[-1]
        return (updates[0].elements if updates else 0) * applied
    return sum(part.elements for part in result) * applied


def _pooled(base: Array, out: Array, detail: dict[str, Any]) -> int | None:
    window = detail.get("window", [])
    return window_positions([row[0] for row in window], out.dims, base.dims, window)


def _other(
    opcode: str,
    result: Sequence[Array],
    operands: Shapes,
    detail: dict[str, Any],
    applied: Callable[[], Sequence[int | None]],
) -> int | None:
    if not result or not operands or not operands[0]:
        return None
    first = operands[0][0]
    if opcode == "fft":
        return _fft(result[0], first, detail.get("fft", []))
    if opcode == "sort":
        called = applied()
        dimension = int(detail.get("dimensions", [len(first.dims) - 1])[0])
        if not called or called[0] is None or not 0 <= dimension < len(first.dims):
            return None
        return first.elements * int(max(first.dims[dimension] - 1, 0)).bit_length() * max(called[0], 1)
    if opcode == "topk":
        return first.elements * max((int(detail.get("k", 1)) - 1).bit_length(), 1)
    if opcode == "cholesky" and first.dims:
        return first.elements * first.dims[-1] // 3 * multiply_add(first.dtype) // 2
    if opcode == "triangular-solve" and first.dims:
        return result[0].elements * first.dims[-1] * multiply_add(first.dtype) // 2
    if opcode == "select-and-scatter" and len(operands) > 1 and operands[1]:
        called = applied()
        source = operands[1][0]
        positions = _pooled(first, source, detail)
        if len(called) < 2 or called[0] is None or called[1] is None or positions is None:
            return None
        return max(positions - source.elements, 0) * called[0] + source.elements * called[1]
    return None


_REAL_TRANSFORMS = (2, 3)
"""RFFT, IRFFT of FftType."""


def _fft(result: Array, operand: Array, fft: Sequence[int]) -> int | None:
    if len(fft) < 2:
        return None
    kind, length = fft[0], math.prod(fft[1:])
    if length <= 0:
        return None
    real = kind in _REAL_TRANSFORMS
    points = (operand if kind == 2 else result).elements
    # N log2 N in whole numbers: exact for powers of two, and for others what a float gives.
    return int(points * math.log2(length) * (2.5 if real else 5))
