"""hfu and mfu of devices whose executions were all counted and whose ops nobody saw (PJRT shim, no window), as SQL.

FLOPs are exact then: executions x those of their programs' op tables. So are the FLOPs the chip could have done: the
time watched x the peak of the costliest op's dtype. Accelerators have no windows until they are on the allow-list;
without this they would have no MFU either.
"""

from fleetscope.analysis import identity
from fleetscope.analysis.dtypes import flop_s, measured_flop_s
from fleetscope.analysis.shares import NOTHING_SEEN, absences, settled
from fleetscope.schema.vocabulary import Kind

TABLES = ("op_10s", "device_10s", "ops", "programs", "program_loads", "devices", "processes")
"""What a connection must have."""


def counted(condition: str) -> str:
    """CTE `counted`, after `sheet` (dtypes): process, device, did and model_did (FLOPs), could (FLOPs at the peak),
    watched_ns, known_ns of ran_ns (time of executions whose programs' FLOPs are all known). Takes the parameters of
    `condition` twice.

    A peak is that of the data sheet, else what the process measured; NULL where neither is there.
    """
    return f"""
        watched_of AS (
            SELECT process, device, sum(watched_ns)::DOUBLE AS watched_ns FROM device_10s s WHERE {condition}
            GROUP BY process, device HAVING sum(watched_ns) > 0),
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
            SELECT w.process, w.device, w.watched_ns, coalesce(m.did, 0) AS did, coalesce(m.model_did, 0) AS model_did,
                   coalesce(m.ran_ns, 0) AS ran_ns, coalesce(m.known_ns, 0) AS known_ns,
                   w.watched_ns / 1e9 * coalesce({flop_s("k", "coalesce(m.dtype, u.dtype)")},
                                                 {measured_flop_s("p.labels")}) AS could
            FROM watched_of w LEFT JOIN made m USING (process, device) LEFT JOIN busiest u USING (process)
                 LEFT JOIN devices d USING (device) LEFT JOIN processes p ON p.process = w.process
                 LEFT JOIN sheet k ON k.sku = lower(d.sku))"""  # noqa: S608 - names are ours


_COULD = "CASE WHEN count(could) = count(*) THEN sum(could) END"

_SETTLED = settled("known_ns", "ran_ns")

COLUMNS = f"""sum(known_ns) / nullif(sum(ran_ns), 0) AS known_ratio,
    {_COULD} AS could, sum(watched_ns) AS watched_ns,
    CASE WHEN {_SETTLED} THEN sum(did) / {_COULD} END AS hfu_ratio,
    CASE WHEN {_SETTLED} THEN sum(model_did) / {_COULD} END AS mfu_ratio,
    CASE {absences("known_ns", "ran_ns", "execution time", "count(could) < count(*)")} END AS mfu_absent"""
"""Of a GROUP BY over rows of `counted`."""


def _without(alias: str, name: str) -> str:
    """A device, or a run, of which nothing is known has a reason too."""
    absent = f"CASE WHEN {alias}.seen IS NULL THEN '{NOTHING_SEEN}' END"
    return f"coalesce({alias}.{name}, {absent})" if name == "mfu_absent" else f"{alias}.{name}"


def shown(alias: str, counts: str) -> str:
    """mfu_ratio, mfu_absent, hfu_ratio, flops_coverage_ratio: of `counts` where no op of `alias` was seen."""
    pairs = (("mfu_ratio",) * 2, ("mfu_absent",) * 2, ("hfu_ratio",) * 2, ("flops_coverage_ratio", "known_ratio"))
    return ", ".join(
        f"CASE WHEN {alias}.seen = 'executions' AND {counts}.watched_ns > 0 THEN {counts}.{count} "
        f"ELSE {_without(alias, name)} END AS {name}"
        for name, count in pairs
    )
