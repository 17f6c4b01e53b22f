"""Devices: what their time went to, and whether they were throttled."""

from typing import Any

import pyarrow as pa

from fleetscope.analysis import counted, sampling
from fleetscope.analysis.dtypes import sheet
from fleetscope.analysis.estimate import finite
from fleetscope.analysis.sampling import Sampled
from fleetscope.analysis.scope import Scope, host_name
from fleetscope.analysis.shares import EXECUTIONS, SEEN, observed, ratio_columns
from fleetscope.analysis.waits import SHOWN, wait_columns
from fleetscope.sinks.lake.read import Snapshot

THROTTLE_SERIES = "fleetscope_chip_throttled"
"""1 while the chip runs slower than asked: one series, or one for each reason (label `reason`)."""

_NEWEST = {
    "power_watts": "fleetscope_chip_power_watts",
    "temperature_celsius": "fleetscope_chip_temperature_celsius",
    "clock_hertz": "fleetscope_chip_clock_hertz",
}
"""Column -> series whose newest value it shows (the hottest sensor, the fastest clock)."""


def device_table(snapshot: Snapshot, scope: Scope, limit: int = 200) -> pa.Table:
    """One row a (device, run), throttled ones first; devices nobody ran on are there too if counters name them.

    Shares are of observed time; from profiler windows (`seen`) they are estimates, busy_ratio with its 95 % interval
    busy_low_ratio, busy_high_ratio from `windows` units that looked at coverage_ratio of the device's time. calibrated:
    set right by exact counts of executions; residual_ratio is then the share of their time that no op explains.
    occupancy_ratio: share of time with a program in flight (PJRT shim). idle_ratio and its parts by what the host was
    doing, queue_mean_ns, run_ahead_max: see `waits`. mfu_ratio is absent with a reason.
    throttled_ratio: share of the instants sampled at which any reason was set; throttle_reasons: those, most often set
    first. Power, temperature and clock: the newest samples in the scope.
    """
    condition, values = scope.where("s")
    sampled, sampled_values = scope.where("s", by_run=False)
    newest = ", ".join(
        f"max(v) FILTER (name = '{series}' AND t_ns = last) AS {column}" for column, series in _NEWEST.items()
    )
    query = f"""
        WITH {sheet()}, seen AS ({observed(condition)}),
        busy AS (
            SELECT host, process, device, {EXECUTIONS} AS executions,
                   sum(observed_ns)::BIGINT AS observed_ns, sum(windows)::BIGINT AS windows,
                   sum(occupancy_ns) / nullif(sum(watched_ns), 0) AS occupancy_ratio,
                   {SEEN} AS seen, max(error_ns) AS error_ns,
                   {ratio_columns()}, {wait_columns()}
            FROM seen GROUP BY host, process, device),
        counters AS (
            SELECT s.device, s.host, s.t_ns, e.name, e.labels['reason'] AS reason,
                   coalesce(s.value_int::DOUBLE, s.value_float) AS v,
                   max(s.t_ns) OVER (PARTITION BY s.device, s.series) AS last
            FROM samples s JOIN series e USING (series)
            WHERE {sampled} AND s.device != 0),
        instants AS (
            SELECT device, t_ns, max(v) > 0 AS hot FROM counters WHERE name = '{THROTTLE_SERIES}'
            GROUP BY device, t_ns),
        heat AS (SELECT device, avg(hot::INT) AS throttled_ratio FROM instants GROUP BY device),
        reasons AS (
            SELECT device, list(reason ORDER BY n DESC, reason) AS throttle_reasons
            FROM (SELECT device, reason, count(*) AS n FROM counters
                  WHERE name = '{THROTTLE_SERIES}' AND v > 0 AND reason != '' GROUP BY device, reason) GROUP BY device),
        physical AS (SELECT device, min(host) AS host, {newest} FROM counters GROUP BY device),
        {counted.counted(condition)},
        counts AS (
            SELECT process AS counted_of, device AS counted_on, {counted.COLUMNS}
            FROM counted GROUP BY process, device),
        joined AS (
            SELECT coalesce(b.device, c.device) AS device, coalesce(b.host, c.host) AS host, b.* EXCLUDE (device, host),
                   c.* EXCLUDE (device, host)
            FROM busy b FULL JOIN physical c USING (device)
            WHERE {"b.device IS NOT NULL" if scope.run is not None else "TRUE"})
        SELECT coalesce(p.run_name, '') AS run, {host_name("j.host")} AS host,
               coalesce(nullif(d.local_name, ''), nullif(d.key, ''), '#' || j.device::VARCHAR) AS device, p.rank, d.sku,
               t.throttled_ratio, r.throttle_reasons, j.busy_ratio, j.compute_ratio, j.collective_ratio, j.copy_ratio,
               j.other_ratio, j.occupancy_ratio, {", ".join(f"j.{name}" for name in SHOWN)},
               {counted.shown("j", "n")}, j.power_watts, j.temperature_celsius, j.clock_hertz,
               j.executions, j.observed_ns, j.seen, j.windows, j.error_ns, d.key AS device_key,
               j.process AS of_process, j.device AS of_device
        FROM joined j LEFT JOIN counts n ON n.counted_of = j.process AND n.counted_on = j.device
             LEFT JOIN heat t USING (device) LEFT JOIN reasons r USING (device)
             LEFT JOIN devices d USING (device) LEFT JOIN processes p ON p.process = j.process
             LEFT JOIN hosts h ON h.host = j.host
        ORDER BY throttled_ratio DESC NULLS LAST, run, host, device LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["samples", "series", "hosts", *counted.TABLES]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        rows = connection.sql(query, params=[*values, *sampled_values, *values, *values]).to_arrow_table()
        return _with_intervals(rows, sampling.sampled(connection, condition, values))


_INTERVALS = pa.schema(
    [
        ("busy_low_ratio", pa.float64()),
        ("busy_high_ratio", pa.float64()),
        ("coverage_ratio", pa.float64()),
        ("calibrated", pa.bool_()),
        ("residual_ratio", pa.float64()),
        ("reason", pa.string()),
    ]
)
_SCALED = (
    "busy_ratio",
    "compute_ratio",
    "collective_ratio",
    "copy_ratio",
    "sparse_core_ratio",
    "other_ratio",
    "mfu_ratio",
    "hfu_ratio",
    "mfu_at_clock_ratio",
    "hfu_at_clock_ratio",
)
"""Shares that follow the calibrated duty: windows say how busy time is divided, exact counts how much there was."""


def _with_intervals(rows: pa.Table, of: Sampled) -> pa.Table:
    """`rows` with _INTERVALS at the end, for columns of_process and of_device, which go."""
    told: list[dict[str, Any]] = []
    for row in (plain := rows.to_pylist()):
        device = of.devices.get((row["of_process"], row["of_device"]))
        if row["seen"] != "windows" or device is None:
            told.append({})
            continue
        busy, calibrated = device.duty()
        if calibrated and row["busy_ratio"]:
            factor = busy.value / row["busy_ratio"]
            row.update({name: row[name] * factor for name in _SCALED if row[name] is not None})
        told.append(
            {
                "busy_low_ratio": busy.low_share,
                "busy_high_ratio": finite(busy.high),
                "coverage_ratio": finite(device.coverage),
                "calibrated": calibrated,
                "residual_ratio": finite(device.residual(busy)) if calibrated else None,
                "reason": busy.reason or None,
            }
        )
    rows = pa.Table.from_pylist(plain, rows.schema).drop_columns(["of_process", "of_device"])
    columns = pa.Table.from_pylist(told, _INTERVALS)
    for field in _INTERVALS:
        rows = rows.append_column(field, columns.column(field.name))
    return rows
