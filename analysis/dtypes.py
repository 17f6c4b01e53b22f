"""hfu and mfu of a run by dtype, and which ops keep the FLOPs of a run from being known, as SQL.

Each dtype has a peak of its own: the ideal time of its FLOPs at that peak, over observed device time. Those of all
dtypes add up to the share of time the chips computed at their peaks. A dtype the data sheet gives no peak for counts
at the training dtype's; a device no data sheet describes at what its process measured (pipelines.peaks has the same
rule for the peak of a device).
"""

from functools import cache

from fleetscope.analysis import identity
from fleetscope.analysis.scope import WORK_KINDS
from fleetscope.schema.hardware import DTYPE_ALIASES, skus

_DTYPES = (*DTYPE_ALIASES, "fp32")


@cache
def sheet() -> str:
    """CTE `sheet`: sku, the name of a device in lower case; peaks, dtype -> FLOP/s, that of "" for all others."""
    rows = []
    for sku in skus().values():
        known = {dtype: peak for dtype in _DTYPES if (peak := sku.peak(dtype))} | {"": sku.best_peak()}
        peaks = ", ".join(f"'{dtype}': {peak}" for dtype, peak in known.items())
        names = {name.lower() for name in (sku.sku, *sku.aliases)}
        rows += [f"('{name}', MAP {{{peaks}}}::MAP(VARCHAR, DOUBLE))" for name in sorted(names)]
    return f"sheet(sku, peaks) AS (VALUES {', '.join(rows)})"


def flop_s(alias: str, dtype: str) -> str:
    """SQL of the FLOP/s of a `dtype` from the row `alias` of `sheet`; NULL where that is missing."""
    return f"coalesce({alias}.peaks[{dtype}], {alias}.peaks[''])"


def measured_flop_s(labels: str) -> str:
    """SQL of what a process measured, from its labels; NULL where it did not."""
    return f"nullif(try_cast({labels}['peak_flops_per_s'] AS DOUBLE), 0)"


def by_dtype(condition: str) -> str:
    """CTEs after `seen` (shares.observed), OPS and `sheet`: `dtype_shares` and `unknown_ops`, a row a run attempt.
    Takes the parameters of `condition` once."""
    peak_a_ns = f"coalesce({flop_s('k', 'w.dtype')} / 1e9, c.peak_a_ns)"
    return f"""
        chip AS (
            SELECT process, sum(observed_ns) AS looked_ns, sum(busy_ns * g) / nullif(sum(busy_ns), 0) AS g, weight,
                   any_value(lower(d.sku)) AS sku,
                   nullif(sum(peak_flop) / nullif(sum(observed_ns), 0), 0) AS peak_a_ns
            FROM seen LEFT JOIN devices d USING (device) GROUP BY process, weight),
        looked AS (SELECT process, sum(looked_ns) AS looked_ns FROM chip GROUP BY process),
        worked AS (
            SELECT s.process, s.weight = 0 AS sampled, o.dtype, o.flops IS NULL AS unknown,
                   coalesce(nullif(o.unknown, ''), o.opcode) AS opcode,
                   sum(s.count * o.flops::DOUBLE) AS flops, sum(s.count * o.model_flops::DOUBLE) AS model_flops,
                   sum(s.sum_ns - s.child_ns) AS self_ns
            FROM op_10s s {identity.JOIN}
                 JOIN ops o ON o.program = {identity.PROGRAM} AND o.op = {identity.OP}
            WHERE {condition} AND s.kind IN {WORK_KINDS} GROUP BY ALL),
        ideal AS (
            SELECT p.run_name, p.attempt_name, w.dtype,
                   sum(w.flops * coalesce(c.g, 1) / {peak_a_ns}) AS ideal_ns,
                   sum(w.model_flops * coalesce(c.g, 1) / {peak_a_ns}) AS model_ns
            FROM worked w JOIN processes p USING (process)
                 JOIN chip c ON c.process = w.process AND (c.weight = 0) = w.sampled
                 LEFT JOIN sheet k ON k.sku = c.sku
            WHERE w.flops > 0 GROUP BY ALL),
        time_of AS (
            SELECT p.run_name, p.attempt_name, sum(l.looked_ns) AS looked_ns
            FROM looked l JOIN processes p USING (process) GROUP BY ALL),
        dtype_shares AS (
            SELECT run_name, attempt_name,
                   map_from_entries(list((dtype, ideal_ns / looked_ns) ORDER BY ideal_ns DESC)) AS hfu_by_dtype,
                   map_from_entries(list((dtype, model_ns / looked_ns) ORDER BY ideal_ns DESC)) AS mfu_by_dtype
            FROM ideal JOIN time_of USING (run_name, attempt_name)
            WHERE ideal_ns > 0 AND looked_ns > 0 GROUP BY ALL),
        unknown_ops AS (
            SELECT run_name, attempt_name, list(opcode ORDER BY self_ns DESC)[:5] AS flops_unknown
            FROM (SELECT p.run_name, p.attempt_name, w.opcode, sum(w.self_ns) AS self_ns
                  FROM worked w JOIN processes p USING (process) WHERE w.unknown AND w.self_ns > 0 GROUP BY ALL)
            GROUP BY ALL)"""  # noqa: S608 - names and numbers are ours


ENTRY = """SELECT program, dtype, sum(flops)::DOUBLE AS flops, sum(model_flops)::DOUBLE AS model_flops
    FROM ops WHERE entry AND flops > 0 GROUP BY program, dtype"""
"""FLOPs of an execution of a program by dtype, an entry op by its costliest part."""
