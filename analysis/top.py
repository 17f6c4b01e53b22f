"""Ops that take the most device time.

Two kinds of rows (DESIGN 3.4): whole observations (weight >= 1), whose self times add, and profiler windows (weight
0), whose share of time is estimated, and set right by exact counts of executions where a shim told them. One result
line is always of one kind.
"""

from typing import Any

import duckdb
import pyarrow as pa

from fleetscope.analysis import identity
from fleetscope.analysis.estimate import NEAR_SHARE, UNOBSERVABLE, Estimate, finite
from fleetscope.analysis.sampling import MOMENTS, SUMS, Process, Sampled, sampled
from fleetscope.analysis.scope import WORK_KINDS, Scope
from fleetscope.analysis.unseen import TABLES, Unseen, unseen
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
        ("calibrated", pa.bool_()),
        ("reason", pa.string()),
        ("module", pa.string()),
        ("source", pa.string()),
        ("op_name", pa.string()),
        ("shape", pa.string()),
        ("program", pa.int64()),
        ("ordinal", pa.int32()),
    ]
)


LOOKED_AT = 4
"""Times the limit: ops chosen by what windows alone say, among which exact counts decide the order."""


def top_ops(snapshot: Snapshot, scope: Scope, limit: int = 20) -> pa.Table:
    """The `limit` ops with the largest share of the device time of their run.

    share_ratio: self time / observed device time for whole rows (`seen` "all"); for windows the estimated share of
    device time, with low_ratio and high_ratio its 95 % interval; calibrated: by exact counts of executions, over the
    ranks of the run together. `reason` says why there is no interval, or no share: an op longer than the windows cannot
    be measured by them, and is named all the same, also where they show no span of it (`unseen`). time_ns, count,
    mean_ns: what was seen, not scaled.
    """
    condition, values = scope.where("s")
    sums = f"""
        SELECT coalesce(p.run_name, '') AS run, {identity.PROGRAM} AS program, {identity.OP} AS op,
               sum((sum_ns - child_ns) * greatest(weight, 1))::BIGINT AS t, sum(sum_ns)::BIGINT AS whole,
               sum(s.count * greatest(weight, 1))::BIGINT AS n, sum(s.count)::BIGINT AS spans, {SUMS}
        FROM op_10s s LEFT JOIN processes p USING (process) {identity.JOIN}
        WHERE {condition} AND s.kind IN {WORK_KINDS} AND s.weight {{sign}} 0 GROUP BY ALL"""  # noqa: S608 - bound
    query = f"""
        WITH {identity.OPS},
        looked AS (
            SELECT coalesce(p.run_name, '') AS run, sum(observed_ns)::BIGINT AS observed, sum(windows)::BIGINT AS units
            FROM device_10s s LEFT JOIN processes p USING (process)
            WHERE {condition} AND s.weight {{sign}} 0 GROUP BY ALL),
        r AS (SELECT a.*, observed, units FROM ({sums}) a LEFT JOIN looked USING (run))
        SELECT r.*, {identity.NAME.format(alias="r")} AS name, nullif(o.category, '') AS category, {identity.ABOUT}
        FROM r {identity.TABLED.format(alias="r")}
        ORDER BY {{order}} DESC NULLS LAST, name LIMIT ?"""  # noqa: S608 - values are bound
    # What windows cannot measure has no share; what was seen of it still says where it belongs.
    hidden = f"duty_q30 = 0 OR near_q30 > {NEAR_SHARE} * duty_q30"
    by_share = f"CASE WHEN {hidden} THEN whole / nullif(observed, 0) ELSE duty_q30 / nullif(units, 0) / 2**30 END"
    with snapshot.duckdb(TABLES, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:

        def rows(sign: str, order: str, most: int) -> list[dict[str, Any]]:
            found = connection.sql(query.format(sign=sign, order=order), params=[*values, *values, most])
            listed: list[dict[str, Any]] = found.to_arrow_table().to_pylist()
            return listed

        lines = [_line(row, "all", _whole(row)) for row in rows("!=", "t / nullif(observed, 0)", limit)]
        of = sampled(connection, condition, values)
        together, nothing = _by_run(connection, of), of.processes(())
        for row in rows("=", by_share, LOOKED_AT * limit):
            share, calibrated = _estimated(row, together.get(row["run"], nothing))
            lines.append(_line(row, "windows", share) | {"calibrated": calibrated})
        lines += _hidden(unseen(connection, of, condition, values))
    lines.sort(key=lambda line: line.pop("_order"), reverse=True)
    return pa.Table.from_pylist(lines[:limit], _COLUMNS)


def _by_run(connection: duckdb.DuckDBPyConnection, of: Sampled) -> dict[str, Process]:
    names = dict(connection.sql("SELECT process, coalesce(run_name, '') FROM processes").fetchall())
    members: dict[str, set[int]] = {}
    for owner, _ in of.devices:
        members.setdefault(names.get(owner, ""), set()).add(owner)
    return {run: of.processes(processes) for run, processes in members.items()}


def _line(row: dict[str, Any], seen: str, share: Estimate) -> dict[str, Any]:
    unmeasured = share.reason == UNOBSERVABLE and row["observed"]
    return {
        **{name: row[name] for name in ("run", "category", "module", "source", "op_name", "shape", "program")},
        "op": row["name"],
        "share_ratio": finite(share.value),
        "low_ratio": share.low_share,
        "high_ratio": finite(share.high),
        "time_ns": row["t"],
        "count": row["n"],
        "mean_ns": row["whole"] // max(row["spans"], 1),
        "seen": seen,
        "windows": None if seen == "all" else share.windows,
        "reason": share.reason or None,
        "ordinal": row["op"],
        "_order": row["whole"] / row["observed"] if unmeasured else finite(share.value) or 0.0,
    }


def _whole(row: dict[str, Any]) -> Estimate:
    share = row["t"] / row["observed"] if row["observed"] else float("nan")
    return Estimate(share, float("nan"), float("nan"), 0, "" if row["observed"] else "no observed time is known")


def _estimated(row: dict[str, Any], of: Process) -> tuple[Estimate, bool]:
    return of.share({name: int(row[name]) for name in MOMENTS}, row["program"])


def _hidden(ops: list[Unseen]) -> list[dict[str, Any]]:
    """Lines of ops without a span, each once a run, where what is missing would place it."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for op in ops:
        about = {name: value for name, value in op.about.items() if name in _COLUMNS.names}
        line = {**about, "time_ns": 0, "count": 0, "seen": "windows", "windows": op.windows, "calibrated": False}
        key = (about["run"], about["program"], about["ordinal"])
        lines.setdefault(key, line | {"reason": UNOBSERVABLE, "_order": op.share_most})
    return list(lines.values())
