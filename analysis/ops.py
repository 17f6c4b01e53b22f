"""Every op by host: counts, times and percentiles from the merged histograms."""

import pyarrow as pa

from fleetscope.analysis.scope import WORK_KINDS, Scope
from fleetscope.sinks.lake.read import Snapshot


def op_table(snapshot: Snapshot, scope: Scope, name: str | None = None, limit: int = 50) -> pa.Table:
    """One row an (op, host, kind of rows), largest time first. p50, p99: upper bounds of histogram buckets
    (2.2 % wide).

    `name`: part of the HLO or framework name. flops: of one occurrence, by the cost pass.
    """
    condition, values = scope.where("s")
    where_name = "" if name is None else "AND (contains(o.name, ?) OR contains(o.op_name, ?) OR contains(m.module, ?))"
    query = f"""
        WITH mine AS (SELECT * FROM op_10s s WHERE {condition} AND s.kind IN {WORK_KINDS}),
        sums AS (
            SELECT process, host, program, op, kind, weight = 0 AS sampled, sum(count) AS n, sum(sum_ns) AS t,
                   sum(sum_ns - child_ns) AS self, min(min_ns) AS lo, max(max_ns) AS hi
            FROM mine GROUP BY ALL),
        buckets AS (
            SELECT process, program, op, kind, weight = 0 AS sampled, unnest(hist_index) AS i, unnest(hist_count) AS c
            FROM mine),
        added AS (SELECT process, program, op, kind, sampled, i, sum(c) AS c FROM buckets GROUP BY ALL),
        ranked AS (
            SELECT *, sum(c) OVER (PARTITION BY process, program, op, kind, sampled ORDER BY i) AS upto,
                   sum(c) OVER (PARTITION BY process, program, op, kind, sampled) AS total FROM added),
        quantiles AS (
            SELECT process, program, op, kind, sampled, min(i) FILTER (upto >= 0.5 * total) AS m,
                   min(i) FILTER (upto >= 0.99 * total) AS h
            FROM ranked GROUP BY ALL)
        SELECT coalesce(p.run_name, '') AS run, coalesce(h.name, '') AS host, coalesce(o.name, '?') AS op, o.category,
               n::BIGINT AS count, self::BIGINT AS self_ns, (t / n)::BIGINT AS mean_ns, lo AS min_ns,
               CASE WHEN q.m <= -32768 THEN 0 ELSE least(hi, ceil(pow(2, (q.m + 1) / 32))::BIGINT) END AS p50_ns,
               CASE WHEN q.h <= -32768 THEN 0 ELSE least(hi, ceil(pow(2, (q.h + 1) / 32))::BIGINT) END AS p99_ns,
               hi AS max_ns,
               o.flops, CASE WHEN sums.sampled THEN 'windows' ELSE 'all' END AS seen, m.module,
               CASE WHEN o.source_file != '' THEN o.source_file || ':' || o.source_line END AS source
        FROM sums JOIN quantiles q USING (process, program, op, kind, sampled)
             LEFT JOIN ops o ON o.program = sums.program AND o.op = sums.op
             LEFT JOIN programs m ON m.program = sums.program
             LEFT JOIN processes p USING (process) LEFT JOIN hosts h ON h.host = sums.host
        WHERE TRUE {where_name} ORDER BY self DESC LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["op_10s", "ops", "programs", "processes", "hosts"]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values + [name] * (3 if name is not None else 0)).to_arrow_table()
