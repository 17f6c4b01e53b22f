"""Every op by host: counts, times, percentiles from the merged histograms, share of device time with its interval."""

from typing import Any

import pyarrow as pa

from fleetscope.analysis import identity
from fleetscope.analysis.estimate import Estimate, finite, rate_hz
from fleetscope.analysis.sampling import MOMENTS, SUMS, Process, Sampled, sampled
from fleetscope.analysis.scope import WORK_KINDS, Scope, host_name
from fleetscope.analysis.unseen import TABLES, Unseen, unseen
from fleetscope.sinks.lake.read import Snapshot

_KEY = "process, program, op, sampled"


def op_table(snapshot: Snapshot, scope: Scope, name: str | None = None, limit: int = 50) -> pa.Table:
    """One row an (op, process, kind of rows), largest self time first. p50, p99: upper bounds of histogram buckets
    (2.2 % wide). From windows (`seen`) counts and times are those seen, and spans longer than a window are missing.

    share_ratio: of the device time of the process; from windows an estimate with its 95 % interval low_ratio,
    high_ratio from `windows` units that looked at coverage_ratio of that time. calibrated: set right by exact counts of
    executions; residual_ratio: then the share of the program's time that no op explains. `reason`: why there is no
    interval. rate_hertz, low_hertz, high_hertz: occurrences a second of device time, estimated from windows.
    An op that runs longer than every window has no span: it stands first, count 0, named by its program's table and by
    the time that is missing (`unseen`), which residual_ratio then is.

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
                   sum(sum_ns - child_ns)::BIGINT AS self, min(min_ns) AS lo, max(max_ns) AS hi, {SUMS}
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
               CASE WHEN sampled THEN 'windows' ELSE 'all' END AS seen, {identity.ABOUT}, sums.program,
               sums.op AS ordinal,
               sums.process AS of_process, {", ".join(f"sums.{name} AS m_{name}" for name in MOMENTS)}
        FROM sums JOIN quantiles q USING ({_KEY})
             {identity.TABLED.format(alias="sums")}
             LEFT JOIN processes p USING (process) LEFT JOIN hosts h ON h.host = sums.host
        WHERE {wanted} ORDER BY self DESC, op, host LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    with snapshot.duckdb(TABLES, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        found = connection.sql(query, params=values + [name] * (3 if name is not None else 0)).to_arrow_table()
        of = sampled(connection, condition, values)
        rows = with_estimates(found, of)
        hidden = [op for op in unseen(connection, of, condition, values) if _called(op, name)]
    processes = of.by_process() if hidden else {}
    lines = [_hidden(op, processes[op.process]) for op in hidden]
    return pa.concat_tables([pa.Table.from_pylist(lines, rows.schema), rows]).slice(0, limit)


def _called(op: Unseen, name: str | None) -> bool:
    return name is None or any(name in (op.about[column] or "") for column in ("op", "op_name", "module"))


def _hidden(op: Unseen, of: Process) -> dict[str, Any]:
    line = estimated(op.estimate, False, of, op.missing_ratio)
    return {**op.about, **line, "count": 0, "self_ns": 0, "seen": "windows"}


ESTIMATES = pa.schema(
    [
        ("share_ratio", pa.float64()),
        ("low_ratio", pa.float64()),
        ("high_ratio", pa.float64()),
        ("windows", pa.int64()),
        ("coverage_ratio", pa.float64()),
        ("calibrated", pa.bool_()),
        ("residual_ratio", pa.float64()),
        ("reason", pa.string()),
    ]
)
_RATES = pa.schema([("rate_hertz", pa.float64()), ("low_hertz", pa.float64()), ("high_hertz", pa.float64())])


def with_estimates(rows: pa.Table, of: Sampled) -> pa.Table:
    """`rows` with ESTIMATES and _RATES after `self_ns`, for columns of_process, program, seen, self_ns and m_*, which
    go."""
    processes, nothing = of.by_process(), of.processes(())
    told = []
    for row in rows.to_pylist():
        process = processes.get(row["of_process"], nothing)
        if row["seen"] == "windows":
            moments = {name: int(row[f"m_{name}"]) for name in MOMENTS}
            share, calibrated = process.share(moments, row["program"])
            line = estimated(share, calibrated, process, process.residual(row["program"]) if calibrated else None)
            rate = rate_hz(moments, process.windows)
            rates = {"rate_hertz": finite(rate.value), "low_hertz": rate.low_share, "high_hertz": finite(rate.high)}
            told.append(line | rates)
        else:
            told.append({"share_ratio": row["self_ns"] / process.whole_ns if process.whole_ns else None})
    rows = rows.drop_columns(["of_process", *(f"m_{name}" for name in MOMENTS)])
    columns = pa.Table.from_pylist(told, pa.schema([*ESTIMATES, *_RATES]))
    at = rows.schema.get_field_index("self_ns") + 1
    for place, field in enumerate(columns.schema):
        rows = rows.add_column(at + place, field, columns.column(field.name))
    return rows


def estimated(share: Estimate, calibrated: bool, of: Process, residual: float | None) -> dict[str, Any]:
    """ESTIMATES of one row from windows."""
    return {
        "share_ratio": finite(share.value),
        "low_ratio": share.low_share,
        "high_ratio": finite(share.high),
        "windows": of.windows,
        "coverage_ratio": finite(of.coverage),
        "calibrated": calibrated,
        "residual_ratio": None if residual is None else finite(residual),
        "reason": share.reason or None,
    }
