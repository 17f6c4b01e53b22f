"""Runs at a glance."""

import pyarrow as pa

from fleetscope.analysis.scope import Scope
from fleetscope.schema.vocabulary import StepFlag
from fleetscope.sinks.lake.read import Snapshot


def run_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a run attempt, newest first: ranks, hosts, devices, steps, mean step time, shares, mfu.

    Step time is begin to begin on the host (DESIGN 3.8), over ranks. Shares and mfu as in `devices.device_table`.
    """
    condition, values = scope.where("s")
    query = f"""
        WITH dev AS (
            SELECT process, count(DISTINCT device) AS devices, sum(busy_ns) b, sum(compute_ns) c, sum(observed_ns) o,
                   sum(model_flops) f, sum(peak_flop) pk, sum(flops_known_ns) kn, sum(op_ns) op,
                   min(t_ns) AS d0, max(t_ns) AS d1
            FROM device_10s s WHERE {condition} GROUP BY process),
        stp AS (
            SELECT process, count(*) AS steps, sum(dur_ns) AS total, min(t_ns) AS s0, max(t_ns) AS s1
            FROM step s WHERE {condition} AND s.flags & {int(StepFlag.TRUNCATED)} = 0 GROUP BY process),
        act AS (SELECT * FROM dev FULL JOIN stp USING (process))
        SELECT p.run_name AS run, p.attempt_name AS attempt, count(DISTINCT p.process) AS ranks,
               count(DISTINCT p.host) AS hosts, sum(devices)::BIGINT AS devices, sum(steps)::BIGINT AS steps,
               (sum(total) / nullif(sum(steps), 0))::BIGINT AS step_time_ns, sum(b) / nullif(sum(o), 0) AS busy_ratio,
               sum(c) / nullif(sum(o), 0) AS compute_ratio,
               CASE WHEN sum(kn) >= 0.95 * sum(op) THEN sum(f) / nullif(sum(pk), 0) END AS mfu_ratio,
               make_timestamp_ns(min(least(d0, s0)))::VARCHAR AS first,
               make_timestamp_ns(max(greatest(d1, s1)))::VARCHAR AS last
        FROM act JOIN processes p USING (process) WHERE p.run_name != ''
        GROUP BY p.run_name, p.attempt_name ORDER BY last DESC LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["device_10s", "step", "processes", "hosts"]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values + values).to_arrow_table()
