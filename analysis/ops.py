"""Every op by host: counts, times and percentiles from the merged histograms."""

import pyarrow as pa

from fleetscope.analysis import identity
from fleetscope.analysis.scope import WORK_KINDS, Scope, host_name
from fleetscope.sinks.lake.read import Snapshot

_KEY = "process, program, op, sampled"


def op_table(snapshot: Snapshot, scope: Scope, name: str | None = None, limit: int = 50) -> pa.Table:
    """One row an (op, process, kind of rows), largest self time first. p50, p99: upper bounds of histogram buckets
    (2.2 % wide). From windows (`seen`) counts and times are those seen, and spans longer than a window are missing.

    `name`: part of the op's, framework's or module's name. flops, bytes_hbm: of one occurrence, by the cost pass;
    flops_per_s: over the time of the op itself.
    """
    condition, values = scope.where("s")
    wanted = "TRUE" if name is None else "(contains(o.name, ?) OR contains(o.op_name, ?) OR contains(m.module, ?))"
    query = f"""
        WITH {identity.OPS},
        mine AS (
            SELECT s.process, s.host, {identity.PROGRAM} AS program, {identity.OP} AS op, s.weight = 0 AS sampled,
                   s.* EXCLUDE (process, host, program, op)
            FROM op_10s s {identity.JOIN} WHERE {condition} AND s.kind IN {WORK_KINDS}),
        sums AS (
            SELECT {_KEY}, min(host) AS host, sum(count)::BIGINT AS n, sum(sum_ns)::BIGINT AS t,
                   sum(sum_ns - child_ns)::BIGINT AS self, min(min_ns) AS lo, max(max_ns) AS hi
            FROM mine GROUP BY {_KEY}),
        buckets AS (SELECT {_KEY}, unnest(hist_index) AS i, unnest(hist_count) AS c FROM mine),
        added AS (SELECT {_KEY}, i, sum(c) AS c FROM buckets GROUP BY {_KEY}, i),
        ranked AS (
            SELECT *, sum(c) OVER (PARTITION BY {_KEY} ORDER BY i) AS upto,
                   sum(c) OVER (PARTITION BY {_KEY}) AS total FROM added),
        quantiles AS (
            SELECT {_KEY}, min(i) FILTER (upto >= 0.5 * total) AS m, min(i) FILTER (upto >= 0.99 * total) AS h
            FROM ranked GROUP BY {_KEY})
        SELECT coalesce(p.run_name, '') AS run, {host_name("sums.host")} AS host, p.rank,
               {identity.NAME.format(alias="sums")} AS op, nullif(o.category, '') AS category,
               n AS count, self AS self_ns, (t / n)::BIGINT AS mean_ns, lo AS min_ns,
               CASE WHEN q.m <= -32768 THEN 0 ELSE least(hi, ceil(pow(2, (q.m + 1) / 32))::BIGINT) END AS p50_ns,
               CASE WHEN q.h <= -32768 THEN 0 ELSE least(hi, ceil(pow(2, (q.h + 1) / 32))::BIGINT) END AS p99_ns,
               hi AS max_ns, o.flops, o.bytes_hbm, o.flops * n / nullif(self, 0) * 1e9 AS flops_per_s,
               CASE WHEN sampled THEN 'windows' ELSE 'all' END AS seen, m.module, {identity.SOURCE} AS source,
               nullif(o.op_name, '') AS op_name, nullif(o.shape, '') AS shape, sums.program, sums.op AS ordinal
        FROM sums JOIN quantiles q USING ({_KEY})
             LEFT JOIN ops o ON o.program = sums.program AND o.op = sums.op
             LEFT JOIN programs m ON m.program = sums.program
             LEFT JOIN processes p USING (process) LEFT JOIN hosts h ON h.host = sums.host
        WHERE {wanted} ORDER BY self DESC, op, host LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["op_10s", "processes", "hosts", *identity.TABLES]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values + [name] * (3 if name is not None else 0)).to_arrow_table()
