"""Steps and what their time went to."""

import pyarrow as pa

from fleetscope.analysis.scope import Scope, host_name
from fleetscope.schema.vocabulary import StepFlag
from fleetscope.sinks.lake.read import Snapshot

_FLAGS = ", ".join(
    f"CASE WHEN {{0}} & {int(flag)} != 0 THEN '{str(flag.name).lower().replace('_', ' ')}' END" for flag in StepFlag
)

_CONFIDENCE = "CASE WHEN {0} = 'declared' THEN 1.0 ELSE {1} / 1000 END"
"""Steps written before confidence was measured have 0 of it."""

_QUEUE = "CASE WHEN {2} > 0 THEN ({0} / nullif({1}, 0))::BIGINT END"

_ATTEMPTS = """
    attempts AS (
        SELECT run, attempt, max(run_name) AS run_name, max(attempt_name) AS attempt_name
        FROM processes WHERE run_name != '' GROUP BY run, attempt)"""
"""CTE: the names of an attempt from any of its processes; the announcement of one may be lost."""

_WHOLE = 0.95
"""Share of a step in which its devices must have been seen, so that its executions are all there."""


def _worked(condition: str) -> str:
    """CTE `worked`: steps with the FLOPs of their executions and what the devices could have done. Takes the parameters
    of `condition` twice.

    Executions are taken for those of the step's dominant program, whose FLOPs its op table gives. Absent where they
    were not all seen (windows), or an op's FLOPs or the chip's peak are not known.
    """
    return f"""
        chips AS (
            SELECT process, count(DISTINCT device) AS devices,
                   sum(peak_flop)::DOUBLE / nullif(sum(observed_ns), 0) AS peak_a_ns
            FROM device_10s s WHERE {condition} GROUP BY process),
        worked AS (
            SELECT s.*, s.executions * m.flops::DOUBLE AS did, s.executions * m.model_flops::DOUBLE AS model_did,
                   s.dur_ns::DOUBLE * c.devices * nullif(c.peak_a_ns, 0) AS could
            FROM step s LEFT JOIN programs m ON m.program = s.program AND s.executions > 0
                 LEFT JOIN chips c ON c.process = s.process
                 AND greatest(s.watched_ns, s.covered_ns) >= {_WHOLE} * s.dur_ns * c.devices
            WHERE {condition} AND s.dur_ns > 0)"""  # noqa: S608 - values are bound


def step_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a step of a run, newest first, over its ranks: mean and slowest step time and where that was.

    Times of the host are means over ranks. compute_ratio, collective_ratio, copy_ratio: shares of the device time
    observed in the step (covered_ns, over devices), absent where none was. occupancy_ratio, idle_ratio: shares of the
    device time whose executions were seen (watched_ns, PJRT shim); queue_mean_ns: wait of an execution for its device.
    confidence_ratio: of an inferred step; 1 for a declared one. The newest step of a rank has no end yet: it is not
    there.
    """
    condition, values = scope.where("s")
    means = ", ".join(
        f"(sum({name}) / count(*))::BIGINT AS {name}"
        for name in ("data_wait_ns", "h2d_ns", "d2h_ns", "dispatch_ns", "compile_ns", "checkpoint_ns")
    )
    query = f"""
        WITH {_ATTEMPTS},
        {_worked(condition)},
        grouped AS (
            SELECT run, attempt, step, min(t_ns) AS t_ns, count(*) AS ranks, (sum(dur_ns) / count(*))::BIGINT AS mean,
                   max(dur_ns) AS worst, arg_max(host, dur_ns) AS worst_host, arg_max(rank, dur_ns) AS worst_rank,
                   {means},
                   sum(compute_ns) / nullif(sum(covered_ns), 0) AS compute_ratio,
                   sum(collective_ns) / nullif(sum(covered_ns), 0) AS collective_ratio,
                   sum(copy_ns) / nullif(sum(covered_ns), 0) AS copy_ratio,
                   sum(covered_ns)::BIGINT AS covered_ns, sum(executions)::BIGINT AS executions,
                   CASE WHEN count(model_did + could) = count(*) THEN sum(model_did) / sum(could) END AS mfu_ratio,
                   CASE WHEN count(did + could) = count(*) THEN sum(did) / sum(could) END AS hfu_ratio,
                   sum(occupancy_ns) / nullif(sum(watched_ns), 0) AS occupancy_ratio,
                   sum(idle_ns) / nullif(sum(watched_ns), 0) AS idle_ratio,
                   {_QUEUE.format("sum(queue_ns)", "sum(executions)", "sum(watched_ns)")} AS queue_mean_ns,
                   min(source) AS source, {_CONFIDENCE.format("min(source)", "min(confidence)")} AS confidence_ratio,
                   bit_or(flags) AS flags
            FROM worked GROUP BY run, attempt, step)
        SELECT coalesce(p.run_name, '') AS run, g.step, g.ranks, g.mean AS step_time_ns, g.worst AS slowest_ns,
               {host_name("g.worst_host")} AS slowest_host, g.worst_rank AS slowest_rank,
               g.* EXCLUDE (run, attempt, step, ranks, mean, worst, worst_host, worst_rank, t_ns, flags),
               concat_ws(', ', {_FLAGS.format("g.flags")}) AS flags, g.t_ns AS began_ns,
               p.attempt_name AS attempt
        FROM grouped g LEFT JOIN attempts p USING (run, attempt) LEFT JOIN hosts h ON h.host = g.worst_host
        ORDER BY g.t_ns DESC, run LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values)


def rank_step_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> pa.Table:
    """One row a step and rank, newest first; columns as in `step_table`."""
    condition, values = scope.where("s")
    query = f"""
        WITH {_ATTEMPTS}, {_worked(condition)}
        SELECT coalesce(p.run_name, '') AS run, {host_name("s.host")} AS host, s.rank, s.step,
               s.dur_ns AS step_time_ns, s.data_wait_ns, s.h2d_ns, s.d2h_ns, s.dispatch_ns, s.compile_ns,
               s.checkpoint_ns,
               s.compute_ns / nullif(s.covered_ns, 0) AS compute_ratio,
               s.collective_ns / nullif(s.covered_ns, 0) AS collective_ratio,
               s.copy_ns / nullif(s.covered_ns, 0) AS copy_ratio, s.model_did / s.could AS mfu_ratio,
               s.did / s.could AS hfu_ratio, s.covered_ns, s.executions,
               s.occupancy_ns / nullif(s.watched_ns, 0) AS occupancy_ratio,
               s.idle_ns / nullif(s.watched_ns, 0) AS idle_ratio,
               {_QUEUE.format("s.queue_ns", "s.executions", "s.watched_ns")} AS queue_mean_ns,
               s.source, {_CONFIDENCE.format("s.source", "s.confidence")} AS confidence_ratio,
               concat_ws(', ', {_FLAGS.format("s.flags")}) AS flags, s.t_ns AS began_ns, p.attempt_name AS attempt
        FROM worked s LEFT JOIN attempts p ON p.run = s.run AND p.attempt = s.attempt
             LEFT JOIN hosts h ON h.host = s.host
        ORDER BY s.t_ns DESC, s.process LIMIT {int(limit)}"""  # noqa: S608 - values are bound
    return _ask(snapshot, scope, query, values)


def _ask(snapshot: Snapshot, scope: Scope, query: str, values: list[str | int]) -> pa.Table:
    tables = ["step", "device_10s", "programs", "processes", "hosts"]
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        return connection.sql(query, params=[*values, *values]).to_arrow_table()
