"""Peak FLOPs of the observed time of devices: the denominator of MFU.

hardware.json by the device's SKU and the dtype of the program's costliest op; for a CPU, which no data sheet
describes, what its process measured (dimensions.PEAK_LABEL). No peak stays 0: the ratio is then absent, with a reason.
"""

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.block import Block
from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.flops import OpTables
from fleetscope.schema.hardware import find_sku


def peaks_of(batches: list[BatchMeta], block: Block, ops: OpTables) -> dict[tuple[int, int], int]:
    """(process, device) -> peak FLOP/s of the dtype its programs run in."""
    found: dict[tuple[int, int], int] = {}
    for index, batch in enumerate(batches):
        key = (batch.info.process, batch.info.device)
        if not batch.info.device or key in found:
            continue
        if find_sku(batch.sku) is None:
            found[key] = batch.peak_flops
            continue
        programs = np.unique(block.program[block.offsets[index] : block.offsets[index + 1]][:4096]).tolist()
        known = [costs for program in programs if (costs := ops.get(program)) is not None]
        dtype = max(known, key=lambda costs: costs.total, default=None)
        found[key] = peak_of(batch.sku, dtype.dtype if dtype else "", batch.peak_flops)
    return found


def peak_of(sku_name: str, dtype: str, measured: int) -> int:
    """FLOP/s of one device for an HLO element type; `measured`: of a device no data sheet describes. 0: unknown.

    A dtype without a peak of its own runs as the training dtype: that is what a TPU's matrix unit makes of f32.
    """
    sku = find_sku(sku_name)
    return measured if sku is None else int(sku.peak(dtype) or sku.best_peak())


def with_peaks(device_10s: pa.Table, peaks: dict[tuple[int, int], int]) -> pa.Table:
    """DEVICE_10S rows with `peak_flop` filled in."""
    keys = zip(device_10s.column("process").to_pylist(), device_10s.column("device").to_pylist(), strict=True)
    observed = device_10s.column("observed_ns").to_pylist()
    values = [ns * peaks.get(key, 0) // 1_000_000_000 for key, ns in zip(keys, observed, strict=True)]
    index = device_10s.schema.get_field_index("peak_flop")
    return device_10s.set_column(index, device_10s.schema.field(index), pa.array(values, pa.int64()))
