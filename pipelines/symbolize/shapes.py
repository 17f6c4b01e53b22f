"""Text of an HLO shape -> element type and dimensions."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([0-9,]*)\]")

BITS = {
    "pred": 8, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "s8": 8, "u8": 8, "s16": 16,
    "u16": 16, "f16": 16, "bf16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "u64": 64, "f64": 64, "c64": 64,
    "c128": 128,
}  # fmt: skip
"""Size of an element in bits; the 8-bit floats all begin with f8. token and opaque have none."""

COMPLEX = frozenset(("c64", "c128"))


@dataclass(frozen=True, slots=True)
class Array:
    """One array of a shape. `dims` in the shape's own order."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        bits = 8 if self.dtype.startswith("f8") else BITS.get(self.dtype, 0)
        return (self.elements * bits + 7) // 8


Shapes = Sequence[Sequence[Array]]
"""Arrays of each operand."""


def multiply_add(dtype: str) -> int:
    """Real operations of one multiply-add: 2, and 8 (four products, four sums) of complex numbers."""
    return 8 if dtype in COMPLEX else 2


@lru_cache(maxsize=1 << 14)
def arrays(shape: str) -> tuple[Array, ...]:
    """Every array in a shape's text, tuples flattened. token[] and opaque[] are left out."""
    return tuple(
        Array(dtype, tuple(int(d) for d in dims.split(",") if d))
        for dtype, dims in _ARRAY.findall(shape)
        if dtype not in ("token", "opaque")
    )
