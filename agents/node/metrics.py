"""The agent's own /metrics: its cost, its losses, the chips of this host. Names and labels: metrics.json."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from fleetscope.agents.collectors import Sample
from fleetscope.agents.node.governed import REGIONS, WINDOWS
from fleetscope.agents.node.governor import Governor
from fleetscope.agents.node.process import Process
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.metrics import metric, metric_of_sample
from fleetscope.transport.families import Classic, Family, Labels
from fleetscope.transport.scrape import ScrapeServer

log = logging.getLogger(__name__)

Values = Iterable[tuple[str, dict[str, str], float]]
"""(metric name, labels without host, value)"""
_KINDS = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


class Page:
    """A prometheus_client collector: everything is read at scrape time, nothing is kept."""

    def __init__(self, host: str, sources: Iterable[Callable[[], Values]]) -> None:
        self._host = host
        self._sources = list(sources)
        self.scrapes = 0

    def collect(self) -> Iterator[Metric]:
        self.scrapes += 1
        families: dict[str, Any] = {}
        seen: set[tuple[str, tuple[str, ...]]] = set()
        for source in self._sources:
            try:
                values = list(source())
            except Exception:  # one source's defect costs its own series, not the page
                log.exception("metrics")
                continue
            for name, labels, value in values:
                entry = metric_of_sample(name) or metric(name)
                known = entry.labels if entry.name == name or "le" not in labels else (*entry.labels, "le")
                texts = tuple({"host": self._host, **labels}.get(label, "") for label in known)
                if (name, texts) in seen:
                    continue  # a page with one series twice is refused whole by Prometheus
                seen.add((name, texts))
                family = families.get(entry.name)
                if family is None:
                    family = families[entry.name] = _KINDS[entry.type](entry.name, entry.help, labels=entry.labels)
                if entry.type == "histogram":
                    family.add_sample(name, dict(zip(known, texts, strict=True)), value)
                else:
                    family.add_metric(texts, value)
        yield from families.values()


def families_of(page: Page) -> Iterator[Family]:
    """What stands on the page, for whoever else wants it."""
    for found in page.collect():
        spec = metric(f"{found.name}_total" if found.type == "counter" else found.name)
        samples: dict[Labels, float] = {}
        parts: dict[Labels, dict[str, Any]] = {}
        for sample in found.samples:
            labels = tuple(sample.labels[name] for name in spec.labels)
            if spec.type != "histogram":
                samples[labels] = sample.value
                continue
            part = parts.setdefault(labels, {"_bucket": {}, "_count": 0, "_sum": 0.0})
            end = sample.name.removeprefix(spec.name)
            if end == "_bucket":
                part[end][float(sample.labels["le"])] = int(sample.value)
            else:
                part[end] = sample.value
        yield Family(spec, samples, classic={labels: _classic(part) for labels, part in parts.items()})


def _classic(part: dict[str, Any]) -> Classic:
    bounds = sorted(bound for bound in part["_bucket"] if bound != float("inf"))
    return Classic(bounds, [*(part["_bucket"][bound] for bound in bounds), int(part["_count"])], part["_sum"])


def sample_values(samples: Iterable[Sample], devices: dict[str, wire.Device]) -> Values:
    """Collected values whose series is a metric of metrics.json."""
    for sample in samples:
        if metric_of_sample(sample.series.name) is not None:
            device = devices.get(sample.device)
            sku = device.sku if device is not None else ""
            yield sample.series.name, {**dict(sample.series.labels), "device": sample.device, "sku": sku}, sample.value


def own_cost() -> Values:
    """CPU and memory of this process."""
    times = os.times()
    yield "fleetscope_agent_cpu_seconds_total", {}, times.user + times.system
    yield "fleetscope_agent_memory_bytes", {}, psutil.Process().memory_info().rss
    yield "fleetscope_agent_time_seconds", {}, time.time()


def governor_values(governor: Governor, processes: Iterable[Process]) -> Values:
    """What recording costs, what it may, and what was decided."""
    yield "fleetscope_agent_governor_budget_ratio", {"budget": "step"}, governor.budgets.step_budget
    yield "fleetscope_agent_governor_budget_ratio", {"budget": "core"}, governor.budgets.core_budget
    for process in processes:
        who = {"run": process.source.run, "rank": str(process.source.rank), "pid": str(process.hello.pid)}
        governed = governor.of(process.key)
        for part, ns in process.meter.ns.items():
            yield "fleetscope_profiler_cost_seconds_total", {**who, "part": part}, ns / 1e9
        for lever, level in ((REGIONS, governed.rung), (WINDOWS, governed.window_shift)):
            yield "fleetscope_profiler_governor_level", {**who, "lever": lever}, level
        for (lever, reason), count in governed.decisions.items():
            labels = {**who, "lever": lever, "reason": reason}
            yield "fleetscope_profiler_governor_decisions_total", labels, count


class MetricsServer:
    """Serves a page at `address` ("127.0.0.1:0" takes a free port). `fallback`: also where that port is taken."""

    def __init__(self, address: str, page: Page, fallback: bool = False) -> None:
        host, _, port = address.rpartition(":")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(page)
        try:
            self._server = self._open(host or "127.0.0.1", int(port), make_wsgi_app(registry), fallback)
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigInvalid(f"agent.metrics_address {address!r}: {error}") from error
        self.port = self._server.port
        self.address = f"{host or '127.0.0.1'}:{self.port}"

    @staticmethod
    def _open(host: str, port: int, app: Any, fallback: bool) -> ScrapeServer:
        try:
            return ScrapeServer(host, port, app)
        except OSError as error:
            if not fallback or error.errno != errno.EADDRINUSE:
                raise
            log.warning("port %d is taken: metrics are at a free port; set agent.metrics_address", port)
            return ScrapeServer(host, 0, app)

    def stop(self) -> None:
        self._server.stop()
