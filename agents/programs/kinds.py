"""Opcode -> span kind and HLO category (the categories XProf shows, openxla/xla xla/tsl and xla/service naming)."""

from fleetscope.schema.vocabulary import Kind

COLLECTIVE = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast",
    "ragged-all-to-all", "partition-id-all-reduce",
)  # fmt: skip
_COPY = ("copy", "copy-start", "copy-done", "send", "send-done", "recv", "recv-done", "async-copy")
_CONTAINERS = ("while", "conditional", "call")
_FORMATTING = (
    "reshape", "bitcast", "bitcast-convert", "transpose", "slice", "pad", "concatenate", "reverse", "broadcast",
    "dynamic-slice", "dynamic-update-slice", "gather", "scatter", "copy-bitcast",
)  # fmt: skip
_OTHERS = (
    "after-all", "batch-norm", "cholesky", "clz", "constant", "custom-call", "dot", "convolution", "dynamic-reshape",
    "fft", "fusion", "get-dimension-size", "get-tuple-element", "infeed", "iota", "opt-barrier", "outfeed", "parameter",
    "partition-id", "reduce", "reduce-precision", "reduce-window", "replica-id", "rng-bit-generator",
    "rng-get-and-update-state", "select-and-scatter", "sort", "triangular-solve", "tuple", "topk", "ragged-dot",
)  # fmt: skip
_BASE_SUFFIXES = ("-start", "-done", "-update")


def base_opcode(opcode: str) -> str:
    """all-reduce-start -> all-reduce: the two halves of an asynchronous op count as the op."""
    for suffix in _BASE_SUFFIXES:
        if opcode.endswith(suffix):
            return opcode[: -len(suffix)]
    return opcode


def kind_of(opcode: str, wrapped: str = "") -> Kind:
    """Kind of an instruction. `wrapped`: root opcode of the computation an async-start/-done calls, "" if none."""
    base = base_opcode(opcode)
    if base == "async":
        return kind_of(wrapped) if wrapped else Kind.OTHER
    if base in COLLECTIVE:
        return Kind.COLLECTIVE
    if opcode in _COPY or base in _COPY:
        return Kind.COPY
    if base in _CONTAINERS:
        return Kind.CONTAINER
    if base == "infeed":
        return Kind.INFEED
    if base == "outfeed":
        return Kind.OUTFEED
    return Kind.COMPUTE


def category_of(opcode: str, fusion_kind: str = "", inner: frozenset[str] = frozenset(), target: str = "") -> str:
    """Category of an instruction. `inner`: opcodes inside a fusion; `target`: custom-call target."""
    base = base_opcode(opcode)
    if base == "fusion":
        if inner & {"convolution", "dot"}:
            return "convolution fusion"
        names = {
            "kLoop": "loop fusion",
            "kInput": "input fusion",
            "kOutput": "output fusion",
            "kCustom": "custom fusion",
        }
        return names.get(fusion_kind, "fusion")
    if base in ("dot", "convolution"):
        return "convolution"
    if base in _FORMATTING:
        return "data formatting"
    if base == "custom-call":
        return "custom-call"
    if base in _ELEMENTWISE:
        return "non-fusion elementwise"
    return opcode if base in COLLECTIVE or base in _COPY else base


_ELEMENTWISE = frozenset(
    """abs add and atan2 cbrt ceil clamp compare complex convert cosine divide erf exponential exponential-minus-one
    floor imag is-finite log log-plus-one logistic map maximum minimum multiply negate not or popcnt power real
    remainder round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic
    shift-right-logical sign sine sqrt stochastic-convert subtract tan tanh xor""".split()
)

OPCODE_WORDS = frozenset(
    part
    for opcode in (*COLLECTIVE, *_COPY, *_CONTAINERS, *_FORMATTING, *_OTHERS, *_ELEMENTWISE)
    for part in opcode.split("-")
)
"""What names that the compiler makes of opcodes are made of."""
