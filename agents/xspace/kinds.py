"""Span kind of what a profiler names: HLO categories and op names, kernels, memory copies."""

import re

from fleetscope.agents.programs.kinds import kind_of
from fleetscope.schema.vocabulary import Kind

_COLLECTIVE = re.compile(
    r"^(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast)"
)
# ncclDevKernel_AllReduce_Sum_bf16_RING_LL, ncclKernel_AllGather..., rccl's and msccl's of the same form.
_COLLECTIVE_KERNEL = re.compile(r"^(void )?(r|ms)?ccl|nccl(Dev)?Kernel|^nvshmem", re.IGNORECASE)
# CUPTI and ROCm name copies, not kernels; the runtime's own copy kernels do nothing else either.
_COPY_KERNEL = re.compile(r"^(Memcpy|Memset|MemcpyD2D|hipMemcpy)|__amd_rocclr_(copy|fill)", re.IGNORECASE)
_ORDINAL = re.compile(r"(\.\d+)+$")
_XPROF = {"host send": Kind.COPY, "host send-done": Kind.COPY, "host recv": Kind.COPY, "host recv-done": Kind.COPY}


def kind_of_category(category: str) -> Kind:
    """Kind of an HLO category as XProf writes it into a capture."""
    if _COLLECTIVE.match(category):
        return Kind.COLLECTIVE
    return _XPROF.get(category) or kind_of(category)


def instruction_of(hlo_text: str) -> str:
    """%add.1 = f32[8]{0} add(...) -> add.1"""
    return hlo_text.lstrip("%").split(" ", 1)[0]


def opcode_of(op_name: str) -> str:
    """copy-done.2 -> copy-done: the instruction's opcode, unless XLA gave it a name of its own (fusions)."""
    return _ORDINAL.sub("", op_name.lstrip("%"))


def kind_of_op_name(op_name: str) -> Kind:
    """Best knowledge while the program is unknown."""
    opcode = opcode_of(op_name)
    return Kind.COLLECTIVE if _COLLECTIVE.match(opcode) else kind_of(opcode)


def kind_of_kernel(kernel: str) -> Kind | None:
    """Kind that a kernel's or copy's own name tells for certain; None: ask its HLO op."""
    if _COLLECTIVE_KERNEL.search(kernel):
        return Kind.COLLECTIVE
    if _COPY_KERNEL.search(kernel):
        return Kind.COPY
    return None
