"""What a compiler's back end left in an instruction: its JSON configuration and the cost estimates kernels declare."""

import json
import re
from collections.abc import Iterator
from typing import Any

from fleetscope.schema.hlo_pb2 import Instruction

_DEPTH = 16
"""Of nested objects looked into; real configurations nest five deep."""

_TEXT_FLOPS = re.compile(rb"\b(flops|transcendentals|bytes_accessed)\s*=\s*(\d{1,18})\b")

_DECLARED_KEYS = ("flops", "transcendentals", "bytes_accessed")


def backend_config(instruction: Instruction) -> dict[str, Any]:
    """The configuration where it is a JSON object, else {}: MLIR attributes, opaque bytes and nonsense are not ours."""
    if instruction.backend_config[:1] != b"{":
        return {}
    try:
        config = json.loads(instruction.backend_config)
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def find(config: Any, key: str, depth: int = _DEPTH) -> dict[str, Any] | None:
    """The first object called `key` anywhere in nested ones: each back end wraps its gemm configuration differently."""
    if not isinstance(config, dict) or not depth:
        return None
    value = config.get(key)
    if isinstance(value, dict):
        return value
    for inner in config.values():
        found = find(inner, key, depth - 1)
        if found is not None:
            return found
    return None


def declared_cost(instruction: Instruction, config: dict[str, Any]) -> dict[str, int]:
    """flops, transcendentals and bytes_accessed that a kernel's author declared (`pallas_call(cost_estimate=...)`).

    Mosaic kernels carry them in their JSON configuration, others as an attribute of the front end or in MLIR text.
    """
    estimate = find(config, "cost_estimate")
    if estimate is None:
        estimate = next(_attributes(instruction), None)
    if estimate is None and b"cost_estimate" in instruction.backend_config:
        tail = instruction.backend_config[instruction.backend_config.index(b"cost_estimate") :][:512]
        estimate = {key.decode(): int(value) for key, value in _TEXT_FLOPS.findall(tail)}
    found = {}
    for key in _DECLARED_KEYS:
        value = (estimate or {}).get(key)
        if isinstance(value, int | float) and 0 <= value < 1 << 62 and not isinstance(value, bool):
            found[key] = int(value)
    return found


def _attributes(instruction: Instruction) -> Iterator[dict[str, Any]]:
    if not instruction.HasField("frontend_attributes"):
        return
    for key, value in instruction.frontend_attributes.map.items():
        if key.rpartition(".")[2] == "cost_estimate" or b"cost_estimate" in value:
            try:
                read = json.loads(value)
            except (ValueError, RecursionError):
                continue
            if isinstance(read, dict):
                yield find(read, "cost_estimate") or read
