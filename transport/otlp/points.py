"""Families of series -> requests of OTLP, a bounded number of points each.

Temporality is cumulative: what a push that failed would have said, the next one says too, so nothing waits in a queue.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from fleetscope.schema.otlp import HOST, Told, conventions, told
from fleetscope.transport.families import Classic, Durations, Family, Labels

POINTS = 5_000
"""Of a request: about 1 MB before compression."""
SCHEMA_URL = "https://opentelemetry.io/schemas/1.43.0"

_CUMULATIVE = sdk.AggregationTemporality.CUMULATIVE


class Starts:
    """Since when a sum counts. Nobody says when a counter of another process began, so it is when it was first seen
    here; one that fell was reset since the push before. A series that is gone is forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Labels], tuple[int, float]] = {}
        self._next: dict[tuple[str, Labels], tuple[int, float]] = {}
        self._before_ns = 0

    def of(self, metric: str, labels: Labels, value: float, now_ns: int) -> int:
        """Unix ns; `value` is that of the sum, or the count of a histogram."""
        key = metric, labels
        start_ns, before = self._known.get(key, (now_ns, value))
        if value < before:
            start_ns = self._before_ns
        self._next[key] = start_ns, value
        return start_ns

    def turn(self, now_ns: int) -> None:
        """All series of a moment have been asked for."""
        self._known, self._next = self._next, {}
        self._before_ns = now_ns


def requests(
    families: Iterable[Family], starts: Starts, now_ns: int, resource: Resource
) -> Iterator[tuple[int, sdk.MetricsData]]:
    """(number of points, request), each made when it is asked for."""
    scope = InstrumentationScope("fleetscope", schema_url=SCHEMA_URL)
    waiting: list[sdk.Metric] = []
    size = 0

    def request() -> sdk.MetricsData:
        scoped = sdk.ScopeMetrics(scope, waiting, SCHEMA_URL)
        return sdk.MetricsData([sdk.ResourceMetrics(resource, [scoped], SCHEMA_URL)])

    host = str(resource.attributes.get(HOST, ""))
    for family in families:
        how = told(family.metric)
        points = _points(family, how, starts, now_ns, host)
        while piece := list(islice(points, POINTS - size)):
            waiting.append(sdk.Metric(how.name, how.description, how.unit, _data(how, piece)))
            size += len(piece)
            if size == POINTS:
                yield size, request()
                waiting, size = [], 0
    if waiting:
        yield size, request()
    starts.turn(now_ns)


def _points(family: Family, how: Told, starts: Starts, now_ns: int, host: str) -> Iterator[Any]:
    spec = family.metric
    by_convention = spec.name in conventions()

    def attributes(labels: Labels) -> dict[str, str]:
        named = dict(zip(spec.labels, labels, strict=True))
        found = how.of(named)
        if by_convention and named.get("host", host) != host:
            found[HOST] = named["host"]
        return found

    for labels, value in family.series():
        since_ns = now_ns if how.kind == "gauge" else starts.of(spec.name, labels, value, now_ns)
        yield sdk.NumberDataPoint(attributes(labels), since_ns, now_ns, value)
    for labels, durations in family.histograms.items():
        since_ns = starts.of(spec.name, labels, durations.count, now_ns)
        yield _exponential(attributes(labels), since_ns, now_ns, durations)
    for labels, classic in family.classic.items():
        since_ns = starts.of(spec.name, labels, classic.counts[-1], now_ns)
        yield _explicit(attributes(labels), since_ns, now_ns, classic)


def _exponential(attributes: dict[str, str], since_ns: int, now_ns: int, told: Durations) -> Any:
    """Bucket i of OTLP is (base^i, base^(i + 1)]: one less than the number Prometheus gives it."""
    low = min(told.counts, default=0)
    counts = [told.counts.get(bucket, 0) for bucket in range(low, max(told.counts, default=low - 1) + 1)]
    return sdk.ExponentialHistogramDataPoint(
        attributes, since_ns, now_ns, told.count, told.sum_s, told.schema, told.zero,
        sdk.Buckets(low - 1, counts), sdk.Buckets(0, []), 0, None, None,  # type: ignore[arg-type]
    )  # fmt: skip


def _explicit(attributes: dict[str, str], since_ns: int, now_ns: int, told: Classic) -> Any:
    each = [count - before for count, before in zip(told.counts, [0, *told.counts], strict=False)]
    return sdk.HistogramDataPoint(
        attributes, since_ns, now_ns, told.counts[-1], told.sum_s, each, told.bounds,
        None, None,  # type: ignore[arg-type]
    )  # fmt: skip


def _data(how: Told, points: Sequence[Any]) -> Any:
    if how.kind == "gauge":
        return sdk.Gauge(points)
    if how.kind != "histogram":
        return sdk.Sum(points, _CUMULATIVE, is_monotonic=how.kind == "counter")
    if isinstance(points[0], sdk.HistogramDataPoint):
        return sdk.Histogram(points, _CUMULATIVE)
    return sdk.ExponentialHistogram(points, _CUMULATIVE)
