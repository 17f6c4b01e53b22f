"""The clock a chip really ran at, joined to its peaks: `device_10s.peak_flop_clock` and `watched_peak_flop_clock`.

Samples of the compute clock come from the node agent, op times from the training process: other sources, other batches,
often another epoch. So the means of the newest windows are carried for each device, and a row takes the one of its own
window, else the nearest within half a minute; where none is known when the row is committed, it stays 0, which is
unknown. A row's value thus depends on what had been read by then, like its map; it is never taken back.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.hardware import find_sku
from fleetscope.schema.identity import series_id
from fleetscope.schema.vocabulary import WINDOW_NS

Int64s = NDArray[np.int64]

COMPUTE_CLOCKS = tuple(
    series_id("fleetscope_chip_clock_hertz", labels) for labels in ({}, {"clock": "sm"}, {"clock": "gfx"})
)
"""Series of the clock that compute units run at: the only one, NVIDIA's, AMD's. A memory clock moves no peak."""

NEAR_NS = 30_000_000_000
KEPT = 8
"""Windows kept for each device: samples come every few seconds, op times of a window some seconds later."""
FASTEST = 2.0
"""Times the nominal clock; a reading beyond is no clock of this chip."""

AT_CLOCK = {"peak_flop": "peak_flop_clock", "watched_peak_flop": "watched_peak_flop_clock"}
"""Column of device_10s -> the same at the clock the chip ran at."""

CLOCKS = pa.schema([(name, pa.int64()) for name in ("partition", "device", "t_ns", "hertz", "samples")])
"""Sum over samples of one device and window, of one batch."""


def clock_rows(batches: list[BatchMeta], table: pa.Table, offsets: Int64s, t_ns: Int64s) -> pa.Table:
    """CLOCKS rows of WIRE_SAMPLES rows; `offsets`: of the batches, `t_ns`: fleet time of each row."""
    series = table.column("series").to_numpy()
    rows = np.flatnonzero(np.isin(series, COMPUTE_CLOCKS))
    if not len(rows):
        return CLOCKS.empty_table()
    picked = table.take(pa.array(rows))
    hertz = [
        whole if whole is not None else (int(part) if part is not None and 0 < part < 1e12 else 0)
        for whole, part in zip(
            picked.column("value_int").to_pylist(), picked.column("value_float").to_pylist(), strict=True
        )
    ]
    batch = np.searchsorted(offsets, rows, side="right") - 1
    sums: dict[tuple[int, int, int], list[int]] = {}
    for where, device, at, value in zip(
        batch.tolist(), picked.column("device").to_pylist(), t_ns[rows].tolist(), hertz, strict=True
    ):
        if device and 0 < value < 10**12:
            found = sums.setdefault((batches[where].partition, device, at // WINDOW_NS * WINDOW_NS), [0, 0])
            found[0] += value
            found[1] += 1
    return pa.Table.from_pylist(
        [
            {"partition": partition, "device": device, "t_ns": at, "hertz": total, "samples": count}
            for (partition, device, at), (total, count) in sums.items()
        ],
        schema=CLOCKS,
    )


def remember(states: Mapping[int, PartitionState], clocks: pa.Table) -> None:
    """Add CLOCKS rows to the carried windows of their devices."""
    for row in clocks.to_pylist():
        state = states.get(row["partition"])
        if state is None:
            continue
        windows = state.frequencies.setdefault(row["device"], [])
        for window in windows:
            if window[0] == row["t_ns"]:
                window[1] += row["hertz"]
                window[2] += row["samples"]
                break
        else:
            windows.append([row["t_ns"], row["hertz"], row["samples"]])
            windows.sort()
            del windows[:-KEPT]


def at_real_clock(states: Mapping[int, PartitionState], device_10s: pa.Table) -> pa.Table:
    """DEVICE_10S rows with AT_CLOCK: the peak times the mean clock over the clock the peak is stated for."""
    windows: dict[int, list[list[int]]] = {}
    nominal: dict[int, float] = {}
    for state in states.values():
        for device, known in state.frequencies.items():
            sku = find_sku(state.devices.get(device, {}).get("sku", ""))
            if sku is not None and sku.clock_hz > 0:
                windows[device], nominal[device] = known, sku.clock_hz
    if not windows or not device_10s.num_rows:
        return device_10s
    shares = []
    for device, t_ns in zip(*(device_10s.column(name).to_pylist() for name in ("device", "t_ns")), strict=True):
        hertz = _mean(windows.get(device, ()), t_ns)
        share = hertz / nominal[device] if hertz else 0.0
        shares.append(share if 0 < share <= FASTEST else 0.0)
    for name, clocked in AT_CLOCK.items():
        peaks = zip(device_10s.column(name).to_pylist(), shares, strict=True)
        index = device_10s.schema.get_field_index(clocked)
        values = pa.array([int(peak * share) for peak, share in peaks], pa.int64())
        device_10s = device_10s.set_column(index, device_10s.schema.field(index), values)
    return device_10s


def _mean(windows: Any, t_ns: int) -> float:
    nearest = min(windows, key=lambda window: abs(window[0] - t_ns), default=None)
    if nearest is None or abs(nearest[0] - t_ns) > NEAR_NS or not nearest[2]:
        return 0.0
    return float(nearest[1] / nearest[2])
