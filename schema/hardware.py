"""hardware.json as data: peaks by (SKU, dtype, dense), memory bandwidth, clock, each with its public source.

hardware.json wins over what a capture claims; whoever compares the two counts the conflicts.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

DTYPE_ALIASES = {
    "f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16", "s8": "int8", "u8": "int8",
    "c64": "fp32", "c128": "fp64", "f8e4m3fn": "fp8", "f8e5m2": "fp8", "f8e4m3": "fp8", "f8e4m3fnuz": "fp8",
    "f8e5m2fnuz": "fp8", "f4e2m1fn": "fp4",
}  # fmt: skip
"""HLO element types -> keys of peak_flops."""


@dataclass(frozen=True, slots=True)
class Sku:
    """One accelerator. FLOP/s and byte/s are dense peaks of a whole chip; clock_hz 0: not published."""

    sku: str
    vendor: str
    aliases: tuple[str, ...]
    devices_per_chip: int
    peak_flops: dict[str, float]
    hbm_bytes: int
    hbm_bandwidth: float
    clock_hz: float
    source: str

    def peak(self, dtype: str) -> float | None:
        """Dense FLOP/s of one device for an HLO element type or a peak_flops key; None where the source gives none.

        Products of f32 are those of tf32 on a chip that has them: XLA's default precision. At the highest precision
        the cost pass calls them fp32.
        """
        key = DTYPE_ALIASES.get(dtype, dtype)
        if dtype == "f32" and "tf32" in self.peak_flops:
            key = "tf32"
        value = self.peak_flops.get(key)
        return None if value is None else value / self.devices_per_chip

    def best_peak(self) -> float:
        """Peak of the training dtype: bf16 where there is one, else fp16."""
        peak = self.peak("bf16") or self.peak("fp16")
        if peak is None:
            raise ValueError(f"{self.sku} has no 16-bit peak")
        return peak


@cache
def skus() -> dict[str, Sku]:
    """SKU name -> Sku."""
    entries = json.loads((files("fleetscope.schema") / "hardware.json").read_text())["skus"]
    return {entry["sku"]: Sku(**{**entry, "aliases": tuple(entry["aliases"])}) for entry in entries}


@cache
def find_sku(name: str) -> Sku | None:
    """The entry whose name or alias is the runtime's device name, letter case aside; else None, never a guess."""
    wanted = name.strip().lower()
    for sku in skus().values():
        if wanted == sku.sku.lower() or wanted in (alias.lower() for alias in sku.aliases):
            return sku
    return None
