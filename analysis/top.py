"""Ops that take the most device time.

Two kinds of rows (DESIGN 3.4): whole observations (weight >= 1), whose self times add, and profiler windows (weight
0), whose share of time is estimated. One result line is always of one kind.
"""

from typing import Any

import pyarrow as pa

from fleetscope.analysis import identity
from fleetscope.analysis.estimate import NEAR_SHARE, UNOBSERVABLE, Estimate, finite, op_duty
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
        ("mean_ns", pa.int64()),
        ("seen", pa.string()),
        ("windows", pa.int64()),
        ("reason", pa.string()),
        ("module", pa.string()),
        ("source", pa.string()),
        ("op_name", pa.string()),
        ("shape", pa.string()),
        ("program", pa.int64()),
        ("ordinal", pa.int32()),
    ]
)


def top_ops(snapshot: Snapshot, scope: Scope, limit: int = 20) -> pa.Table:
    """The `limit` ops with the largest share of the device time of their run.

    share_ratio: self time / observed device time for whole rows (`seen` "all"); for windows the estimated share of
    device time, with low_ratio and high_ratio its 95 % interval. `reason` says why there is no interval, or no share:
    an op longer than the windows cannot be measured by them, and is named all the same. time_ns, count, mean_ns: what
    was seen, not scaled.
    """
    condition, values = scope.where("s")
    sums = f"""
        SELECT coalesce(p.run_name, '') AS run, {identity.PROGRAM} AS program, {identity.OP} AS op,
               sum((sum_ns - child_ns) * greatest(weight, 1))::BIGINT AS t, sum(sum_ns)::BIGINT AS whole,
               sum(count * greatest(weight, 1))::BIGINT AS n, sum(count)::BIGINT AS spans,
               sum(windows)::BIGINT AS windows, sum(near_q30)::HUGEINT AS near_q30, sum(duty_q30)::HUGEINT AS duty_q30,
               sum(duty_sq_hi)::HUGEINT AS duty_sq_hi, sum(duty_sq_lo)::HUGEINT AS duty_sq_lo
        FROM op_10s s LEFT JOIN processes p USING (process) {identity.JOIN}
        WHERE {condition} AND s.kind IN {WORK_KINDS} AND s.weight {{sign}} 0 GROUP BY ALL"""  # noqa: S608 - bound
    query = f"""
        WITH {identity.OPS},
        looked AS (
            SELECT coalesce(p.run_name, '') AS run, sum(observed_ns)::BIGINT AS observed, sum(windows)::BIGINT AS units
            FROM device_10s s LEFT JOIN processes p USING (process)
            WHERE {condition} AND s.weight {{sign}} 0 GROUP BY ALL),
        r AS (SELECT a.*, observed, units FROM ({sums}) a LEFT JOIN looked USING (run))
        SELECT r.*, {identity.NAME.format(alias="r")} AS name, o.category, m.module, o.op_name, o.shape,
               {identity.SOURCE} AS source
        FROM r LEFT JOIN ops o ON o.program = r.program AND o.op = r.op LEFT JOIN programs m ON m.program = r.program
        ORDER BY {{order}} DESC NULLS LAST, name LIMIT ?"""  # noqa: S608 - values are bound
    tables = ["op_10s", "device_10s", "processes", "hosts", *identity.TABLES]
    lines = []
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        # What windows cannot measure has no share; what was seen of it still says where it belongs.
        hidden = f"duty_q30 = 0 OR near_q30 > {NEAR_SHARE} * duty_q30"
        sampled = f"CASE WHEN {hidden} THEN whole / nullif(observed, 0) ELSE duty_q30 / nullif(units, 0) / 2**30 END"
        for seen, sign, order in (("all", "!=", "t / nullif(observed, 0)"), ("windows", "=", sampled)):
            found = connection.sql(query.format(sign=sign, order=order), params=[*values, *values, limit])
            lines += [_line(row, seen) for row in found.to_arrow_table().to_pylist()]
    lines.sort(key=lambda line: line.pop("_order"), reverse=True)
    return pa.Table.from_pylist(lines[:limit], _COLUMNS)


def _line(row: dict[str, Any], seen: str) -> dict[str, Any]:
    share = _whole(row) if seen == "all" else _estimated(row)
    unmeasured = share.reason == UNOBSERVABLE and row["observed"]
    return {
        "run": row["run"],
        "op": row["name"],
        "category": row["category"] or None,
        "share_ratio": finite(share.value),
        "low_ratio": None if finite(share.low) is None else max(share.low, 0.0),
        "high_ratio": finite(share.high),
        "time_ns": row["t"],
        "count": row["n"],
        "mean_ns": row["whole"] // max(row["spans"], 1),
        "seen": seen,
        "windows": None if seen == "all" else share.windows,
        "reason": share.reason or None,
        "module": row["module"],
        "source": row["source"],
        "op_name": row["op_name"] or None,
        "shape": row["shape"] or None,
        "program": row["program"],
        "ordinal": row["op"],
        "_order": row["whole"] / row["observed"] if unmeasured else finite(share.value) or 0.0,
    }


def _whole(row: dict[str, Any]) -> Estimate:
    share = row["t"] / row["observed"] if row["observed"] else float("nan")
    return Estimate(share, float("nan"), float("nan"), 0, "" if row["observed"] else "no observed time is known")


def _estimated(row: dict[str, Any]) -> Estimate:
    columns = {name: int(row[name]) for name in ("windows", "near_q30", "duty_q30", "duty_sq_hi", "duty_sq_lo")}
    return op_duty({**columns, "count": row["spans"]}, int(row["units"] or 0))
