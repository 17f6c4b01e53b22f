"""Which FLOPs of a program are recomputation, by what stands in it.

A name alone does not tell. `jax.checkpoint` names what the backward pass computes again `rematted_computation`, but a
compiler may merge it with the original, and which of the two names survives is chance: then it is computed once and no
recomputation. So an instruction so named counts as recomputed only if the forward pass does not use it, and only as far
as its original, the same operation of the forward pass, is executed in the program too. A region recomputes an
operation at most once (nested checkpoints make regions of their own), so of R executions in a region and F of
originals, min(R, F) are recomputed.

XLA's own rematerialisation calls its copies `<name>.remat`; where the original is gone the copy is a move, no
recomputation.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

REGION = "rematted_computation"
_BACKWARD = "transpose("
_PASSES = frozenset(
    """parameter tuple get-tuple-element bitcast copy copy-start copy-done optimization-barrier opt-barrier fusion call
    convert reshape transpose broadcast""".split()
)
"""Opcodes that hand a value on: whose name they bear says nothing about who uses it."""
_XLA = re.compile(r"^(.*)\.remat(?:\d*)(?:\.\d+)*$")


@dataclass(frozen=True, slots=True)
class Executed:
    """An instruction with FLOPs: those of one occurrence, and how often one execution of the program runs it."""

    op: int
    opcode: str
    op_name: str
    flops: int
    times: int


def recomputed_shares(executed: Iterable[Executed], forward: Container[int] = ()) -> dict[int, tuple[int, int]]:
    """op -> (p, q): of q executions p are recomputation; ops that are not named, or that the forward pass uses
    (`forward`), are none."""
    originals: dict[tuple[str, str, int], int] = defaultdict(int)
    regions: dict[tuple[str, str, int], int] = defaultdict(int)
    suspects = []
    for one in executed:
        last = one.op_name.rpartition("/")[2]
        if REGION in one.op_name and one.op not in forward:
            suspects.append((one, last))
            regions[one.op_name, one.opcode, one.flops] += one.times
        elif _BACKWARD not in one.op_name or one.op in forward:
            originals[last, one.opcode, one.flops] += one.times
    shares = {}
    for one, last in suspects:
        whole = regions[one.op_name, one.opcode, one.flops]
        again = min(whole, originals.get((last, one.opcode, one.flops), 0))
        if again:
            shares[one.op] = (again, whole)
    return shares


def copies(names: Mapping[int, str]) -> set[int]:
    """Ops that XLA's rematerialisation copied and whose original is in the program. `names`: op -> its HLO name."""
    suspects = {op: found[1] for op, name in names.items() if ".remat" in name and (found := _XLA.match(name))}
    if not suspects:
        return set()
    known = set(names.values())
    return {op for op, original in suspects.items() if original in known}


def used_forward(opcodes: Sequence[str], op_names: Sequence[str], sources: Mapping[int, Sequence[int]]) -> set[int]:
    """Numbers of ops in a rematted region whose value the forward pass uses, through whatever hands it on.

    `sources`: op -> the ops whose values it takes, across the borders of fusions and calls. A step backward goes from
    an operation of the forward pass, over what only passes values on and over other ops of regions, never over the
    backward pass: the optimizer uses gradients, and those all that was recomputed for them.
    """
    passing = [opcode in _PASSES or not name for opcode, name in zip(opcodes, op_names, strict=True)]
    inside = [REGION in name for name in op_names]
    frontier = [
        number
        for number, name in enumerate(op_names)
        if not passing[number] and not inside[number] and _BACKWARD not in name
    ]
    seen: set[int] = set()
    while frontier:
        for source in sources.get(frontier.pop(), ()):
            if source not in seen and (inside[source] or passing[source]):
                seen.add(source)
                frontier.append(source)
    return {number for number in seen if inside[number]}
