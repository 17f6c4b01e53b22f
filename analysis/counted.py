"""hfu and mfu of devices whose executions were all counted and whose ops nobody saw (PJRT shim, no window), as SQL.

FLOPs are exact then: executions x those of their programs' op tables. So are the FLOPs the chip could have done: the
time watched x the peak of the costliest op's dtype. Accelerators have no windows until they are on the allow-list;
without this they would have no MFU either.

`device_10s` has the same sums (pipelines.counted) for Prometheus, of the programs whose table was there when the row
was written. Here programs are joined when asked, so that the first seconds of a run count too; only what the clock was
then, nobody knows but the row.
"""

from fleetscope.analysis import identity
from fleetscope.analysis.dtypes import ENTRY, flop_s, measured_flop_s
from fleetscope.analysis.shares import NOTHING_SEEN, absences, settled
from fleetscope.schema.vocabulary import Kind

TABLES = ("op_10s", "device_10s", "ops", "programs", "program_loads", "devices", "processes")
"""What a connection must have."""


def counted(condition: str) -> str:
    """CTE `counted`, after `sheet` (dtypes): process, device, did and model_did (FLOPs), could (FLOPs at the peak),
    watched_ns, known_ns of ran_ns (time of executions whose programs' FLOPs are all known), clock of clocked (FLOPs at
    the real and at the nominal clock, where it was sampled). Takes the parameters of `condition` twice.

    A peak is that of the data sheet, else what the process measured; NULL where neither is there.
    """
    return f"""
        watched_of AS (
            SELECT process, device, sum(watched_ns)::DOUBLE AS watched_ns,
                   sum(watched_peak_flop_clock)::DOUBLE AS clock,
                   sum(watched_peak_flop) FILTER (watched_peak_flop_clock > 0)::DOUBLE AS clocked
            FROM device_10s s WHERE {condition} GROUP BY process, device HAVING sum(watched_ns) > 0),
        ran AS (
            SELECT s.process, s.device, {identity.RAN} AS program, sum(s.count)::DOUBLE AS n,
                   sum(s.sum_ns)::DOUBLE AS ran_ns
            FROM op_10s s {identity.LOADED}
            WHERE {condition} AND s.kind = {int(Kind.MODULE)} AND s.op = 0 AND s.weight = 1 AND s.device != 0
            GROUP BY ALL),
        dtype_of AS (SELECT program, arg_max(dtype, flops) AS dtype FROM ops WHERE flops > 0 GROUP BY program),
        made AS (
            SELECT r.process, r.device, sum(r.n * m.flops) AS did, sum(r.n * m.model_flops) AS model_did,
                   sum(r.ran_ns) AS ran_ns, coalesce(sum(r.ran_ns) FILTER (m.flops_known), 0) AS known_ns,
                   arg_max(t.dtype, r.n * m.flops) AS dtype
            FROM ran r LEFT JOIN programs m USING (program) LEFT JOIN dtype_of t USING (program) GROUP BY ALL),
        -- A device that ran nothing could have: it counts, at the peak of what its process' others run.
        busiest AS (SELECT process, arg_max(dtype, did) AS dtype FROM made WHERE did > 0 GROUP BY process),
        counted AS (
            SELECT w.process, w.device, w.watched_ns, w.clock, w.clocked, coalesce(m.did, 0) AS did,
                   coalesce(m.model_did, 0) AS model_did, coalesce(m.ran_ns, 0) AS ran_ns,
                   coalesce(m.known_ns, 0) AS known_ns,
                   w.watched_ns / 1e9 * coalesce({flop_s("k", "coalesce(m.dtype, u.dtype)")},
                                                 {measured_flop_s("p.labels")}) AS could
            FROM watched_of w LEFT JOIN made m USING (process, device) LEFT JOIN busiest u USING (process)
                 LEFT JOIN devices d USING (device) LEFT JOIN processes p ON p.process = w.process
                 LEFT JOIN sheet k ON k.sku = lower(d.sku))"""  # noqa: S608 - names are ours


_COULD = "CASE WHEN count(could) = count(*) THEN sum(could) END"

_SETTLED = settled("known_ns", "ran_ns")
_HFU, _MFU = (f"CASE WHEN {_SETTLED} THEN sum({did}) / {_COULD} END" for did in ("did", "model_did"))
_CLOCK = "sum(clock) / nullif(sum(clocked), 0)"

COLUMNS = f"""sum(known_ns) / nullif(sum(ran_ns), 0) AS flops_coverage_ratio,
    {_COULD} AS could, sum(watched_ns) AS watched_ns, {_HFU} AS hfu_ratio, {_MFU} AS mfu_ratio,
    {_CLOCK} AS clock_ratio, {_MFU} / nullif({_CLOCK}, 0) AS mfu_at_clock_ratio,
    {_HFU} / nullif({_CLOCK}, 0) AS hfu_at_clock_ratio,
    CASE {absences("known_ns", "ran_ns", "execution time", "count(could) < count(*)")} END AS mfu_absent"""
"""Of a GROUP BY over rows of `counted`."""


def by_dtype() -> str:
    """CTE `counted_dtypes`, a row a run attempt, after `counted` and after `counts`, COLUMNS by run and attempt.

    An entry op counts whole for the dtype of its costliest part, a loop too, as in `step_flops`.
    """
    peak_a_ns = f"(coalesce({flop_s('k', 'e.dtype')}, {measured_flop_s('p.labels')}) / 1e9)"
    return f"""
        counted_ideal AS (
            SELECT p.run_name, p.attempt_name, e.dtype, sum(r.n * e.flops / {peak_a_ns}) AS ideal_ns,
                   sum(r.n * e.model_flops / {peak_a_ns}) AS model_ns
            FROM ran r JOIN watched_of w USING (process, device)
                 JOIN ({ENTRY}) e USING (program)
                 JOIN processes p ON p.process = r.process
                 LEFT JOIN devices d ON d.device = r.device LEFT JOIN sheet k ON k.sku = lower(d.sku)
            GROUP BY ALL),
        counted_dtypes AS (
            SELECT run_name, attempt_name,
                   map_from_entries(list((dtype, ideal_ns / watched_ns) ORDER BY ideal_ns DESC)) AS hfu_by_dtype,
                   map_from_entries(list((dtype, model_ns / watched_ns) ORDER BY ideal_ns DESC)) AS mfu_by_dtype
            FROM counted_ideal JOIN counts USING (run_name, attempt_name)
            WHERE ideal_ns > 0 AND hfu_ratio IS NOT NULL GROUP BY ALL)"""  # noqa: S608 - names are ours


_ALONE = "{alias}.seen = 'executions' AND {counts}.watched_ns > 0"
"""Condition: no op was seen, every execution counted."""


def _without(alias: str, name: str) -> str:
    """A device, or a run, of which nothing is known has a reason too."""
    absent = f"CASE WHEN {alias}.seen IS NULL THEN '{NOTHING_SEEN}' END"
    return f"coalesce({alias}.{name}, {absent})" if name == "mfu_absent" else f"{alias}.{name}"


def shown(alias: str, counts: str) -> str:
    """mfu_ratio, mfu_absent, hfu_ratio, flops_coverage_ratio, clock_ratio, mfu_at_clock_ratio, hfu_at_clock_ratio: of
    `counts` where no op of `alias` was seen."""
    names = (
        "mfu_ratio", "mfu_absent", "hfu_ratio", "flops_coverage_ratio", "clock_ratio", "mfu_at_clock_ratio",
        "hfu_at_clock_ratio",
    )  # fmt: skip
    alone = _ALONE.format(alias=alias, counts=counts)
    return ", ".join(
        f"CASE WHEN {alone} THEN {counts}.{name} ELSE {_without(alias, name)} END AS {name}" for name in names
    )


def dtypes_shown(alias: str, counts: str, seen: str, alone: str) -> str:
    """hfu_by_dtype, mfu_by_dtype: of `alone` (counted_dtypes) where no op of `alias` was seen, else of `seen`."""
    chosen = _ALONE.format(alias=alias, counts=counts)
    names = ("hfu_by_dtype", "mfu_by_dtype")
    return ", ".join(f"CASE WHEN {chosen} THEN {alone}.{name} ELSE {seen}.{name} END AS {name}" for name in names)
