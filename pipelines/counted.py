"""What executions that were counted one by one (PJRT shim) computed: their programs' FLOPs, with no window.

An execution costs what the op table of its program says, once that is known; until then it lowers `watched_known_ns`,
and `analysis.counted`, which joins when asked, finds it all the same. The peak is that of the dtype in which the
process has computed most so far. Both live in the carried state: a device that runs nothing in an epoch could have
computed too, and executions may go under a provisional program for good (docs/design/0011-executions.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.dtypes import DTYPES
from fleetscope.pipelines.flops import MOST_A_NS, Costs, OpTables
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.peaks import peak_of
from fleetscope.pipelines.state import PartitionState
from fleetscope.pipelines.step import by_process
from fleetscope.schema.hardware import find_sku
from fleetscope.schema.tables import DEVICE_10S
from fleetscope.schema.vocabulary import WINDOW_NS

LOADS_KEPT = 16
"""Numbers of programs without a table that a process remembers: those its executions came with, then the newest. Tiny
programs of a start are loaded by the hundred, and each would cost every manifest 40 B."""

MODULE_IDS = 1 << 32
"""Module ids count up from 1; a provisional program is a hash."""

MOST_FLOPS = MOST_A_NS * WINDOW_NS
"""Of one device and window: beyond, the table is of another program."""

_Load = list[int]
"""[program of the executions, what it really is or 0, 1 if executions came with it]"""


def advance(
    states: Mapping[int, PartitionState], tables: Mapping[str, pa.Table], ops: OpTables
) -> tuple[pa.Table, pa.Table]:
    """(DEVICE_10S rows, DTYPES rows) of an epoch's RAN; what is carried in `states` moves on."""
    told, loads = (by_process(tables.get(name)) for name in ("ran", "program_loads"))
    devices: list[dict[str, int]] = []
    dtypes: list[dict[str, Any]] = []
    for state in states.values():
        mine = {record.process for record in state.sources.values()}
        for process in sorted(mine & (told.keys() | loads.keys())):
            known, flops = state.counted.get(process, ([], {}))
            rows = told.get(process, [])
            strange = {row["program"]: None for row in rows if ops.get(row["program"]) is None}
            known = [load for load in known if load[1] or ops.get(load[0]) is None]
            known = _learn(known, strange, loads.get(process, []))
            names = _names(known)
            did: Counter[tuple[int, int]] = Counter()
            for row in rows:
                costs = ops.get(names.get(row["program"], row["program"]))
                devices.append(_priced(row, costs, flops, did, dtypes))
            if known or flops:
                state.counted[process] = [known, flops]
    if not devices:
        return DEVICE_10S.empty_table(), DTYPES.empty_table()
    zeros = np.zeros(len(devices), np.int64)
    columns = {name: [row[name] for row in devices] if name in devices[0] else zeros for name in DEVICE_10S.names}
    return merge("device_10s", [pa.table(columns, schema=DEVICE_10S)]), pa.Table.from_pylist(dtypes, DTYPES)


def _learn(known: list[_Load], ran: Iterable[int], loads: Iterable[Mapping[str, int]]) -> list[_Load]:
    """`known`, oldest first, with the loads that were told, and the programs without a table that ran."""
    found = {load[0]: load for load in known}
    for load in loads:
        if abs(load["program_id"]) >= MODULE_IDS:
            _, _, used = found.pop(load["program_id"], (0, 0, 0))
            found[load["program_id"]] = [load["program_id"], load["program"], used]
    for program in ran:
        _, really, _ = found.pop(program, (0, 0, 0))
        found[program] = [program, really, 1]
    order = sorted(found.values(), key=lambda load: load[2])  # stable: those that never ran first
    return order[-LOADS_KEPT:]


def _names(known: Iterable[_Load]) -> dict[int, int]:
    return {program: really for program, really, _ in known if really}


def _priced(
    row: Mapping[str, int],
    costs: Costs | None,
    by_dtype: dict[str, int],
    did: Counter[tuple[int, int]],
    dtypes: list[dict[str, Any]],
) -> dict[str, int]:
    """The DEVICE_10S row of one RAN row; adds its DTYPES rows, and to the FLOPs the process did in each dtype, and
    (`did`) on each device in each window."""
    key = {name: row[name] for name in ("t_ns", "host", "process", "device")}
    nothing = dict.fromkeys(("watched_known_ns", "watched_flops", "watched_model_flops"), 0)
    out = {**key, "weight": 1, "watched_ran_ns": row["dur_ns"], **nothing}
    times, one = row["executions"], costs.execution if costs is not None else None
    where = row["device"], row["t_ns"]
    if costs is None or one is None or not one.known or did[where] + one.flops * times > MOST_FLOPS:
        return out
    did[where] += one.flops * times
    for dtype, flops, model in one.by_dtype:
        about = {"process": row["process"], "device": row["device"], "weight": 1, "watched": 1, "dtype": dtype}
        dtypes.append({**about, "flops": flops * times, "model_flops": model * times})
    if one.flops:
        by_dtype[costs.dtype] = by_dtype.get(costs.dtype, 0) + one.flops * times
    done = {"watched_flops": one.flops * times, "watched_model_flops": one.model_flops * times}
    return {**out, "watched_known_ns": row["dur_ns"], **done}


def with_peaks(states: Mapping[int, PartitionState], device_10s: pa.Table) -> pa.Table:
    """DEVICE_10S rows with `watched_peak_flop` filled in."""
    watched = device_10s.column("watched_ns").to_pylist()
    if not any(watched):
        return device_10s
    owners = _owners(states)
    keys = zip(device_10s.column("process").to_pylist(), device_10s.column("device").to_pylist(), strict=True)
    values = [
        ns * _peak(owners.get(process), process, device) // 1_000_000_000 if ns else 0
        for ns, (process, device) in zip(watched, keys, strict=True)
    ]
    index = device_10s.schema.get_field_index("watched_peak_flop")
    return device_10s.set_column(index, device_10s.schema.field(index), pa.array(values, pa.int64()))


def _peak(state: PartitionState | None, process: int, device: int) -> int:
    if state is None:
        return 0
    _, flops = state.counted.get(process, ([], {}))
    dtype = max(flops, key=lambda name: (flops[name], name), default="")
    sku = state.devices.get(device, {}).get("sku", "")
    return peak_of(sku, dtype, state.processes.get(process, {}).get("peak_flops", 0))


def _owners(states: Mapping[int, PartitionState]) -> dict[int, PartitionState]:
    return {record.process: state for state in states.values() for record in state.sources.values()}


def shortest(states: Mapping[int, PartitionState], ops: OpTables) -> Callable[[int, int, int], int]:
    """(process, device, program) -> ns an execution takes at least: its FLOPs at the peak of the data sheet, of the
    fastest dtype among its ops; 0 unknown.

    What a process measured of its device is no bound: something else may have run meanwhile.
    """
    owners = _owners(states)

    @cache
    def least_ns(process: int, device: int, program: int) -> int:
        state = owners.get(process)
        if state is None or find_sku(sku := state.devices.get(device, {}).get("sku", "")) is None:
            return 0
        costs = ops.get(_names(state.counted.get(process, ([], {}))[0]).get(program, program))
        if costs is None or not costs.execution.least:
            return 0
        return costs.execution.least * 1_000_000_000 // max(peak_of(sku, dtype, 0) for dtype in costs.computes_in)

    return least_ns
