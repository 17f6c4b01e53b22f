"""FLOPs of library calls (HLO custom-call) from the shapes of their operands, and of kernels that declare their own.

Targets as XLA names them: xla/service/gpu/cublas_cudnn.h, jaxlib's lapack, cusolver, hipsolver and cublas kernels,
XLA:CPU's oneDNN. LAPACK's counts are those of LAPACK Working Note 41, appendix C. Algorithms that iterate until they
converge (eigenvalues, singular values) have no count from shapes: unknown.
"""

import math
from collections.abc import Sequence
from typing import Any

from fleetscope.pipelines.symbolize.convolution import convolution_flops
from fleetscope.pipelines.symbolize.shapes import Array, Shapes, multiply_add
from fleetscope.pipelines.symbolize.totals import Cost

FREE = (
    "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint", "AllocateBuffer", "MoveToHost",
    "MoveToDevice", "annotate_device_placement", "ConcatBitcast", "PadToStatic", "SliceToDynamic",
    "SetBound", "xla.sdy.FuncResultSharding", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape",
)  # fmt: skip
"""Targets that mark or move and compute nothing."""

_PER_ELEMENT = {"__onednn$softmax": 4, "__onednn$layernorm": 7, "__cudnn$norm": 7}
"""FLOPs a result element of the plain definition: softmax is maximum, difference, sum, quotient (exp is counted as
transcendental); a layer norm two sums, difference, square, product, scale and shift."""

_MATMULS = ("matmul", "gemm", "dot")


def library_cost(result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> Cost | None:
    """None: unknown."""
    target = str(detail.get("target", ""))
    dtype = next((part.dtype for operand in operands for part in operand), result[0].dtype if result else "")
    declared = detail.get("cost")
    if declared and "flops" in declared:
        transcendentals = int(declared.get("transcendentals", 0))
        return Cost(int(declared["flops"]), "declared", dtype, transcendentals=transcendentals)
    if target in FREE:
        return Cost(0, "move", dtype)
    if target.startswith("__cudnn$conv"):
        return _plain(_convolution(target, result, operands, detail), "convolution", dtype)
    if target.startswith("__cudnn$fmha"):
        return _attention(target, result, operands, detail)
    if target in _PER_ELEMENT:
        return Cost(_PER_ELEMENT[target] * (result[0].elements if result else 0), "elementwise", dtype)
    if target.startswith("__cub$DeviceRadixSort") or target in ("TopK", "__gpu$TopK"):
        return _plain(_ordering(target, result, operands, detail), "sort", dtype)
    solved = _linear_algebra(target.lower(), operands)
    if solved is not None:
        return _plain(solved, "library", dtype)
    if any(word in target.lower() for word in _MATMULS):
        return _plain(_matmul(result, operands, detail), "dot", dtype)
    return None


def _plain(flops: int | None, source: str, dtype: str) -> Cost | None:
    return None if flops is None else Cost(flops, source, dtype)


def _matmul(result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> int | None:
    if not result or len(operands) < 2 or not operands[0] or not operands[0][0].dims:
        return None
    lhs = operands[0][0]
    numbers = detail.get("dot")
    if numbers is not None:
        contracting = numbers["lhs_contracting"]
    else:
        # A library matmul without dimension numbers contracts the last dimension of its left operand, or, transposed,
        # the one before.
        contracting = [len(lhs.dims) - (2 if detail.get("transpose_a") else 1)]
    if any(not 0 <= d < len(lhs.dims) for d in contracting):
        return None
    return multiply_add(lhs.dtype) * result[0].elements * math.prod(lhs.dims[int(d)] for d in contracting)


def _convolution(target: str, result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> int | None:
    """Window and dimension numbers are those of the forward convolution, whichever of its arrays is the result."""
    if not result or len(operands) < 2 or not operands[0] or not operands[1]:
        return None
    first, second, made = operands[0][0].dims, operands[1][0].dims, result[0].dims
    if target == "__cudnn$convBackwardInput":
        return convolution_flops(made, second, first, detail)
    if target == "__cudnn$convBackwardFilter":
        return convolution_flops(first, made, second, detail)
    if target.startswith(("__cudnn$convForward", "__cudnn$convBiasActivationForward")):
        return convolution_flops(first, second, made, detail)
    return 0 if target.startswith("__cudnn$convReorderFilter") else None


def _attention(target: str, result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> Cost | None:
    """Scores S = Q K^T over d, output S V over dv: 2 S (d + dv) forward. Backward: dV and dP over dv, dQ and dK over d,
    and S again, because it was not kept (Dao et al., FlashAttention, NeurIPS 2022, algorithm 4): recomputation.

    Masked scores count: a kernel skips whole blocks only, and which depends on its tiling.
    """
    scores = detail.get("scores")
    if not scores or len(operands) < 3 or any(not operand for operand in operands[:3]):
        return None
    query = operands[0][0]
    elements, rows = math.prod(scores), math.prod(scores[:-1])
    if rows <= 0 or elements < 0 or query.elements % rows:
        return None
    depth = query.elements // rows
    backward = "Backward" in target
    made = result[0].elements // rows if result and not backward and not result[0].elements % rows else depth
    if backward:
        model = 2 * elements * 2 * (depth + made)
        return Cost(model + 2 * elements * depth, "attention", query.dtype, model, elements)
    return Cost(2 * elements * (depth + made), "attention", query.dtype, transcendentals=elements)


def _ordering(target: str, result: Sequence[Array], operands: Shapes, detail: dict[str, Any]) -> int | None:
    """Comparisons: n log2 n of a sort, n log2 k of a heap of the k largest."""
    if not operands or not operands[0]:
        return None
    keys = operands[0][0]
    if "Sort" in target:
        return keys.elements * max(keys.elements - 1, 1).bit_length()
    kept = result[0].dims[-1] if result and result[0].dims else 1
    return keys.elements * max(max(kept - 1, 0).bit_length(), 1)


def _linear_algebra(target: str, operands: Shapes) -> int | None:
    """Of LAPACK, cuSOLVER and hipSOLVER by the routine's name, for matrices in the last two dimensions."""
    matrices = [part for operand in operands for part in operand if len(part.dims) >= 2]
    if not matrices:
        return None
    *batch, m, n = matrices[0].dims
    many, small, large = math.prod(batch), min(m, n), max(m, n)
    per = multiply_add(matrices[0].dtype) // 2
    if "potrf" in target or "cholesky" in target:
        return many * per * (small**3 // 3)
    if "getrf" in target:
        return many * per * (2 * m * n * small - (m + n) * small**2 + 2 * small**3 // 3)
    if "geqrf" in target or "geqp3" in target:
        return many * per * (2 * large * small**2 - 2 * small**3 // 3)
    if "orgqr" in target or "ungqr" in target:
        return many * per * (4 * m * n * small - 2 * (m + n) * small**2 + 4 * small**3 // 3)
    if ("trsm" in target or "triangularsolve" in target) and len(matrices) > 1:
        return per * matrices[1].elements * small
    return None
