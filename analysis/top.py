"""Ops that take the most device time.

Two kinds of rows (DESIGN 3.4): whole observations (weight >= 1), whose self times add, and profiler windows (weight
0), whose share of time is estimated from spans weighted by 1 / (W - d) with a t interval between windows. One result
line is always of one kind.
"""

import math

import pyarrow as pa

from fleetscope.analysis.interval import t_quantile
from fleetscope.analysis.scope import WORK_KINDS, Scope
from fleetscope.sinks.lake.read import Snapshot

_COLUMNS = pa.schema(
    [
        ("run", pa.string()),
        ("op", pa.string()),
        ("category", pa.string()),
        ("share_ratio", pa.float64()),
        ("low_ratio", pa.float64()),
        ("high_ratio", pa.float64()),
        ("time_ns", pa.int64()),
        ("count", pa.int64()),
        ("seen", pa.string()),
        ("module", pa.string()),
        ("source", pa.string()),
        ("op_name", pa.string()),
    ]
)
_WHO = "coalesce(p.run_name, '') AS run, s.program, s.op, s.kind"
_NAMES = """
    SELECT r.*, coalesce(o.name, m.module || ' #' || r.op, '?') AS name, o.category, m.module, o.op_name,
           CASE WHEN o.source_file != '' THEN o.source_file || ':' || o.source_line END AS source
    FROM r LEFT JOIN ops o ON o.program = r.program AND o.op = r.op LEFT JOIN programs m ON m.program = r.program
    ORDER BY share DESC NULLS LAST LIMIT ?"""


def top_ops(snapshot: Snapshot, scope: Scope, limit: int = 20) -> pa.Table:
    """The `limit` ops with the largest share of their run's observed device time.

    share_ratio: self time / observed device time for whole rows ("all"); estimated share of time for windows
    ("windows"), with low_ratio and high_ratio its 95 % interval. time_ns and count: what was seen, not scaled.
    """
    condition, values = scope.where("s")
    whole = f"""
        WITH looked AS (
            SELECT p.run_name AS run, sum(observed_ns) AS o FROM device_10s s JOIN processes p USING (process)
            WHERE {condition} AND weight != 0 GROUP BY p.run_name),
        sums AS (
            SELECT {_WHO}, sum((sum_ns - child_ns) * weight) AS t, sum(count * weight) AS n
            FROM op_10s s LEFT JOIN processes p USING (process)
            WHERE {condition} AND s.weight != 0 AND s.kind IN {WORK_KINDS} GROUP BY ALL),
        r AS (SELECT sums.*, t / nullif(o, 0) AS share, NULL::DOUBLE AS spread, NULL::BIGINT AS units
              FROM sums LEFT JOIN looked USING (run))
        {_NAMES}"""  # noqa: S608 - values are bound
    windows = f"""
        WITH looked AS (
            SELECT p.run_name AS run, sum(windows)::BIGINT AS w FROM device_10s s JOIN processes p USING (process)
            WHERE {condition} AND weight = 0 GROUP BY p.run_name),
        sums AS (
            SELECT {_WHO}, sum(sum_ns) AS t, sum(count) AS n, sum(duty_q30)::DOUBLE / pow(2, 30) AS x,
                   (sum(duty_sq_hi)::DOUBLE * pow(2, 32) + sum(duty_sq_lo)::DOUBLE) / pow(2, 60) AS xx
            FROM op_10s s LEFT JOIN processes p USING (process)
            WHERE {condition} AND s.weight = 0 AND s.kind IN {WORK_KINDS} GROUP BY ALL),
        r AS (SELECT sums.* EXCLUDE (x, xx), x / w AS share,
                     CASE WHEN w > 1 THEN sqrt(greatest(xx / w - (x / w) * (x / w), 0) / (w - 1)) END AS spread,
                     w::BIGINT AS units
              FROM sums JOIN looked USING (run) WHERE w > 0)
        {_NAMES}"""  # noqa: S608 - values are bound
    tables = ["op_10s", "device_10s", "processes", "hosts", "ops", "programs"]
    rows = []
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        for seen, query in (("all", whole), ("windows", windows)):
            found = connection.sql(query, params=[*values, *values, limit]).to_arrow_table()
            rows += [_line(row, seen) for row in found.to_pylist()]
    rows.sort(key=lambda row: float(row["share_ratio"] or 0.0), reverse=True)
    return pa.Table.from_pylist(rows[:limit], _COLUMNS)


def _line(row: dict[str, object], seen: str) -> dict[str, float | str | int | None]:
    share, spread, units = row["share"], row["spread"], row["units"]
    low = high = None
    if isinstance(share, float) and isinstance(spread, float) and isinstance(units, int | float):
        half = t_quantile(int(units) - 1) * spread
        low, high = max(share - half, 0.0), share + half
    return {
        "run": str(row["run"]),
        "op": str(row["name"]),
        "category": _text(row["category"]),
        "share_ratio": share if isinstance(share, float) and math.isfinite(share) else None,
        "low_ratio": low,
        "high_ratio": high,
        "time_ns": int(str(row["t"])),
        "count": int(str(row["n"])),
        "seen": seen,
        "module": _text(row["module"]),
        "source": _text(row["source"]),
        "op_name": _text(row["op_name"]),
    }


def _text(value: object) -> str | None:
    return None if value is None else str(value)
