"""Occupancy, queueing and the causes of idle time as SQL over device_10s (docs/design/0011-executions.md).

Where executions were seen whole (PJRT shim, watched_ns) idle is what they left; else what the observed ops left, which
in profiler windows is an upper bound: spans cut by a window's edge are missing from busy.
"""

CAUSES = ("input", "dispatch", "compile", "checkpoint", "unknown")
_IDLE = tuple(f"idle_{cause}_ns" for cause in CAUSES)

COLUMNS = (
    *(f"sum({name})::DOUBLE AS {name}" for name in (*_IDLE, "queue_ns", "sparse_core_ns")),
    "max(run_ahead_max)::BIGINT AS run_ahead_max",
)
"""For a SELECT of one row a (host, process, device, weight)."""


def wait_columns() -> str:
    """Columns idle_ratio, idle_<cause>_ratio, queue_mean_ns, run_ahead_max, sparse_core_ratio from a GROUP BY over rows
    of `shares.observed`."""

    def share(expression: str) -> str:
        def of(some: str) -> str:
            return f"sum({expression}){some} / nullif(sum(observed_ns + watched_ns){some}, 0)"

        return f"CASE WHEN sum(watched_ns) > 0 THEN {of(' FILTER (watched_ns > 0)')} ELSE {of('')} END"

    each = ", ".join(f"{share(name)} AS {name.removesuffix('_ns')}_ratio" for name in _IDLE)
    return f"""{share(" + ".join(_IDLE))} AS idle_ratio, {each},
        (sum(queue_ns) FILTER (watched_ns > 0)
            / nullif(sum(executions) FILTER (watched_ns > 0), 0))::BIGINT AS queue_mean_ns,
        nullif(max(run_ahead_max), 0) AS run_ahead_max,
        sum(sparse_core_ns * g) / nullif(sum(observed_ns), 0) AS sparse_core_ratio"""


SHOWN = (
    "sparse_core_ratio", "idle_ratio", *(f"idle_{cause}_ratio" for cause in CAUSES), "queue_mean_ns", "run_ahead_max",
)  # fmt: skip
