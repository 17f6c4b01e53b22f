"""What the agent's page says of processes, collectors and pushes: (series, labels, value)."""

from collections.abc import Mapping, Sequence

from fleetscope.agents.node.collect import CollectorRunner
from fleetscope.agents.node.metrics import Values, sample_values
from fleetscope.agents.node.registry import Registry
from fleetscope.transport.otlp.push import Pusher


def open_values(registry: Registry, ticks: Mapping[str, int]) -> Values:
    """Of each process the region that is open longest."""
    with registry.lock:
        for process in registry:
            if process.segment is None:
                continue
            who = {"run": process.source.run, "rank": str(process.source.rank), "pid": str(process.hello.pid)}
            yield "fleetscope_open_span_seconds", who, process.open_ns(process.tick(ticks)) / 1e9


def process_values(registry: Registry) -> Values:
    """What profilers of this host cost their processes, and what came of their windows."""
    with registry.lock:
        processes = list(registry)
    yield "fleetscope_agent_processes", {}, sum(not process.final for process in processes)
    yield "fleetscope_agent_refused_segments_total", {}, registry.segments_refused
    for process in processes:
        who = {"run": process.source.run, "rank": str(process.source.rank), "pid": str(process.hello.pid)}
        cost = process.cost
        outcomes = {
            "taken": cost.windows,
            **process.windows,
            **{f"skipped_{why}": n for why, n in cost.skipped.items()},
        }
        for outcome, count in {**outcomes, **{f"lost_{why}": n for why, n in cost.dropped.items()}}.items():
            yield "fleetscope_profiler_windows_total", {**who, "outcome": outcome}, count
        yield "fleetscope_profiler_window_stop_seconds_total", who, cost.stop_ns / 1e9
        yield "fleetscope_profiler_harvest_seconds_total", who, cost.harvest_ns / 1e9
        yield "fleetscope_profiler_cpu_seconds_total", who, cost.thread_cpu_ns / 1e9
        if cost.steps and not process.final and not process.ended_at_ns:
            # A process that ended makes no steps, and that is no hang.
            yield "fleetscope_profiler_steps_total", who, cost.steps
        if process.pjrt is not None and process.pjrt.active:
            yield "fleetscope_agent_executions_total", who, process.pjrt.told
            for reason, count in process.pjrt.counts.items():
                yield "fleetscope_agent_odd_executions_total", {**who, "reason": reason}, count


def collected_values(runners: Sequence[CollectorRunner]) -> Values:
    """The newest samples of all collectors, and how they fare."""
    for runner in runners:
        devices = {device.key: device for device in runner.devices()}
        yield from sample_values(runner.latest(), devices)
        for key, why in runner.quarantined().items():
            sku = devices[key].sku if key in devices else ""
            yield "fleetscope_chip_quarantined", {"device": key, "sku": sku, "reason": why}, 1
        name = runner.collector.name
        yield "fleetscope_agent_collector_age_seconds", {"collector": name}, runner.age_s
        for reason, count in (runner.errors + runner.refused).items():
            yield "fleetscope_agent_read_errors_total", {"collector": name, "reason": reason}, count


def otlp_values(pusher: Pusher | None) -> Values:
    """What became of pushed points."""
    if pusher is None:
        return
    for outcome, points in pusher.points.items():
        yield "fleetscope_agent_otlp_points_total", {"outcome": outcome}, points
    yield "fleetscope_agent_otlp_failing_seconds", {}, pusher.failing_s
