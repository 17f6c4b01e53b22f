"""Bytes one device puts on the wire for a collective, by the bandwidth-optimal algorithm of each kind.

n devices in a group (Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005):
all-reduce 2 (n - 1) / n of its operand (reduce-scatter, then all-gather), all-gather (n - 1) x the operand, which is
(n - 1) / n of the result, reduce-scatter and all-to-all (n - 1) / n of the operand. A permutation sends the operand
once where the device is a source: the mean over the devices named would hide the link that is busy, so once. What an
implementation sends beyond that (trees, padding, headers) is not in the program.
"""

from collections.abc import Sequence
from typing import Any

from fleetscope.pipelines.symbolize.shapes import Array

_SENT_ONCE = ("collective-permute", "send", "collective-permute-start")
_GROUPED = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-broadcast",
)  # fmt: skip


def wire_bytes(opcode: str, operands: Sequence[Sequence[Array]], detail: dict[str, Any]) -> int | None:
    """0 for an op that is no collective and for the second half of an asynchronous one; None: the size of its groups is
    not in the program."""
    kind = opcode.removesuffix("-start")
    if opcode in _SENT_ONCE:
        # Buffers given to the result (asynchronous forms) and counters come after the operand.
        return sum(part.size_bytes for part in operands[0]) if operands else None
    if kind not in _GROUPED:
        return 0
    size = sum(part.size_bytes for operand in operands for part in operand)
    devices = detail.get("group", 0)
    if not isinstance(devices, int) or devices <= 0:
        return None
    if kind == "all-reduce":
        return 2 * (devices - 1) * size // devices
    if kind == "all-gather":
        return (devices - 1) * size
    if kind == "ragged-all-to-all":
        size = sum(part.size_bytes for part in operands[0]) if operands else 0
    return (devices - 1) * size // devices
