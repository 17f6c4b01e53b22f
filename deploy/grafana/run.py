"""Run: where its time goes, who holds it up, and how far the numbers can be believed."""

from board import Board, Variable, lines, number, ratio

STEPS, OPS = "fleetscope_run_step_duration_seconds", "fleetscope_run_op_duration_seconds"


def _quantile(share: float, metric: str, by: str = "") -> str:
    """Of buckets, or of the native histogram, where Prometheus keeps that instead."""
    rate = '{run="$run"}[$__rate_interval])'
    fine = f"sum by ({by}) (rate({metric}{rate})" if by else f"sum(rate({metric}{rate})"
    return (
        f"histogram_quantile({share}, sum by ({by}{', ' if by else ''}le) (rate({metric}_bucket{rate})) "
        f"or histogram_quantile({share}, {fine})"
    )


HOSTS = '{run="$run",host=~"$host"}'

BOARD = Board(
    "run",
    "run",
    "One run: MFU and what lowers it, step time, stragglers, throttling, energy, quality of the data.",
    (
        Variable("run", "run", "fleetscope_device_observed_seconds_total", many=False),
        Variable("host", "host", 'fleetscope_device_observed_seconds_total{run="$run"}'),
    ),
    {
        "Now": (
            number("MFU", "Model FLOPs over nominal peak. Absent where less than 95 % of device time has a known FLOP "
                   "count.", "percentunit", 'run:fleetscope_mfu:ratio{run="$run"}'),
            number("HFU", "The same with recomputation.", "percentunit", 'run:fleetscope_hfu:ratio{run="$run"}'),
            number("Step time", "Mean over ranks, begin to begin.",
                   "s", 'run:fleetscope_step_seconds:mean{run="$run"}'),
            number("Goodput", "Ranks whose steps go on, times what their chips are busy of it.", "percentunit",
                   'run:fleetscope_goodput:ratio{run="$run"}'),
            number("Chips", "Chips the run has.", "none", 'count(device:fleetscope_run:info{run="$run"})'),
            number("FLOP coverage", "Share of device time whose FLOPs are known; below 95 % MFU is withheld.",
                   "percentunit", 'run:fleetscope_flops_coverage:ratio{run="$run"}', bound=0.95, below=True),
        ),
        "Utilization": (
            ratio("MFU and HFU", "Against the nominal peak, and against the clock the chips ran at: the gap is lost to "
                  "throttling.",
                  ("mfu", 'run:fleetscope_mfu:ratio{run="$run"}'),
                  ("hfu", 'run:fleetscope_hfu:ratio{run="$run"}'),
                  ("mfu at clock", 'run:fleetscope_mfu_at_clock:ratio{run="$run"}'),
                  ("hfu at clock", 'run:fleetscope_hfu_at_clock:ratio{run="$run"}')),
            ratio("MFU against its own median", "What FleetscopeMfuBelowOwnMedian compares: a quarter of an hour with "
                  "four fifths of the median of six hours.",
                  ("15 min", 'avg_over_time(run:fleetscope_mfu:ratio{run="$run"}[15m])'),
                  ("median", 'quantile_over_time(0.5, run:fleetscope_mfu:ratio{run="$run"}[6h])'),
                  ("alert below", '0.8 * quantile_over_time(0.5, run:fleetscope_mfu:ratio{run="$run"}[6h])')),
            ratio("Where device time goes", "Shares of the time looked at. Collectives and copies count where nothing "
                  "computes under them.",
                  ("busy", 'run:fleetscope_duty:ratio{run="$run"}'),
                  ("compute", 'run:fleetscope_compute_share:ratio{run="$run"}'),
                  ("collective", 'run:fleetscope_collective_share:ratio{run="$run"}'),
                  ("copy", 'run:fleetscope_copy_share:ratio{run="$run"}'), maximum=1),
            ratio("Occupancy and waiting for input", "Of executions counted one by one (PJRT shim): with a program in "
                  "flight, an upper bound of busy; and idle while the host waited for input.",
                  ("occupied", 'run:fleetscope_occupancy:ratio{run="$run"}'),
                  ("waits for input", 'run:fleetscope_input_wait:ratio{run="$run"}'), maximum=1),
            ratio("MFU by dtype", "Time the chips would need at the dtype's own peak, over the time they took.",
                  ("mfu {{dtype}}", 'run:fleetscope_mfu_dtype:ratio{run="$run"}'),
                  ("hfu {{dtype}}", 'run:fleetscope_hfu_dtype:ratio{run="$run"}')),
            lines("Idle chips", "Chips of the run that ran nothing for two minutes, as far as the pipeline knows.",
                  "none",
                  ("idle", 'run:fleetscope_chips_idle:count{run="$run"}')),
        ),
        "Steps": (
            lines("Step time", "Of the run, from the pipeline; of its slowest and fastest host, from what processes "
                  "tell their agents, which goes on when the pipeline stands.", "s",
                  ("run", 'run:fleetscope_step_seconds:mean{run="$run"}'),
                  ("slowest host", f"max(host:fleetscope_step_seconds:mean{HOSTS})"),
                  ("fastest host", f"min(host:fleetscope_step_seconds:mean{HOSTS})")),
            lines("Steps a second", "Of the slowest and the fastest rank; zero is a hang.", "cps",
                  ("slowest", 'min(sum by (host, rank) (rate(fleetscope_profiler_steps_total{run="$run"}'
                   "[$__rate_interval])))"),
                  ("fastest", 'max(sum by (host, rank) (rate(fleetscope_profiler_steps_total{run="$run"}'
                   "[$__rate_interval])))")),
            lines("Longest open region", "Age of the longest open region of a process, the ten longest: what a hung "
                  "rank is in; `fleetscope stacks` names it.", "s",
                  ("{{host}} rank {{rank}}",
                   f"topk(10, max by (host, rank) (fleetscope_open_span_seconds{HOSTS}))")),
        ),
        "Distributions": (
            lines("Steps by their time", "Over ranks. To 3 % where Prometheus keeps native histograms, else to a "
                  "factor of two.", "s",
                  ("half", _quantile(0.5, STEPS)), ("nine in ten", _quantile(0.9, STEPS)),
                  ("99 in a hundred", _quantile(0.99, STEPS))),
            lines("Ops by their time: half", "Median of the ops of a kind: all, or those of device windows.", "s",
                  ("{{kind}} ({{seen}})", _quantile(0.5, OPS, "kind, seen"))),
            lines("Ops by their time: 99 in a hundred", "Ops longer than a window are in none.", "s",
                  ("{{kind}} ({{seen}})", _quantile(0.99, OPS, "kind, seen"))),
        ),
        "Stragglers": (
            ratio("Who holds the run up", "Time in collectives of the median chip minus that of the chip, the ten that "
                  "wait least: a straggler never waits. FleetscopeStraggler fires above a tenth.",
                  ("{{device}}", 'topk(10, max by (device) (quantile by (run) (0.5, '
                   'device:fleetscope_collective_share:ratio{run="$run"}) - on (run) group_right () '
                   f"device:fleetscope_collective_share:ratio{HOSTS}))"), bound=0.1, width=12),
            ratio("MFU of the lowest hosts", "The ten lowest.",
                  ("{{host}}", f"bottomk(10, host:fleetscope_mfu:ratio{HOSTS})"), width=12),
            ratio("Compute share by host", "The ten lowest.",
                  ("{{host}}", f"bottomk(10, host:fleetscope_compute_share:ratio{HOSTS})"), maximum=1, width=12),
            ratio("Time in collectives by host", "Exposed collective time, the ten highest: who waits most.",
                  ("{{host}}", f"topk(10, host:fleetscope_collective_share:ratio{HOSTS})"), maximum=1, width=12),
        ),
        "Throttling and energy": (
            ratio("Throttled by reason", "Share of the time the run's chips were slowed down, mean over chips.",
                  ("{{reason}}", 'run:fleetscope_throttled:ratio{run="$run"}')),
            ratio("Clock kept", "Share of the nominal clock the chips kept, where it was sampled.",
                  ("clock", 'run:fleetscope_clock:ratio{run="$run"}')),
            lines("Energy a step", "Of all chips of the run, for one step of all ranks.", "joule",
                  ("energy", 'run:fleetscope_step_energy_joules:mean{run="$run"}')),
        ),
        "Quality of the data": (
            lines("Events by outcome", "Stored is right; anything else is told by FleetscopeEventsLost.", "eps",
                  ("{{outcome}}", 'max by (outcome) (rate(fleetscope_events_total{run="$run"}[$__rate_interval]))')),
            ratio("FLOP coverage", "Share of device time whose FLOPs are known; below 95 % MFU is withheld.",
                  ("coverage", 'run:fleetscope_flops_coverage:ratio{run="$run"}'), bound=0.95, below=True),
            lines("Error bound of times", "Mean of the worst alignment error of each window, the ten worst hosts; "
                  "beyond 5 ms the order of steps between hosts means nothing.", "s",
                  ("{{host}}", f"topk(10, host:fleetscope_clock_error_seconds:mean{HOSTS})"), bound=0.005),
        ),
    },
)  # fmt: skip
