"""Clocks: how well times of one host and of several can be compared."""

from asked import ZERO
from board import Board, Variable, lines, number

SERIES = '{run=~"$run",host=~"$host"}'
HOSTS = '{host=~"$host"}'


def _sum(by: str, metric: str, window: str = "5m") -> str:
    return f"sum by ({by}) (rate({metric}{SERIES}[{window}]))"


ERROR, PARTS = "fleetscope_device_clock_error_seconds_total", "fleetscope_device_clock_parts_total"
UNSYNCED = "fleetscope_device_unsynced_events_total"

BOARD = Board(
    "clocks",
    "clocks",
    "How far times can be off: error bounds of device clocks, events placed by the wall clock alone, clocks that were "
    "set or stepped.",
    (
        Variable("run", "run", "fleetscope_device_clock_parts_total"),
        Variable("host", "host", "fleetscope_agent_time_seconds"),
    ),
    {
        "Now": (
            number("Worst host", "Mean of the worst error bound of its windows.", "s",
                   f"max(host:fleetscope_clock_error_seconds:mean{SERIES})", bound=0.005),
            number("Median host", "Half of the hosts are better.", "s",
                   f"quantile(0.5, host:fleetscope_clock_error_seconds:mean{SERIES})"),
            number("Windows with a bound", "A second: how many parts of 10 s windows had an error bound at all.", "cps",
                   f"sum(rate({PARTS}{SERIES}[5m]))"),
            number("Unsynced events", "Placed by the wall clock alone.", "eps",
                   f"sum(rate({UNSYNCED}{SERIES}[5m]))", bound=0.001),
            number("Clocks set", "Hosts whose wall clock was set in an hour.", "none",
                   f"sum(max by (host) (increase(fleetscope_agent_clock_steps_total{HOSTS}[1h])) > bool 0)",
                   bound=1),
            number("Clocks changed", "Hosts whose counter began a new epoch in an hour: the kernel left it, or a VM "
                   "was restored.", "none",
                   f"sum(max by (host) (increase(fleetscope_agent_clock_changes_total{HOSTS}[1h])) > bool 0)",
                   bound=1),
        ),
        "Error bounds": (
            lines("By host", "Mean of the worst bound of each window, the ten worst; FleetscopeClockErrorHigh fires "
                  "above 5 ms.", "s",
                  ("{{run}} {{host}}", f"topk(10, host:fleetscope_clock_error_seconds:mean{SERIES})"), bound=0.005),
            lines("By chip", "The ten worst.", "s",
                  ("{{device}}", f"topk(10, {_sum('device', ERROR)} / ({_sum('device', PARTS)} > 0))"), bound=0.005),
            lines("Over hosts", "Worst, nine in ten, half.", "s",
                  ("worst", f"max(host:fleetscope_clock_error_seconds:mean{SERIES})"),
                  ("nine in ten", f"quantile(0.9, host:fleetscope_clock_error_seconds:mean{SERIES})"),
                  ("half", f"quantile(0.5, host:fleetscope_clock_error_seconds:mean{SERIES})")),
        ),
        "Without a bound": (
            lines("Unsynced events", "Events a second placed by the wall clock alone, by host, the ten highest; "
                  "FleetscopeClockUnsynced fires on any.", "eps",
                  ("{{host}}", f"topk(10, {_sum('host', UNSYNCED)})"), width=12),
            lines("Windows with a bound", "A second, by run: where it falls to zero nothing is known of the clocks.",
                  "cps",
                  ("{{run}}", _sum("run", PARTS)), width=12),
        ),
        "The fleet's clock": (
            lines("Proved within", "What is proved of a host's times, the ten widest, and half of the hosts; "
                  "FleetscopeHostClockBoundWide fires above 500 us.", "s",
                  ("{{host}}", f"topk(10, max by (host) (fleetscope_clock_host_bound_seconds{HOSTS}))"),
                  ("half", f"quantile(0.5, max by (host) (fleetscope_clock_host_bound_seconds{HOSTS}))"), bound=0.0005),
            lines("Hosts by quality", "What the newest maps are worth.", "none",
                  ("{{quality}}", "count by (quality) (max by (host, quality) "
                   f"(fleetscope_clock_host_quality{HOSTS}))")),
            lines("Asymmetry of paths", "Delay from host to peer minus delay back, the ten paths that lean most.", "s",
                  ("{{host}} to {{peer}}", "topk(10, abs(max by (host, peer) "
                   f"(fleetscope_clock_asymmetry_seconds{HOSTS})))")),
            lines("Steps", "Of counters against the fleet in an hour, by host.", "none",
                  ("{{host}}", f"topk(10, max by (host) (increase(fleetscope_clock_steps_total{HOSTS}[1h])))")),
            lines("Latency of maps", "From the end of a hop of 10 s to its maps.", "s",
                  ("maps", "max(fleetscope_clock_map_latency_seconds)"), bound=15),
            lines("Fleet time minus UTC", "And within what that is known, by wall clocks that are synchronized.", "s",
                  ("offset", "max(fleetscope_clock_utc_offset_seconds)"),
                  ("within", "max(fleetscope_clock_utc_bound_seconds)"), signed=True),
        ),
        "Between hosts": (
            lines("Probes", "A second, all hosts: exchanges of four times with peers, and probes without an answer.",
                  "cps",
                  ("exchanges", f"sum(rate(fleetscope_agent_probe_exchanges_total{HOSTS}[$__rate_interval]))"),
                  ("lost", f"sum(rate(fleetscope_agent_probes_lost_total{HOSTS}[$__rate_interval]))")),
            lines("Peers", "Hosts whose probes a host answers, the ten fewest.", "none",
                  ("{{host}}", f"bottomk(10, max by (host) (fleetscope_agent_probe_peers{HOSTS}))")),
            lines("Probes refused", "A second, by reason.", "cps",
                  ("{{reason}}", "sum by (reason) "
                   f"(rate(fleetscope_agent_probes_refused_total{HOSTS}[$__rate_interval])){ZERO}")),
        ),
        "What is known of a host's clocks": (
            lines("Sources missing", "Hosts without that source of clock facts, by what is wrong.", "none",
                  ("{{source}}: {{reason}}",
                   f"sum by (source, reason) (fleetscope_agent_clock_source_missing{HOSTS})"), width=12),
            lines("Records out of turn", "In an hour: starts, windows, steps, suspends.", "none",
                  ("{{reason}}",
                   f"sum by (reason) (increase(fleetscope_agent_clock_events_total{HOSTS}[1h]))"), width=12),
        ),
        "Wall clocks": (
            lines("Against Prometheus", "The host's wall clock when its page was made minus Prometheus' own, the ten "
                  "farthest ahead and behind. The time of a scrape is in it.", "s",
                  ("{{host}}", "topk(10, max by (host) (fleetscope_agent_time_seconds"
                   f"{HOSTS} - timestamp(fleetscope_agent_time_seconds{HOSTS})))"),
                  ("{{host}} behind", "bottomk(10, max by (host) (fleetscope_agent_time_seconds"
                   f"{HOSTS} - timestamp(fleetscope_agent_time_seconds{HOSTS})))"), signed=True),
            lines("Clocks set", "Steps of the wall clock in an hour, by host.", "none",
                  ("{{host}}", f"topk(10, max by (host) (increase(fleetscope_agent_clock_steps_total{HOSTS}[1h])))")),
            lines("Clocks changed", "New epochs of the recorders' counter in an hour, by host.", "none",
                  ("{{host}}", f"topk(10, max by (host) (increase(fleetscope_agent_clock_changes_total{HOSTS}[1h])))")),
        ),
    },
)  # fmt: skip
