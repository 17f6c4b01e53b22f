"""Runs at a glance."""

import pyarrow as pa

from fleetscope.analysis import counted, identity
from fleetscope.analysis.dtypes import by_dtype, sheet
from fleetscope.analysis.ledger import ledger_table
from fleetscope.analysis.scope import UNUSUAL, WORK_KINDS, Scope
from fleetscope.analysis.shares import SEEN, observed, ratio_columns
from fleetscope.schema.vocabulary import StepFlag
from fleetscope.sinks.lake.read import Snapshot

SILENT_AFTER_NS = 60 * 10**9
"""A run that has not ended and whose newest data is that much older than the lake's is called silent."""


def run_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a run attempt, newest first; also of runs no device of which was seen.

    state: ended when all its ranks have; silent when nothing came for a minute. steps: of the rank that has most.
    step_time_ns: mean, begin to begin on the host (DESIGN 3.8), over ranks; first steps, steps that compile,
    evaluation, the cut one at the end and those whose inferred begin or end was told late (mistimed_steps, of all
    ranks) are left out. Shares of observed device time, hfu and mfu as in `shares`, where no op was seen but every
    execution counted as in `counted`, by dtype as in `dtypes` and there; mfu_declared_ratio: from the FLOPs a step the
    user declared for the whole job (`fleetscope run --flops-per-step`). lost: events of its sources that are dropped,
    dead-lettered or gone, since they began.
    """
    condition, values = scope.where("s")
    whole = "TRUE" if not scope.timed else "FALSE"
    of_run = "TRUE" if scope.run is None else "(run_name = ? OR attempt_name = ?)"
    of_host = "TRUE" if scope.host is None else "host IN (SELECT host FROM hosts WHERE name = ?)"
    chosen = [*([scope.run] * 2 if scope.run is not None else []), *([scope.host] if scope.host is not None else [])]
    # They are left out of the mean, unless there are no others.
    usual = f"flags & {UNUSUAL} = 0"
    query = f"""
        WITH {identity.OPS}, {sheet()}, seen AS ({observed(condition)}), {by_dtype(condition)},
        stp AS (
            SELECT process, count(*) AS steps, count(*) FILTER (flags & {int(StepFlag.MISTIMED)} != 0) AS mistimed,
                   sum(dur_ns) FILTER ({usual}) AS usual_ns,
                   count(*) FILTER ({usual}) AS usual_steps, sum(dur_ns) AS all_ns,
                   min(t_ns) AS first_ns, max(t_ns + dur_ns) AS last_ns
            FROM step s WHERE {condition} AND s.flags & {int(StepFlag.TRUNCATED)} = 0 AND dur_ns > 0 GROUP BY process),
        hst AS (
            SELECT process, min(t_ns) AS first_ns, max(t_ns) AS last_ns
            FROM op_10s s WHERE {condition} AND s.kind NOT IN {WORK_KINDS} GROUP BY process),
        {counted.counted(condition)},
        counts AS (
            SELECT p.run_name, p.attempt_name, {counted.COLUMNS}
            FROM counted c JOIN processes p USING (process) GROUP BY p.run_name, p.attempt_name),
        {counted.by_dtype()},
        dev AS (
            SELECT p.run_name, p.attempt_name, count(DISTINCT device) AS devices,
                   {SEEN} AS seen, sum(windows)::BIGINT AS windows,
                   sum(peak_flop) / nullif(sum(observed_ns), 0) AS peak_a_ns,
                   min(first_ns) AS first_ns, max(last_ns) AS last_ns, {ratio_columns("seen")}
            FROM seen JOIN processes p USING (process) GROUP BY p.run_name, p.attempt_name),
        over_ AS (SELECT run, attempt, bool_and(coalesce(end_ns, 0) > 0) AS ended FROM processes GROUP BY run, attempt),
        act AS (
            SELECT p.run_name, p.attempt_name, any_value(p.run) AS run, any_value(p.attempt) AS attempt,
                   count(DISTINCT p.process) AS ranks, count(DISTINCT p.host) AS hosts,
                   max(p.world_size) AS world_size, max(steps)::BIGINT AS steps,
                   sum(mistimed)::BIGINT AS mistimed_steps,
                   CASE WHEN sum(usual_steps) > 0 THEN sum(usual_ns) / sum(usual_steps)
                        ELSE sum(all_ns) / nullif(sum(steps), 0) END::BIGINT AS step_time_ns,
                   min(coalesce(stp.first_ns, hst.first_ns)) AS first_ns,
                   max(coalesce(stp.last_ns, hst.last_ns)) AS last_ns, min(p.seen_ns) AS told_ns
            FROM processes p LEFT JOIN stp USING (process) LEFT JOIN hst USING (process)
            WHERE p.run_name != '' AND {of_run} AND {of_host}
                  AND ({whole} OR stp.process IS NOT NULL OR hst.process IS NOT NULL
                       OR p.process IN (SELECT process FROM seen))
            GROUP BY p.run_name, p.attempt_name)
        SELECT a.run_name AS run, a.attempt_name AS attempt,
               CASE WHEN r.end_ns > 0 OR o.ended THEN 'ended'
                    WHEN ? - coalesce(greatest(a.last_ns, d.last_ns), a.told_ns) > {SILENT_AFTER_NS} THEN 'silent'
                    ELSE 'running' END AS state,
               a.ranks, a.hosts, d.devices, a.steps, a.mistimed_steps, a.step_time_ns, d.busy_ratio, d.compute_ratio,
               d.collective_ratio, d.copy_ratio, d.other_ratio, {counted.shown("d", "n")},
               {counted.dtypes_shown("d", "n", "t", "c")}, u.flops_unknown,
               nullif(r.declared_flops_per_step, 0)
                   / nullif(a.step_time_ns * d.devices * coalesce(d.peak_a_ns, n.could / n.watched_ns), 0)
                   AS mfu_declared_ratio,
               d.seen, d.windows,
               coalesce(a.first_ns, d.first_ns) AS first_ns, coalesce(a.last_ns, d.last_ns) AS last_ns,
               a.world_size
        FROM act a LEFT JOIN dev d USING (run_name, attempt_name)
             LEFT JOIN counts n USING (run_name, attempt_name)
             LEFT JOIN dtype_shares t USING (run_name, attempt_name)
             LEFT JOIN counted_dtypes c USING (run_name, attempt_name)
             LEFT JOIN unknown_ops u USING (run_name, attempt_name)
             LEFT JOIN runs r ON r.run = a.run AND r.attempt = a.attempt
             LEFT JOIN over_ o ON o.run = a.run AND o.attempt = a.attempt
        ORDER BY coalesce(greatest(a.last_ns, d.last_ns), a.told_ns) DESC, a.run_name, a.attempt_name
        LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    tables = ["step", "hosts", "runs", *counted.TABLES]
    params = [*values * 6, *chosen, snapshot.now_ns]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        rows = connection.sql(query, params=params).to_arrow_table()
    lost: dict[tuple[str, str], int] = {}
    for row in ledger_table(snapshot, Scope(run=scope.run, host=scope.host)).to_pylist():
        key = (row["run"], row["attempt"])
        lost[key] = lost.get(key, 0) + row["dropped"] + row["dead_lettered"] + row["open_gap"] + row["lost"]
    keys = zip(rows.column("run").to_pylist(), rows.column("attempt").to_pylist(), strict=True)
    column = pa.array([lost.get(key, 0) for key in keys], pa.int64())
    return rows.add_column(rows.schema.get_field_index("seen"), "lost", column)
