"""Fleet: is it used well, what is idle, which run to look at."""

from asked import ZERO
from board import CELLS, FIRING, Board, Query, Variable, lines, number, ratio, rows

BOARD = Board(
    "fleet",
    "fleet",
    "What all chips do: utilization by SKU and run, idle and throttled chips, energy, alerts. Begin here.",
    (Variable("sku", "sku", "sku:fleetscope_chip_states:count"),),
    {
        "Now": (
            number("Chips", "Chips of the inventory, whatever their state.", "none",
                   'sum(sku:fleetscope_chip_states:count{sku=~"$sku"})'),
            number("MFU", "Model FLOPs over what the chips in use could do at their nominal peak, all SKUs. Absent "
                   "where less than 95 % of device time has a known FLOP count.", "percentunit",
                   "fleet:fleetscope_mfu:ratio"),
            number("Goodput", "Share of the inventory's time in which chips ran steps: compilation, restarts, hangs "
                   "and idle chips lower it.", "percentunit", "fleet:fleetscope_goodput:ratio"),
            number("Idle chips", "Chips that no run has, and chips of runs that ran nothing for two minutes, as far as "
                   "the pipeline knows.", "none", "fleet:fleetscope_chips_idle:count"),
            number("Runs", "Runs with a chip.", "none", "count(count by (run) (device:fleetscope_run:info))"),
            number("Alerts firing", "Alerts of fleetscope that fire now; the table below names them.", "none",
                   f"count({FIRING}){ZERO}", bound=1),
        ),
        "Utilization": (
            ratio("MFU and HFU by SKU", "Model and hardware FLOPs over nominal peak. HFU counts recomputation.",
                  ("mfu {{sku}}", 'sku:fleetscope_mfu:ratio{sku=~"$sku"}'),
                  ("hfu {{sku}}", 'sku:fleetscope_hfu:ratio{sku=~"$sku"}')),
            ratio("Duty and compute share by SKU", "Share of the time looked at in which any op ran, and in which one "
                  "computed. Duty alone misleads: waiting for copies is busy too.",
                  ("duty {{sku}}", 'sku:fleetscope_duty:ratio{sku=~"$sku"}'),
                  ("compute {{sku}}", 'sku:fleetscope_compute_share:ratio{sku=~"$sku"}'), maximum=1),
            ratio("MFU by run", "Each run against its nominal peak.", ("{{run}}", "run:fleetscope_mfu:ratio")),
            ratio("Goodput by run", "Ranks whose steps go on, times what their chips are busy of it.",
                  ("{{run}}", "run:fleetscope_goodput:ratio"), maximum=1),
            lines("Step time", "Mean of all steps of all runs, begin to begin.", "s",
                  ("all runs", "fleet:fleetscope_step_seconds:mean")),
            lines("Energy a step", "Of all chips, for one step of all ranks of a run.", "joule",
                  ("all runs", "fleet:fleetscope_step_energy_joules:mean")),
        ),
        "Chips": (
            lines("Chips by state", "As agents say; the four add up to the inventory. A silent host's chips are "
                  "unknown for an hour.", "none",
                  ("{{state}}", 'sum by (state) (sku:fleetscope_chip_states:count{sku=~"$sku"})'), kind="stack"),
            lines("Idle and free chips by SKU", "Idle: a run has it and runs nothing. Free: no run has it.", "none",
                  ("idle {{sku}}", 'sku:fleetscope_chips_idle:count{sku=~"$sku"}'),
                  ("free {{sku}}", 'sku:fleetscope_chips_free:count{sku=~"$sku"}')),
            ratio("Throttled by reason", "Share of chip time slowed down, mean over chips.",
                  ("{{sku}} {{reason}}", 'sku:fleetscope_throttled:ratio{sku=~"$sku"}')),
            lines("Power by SKU", "Of the chips alone.", "watt",
                  ("{{sku}}", 'sku:fleetscope_power_watts:sum{sku=~"$sku"}'), kind="stack", width=12),
            lines("Events lost", "Events a second that never reached the lake, by outcome. Zero is right.", "eps",
                  ("{{outcome}}", "fleet:fleetscope_events_lost:rate"), width=12),
        ),
        "Runs and alerts": (
            rows("Runs", "One row a run; its name leads to its dashboard.",
                 Query("MFU", "max by (run) (run:fleetscope_mfu:ratio)", "percentunit"),
                 Query("HFU", "max by (run) (run:fleetscope_hfu:ratio)", "percentunit"),
                 Query("compute share", "max by (run) (run:fleetscope_compute_share:ratio)", "percentunit"),
                 Query("goodput", "max by (run) (run:fleetscope_goodput:ratio)", "percentunit"),
                 Query("step time", "max by (run) (run:fleetscope_step_seconds:mean)", "s"),
                 Query("chips", "count by (run) (device:fleetscope_run:info)"),
                 Query("idle chips", "max by (run) (run:fleetscope_chips_idle:count)"),
                 Query("throttled", "max by (run) (run:fleetscope_throttled:ratio)", "percentunit"), width=16),
            rows("Firing alerts", "Alerts of fleetscope; each has a page in docs/runbooks.",
                 Query("alerts", f"topk({CELLS}, count by (severity, alertname, run, host) ({FIRING}))"), width=8),
        ),
    },
)  # fmt: skip
