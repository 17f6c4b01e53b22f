"""The metric server of libtpu's runtime (gRPC, port 8431), as tpu-info reads it."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from fleetscope.agents.collectors.kubelet import LOCAL
from fleetscope.agents.collectors.tpu.answers import Histogram, Unreadable
from fleetscope.schema import tpu_runtime_pb2 as runtime

if TYPE_CHECKING:
    import grpc

GET = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
_ORDINALS = ("device-id", "device_ordinal", "device-ordinal")
_SIZES = ("buffer-size", "buffer_size")
BUCKETS = 256
"""Buckets of one distribution that are believed."""


class RuntimeServer:
    """One runtime at `address`. A channel is kept; the answers are not."""

    name = "runtime"

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel: grpc.Channel | None = None
        self._get: Callable[..., Any] | None = None

    def _ask(self, metric: str, timeout_s: float) -> list[runtime.Metric]:
        try:
            import grpc
        except ImportError:
            raise Unreadable("grpc_missing") from None
        if self._get is None:
            self._channel = grpc.insecure_channel(self._address, LOCAL)
            self._get = self._channel.unary_unary(GET, None, None)
        try:
            answer = self._get(runtime.MetricRequest(metric_name=metric).SerializeToString(), timeout=timeout_s)
            return list(runtime.MetricResponse.FromString(answer).metric.metrics)
        except grpc.RpcError as error:
            code = error.code()
            if code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT):
                return []  # this libtpu has no such metric
            raise Unreadable(str(code.name).lower()) from error
        except DecodeError:
            raise Unreadable("undecodable") from None

    def numbers(self, metric: str, timeout_s: float) -> list[tuple[int, float]]:
        found: list[tuple[int, float]] = []
        for entry in self._ask(metric, timeout_s):
            number, value = _ordinal(entry.attribute), _number(entry)
            if number is not None and value is not None:
                found.append((number, value))
        return found

    def histograms(self, metric: str, timeout_s: float) -> list[Histogram]:
        found: list[Histogram] = []
        for entry in self._ask(metric, timeout_s):
            told = entry.distribution
            bounds = _bounds(told.bucket_options, len(told.bucket_counts))
            # What ran never has no buckets: nothing to divide by, and no percentile of it.
            if entry.WhichOneof("measure") == "distribution" and told.count > 0 and bounds:
                labels = tuple((key, value) for key, value in _texts(entry.attribute) if key in _SIZES)
                found.append(Histogram(labels, bounds, tuple(told.bucket_counts), told.mean))
        return found

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = self._get = None


def _leaves(attribute: runtime.Attribute) -> Iterator[tuple[str, runtime.AttrValue]]:
    if attribute.value.WhichOneof("attr") == "kvlist_attr":
        for inner in attribute.value.kvlist_attr.attributes:
            yield from _leaves(inner)
    else:
        yield attribute.key, attribute.value


def _ordinal(attribute: runtime.Attribute) -> int | None:
    """Newer libtpu gives it as text, older as a number; some metrics in a list beside the core's type."""
    for key, value in _leaves(attribute):
        if key in _ORDINALS:
            kind = value.WhichOneof("attr")
            if kind == "int_attr":
                return int(value.int_attr)
            if kind == "string_attr" and value.string_attr.isdecimal() and len(value.string_attr) < 10:
                return int(value.string_attr)
    return None


def _texts(attribute: runtime.Attribute) -> Iterator[tuple[str, str]]:
    for key, value in _leaves(attribute):
        if value.WhichOneof("attr") == "string_attr":
            yield key, value.string_attr


def _number(entry: runtime.Metric) -> float | None:
    measure = entry.WhichOneof("measure")
    told = entry.gauge if measure == "gauge" else entry.counter if measure == "counter" else None
    kind = told.WhichOneof("value") if told is not None else None
    return float(getattr(told, kind)) if kind in ("as_double", "as_int") else None


def _bounds(options: runtime.Distribution.BucketOptions, counts: int) -> tuple[float, ...]:
    """Upper ends of all buckets but the last: there are as many as `counts` less one. () for what makes no sense."""
    kind, wanted = options.WhichOneof("options"), counts - 1
    if not 0 < wanted <= BUCKETS:
        return ()
    if kind == "exponential_buckets":
        scale, growth = options.exponential_buckets.scale, options.exponential_buckets.growth_factor
        bounds = tuple(scale * growth**i for i in range(wanted)) if scale > 0 and growth > 1 else ()
    elif kind == "linear_buckets":
        offset, width = options.linear_buckets.offset, options.linear_buckets.width
        bounds = tuple(offset + width * i for i in range(wanted)) if width > 0 else ()
    elif kind == "explicit_buckets":
        bounds = tuple(options.explicit_buckets.bounds[:wanted])
    else:
        return ()
    rising = all(left < right for left, right in pairwise(bounds))
    return bounds if rising and len(bounds) == wanted and bounds[-1] < float("inf") else ()
