"""Bytes an instruction reads and writes, by memory space: operands and results, as far as it touches them.

A slice reads what it takes, not what it takes it from; an update in place writes what changes. In a fusion a parameter
that only slices read is read by as much (XLA's HloCostAnalysis calls that utilisation).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetscope.pipelines.symbolize.shapes import Array

SPACES = {0: "hbm", 1: "alternate", 5: "host"}
"""Memory spaces of layouts: the default is the device's memory, 1 is the fast one beside the cores (VMEM of a TPU), 5
pinned memory of the host (xla/service/memory_space_assignment, xla/layout.h)."""

_NOTHING = frozenset(
    """parameter constant get-tuple-element tuple bitcast after-all add-dependency opt-barrier optimization-barrier
    domain partition-id replica-id async-done async-update copy-done all-gather-done all-reduce-done
    collective-permute-done send-done recv-done get-dimension-size""".split()
)
_TAKES = ("slice", "dynamic-slice", "gather")
_CONTAINERS = ("while", "conditional", "call", "async-start")


@dataclass(frozen=True, slots=True)
class Piece:
    """Arrays of one value and the memory space of each."""

    arrays: tuple[Array, ...]
    spaces: Sequence[int]

    def add_to(self, into: dict[int, int], limit: int | None = None) -> None:
        for index, array in enumerate(self.arrays):
            space = self.spaces[index] if index < len(self.spaces) else 0
            into[space] = into.get(space, 0) + min(array.size_bytes, array.size_bytes if limit is None else limit)


def moved(
    row: Mapping[str, Any],
    piece: Callable[[int], Piece | None],
    touched: Mapping[int, int] | None = None,
) -> dict[int, int] | None:
    """Memory space -> bytes read and written by one occurrence; None: unknown (it runs other computations).

    `piece(op)`: the value an op makes; `touched`: of a fusion, position of a parameter -> bytes it reads of it where
    that is less than all, and -1 -> bytes it writes where it updates in place.
    """
    opcode = row["opcode"]
    if opcode in _NOTHING:
        return {}
    if opcode in _CONTAINERS:
        return None
    made, operands = piece(row["op"]), row["operands"]
    total: dict[int, int] = {}
    if made is None:
        return None
    read = [piece(operand) for operand in operands]
    if opcode in _TAKES:
        made.add_to(total)
        made.add_to(total)
        for index in read[1:]:
            if index is not None:
                index.add_to(total)
        return total
    if opcode in ("dynamic-update-slice", "scatter"):
        for update in read[1:]:
            if update is not None:
                update.add_to(total)
        last = read[1 if opcode == "dynamic-update-slice" else -1] if len(read) > 1 else None
        if last is not None:
            last.add_to(total)
        return total
    touched = touched or {}
    for position, value in enumerate(read):
        if value is not None:
            value.add_to(total, touched.get(position))
    made.add_to(total, touched.get(-1))
    return total


def fused_touch(
    members: Sequence[Mapping[str, Any]], parameter: Mapping[int, int], size: Callable[[int], int]
) -> dict[int, int]:
    """`touched` of `moved` for a fusion's computation. `parameter`: op -> its number; `size`: bytes an op makes."""
    users: dict[int, list[Mapping[str, Any]]] = {op: [] for op in parameter}
    for row in members:
        for operand in row["operands"]:
            if operand in users:
                users[operand].append(row)
    touched = {}
    for op, number in parameter.items():
        found = users[op]
        if not found:
            continue
        first = [row["operands"][0] == op and op not in row["operands"][1:] for row in found]
        if all(own and row["opcode"] in _TAKES for own, row in zip(first, found, strict=True)):
            touched[number] = sum(size(row["op"]) for row in found)
        elif all(own and row["opcode"] == "dynamic-update-slice" for own, row in zip(first, found, strict=True)):
            touched[number] = 0
    last = members[-1] if members else None
    if last is not None and last["opcode"] == "dynamic-update-slice" and len(last["operands"]) > 1:
        touched[-1] = size(last["operands"][1])
    return touched
