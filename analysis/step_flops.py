"""FLOPs of steps as SQL: what their executions did, what the chips could have done, and why a ratio is absent.

A step may run several programs (training and evaluation, gradient accumulation): each execution counts the FLOPs of its
own. A program is priced by the cost pass; where that does not know an instruction, but ops with at least
`SETTLED_SHARE` of its op time are known, by the sum of its entry ops, as runs and devices count.
"""

from fleetscope.analysis import identity
from fleetscope.analysis.dtypes import ENTRY, flop_s, measured_flop_s, sheet
from fleetscope.analysis.scope import SETTLED_SHARE, WORK_KINDS
from fleetscope.schema.vocabulary import WINDOW_NS, StepFlag

WHOLE = 0.95
"""Share of a step in which its devices must have been seen, so that its executions are all there."""

PARAMETERS = 4
"""Times the parameters of the condition are bound."""

TABLES = ("step", "step_program", "device_10s", "op_10s", "devices", "processes", "hosts", *identity.TABLES)

_HIDES = "('while', 'conditional', 'call', 'async-start')"
"""Opcodes that hold others: when their FLOPs are unknown, so are those of ops that are known by themselves."""


def worked(condition: str) -> str:
    """CTEs `worked`, a row of STEP each, and `by_dtype`, a row a (process, t_ns, dtype).

    worked: did, model_did, could (FLOP; could: at nominal peak), clock, clocked (FLOP at the real and at the nominal
    clock, of 10 s windows the step touches), known_ns of ran_ns (execution time whose op time has known FLOPs, all),
    mfu_absent. by_dtype: ideal_ns and model_ns of the step's FLOPs at the dtype's peak, chip_ns: step time x chips.
    """
    return f"""{identity.OPS},
        st AS (SELECT * FROM step s WHERE {condition} AND s.dur_ns > 0),
        dv AS (SELECT s.*, lower(d.sku) AS sku FROM device_10s s LEFT JOIN devices d USING (device) WHERE {condition}),
        parts AS (SELECT s.* FROM step_program s WHERE {condition} AND s.executions > 0),
        chips AS (
            SELECT process, count(DISTINCT device) AS devices, any_value(sku) AS sku,
                   nullif(sum(peak_flop)::DOUBLE / nullif(sum(observed_ns), 0), 0) AS peak_a_ns
            FROM dv GROUP BY process),
        op_time AS (
            SELECT {identity.PROGRAM} AS program, {identity.OP} AS op, sum(s.sum_ns - s.child_ns)::DOUBLE AS self_ns
            FROM op_10s s {identity.JOIN} WHERE {condition} AND s.kind IN {WORK_KINDS} GROUP BY ALL),
        op_known AS (
            SELECT t.program, sum(t.self_ns) FILTER (o.flops IS NOT NULL) / nullif(sum(t.self_ns), 0) AS known
            FROM op_time t LEFT JOIN ops o USING (program, op) GROUP BY t.program),
        entry AS (
            SELECT program, sum(flops)::DOUBLE AS flops, sum(model_flops)::DOUBLE AS model_flops,
                   bool_or(flops IS NULL AND opcode IN {_HIDES}) AS hides
            FROM ops WHERE entry GROUP BY program),
        priced AS (
            SELECT m.program, m.module, m.flops_known OR (k.known >= {SETTLED_SHARE} AND NOT e.hides) AS settled,
                   CASE WHEN m.flops_known THEN m.flops::DOUBLE ELSE e.flops END AS flops,
                   CASE WHEN m.flops_known THEN m.model_flops::DOUBLE ELSE e.model_flops END AS model_flops,
                   coalesce(k.known, CASE WHEN m.flops_known THEN 1.0 ELSE 0.0 END) AS known
            FROM programs m LEFT JOIN op_known k USING (program) LEFT JOIN entry e USING (program)),
        ran AS (
            SELECT s.process, s.t_ns, {identity.RAN} AS program, s.executions::DOUBLE AS executions,
                   s.dur_ns::DOUBLE AS ran_ns
            FROM (SELECT process, t_ns, program, executions, dur_ns FROM parts
                  -- of steps written before each program was counted, all executions are of the leading one
                  UNION ALL BY NAME
                  SELECT process, t_ns, program, executions, dur_ns FROM st ANTI JOIN parts USING (process, t_ns)
                  WHERE executions > 0) s {identity.LOADED}),
        did AS (
            SELECT r.process, r.t_ns, sum(r.executions * p.flops) AS did,
                   sum(r.executions * p.model_flops) AS model_did,
                   bool_and(coalesce(p.settled, false)) AS settled, sum(r.ran_ns) AS ran_ns,
                   sum(r.ran_ns * coalesce(p.known, 0)) AS known_ns,
                   array_to_string(list_sort(list(DISTINCT coalesce(p.module, '#' || r.program))
                       FILTER (NOT coalesce(p.settled, false))), ', ') AS unpriced
            FROM ran r LEFT JOIN priced p USING (program) GROUP BY r.process, r.t_ns),
        entry_dtype AS ({ENTRY}),
        {sheet()},
        measured AS (SELECT process, {measured_flop_s("labels")} / 1e9 AS peak_a_ns FROM processes),
        split AS (
            SELECT r.process, r.t_ns, e.dtype, sum(r.executions * e.flops) AS flops,
                   sum(r.executions * e.model_flops) AS model_flops,
                   coalesce(any_value({flop_s("k", "e.dtype")}) / 1e9,
                            any_value(c.peak_a_ns), any_value(u.peak_a_ns)) AS peak_a_ns
            FROM ran r JOIN entry_dtype e USING (program) LEFT JOIN chips c ON c.process = r.process
                 LEFT JOIN sheet k ON k.sku = c.sku LEFT JOIN measured u ON u.process = r.process
            GROUP BY r.process, r.t_ns, e.dtype),
        costliest AS (SELECT process, t_ns, arg_max(peak_a_ns, flops) AS peak_a_ns FROM split GROUP BY process, t_ns),
        paced AS (
            SELECT st.process, st.t_ns, sum(ck.clock)::DOUBLE AS clock, sum(ck.clocked)::DOUBLE AS clocked
            FROM st JOIN (
                SELECT process, t_ns, peak_flop AS clocked, peak_flop_clock AS clock FROM dv UNION ALL
                SELECT process, t_ns, watched_peak_flop, watched_peak_flop_clock FROM dv) ck
                 ON ck.process = st.process AND ck.clock > 0
                 AND ck.t_ns < st.t_ns + st.dur_ns AND ck.t_ns + {WINDOW_NS} > st.t_ns
            GROUP BY st.process, st.t_ns),
        seen AS (
            SELECT st.process, st.t_ns, greatest(st.watched_ns, st.covered_ns)::DOUBLE AS seen_ns,
                   st.dur_ns::DOUBLE * c.devices AS chip_ns,
                   -- a peak seen in rows of ops is that of the program; without windows the data sheet has it
                   coalesce(c.peak_a_ns, l.peak_a_ns) AS peak_a_ns
            FROM st LEFT JOIN chips c ON c.process = st.process
                 LEFT JOIN costliest l ON l.process = st.process AND l.t_ns = st.t_ns),
        judged AS (
            SELECT st.process, st.t_ns,
                   CASE WHEN d.did IS NULL AND d.unpriced IS NULL THEN 'no execution was seen'
                        WHEN st.flags & {int(StepFlag.MISTIMED)} != 0 THEN 'its executions were told late'
                        WHEN s.chip_ns IS NULL OR s.seen_ns < {WHOLE} * s.chip_ns THEN 'devices were seen for '
                            || floor(100 * coalesce(s.seen_ns / s.chip_ns, 0))::INT || ' % of the step'
                        WHEN NOT d.settled THEN 'the FLOPs of ' || d.unpriced || ' are not known'
                        WHEN s.peak_a_ns IS NULL THEN 'the peak of the chip is not known' END AS mfu_absent
            FROM st LEFT JOIN did d USING (process, t_ns) LEFT JOIN seen s USING (process, t_ns)),
        worked AS (
            SELECT st.*, CASE WHEN j.mfu_absent IS NULL THEN d.did END AS did,
                   CASE WHEN j.mfu_absent IS NULL THEN d.model_did END AS model_did,
                   CASE WHEN j.mfu_absent IS NULL THEN s.chip_ns * s.peak_a_ns END AS could,
                   p.clock, p.clocked, d.known_ns, d.ran_ns, j.mfu_absent, s.chip_ns
            FROM st JOIN judged j USING (process, t_ns) LEFT JOIN did d USING (process, t_ns)
                 LEFT JOIN seen s USING (process, t_ns) LEFT JOIN paced p USING (process, t_ns)),
        by_dtype AS (
            SELECT x.process, x.t_ns, x.dtype, x.flops / x.peak_a_ns AS ideal_ns,
                   x.model_flops / x.peak_a_ns AS model_ns
            FROM split x JOIN judged j USING (process, t_ns) WHERE j.mfu_absent IS NULL AND x.peak_a_ns > 0)"""  # noqa: S608
