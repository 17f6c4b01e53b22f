"""The identity of a program: equal for a restart, another directory or a moved line, different when what runs differs.

Canonical form (DESIGN 3.2): computations and instructions in the module's order, ordinals in place of names and ids,
attributes as serialized (fields this build does not know take part through protobuf's unknown fields), op_name; neither
source positions nor ids that count up within a process (module, channel).
"""

import xxhash

from fleetscope.schema.hlo_pb2 import HloModule


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
            digest.update(repr(links).encode("utf-8", "surrogateescape"))
            digest.update(scratch.SerializeToString(deterministic=True))
    value = digest.intdigest()
    value = value - (1 << 64) if value >= 1 << 63 else value
    return value or 1


_VOLATILE = (
    "name", "id", "operand_ids", "control_predecessor_ids", "called_computation_ids", "metadata", "channel_id",
)  # fmt: skip
