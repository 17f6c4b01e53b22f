"""Agents: what recording costs, what agents lose, whether they ship, and whether their sources answer."""

from asked import ZERO
from board import Board, Variable, lines, number, ratio

HOSTS = '{host=~"$host"}'
HEARD = "fleetscope_agent_time_seconds"


def _rate(metric: str, more: str = "") -> str:
    return f'rate({metric}{{host=~"$host"{more}}}[$__rate_interval])'


CPU = f"max by (host) ({_rate('fleetscope_agent_cpu_seconds_total')})"
IN_PROCESS = _rate("fleetscope_profiler_cost_seconds_total", ',part=~"recorder|windows"')
DROPPED = _rate("fleetscope_agent_dropped_events_total", ',reason!="sentinel_value"')

BOARD = Board(
    "agents",
    "agents",
    "Node agents and the profiler in training processes: cost against budget, loss, shipping, sources that hang, what "
    "the governor decided.",
    (Variable("host", "host", "fleetscope_agent_time_seconds"),),
    {
        "Now": (
            number("Agents", "Whose page was there within a minute.", "none",
                   f"count(group by (host) (last_over_time({HEARD}{HOSTS}[1m])))"),
            number("Silent hosts", "Whose page was there within the hour and not within the minute.", "none",
                   f"count(group by (host) (last_over_time({HEARD}{HOSTS}[1h])) unless on (host) "
                   f"group by (host) (last_over_time({HEARD}{HOSTS}[1m]))){ZERO}", bound=1),
            number("Processes", "Training processes the agents read.", "none",
                   f"sum(max by (host) (fleetscope_agent_processes{HOSTS}))"),
            number("Dearest agent", "CPU of a core, without the decoding of device windows the budget leaves out.",
                   "percentunit", f"max({CPU} - on (host) max by (host) "
                   f"({_rate('fleetscope_agent_decode_seconds_total')}))", bound=0.02),
            number("Dearest process", "What regions, windows, and the profiler's thread take of its time.",
                   "percentunit",
                   f"max(sum by (run, host, rank, pid) ({IN_PROCESS}) + sum by (run, host, rank, pid) "
                   f"({_rate('fleetscope_profiler_cpu_seconds_total')}))", bound=0.02),
            number("Events dropped", "A second, by agents; sentinels are none.", "eps", f"sum({DROPPED}){ZERO}",
                   bound=0.001),
        ),
        "Cost": (
            ratio("CPU of agents", "Of a core, the ten dearest, and what the governor keeps them to.",
                  ("{{host}}", f"topk(10, {CPU})"),
                  ("budget", "max(fleetscope_agent_governor_budget_ratio"
                   '{host=~"$host",budget="core"})')),
            lines("Memory of agents", "Resident, the ten largest.", "bytes",
                  ("{{host}}", f"topk(10, max by (host) (fleetscope_agent_memory_bytes{HOSTS}))")),
            ratio("Decoding of windows", "CPU of a core, the ten dearest.",
                  ("{{host}}", f"topk(10, max by (host) ({_rate('fleetscope_agent_decode_seconds_total')}))")),
            ratio("Cost of recording by part", "Of the time of a process, the dearest of each part: recorder and "
                  "windows in the process, drain and decode in the agent.",
                  ("{{part}}", "max by (part) (sum by (run, host, rank, pid, part) "
                   f"({_rate('fleetscope_profiler_cost_seconds_total')}))"),
                  ("budget", 'max(fleetscope_agent_governor_budget_ratio{host=~"$host",budget="step"})')),
            lines("Level of the governor", "How far recording is lowered, the farthest: regions in rungs, windows in "
                  "halvings; 0 is everything.", "none",
                  ("{{lever}}", f"max by (lever) (fleetscope_profiler_governor_level{HOSTS})")),
            lines("Decisions of the governor", "In an hour, by lever and reason.", "none",
                  ("{{lever}} {{reason}}", "sum by (lever, reason) "
                   f"(increase(fleetscope_profiler_governor_decisions_total{HOSTS}[1h])){ZERO}")),
        ),
        "Processes": (
            lines("Device windows", "A second, by outcome.", "cps",
                  ("{{outcome}}", f"sum by (outcome) ({_rate('fleetscope_profiler_windows_total')})")),
            ratio("Profiler's thread and stops", "Of the time of a process, the dearest: its own thread, stops of "
                  "windows, programs being harvested.",
                  ("thread", f"max({_rate('fleetscope_profiler_cpu_seconds_total')})"),
                  ("stops", f"max({_rate('fleetscope_profiler_window_stop_seconds_total')})"),
                  ("harvest", f"max({_rate('fleetscope_profiler_harvest_seconds_total')})")),
            lines("Processes and connections", "Read by the agents, and connected to their sockets.", "none",
                  ("processes", f"sum(max by (host) (fleetscope_agent_processes{HOSTS}))"),
                  ("connections", f"sum(max by (host) (fleetscope_agent_connections{HOSTS}))")),
        ),
        "Shipping": (
            lines("Events recorded", "A second, the ten largest hosts.", "eps",
                  ("{{host}}", f"topk(10, max by (host) ({_rate('fleetscope_agent_events_total')}))")),
            lines("Sent to the log", "Bytes the log has acknowledged, all hosts.", "Bps",
                  ("bytes", f"sum({_rate('fleetscope_agent_sent_bytes_total')})")),
            lines("Batches and messages", "A second, all hosts.", "cps",
                  ("batches made", f"sum({_rate('fleetscope_agent_batches_total')})"),
                  ("messages sent", f"sum({_rate('fleetscope_agent_sent_messages_total')})"),
                  ("sends failed", f"sum({_rate('fleetscope_agent_send_failures_total')})")),
            ratio("Spool in use", "Of its cap, the ten fullest; beyond it the oldest is dropped.",
                  ("{{host}}", "topk(10, max by (host) (fleetscope_agent_spool_bytes"
                   f"{HOSTS} / fleetscope_agent_spool_capacity_bytes{HOSTS}))"), maximum=1),
            lines("Log takes nothing", "How long, the ten longest; FleetscopeAgentNotShipping fires above a minute.",
                  "s",
                  ("{{host}}", f"topk(10, max by (host) (fleetscope_agent_log_failing_seconds{HOSTS}))"), bound=60),
            lines("Events dropped", "A second, by reason.",
                  "eps", ("{{reason}}", f"sum by (reason) ({DROPPED}){ZERO}")),
        ),
        "Sources": (
            lines("Age of sources", "Since a collector last came back, the worst host; one that hangs grows.", "s",
                  ("{{collector}}", f"max by (collector) (fleetscope_agent_collector_age_seconds{HOSTS})"), bound=60),
            lines("Reads refused or failed", "A second, by collector and reason.", "cps",
                  ("{{collector}} {{reason}}", "sum by (collector, reason) "
                   f"({_rate('fleetscope_agent_read_errors_total')}){ZERO}")),
            lines("Defects and strangers", "In an hour: rounds that failed, connections that sent no frames, segments "
                  "of nobody.", "none",
                  ("failed rounds", f"sum(increase(fleetscope_agent_failed_rounds_total{HOSTS}[1h]))"),
                  ("refused frames", f"sum(increase(fleetscope_agent_refused_frames_total{HOSTS}[1h]))"),
                  ("refused segments", f"sum(increase(fleetscope_agent_refused_segments_total{HOSTS}[1h]))")),
        ),
    },
)  # fmt: skip
