"""Pipeline and lake: does what is recorded arrive, in time and whole."""

from asked import ZERO
from board import Board, Query, Variable, lines, number, rows

CHAINS = '{chain=~"$chain"}'
LAG = f"max by (chain) (fleetscope_pipeline_lag_seconds{CHAINS})"
EPOCH = f"max by (chain) (fleetscope_pipeline_epoch{CHAINS})"
FOLDED = f"max by (chain) (fleetscope_lake_folded_epoch{CHAINS})"
BACKLOG = f"max by (chain) (fleetscope_pipeline_backlog_messages{CHAINS})"
EVENTS = "max by (run, outcome) (rate(fleetscope_events_total[$__rate_interval]))"
STORED = 'max by (run) (rate(fleetscope_events_total{outcome="stored"}[$__rate_interval]))'

BOARD = Board(
    "pipeline",
    "pipeline and lake",
    "From the log to the lake: lag, epochs, folding, what was lost, what the exporters tell.",
    (Variable("chain", "chain", "fleetscope_pipeline_epoch"),),
    {
        "Now": (
            number("Lag", "Now minus the newest event committed, the worst chain; the alert fires above 30 s. Old "
                   "utilization is not believed then.", "s", f"max({LAG})", bound=30),
            number("Epochs not folded", "Committed and not yet in the tables, all chains.", "none",
                   f"sum({EPOCH} - on (chain) {FOLDED})"),
            number("Round of the lake", "Number of the newest.", "none", "max(fleetscope_lake_round)"),
            number("Events stored", "A second, all runs.", "eps",
                   f"sum({STORED})"),
            number("Events lost", "A second: lost, dropped, or dead letters.", "eps",
                   "sum(fleet:fleetscope_events_lost:rate)", bound=0.001),
            number("Exporters", "That answer.", "none",
                   "count(fleetscope_exporter_records_total)", bound=1, below=True),
        ),
        "Pipeline": (
            lines("Lag by chain", "A worker that stands has a lag that grows second by second.", "s",
                  ("chain {{chain}}", LAG), bound=30),
            lines("Epochs a minute", "Manifests committed. None where nothing is new.", "none",
                  ("chain {{chain}}", f"max by (chain) (deriv(fleetscope_pipeline_epoch{CHAINS}[2m])) * 60")),
            rows("Chains", "Newest epoch, what the lake holds of it, lag.",
                 Query("epoch", EPOCH), Query("folded", FOLDED), Query("lag", LAG, "s"), Query("waiting", BACKLOG),
                 width=8),
            lines("Backlog by chain", "Messages in the log behind what the chain has committed; a chain with nothing "
                  "to read does not lag.", "none", ("chain {{chain}}", BACKLOG)),
            lines("Messages in", "That agents have got acknowledged by the log, a second.", "mps",
                  ("messages", "sum(rate(fleetscope_agent_sent_messages_total[$__rate_interval]))")),
            lines("Events by outcome", "A second, all runs. Duplicates are dropped and harmless.", "eps",
                  ("{{outcome}}", f"sum by (outcome) ({EVENTS})"), kind="stack"),
        ),
        "Loss": (
            lines("Events lost", "By outcome: lost (gaps of a source), dropped (by agents, told), dead letters.", "eps",
                  ("{{outcome}}", "fleet:fleetscope_events_lost:rate")),
            lines("Utilization withheld", "Windows a second whose utilization is not told, by reason.", "cps",
                  ("{{reason}}", "sum by (reason) (max by (run, reason) "
                   f"(rate(fleetscope_utilization_unknown_total[$__rate_interval]))){ZERO}")),
            lines("Events stored by run", "The ten largest.", "eps", ("{{run}}", f"topk(10, {STORED})")),
        ),
        "Lake": (
            lines("Epochs not folded", "Committed and not yet in the tables.", "none",
                  ("chain {{chain}}", f"{EPOCH} - on (chain) {FOLDED}")),
            lines("Rounds a minute", "Of the coordinator.", "none",
                  ("rounds", "max(deriv(fleetscope_lake_round[2m])) * 60")),
            lines("Steps left out of the step time", "A second by run: completions told in a bunch.", "cps",
                  ("{{run}}", "max by (run) (rate(fleetscope_run_mistimed_steps_total[$__rate_interval]))")),
        ),
        "Exporters": (
            lines("Records taken", "Of fleetscope.metrics, a second.", "recps",
                  ("{{instance}}", "rate(fleetscope_exporter_records_total[$__rate_interval])")),
            lines("Not understood", "Messages a second that are no records, and samples metrics.json does not know: an "
                  "exporter older than its worker.", "none",
                  ("unreadable a second", "sum(rate(fleetscope_exporter_unreadable_total[$__rate_interval]))"),
                  ("unknown samples", "max(fleetscope_exporter_unknown_samples)")),
            lines("Series over budget", "Samples folded into host and device other, by run.", "none",
                  ("{{run}}", f"max by (run) (fleetscope_exporter_series_over_budget){ZERO}"), bound=1),
            lines("Exporters by shard", "That answer, of each part of the hosts; 0/1 where one has all.", "none",
                  ("{{shard}}", "count by (shard) (fleetscope_exporter_shards)")),
            lines("OTLP receiver takes nothing", "How long, of the exporter and of agents that push.", "s",
                  ("exporter", f"max(fleetscope_exporter_otlp_failing_seconds){ZERO}"),
                  ("agents, the worst", f"max(fleetscope_agent_otlp_failing_seconds){ZERO}"), bound=600),
            lines("Points pushed by OTLP", "A second, by what became of them; all but accepted did not arrive.", "cps",
                  ("exporter {{outcome}}", "sum by (outcome) "
                   f"(rate(fleetscope_exporter_otlp_points_total[$__rate_interval])){ZERO}"),
                  ("agents {{outcome}}", "sum by (outcome) "
                   f"(rate(fleetscope_agent_otlp_points_total[$__rate_interval])){ZERO}")),
        ),
    },
)  # fmt: skip
