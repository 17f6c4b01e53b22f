"""The identity of a program: equal for a restart, another directory or a moved line, different when what runs differs.

Canonical form (DESIGN 3.2): computations and instructions in the module's order, ordinals in place of names and ids,
attributes as serialized (fields this build does not know take part through protobuf's unknown fields), op_name; neither
source positions nor ids that count up within a process (module, channel); nor what an autotuner measured: two starts of
one program on a GPU choose other algorithms of the same library call.
"""

import json
from typing import Any

import xxhash

from fleetscope.agents.programs.backend import backend_config
from fleetscope.schema.hlo_pb2 import HloModule, Instruction


def fingerprint(module: HloModule) -> int:
    """Signed 64-bit fingerprint of a module, never 0."""
    digest = xxhash.xxh3_64()
    computation_ordinal = {computation.id: i for i, computation in enumerate(module.computations)}
    op_ordinal: dict[int, int] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            op_ordinal[instruction.id] = len(op_ordinal)
    digest.update(repr((len(op_ordinal), computation_ordinal.get(module.entry_computation_id))).encode())
    scratch = type(module.computations[0].instructions[0])() if op_ordinal else None
    for computation in module.computations:
        digest.update(repr(("computation", op_ordinal.get(computation.root_id))).encode())
        for instruction in computation.instructions:
            assert scratch is not None
            scratch.CopyFrom(instruction)
            links = (
                [op_ordinal.get(i) for i in instruction.operand_ids],
                [op_ordinal.get(i) for i in instruction.control_predecessor_ids],
                [computation_ordinal.get(i) for i in instruction.called_computation_ids],
                instruction.metadata.op_name,
                instruction.channel_id != 0,
            )
            for field in _VOLATILE:
                scratch.ClearField(field)
            _forget_tuning(scratch)
            digest.update(repr(links).encode("utf-8", "surrogateescape"))
            digest.update(scratch.SerializeToString(deterministic=True))
    value = digest.intdigest()
    value = value - (1 << 64) if value >= 1 << 63 else value
    return value or 1


_VOLATILE = (
    "name", "id", "operand_ids", "control_predecessor_ids", "called_computation_ids", "metadata", "channel_id",
)  # fmt: skip

_TUNED = ("selected_algorithm", "algorithm", "reification_cost", "triton_gemm_config", "block_level_fusion_config")
"""Keys of XLA:GPU's backend configuration (xla/service/gpu/backend_configs.proto) that its autotuners fill in."""
_TUNED_BYTES = tuple(f'"{key}"'.encode() for key in _TUNED)


def _forget_tuning(instruction: Instruction) -> None:
    raw = instruction.backend_config
    if raw and any(key in raw for key in _TUNED_BYTES):
        config = backend_config(instruction)
        if config:
            instruction.backend_config = json.dumps(_without(config), sort_keys=True).encode()


def _without(value: Any, depth: int = 16) -> Any:
    if isinstance(value, dict) and depth:
        return {key: _without(inner, depth - 1) for key, inner in value.items() if key not in _TUNED}
    return value
