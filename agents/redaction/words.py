"""Words that are nobody's secret: the compiler's, jax's and fleetscope's own. They stay under any policy."""

import re

from fleetscope.agents.programs.kinds import OPCODE_WORDS

OWN = frozenset(
    {
        "other",
        "plugin threads",
        "host to device",
        "device to host",
        "data_wait (inferred)",
        "data_wait (torch)",
        "data_wait (grain)",
        "data_wait (tf.data)",
    }
)
"""Names that the recorder and its parts give (native/recorder, agents/profiler/inputs_loaders.py)."""

PJRT_SERIES = frozenset(
    {
        "pjrt_errors",
        "pjrt_refused_wraps",
        "pjrt_completions_twice",
        "pjrt_untracked",
        "pjrt_hlo_left_out",
        "pjrt_memory_bytes_in_use",
        "pjrt_memory_bytes_limit",
    }
)
"""Counters of the shim (native/pjrt_shim/keeper.cpp)."""

VERBS = frozenset({"compile", "lower", "trace"})
"""What agents/profiler/programs.py says jax does, before the name of a function."""

_JAX = frozenset(
    """jit pjit jvp vjp transpose vmap pmap xmap shard_map checkpoint remat rematted_computation custom_jvp_call
    custom_vjp_call custom_vjp_call_jaxpr closed_call core_call named_call while body cond scan branch main xla pallas
    call""".split()
)
"""Transformations and control flow in op_name; pipelines/symbolize/recompute.py tells recomputation by them."""

_PARTS = frozenset(
    """fusion loop input output wrapped custom kernel region general conv integer pow mul sub div neg exp exp2 log1p
    expm1 sum max min argmax argmin cum cumsum cumprod cumlogsumexp n dims dim eq ne lt le gt ge in squeeze expand
    update start done to element type random bits seed wrap unwrap threefry2x32 psum ppermute param bitcast""".split()
)
"""Parts of names that XLA and jax's primitives make beside opcodes."""

_TARGETS = (
    "__cu", "__onednn$", "__gpu$", "__triton", "__hip", "__mosaic", "lapack_", "blas_", "cusolver_", "hipsolver_",
    "cublas", "hipblas", "cudnn_", "miopen", "cu_threefry2x32", "hip_threefry2x32", "tpu_custom_call", "mosaic_gpu",
    "triton_kernel_call", "TopK", "Sharding", "SPMD", "LayoutConstraint", "AllocateBuffer", "MoveTo", "ConcatBitcast",
    "annotate_device_placement", "PadToStatic", "SliceToDynamic", "SetBound", "xla.sdy.", "xla_python_", "X64",
    "Eigh", "Qr", "ProductOfElementaryHouseholderReflectors",
)  # fmt: skip
"""Begins of custom-call targets of XLA, jaxlib and vendors' libraries (pipelines/symbolize/libraries.py)."""

_SPLIT = re.compile(r"[_\-]")


def public_word(text: str) -> bool:
    """Whether a word is made of nothing but opcodes, jax's words and numbers."""
    return text in _JAX or all(
        part in OPCODE_WORDS or part in _PARTS or part.isdecimal() for part in _SPLIT.split(text) if part
    )


def public_target(text: str) -> bool:
    return text.startswith(_TARGETS)


def stem(instruction: str) -> tuple[str, str]:
    """add.remat.3 -> (add, .remat.3): numbers, copies and recomputations of the same base."""
    parts = instruction.split(".")
    last = len(parts)
    while last > 1 and (parts[last - 1].isdecimal() or parts[last - 1].rstrip("0123456789") in ("remat", "clone")):
        last -= 1
    base = ".".join(parts[:last])
    return base, instruction[len(base) :]
