"""What windows and executions say of the programs in a scope, by process and device: the sums estimates are made of."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import nan
from typing import Any

import duckdb

from fleetscope.analysis import identity
from fleetscope.analysis.calibrate import Exact, duty, residual, share, total_ns
from fleetscope.analysis.estimate import Estimate, device_duty
from fleetscope.schema.tables import PROGRAM_TOTAL
from fleetscope.schema.vocabulary import WINDOW_NS, Kind

MOMENTS = (
    "windows", "executions", "count", "duty_q30", "duty_sq_hi", "duty_sq_lo", "rate_uhz", "rate_sq_hi", "rate_sq_lo",
    "whole_q30", "whole_sq_hi", "whole_sq_lo", "whole_rate_hi", "whole_rate_lo", "near_q30",
)  # fmt: skip
"""Columns of OP_10S rows of weight 0 that add up over devices, hosts and time."""

SUMS = ", ".join(f"coalesce(sum({name}), 0)::HUGEINT AS {name}" for name in MOMENTS)
"""SQL of them, over rows of OP_10S of weight 0."""

_DEVICE = ("windows", "duty_q30", "duty_sq_hi", "duty_sq_lo", "observed_ns", "busy_ns")

Row = dict[str, int]


@dataclass(slots=True)
class Device:
    """A device of a process."""

    row: Row
    """Sums of its DEVICE_10S rows of weight 0."""
    watched_ns: int
    """How long its executions were seen (PJRT shim)."""
    whole_ns: int
    """How long all its ops were seen, without profiler windows."""
    elapsed_ns: int
    """From the first of its 10 s windows to the last: what the profiler windows are a sample of."""
    programs: dict[int, Row] = field(default_factory=dict)
    """Program -> its PROGRAM_TOTAL."""
    exact: dict[int, Exact] = field(default_factory=dict)

    @property
    def coverage(self) -> float:
        """Share of its time that windows looked at."""
        elapsed = self.watched_ns or self.elapsed_ns
        return self.row["observed_ns"] / elapsed if elapsed else nan

    def duty(self) -> tuple[Estimate, bool]:
        """As calibrate.duty."""
        return duty(device_duty(self.row), self.programs, self.exact, self.watched_ns)

    def residual(self, busy: Estimate) -> float:
        """Share of the time in which its programs ran that no op explains; `busy` is calibrated."""
        ran = sum(part.time_ns for part in self.exact.values())
        return residual(busy.scaled(self.watched_ns), Exact(0, ran))


@dataclass(frozen=True, slots=True)
class Process:
    """All devices of a process, or of the processes of a run, together: rows of their ops are not kept by device."""

    windows: int
    watched_ns: int
    whole_ns: int
    coverage: float
    """Share of device time that windows looked at; NaN where nothing is known of either."""
    programs: dict[int, Row]
    exact: dict[int, Exact]

    def share(self, row: Row, program: int) -> tuple[Estimate, bool]:
        """As calibrate.share."""
        return share(row, self.windows, self.programs.get(program), self.exact.get(program), self.watched_ns)

    def residual(self, program: int) -> float:
        """As calibrate.residual; NaN without exact counts or whole executions."""
        row = self.programs.get(program)
        return nan if row is None else residual(total_ns(row, row, self.exact.get(program)), self.exact.get(program))


@dataclass(frozen=True, slots=True)
class Sampled:
    """Devices by (process, device)."""

    devices: dict[tuple[int, int], Device]

    def by_process(self) -> dict[int, Process]:
        """All of them, in one pass over the devices."""
        owned: dict[int, list[Device]] = {}
        for (owner, _), device in self.devices.items():
            owned.setdefault(owner, []).append(device)
        return {process: _together(mine) for process, mine in owned.items()}

    def processes(self, processes: Collection[int]) -> Process:
        """These as one."""
        return _together([device for (owner, _), device in self.devices.items() if owner in processes])


def _together(mine: list[Device]) -> Process:
    programs = {number for device in mine for number in device.programs}
    told = {number for device in mine for number in device.exact}
    looked = sum(device.row["observed_ns"] for device in mine)
    elapsed = sum(device.watched_ns or device.elapsed_ns for device in mine)
    return Process(
        windows=sum(device.row["windows"] for device in mine),
        watched_ns=sum(device.watched_ns for device in mine),
        whole_ns=sum(device.whole_ns for device in mine),
        coverage=looked / elapsed if elapsed else nan,
        programs={number: added(d.programs[number] for d in mine if number in d.programs) for number in programs},
        exact={number: exactly(d.exact[number] for d in mine if number in d.exact) for number in told},
    )


def added(rows: Iterable[Row]) -> Row:
    """One row of all; {} of none."""
    total: Row = {}
    for row in rows:
        for name, value in row.items():
            total[name] = total.get(name, 0) + value
    return total


def exactly(parts: Iterable[Exact]) -> Exact:
    told = list(parts)
    return Exact(sum(part.executions for part in told), sum(part.time_ns for part in told))


def sampled(connection: duckdb.DuckDBPyConnection, condition: str, values: list[str | int]) -> Sampled:
    """Of the scope `condition` (alias s). The connection has op_10s, device_10s, program_loads.

    Executions count as exact where the device's executions were watched; a device batch seen whole (import, simulator)
    needs no estimate.
    """
    sums = ", ".join(f"coalesce(sum({name}) FILTER (weight = 0), 0)::HUGEINT AS {name}" for name in _DEVICE)
    query = f"""
        SELECT process, device, coalesce(sum(watched_ns), 0)::BIGINT AS watched_ns,
               coalesce(sum(observed_ns) FILTER (weight > 0), 0)::BIGINT AS whole_ns,
               (max(t_ns) - min(t_ns) + {WINDOW_NS})::BIGINT AS elapsed_ns, {sums}
        FROM device_10s s WHERE {condition} GROUP BY process, device"""  # noqa: S608 - values are bound
    devices = {}
    for row in _rows(connection, query, values):
        own = {name: row[name] for name in _DEVICE}
        rest = (row[name] for name in ("watched_ns", "whole_ns", "elapsed_ns"))
        devices[row["process"], row["device"]] = Device(own, *rest)
    query = f"""
        SELECT s.process, s.device, {identity.RAN} AS program, s.weight = 0 AS estimated,
               coalesce(sum(CASE WHEN weight > 0 THEN count * weight END), 0)::HUGEINT AS ran,
               coalesce(sum(CASE WHEN weight > 0 THEN sum_ns * weight END), 0)::HUGEINT AS time_ns, {SUMS}
        FROM op_10s s {identity.LOADED}
        WHERE {condition} AND s.kind = {int(Kind.MODULE)} AND (s.weight > 0 OR s.op = {PROGRAM_TOTAL})
        GROUP BY s.process, s.device, {identity.RAN}, s.weight = 0"""  # noqa: S608 - values are bound
    for row in _rows(connection, query, values):
        device = devices.get((row["process"], row["device"]))
        if device is None:
            continue
        if row["estimated"]:
            device.programs[row["program"]] = {name: row[name] for name in MOMENTS}
        elif device.watched_ns:
            device.exact[row["program"]] = Exact(row["ran"], row["time_ns"])
    return Sampled(devices)


def _rows(connection: duckdb.DuckDBPyConnection, query: str, values: list[str | int]) -> list[dict[str, Any]]:
    """HUGEINT comes as a Decimal."""
    rows = connection.sql(query, params=values).to_arrow_table().to_pylist()
    return [{name: value if isinstance(value, bool) else int(value) for name, value in row.items()} for row in rows]
