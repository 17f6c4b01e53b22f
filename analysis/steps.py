"""Steps and what their time went to."""

import pyarrow as pa

from fleetscope.analysis.scope import Scope, host_name
from fleetscope.analysis.step_flops import PARAMETERS, TABLES, worked
from fleetscope.schema.vocabulary import Kind, LinkRole, StepFlag
from fleetscope.sinks.lake.read import Snapshot

_FLAGS = ", ".join(
    f"CASE WHEN {{0}} & {int(flag)} != 0 THEN '{str(flag.name).lower().replace('_', ' ')}' END" for flag in StepFlag
)

_CONFIDENCE = "CASE WHEN {0} = 'declared' THEN 1.0 ELSE {1} / 1000 END"
"""Steps written before confidence was measured have 0 of it."""

_QUEUE = "CASE WHEN {2} > 0 THEN ({0} / nullif({1}, 0))::BIGINT END"

_FLOWS = f"""
    newest AS (SELECT min(t_ns) AS t_ns FROM (SELECT t_ns FROM {{steps}} ORDER BY t_ns DESC LIMIT {{limit}})),
    flows AS (
        SELECT process, step,
               arg_min(CASE WHEN context_type = 0 THEN '' ELSE context_type || ':' END || context_id,
                       CASE WHEN role & {int(LinkRole.CONSUMES)} = 0 THEN t_ns + {1 << 62}
                            WHEN kind = {int(Kind.STEP)} THEN 0 ELSE t_ns END) AS flow
        FROM links WHERE (process, step) IN (
            SELECT ({{process}}, step) FROM {{steps}} WHERE t_ns >= (SELECT t_ns FROM newest))
        GROUP BY process, step)"""  # noqa: S608 - numbers
"""CTE: what a step of a process went on with, by its own link, else by the first in it; else the first it made. Of
those alone that are shown: a busy hour has a million links."""

_ATTEMPTS = """
    attempts AS (
        SELECT run, attempt, max(run_name) AS run_name, max(attempt_name) AS attempt_name
        FROM processes WHERE run_name != '' GROUP BY run, attempt)"""
"""CTE: the names of an attempt from any of its processes; the announcement of one may be lost."""

_RATIOS = """
    CASE WHEN count(model_did + could) = count(*) THEN sum(model_did) / sum(could) END AS mfu_ratio,
    CASE WHEN count(did + could) = count(*) THEN sum(did) / sum(could) END AS hfu_ratio,
    sum(known_ns) / nullif(sum(ran_ns), 0) AS flops_coverage_ratio,
    sum(clock) / nullif(sum(clocked), 0) AS clock_ratio, max(mfu_absent) AS mfu_absent"""
"""Of a GROUP BY over rows of `step_flops.worked`: given where they are known of all of them."""

_AT_CLOCK = """
    {0}.mfu_ratio / nullif({0}.clock_ratio, 0) AS mfu_at_clock_ratio,
    {0}.hfu_ratio / nullif({0}.clock_ratio, 0) AS hfu_at_clock_ratio"""

_BY_DTYPE = ", ".join(
    f"map_from_entries(list((dtype, {time}_ns / chip_ns) ORDER BY ideal_ns DESC)) AS {name}_by_dtype"
    for name, time in (("hfu", "ideal"), ("mfu", "model"))
)


def step_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a step of a run, newest first, over its ranks: mean and slowest step time and where that was.

    Times of the host are means over ranks. compute_ratio, collective_ratio, copy_ratio: shares of the device time
    observed in the step (covered_ns, over devices), absent where none was. occupancy_ratio, idle_ratio: shares of the
    device time whose executions were seen (watched_ns, PJRT shim); queue_mean_ns: wait of an execution for its device.
    hfu_ratio, mfu_ratio: FLOPs of the step's executions, each by its own program, over step time x chips x peak;
    mfu_absent: why there are none. flops_coverage_ratio: share of execution time whose op time has known FLOPs.
    clock_ratio: share of the nominal clock the chips kept in the 10 s windows it touches, where their clock was sampled
    beside ops; hfu_by_dtype, mfu_by_dtype: ideal time at the peak of each dtype, an op of the entry computation by its
    costliest part, over step time x chips.
    confidence_ratio: of an inferred step; 1 for a declared one. flow: what the slowest rank's step went on with, for
    `steps --flow`. The newest step of a rank has no end yet: it is not
    there.
    """
    condition, values = scope.where("s")
    means = ", ".join(
        f"(sum({name}) / count(*))::BIGINT AS {name}"
        for name in ("data_wait_ns", "h2d_ns", "d2h_ns", "dispatch_ns", "compile_ns", "checkpoint_ns")
    )
    query = f"""
        WITH {_ATTEMPTS},
        {worked(condition)},
        grouped AS (
            SELECT run, attempt, step, min(t_ns) AS t_ns, count(*) AS ranks, (sum(dur_ns) / count(*))::BIGINT AS mean,
                   max(dur_ns) AS worst, arg_max(host, dur_ns) AS worst_host, arg_max(rank, dur_ns) AS worst_rank,
                   arg_max(process, dur_ns) AS worst_process,
                   {means},
                   sum(compute_ns) / nullif(sum(covered_ns), 0) AS compute_ratio,
                   sum(collective_ns) / nullif(sum(covered_ns), 0) AS collective_ratio,
                   sum(copy_ns) / nullif(sum(covered_ns), 0) AS copy_ratio,
                   sum(covered_ns)::BIGINT AS covered_ns, sum(executions)::BIGINT AS executions,
                   {_RATIOS},
                   sum(occupancy_ns) / nullif(sum(watched_ns), 0) AS occupancy_ratio,
                   sum(idle_ns) / nullif(sum(watched_ns), 0) AS idle_ratio,
                   {_QUEUE.format("sum(queue_ns)", "sum(executions)", "sum(watched_ns)")} AS queue_mean_ns,
                   min(source) AS source, {_CONFIDENCE.format("min(source)", "min(confidence)")} AS confidence_ratio,
                   bit_or(flags) AS flags
            FROM worked GROUP BY run, attempt, step),
        {_FLOWS.format(steps="grouped", process="worst_process", limit=int(limit))},
        of_dtype AS (
            SELECT w.run, w.attempt, w.step, b.dtype, sum(b.ideal_ns) AS ideal_ns, sum(b.model_ns) AS model_ns
            FROM by_dtype b JOIN worked w USING (process, t_ns) GROUP BY ALL),
        chip AS (SELECT run, attempt, step, sum(chip_ns) AS chip_ns FROM worked GROUP BY ALL),
        maps AS (
            SELECT run, attempt, step, {_BY_DTYPE} FROM of_dtype JOIN chip USING (run, attempt, step)
            GROUP BY run, attempt, step)
        SELECT coalesce(p.run_name, '') AS run, g.step, g.ranks, g.mean AS step_time_ns, g.worst AS slowest_ns,
               {host_name("g.worst_host")} AS slowest_host, g.worst_rank AS slowest_rank,
               g.* EXCLUDE (run, attempt, step, ranks, mean, worst, worst_host, worst_rank, worst_process, t_ns, flags),
               {_AT_CLOCK.format("g")},
               CASE WHEN g.hfu_ratio IS NOT NULL THEN d.hfu_by_dtype END AS hfu_by_dtype,
               CASE WHEN g.mfu_ratio IS NOT NULL THEN d.mfu_by_dtype END AS mfu_by_dtype,
               concat_ws(', ', {_FLAGS.format("g.flags")}) AS flags, g.t_ns AS began_ns,
               p.attempt_name AS attempt, f.flow
        FROM grouped g LEFT JOIN attempts p USING (run, attempt) LEFT JOIN maps d USING (run, attempt, step)
             LEFT JOIN hosts h ON h.host = g.worst_host
             LEFT JOIN flows f ON f.process = g.worst_process AND f.step = g.step
        ORDER BY g.t_ns DESC, run LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values)


def rank_step_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a step and rank, newest first; columns as in `step_table`."""
    condition, values = scope.where("s")
    query = f"""
        WITH {_ATTEMPTS}, {worked(condition)},
        {_FLOWS.format(steps="worked", process="process", limit=int(limit))},
        rated AS (SELECT process, t_ns, {_RATIOS} FROM worked GROUP BY process, t_ns),
        maps AS (
            SELECT process, t_ns, {_BY_DTYPE} FROM by_dtype JOIN worked USING (process, t_ns) GROUP BY process, t_ns)
        SELECT coalesce(p.run_name, '') AS run, {host_name("s.host")} AS host, s.rank, s.step,
               s.dur_ns AS step_time_ns, s.data_wait_ns, s.h2d_ns, s.d2h_ns, s.dispatch_ns, s.compile_ns,
               s.checkpoint_ns,
               s.compute_ns / nullif(s.covered_ns, 0) AS compute_ratio,
               s.collective_ns / nullif(s.covered_ns, 0) AS collective_ratio,
               s.copy_ns / nullif(s.covered_ns, 0) AS copy_ratio, r.* EXCLUDE (process, t_ns), {_AT_CLOCK.format("r")},
               d.hfu_by_dtype, d.mfu_by_dtype, s.covered_ns, s.executions,
               s.occupancy_ns / nullif(s.watched_ns, 0) AS occupancy_ratio,
               s.idle_ns / nullif(s.watched_ns, 0) AS idle_ratio,
               {_QUEUE.format("s.queue_ns", "s.executions", "s.watched_ns")} AS queue_mean_ns,
               s.source, {_CONFIDENCE.format("s.source", "s.confidence")} AS confidence_ratio,
               concat_ws(', ', {_FLAGS.format("s.flags")}) AS flags, s.t_ns AS began_ns,
               p.attempt_name AS attempt, f.flow
        FROM worked s LEFT JOIN attempts p ON p.run = s.run AND p.attempt = s.attempt
             JOIN rated r ON r.process = s.process AND r.t_ns = s.t_ns
             LEFT JOIN maps d ON d.process = s.process AND d.t_ns = s.t_ns
             LEFT JOIN hosts h ON h.host = s.host LEFT JOIN flows f ON f.process = s.process AND f.step = s.step
        ORDER BY s.t_ns DESC, s.process LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values)


def _ask(snapshot: Snapshot, scope: Scope, query: str, values: list[str | int]) -> pa.Table:
    with snapshot.duckdb((*TABLES, "links"), from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=values * PARAMETERS).to_arrow_table()
