"""Devices: what their time went to, and whether they were throttled."""

import pyarrow as pa

from fleetscope.analysis.scope import Scope
from fleetscope.sinks.lake.read import Snapshot

THROTTLE_SERIES = "fleetscope_chip_throttled"
"""Series collectors and the simulator write: 1 while the chip runs below its nominal clock for heat or power."""


def device_table(snapshot: Snapshot, scope: Scope, limit: int = 200) -> pa.Table:
    """One row a device. Shares are of observed time; mfu is absent where the FLOPs of over 5 % of op time are unknown.

    Time from profiler windows (weight 0) is share of looked-at time all the same; the two kinds of rows of a device are
    added, since both numerator and denominator are observed time. `throttled_ratio`: share of throttle samples above 0.
    """
    condition, values = scope.where("s")
    query = f"""
        WITH busy AS (
            SELECT device, process, host, sum(busy_ns) b, sum(compute_ns) c, sum(collective_ns) k, sum(copy_ns) y,
                   sum(observed_ns) o, sum(model_flops) f, sum(peak_flop) p, sum(flops_known_ns) kn, sum(op_ns) op,
                   sum(executions) x, max(err_ns) e, sum(unsynced) u
            FROM device_10s s WHERE {condition} GROUP BY device, process, host),
        heat AS (
            SELECT device, avg((coalesce(value_int, value_float) > 0)::INT) AS t
            FROM samples s WHERE {condition} AND series IN (
                SELECT series FROM series WHERE name = '{THROTTLE_SERIES}') GROUP BY device)
        SELECT coalesce(p.run_name, '') AS run, coalesce(h.name, '') AS host,
               coalesce(d.local_name, d.key, '') AS device, d.sku, busy.x AS executions, o::BIGINT AS observed_ns,
               b / nullif(o, 0) AS busy_ratio, c / nullif(o, 0) AS compute_ratio, k / nullif(o, 0) AS collective_ratio,
               y / nullif(o, 0) AS copy_ratio,
               CASE WHEN kn >= 0.95 * op THEN f / nullif(busy.p, 0) END AS mfu_ratio, heat.t AS throttled_ratio,
               e AS error_ns, d.key AS device_key
        FROM busy LEFT JOIN heat USING (device) LEFT JOIN devices d USING (device)
             LEFT JOIN processes p ON p.process = busy.process LEFT JOIN hosts h ON h.host = busy.host
        ORDER BY throttled_ratio DESC NULLS LAST, run, host, device LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["device_10s", "samples", "series", "devices", "processes", "hosts"]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values + values).to_arrow_table()
