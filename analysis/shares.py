"""Shares of device time as SQL: one place where window rows (weight 0) become estimates.

A window keeps only spans wholly inside it, so the busy time it saw is too small. Its estimate (duty_q30) stands for
it; classes and FLOPs, seen in the same spans, are scaled alike. Rows of both kinds are observed time and its parts, so
their numerators and denominators add.
"""

from fleetscope.analysis import waits
from fleetscope.analysis.scope import SETTLED_SHARE

_CLASSES = ("compute_ns", "collective_ns", "copy_ns", "infeed_ns", "outfeed_ns", "other_ns")

_COLUMNS = (
    *(f"sum({name})::DOUBLE AS {name}" for name in ("busy_ns", *_CLASSES, "observed_ns", "watched_ns", "occupancy_ns")),
    *(f"sum({name})::DOUBLE AS {name}" for name in ("flops", "model_flops", "peak_flop", "flops_known_ns", "op_ns")),
    *waits.COLUMNS,
    # The real clock is known for some rows only: its share of the nominal one is taken over those.
    "sum(peak_flop_clock)::DOUBLE AS peak_flop_clock",
    "coalesce(sum(peak_flop) FILTER (peak_flop_clock > 0), 0)::DOUBLE AS peak_flop_clocked",
    # Rows of executions alone (PJRT shim) observe no op: they say nothing of shares, but every execution is in them.
    "CASE WHEN sum(observed_ns) > 0 THEN weight END AS ops_weight",
    "sum(executions)::BIGINT AS executions",
    "sum(windows)::BIGINT AS windows",
    "CASE WHEN min(err_ns) < 0 THEN NULL ELSE max(err_ns) END AS error_ns",
    "min(t_ns) AS first_ns",
    "max(t_ns) AS last_ns",
    """CASE WHEN weight = 0 AND sum(busy_ns) > 0 AND sum(windows) > 0
            THEN sum(duty_q30)::DOUBLE / pow(2, 30) / sum(windows) * sum(observed_ns) / sum(busy_ns) ELSE 1 END AS g""",
)


def observed(condition: str) -> str:
    """SELECT of one row a (host, process, device, weight) over the scope; `g`: factor from seen to estimated."""
    return f"""SELECT host, process, device, weight, {", ".join(_COLUMNS)} FROM device_10s s WHERE {condition}
        GROUP BY host, process, device, weight"""  # noqa: S608 - names are ours


SEEN = """CASE WHEN max(ops_weight) = 0 THEN 'windows' WHEN max(ops_weight) > 0 THEN 'all'
    WHEN sum(watched_ns) > 0 THEN 'executions' END"""
"""How the ops of a GROUP BY over rows of `observed` were seen."""

EXECUTIONS = """CASE WHEN sum(watched_ns) > 0 THEN sum(executions) FILTER (watched_ns > 0) ELSE sum(executions)
    END::BIGINT"""


NOTHING_SEEN = "no device time was observed"
"""A reason why there is no hfu and mfu; the others are `absences`."""


def settled(known_ns: str, all_ns: str) -> str:
    """Condition: the FLOPs of enough of a time are known. The two are columns that add up."""
    return f"sum({known_ns}) >= {SETTLED_SHARE} * sum({all_ns})"


def absences(known_ns: str, all_ns: str, of: str, no_peak: str) -> str:
    """WHENs of a CASE: why there is no hfu and mfu of time that was seen. `of`: what all_ns is called."""
    return f"""WHEN NOT {settled(known_ns, all_ns)}
             THEN 'FLOPs known for ' || floor(100 * sum({known_ns}) / sum({all_ns}))::INT || ' % of {of}'
         WHEN {no_peak} THEN 'the peak of the chip is not known'"""


def ratio_columns(alias: str = "") -> str:
    """Columns busy_ratio ... mfu_ratio, mfu_absent from a GROUP BY over rows of `observed`.

    hfu_ratio counts recomputation too. clock_ratio: the share of the nominal clock the chips kept, where their clock is
    sampled; mfu_at_clock_ratio and hfu_at_clock_ratio are against the peak at that clock: the difference to the plain
    ones is what throttling lost. flops_coverage_ratio: share of op time whose FLOPs are known.
    """
    a = f"{alias}." if alias else ""

    def share(expression: str) -> str:
        return f"sum(({expression}) * {a}g) / nullif(sum({a}observed_ns), 0)"

    rest = " + ".join(a + name for name in ("infeed_ns", "outfeed_ns", "other_ns"))
    op_time = (f"{a}flops_known_ns", f"{a}op_ns")
    clock = f"(sum({a}peak_flop_clock) / nullif(sum({a}peak_flop_clocked), 0))"

    def of_peak(name: str) -> str:
        return f"CASE WHEN {settled(*op_time)} THEN sum({a}{name} * {a}g) / nullif(sum({a}peak_flop), 0) END"

    return f"""{share(a + "busy_ns")} AS busy_ratio, {share(a + "compute_ns")} AS compute_ratio,
        {share(a + "collective_ns")} AS collective_ratio, {share(a + "copy_ns")} AS copy_ratio,
        {share(rest)} AS other_ratio,
        {of_peak("model_flops")} AS mfu_ratio, {of_peak("flops")} AS hfu_ratio,
        sum({a}flops_known_ns) / nullif(sum({a}op_ns), 0) AS flops_coverage_ratio, {clock} AS clock_ratio,
        {of_peak("model_flops")} / nullif({clock}, 0) AS mfu_at_clock_ratio,
        {of_peak("flops")} / nullif({clock}, 0) AS hfu_at_clock_ratio,
        CASE WHEN coalesce(sum({a}observed_ns), 0) = 0 THEN '{NOTHING_SEEN}'
             {absences(*op_time, "op time", f"sum({a}peak_flop) = 0")} END AS mfu_absent"""
