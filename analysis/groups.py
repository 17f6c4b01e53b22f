"""Device time by HLO category or by program, with intervals: `ops --by`."""

from typing import Any, Literal

import pyarrow as pa

from fleetscope.analysis import identity
from fleetscope.analysis.estimate import UNOBSERVABLE, Estimate, together, unknown
from fleetscope.analysis.ops import ESTIMATES, estimated
from fleetscope.analysis.sampling import MOMENTS, SUMS, Process, sampled
from fleetscope.analysis.scope import WORK_KINDS, Scope, host_name
from fleetscope.analysis.unseen import TABLES, Unseen, unseen
from fleetscope.sinks.lake.read import Snapshot

By = Literal["category", "program"]

_COLUMNS = pa.schema(
    [
        ("run", pa.string()),
        ("host", pa.string()),
        ("rank", pa.int32()),
        ("category", pa.string()),
        ("module", pa.string()),
        ("self_ns", pa.int64()),
        *ESTIMATES,
        ("count", pa.int64()),
        ("ops", pa.int64()),
        ("unobservable", pa.list_(pa.string())),
        ("executions", pa.int64()),
        ("seen", pa.string()),
        ("program", pa.int64()),
    ]
)


def group_table(snapshot: Snapshot, scope: Scope, by: By, limit: int = 50) -> pa.Table:
    """One row a (category or program, process, kind of rows), largest self time first; columns as of `op_table`, but
    without rates.

    A program's share is estimated from its own sums over windows; a category's is the sum of its ops' shares, with the
    sum of their half widths: never too narrow, often too wide. `unobservable`: names of ops that are in no estimate,
    those without a single span (`unseen`) too.
    executions: of the program, exact where a shim counted them.
    """
    condition, values = scope.where("s")
    query = f"""
        WITH {identity.OPS},
        sums AS (
            SELECT s.process, min(s.host) AS host, {identity.PROGRAM} AS program, {identity.OP} AS op,
                   s.weight = 0 AS estimated, sum(count)::BIGINT AS spans,
                   sum((sum_ns - child_ns) * greatest(s.weight, 1))::BIGINT AS self_ns, {SUMS}
            FROM op_10s s {identity.JOIN} WHERE {condition} AND s.kind IN {WORK_KINDS}
            GROUP BY s.process, {identity.PROGRAM}, {identity.OP}, s.weight = 0)
        SELECT sums.*, coalesce(p.run_name, '') AS run, {host_name("sums.host")} AS host_name, p.rank,
               nullif(o.category, '') AS category, m.module, {identity.NAME.format(alias="sums")} AS name
        FROM sums {identity.TABLED.format(alias="sums")}
             LEFT JOIN processes p USING (process) LEFT JOIN hosts h ON h.host = sums.host"""  # noqa: S608 - bound
    with snapshot.duckdb(TABLES, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        rows = connection.sql(query, params=values).to_arrow_table().to_pylist()
        of = sampled(connection, condition, values)
        rows += [_hidden(op) for op in unseen(connection, of, condition, values)]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["process"], row["estimated"], row[by]), []).append(row)
    processes, nothing = of.by_process(), of.processes(())
    lines = [_line(by, members, processes.get(members[0]["process"], nothing)) for members in groups.values()]
    lines.sort(key=lambda line: (-line["self_ns"], line["module"] or "", line["category"] or ""))
    return pa.Table.from_pylist(lines[:limit], _COLUMNS)


def _hidden(op: Unseen) -> dict[str, Any]:
    """A row as the query's, of no span."""
    names = ("run", "rank", "category", "module", "program")
    row = {name: op.about[name] for name in names} | {"host_name": op.about["host"], "name": op.about["op"]}
    return row | dict.fromkeys(MOMENTS, 0) | {"process": op.process, "estimated": True, "spans": 0, "self_ns": 0}


def _line(by: By, members: list[dict[str, Any]], of: Process) -> dict[str, Any]:
    first = members[0]
    self_ns = sum(row["self_ns"] for row in members)
    line = {name: first[name] for name in ("run", "rank")}
    line |= {"host": first["host_name"], "seen": "windows" if first["estimated"] else "all", "ops": len(members)}
    line |= {"self_ns": self_ns, "count": sum(row["spans"] for row in members)}
    line |= {"category": first["category"], "module": None}
    if by == "program":
        number = first["program"]
        line |= {"category": None, "module": first["module"], "program": number}
        if number in of.exact:
            line["executions"] = of.exact[number].executions
    if not first["estimated"]:
        return line | {"share_ratio": self_ns / of.whole_ns if of.whole_ns else None}
    parts = [_share(of, row) for row in members]
    hidden = [row["name"] for row, (share, _) in zip(members, parts, strict=True) if share.reason == UNOBSERVABLE]
    share, calibrated = _program(of, first["program"], hidden) if by == "program" else (None, False)
    if share is None:
        seen = [part for part in parts if part[0].reason != UNOBSERVABLE]
        share = together([part for part, _ in seen]) if seen else unknown(of.windows, UNOBSERVABLE)
        calibrated = bool(seen) and all(told for _, told in seen)
    residual = of.residual(first["program"]) if by == "program" and calibrated else None
    return line | estimated(share, calibrated, of, residual) | {"unobservable": hidden or None}


def _share(of: Process, row: dict[str, Any]) -> tuple[Estimate, bool]:
    if not row["spans"]:
        return unknown(of.windows, UNOBSERVABLE), False
    return of.share({name: int(row[name]) for name in MOMENTS}, row["program"])


def _program(of: Process, program: int, hidden: list[str]) -> tuple[Estimate | None, bool]:
    """By the program's own sums; None where it has none (format 1), or where they hold ops that windows do not show."""
    row = of.programs.get(program)
    return (None, False) if row is None or hidden else of.share(row, program)
