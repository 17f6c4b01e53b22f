"""FLOPs of an epoch by run and dtype, and the time the chip would need for them at the peak of that dtype.

A program mixes dtypes, and each has a peak of its own: the hfu of a dtype is its ideal time over observed time, and
those of all dtypes add up to the share of time the chip computed at its peaks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fleetscope.pipelines.block import Block
from fleetscope.pipelines.flops import DTYPE_NAMES, Costs
from fleetscope.pipelines.grouping import added
from fleetscope.pipelines.peaks import peak_of
from fleetscope.pipelines.state import PartitionState

DTYPES = pa.schema(
    [(name, pa.int64()) for name in ("process", "device", "weight", "watched")]
    + [("dtype", pa.string()), ("flops", pa.int64()), ("model_flops", pa.int64())]
)
"""`watched`: 1 if of executions that were counted (pipelines.counted), 0 if of ops."""


def dtype_rows(block: Block, counts: NDArray[np.bool_], sampled: NDArray[np.bool_], costs: Costs) -> pa.Table:
    """DTYPES rows of the ops of device batches. `counts`: rows that enter rollups; `sampled`: batches of a window."""
    batch = block.batch
    used = np.flatnonzero((costs.flops > 0) & counts & block.work & (block.of_batches("device")[batch] != 0))
    if not len(used):
        return DTYPES.empty_table()
    key = batch[used] * len(DTYPE_NAMES) + costs.dtypes[used]
    size = len(block.infos) * len(DTYPE_NAMES)
    flops = added(key, costs.flops[used], size)
    model = added(key, np.maximum(costs.model_flops[used], 0), size)
    found = np.flatnonzero(flops)
    owner = found // len(DTYPE_NAMES)
    return pa.table(
        {
            "process": block.of_batches("process")[owner],
            "device": block.of_batches("device")[owner],
            "weight": np.where(sampled[owner], 0, 1),
            "watched": np.zeros(len(found), np.int64),
            "dtype": [DTYPE_NAMES[code] for code in (found % len(DTYPE_NAMES)).tolist()],
            "flops": flops[found],
            "model_flops": model[found],
        },
        schema=DTYPES,
    )


FLOPS, MODEL, IDEAL_NS, MODEL_IDEAL_NS, WATCHED_IDEAL_NS, WATCHED_MODEL_IDEAL_NS = range(SUMS := 6)
"""Sums of a dtype carried for each run. Those of counted executions are apart: the same work may be in both."""


def add_dtypes(
    state: PartitionState, rows: pa.Table, device_10s: pa.Table | None, run_of: Mapping[int, dict[str, Any]]
) -> None:
    """Add an epoch's DTYPES rows to their runs. `run_of`: process -> counters of its run. What windows saw is raised
    to what they looked at, as all their sums are (counters.add_devices)."""
    factor = _raised(device_10s)
    together = rows.group_by(["process", "device", "weight", "watched", "dtype"], use_threads=False)
    for row in together.aggregate([("flops", "sum"), ("model_flops", "sum")]).to_pylist():
        run = run_of.get(row["process"])
        if run is None:
            continue
        up, down = factor.get((row["process"], row["device"]), (1, 1)) if row["weight"] == 0 else (1, 1)
        flops, model = row["flops_sum"] * up // down, row["model_flops_sum"] * up // down
        sku = state.devices.get(row["device"], {}).get("sku", "")
        peak = peak_of(sku, row["dtype"], state.processes.get(row["process"], {}).get("peak_flops", 0))
        sums = run.setdefault("dtypes", {}).setdefault(row["dtype"], [])
        sums += [0] * (SUMS - len(sums))  # carried by a version with fewer
        if not row["watched"]:
            sums[FLOPS] += flops
            sums[MODEL] += model
        if peak:
            ideal, model_ideal = (
                (WATCHED_IDEAL_NS, WATCHED_MODEL_IDEAL_NS) if row["watched"] else (IDEAL_NS, MODEL_IDEAL_NS)
            )
            sums[ideal] += flops * 1_000_000_000 // peak
            sums[model_ideal] += model * 1_000_000_000 // peak


_RAISING = ["process", "device", "windows", "busy_ns", "observed_ns", "duty_q30"]


def _raised(device_10s: pa.Table | None) -> dict[tuple[int, int], tuple[int, int]]:
    """(process, device) -> (estimated, seen) busy ns of window rows."""
    sums: dict[tuple[int, int], list[int]] = {}
    if device_10s is None:
        return {}
    windows = device_10s.filter(pc.equal(device_10s.column("weight"), 0)).select(_RAISING)
    for row in windows.to_pylist():
        if row["windows"] and row["busy_ns"]:
            found = sums.setdefault((row["process"], row["device"]), [0, 0])
            found[0] += row["duty_q30"] * row["observed_ns"] // row["windows"] >> 30
            found[1] += row["busy_ns"]
    return {key: (up, down) for key, (up, down) in sums.items() if up > 0}
