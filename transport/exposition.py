"""Pages for Prometheus from families of series: its text, OpenMetrics, and protobuf, which alone has native histograms.

prometheus_client writes text, but for columns: series that hundreds of thousands of times have one of some thousand
label sets. Of those it makes an object each, 12 us of CPU; here a label set is written once, 1 us (docs/design/0023).
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from prometheus_client import exposition as text
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from fleetscope.schema import exposition_pb2 as wire
from fleetscope.schema.metrics import Metric as Spec
from fleetscope.transport.families import Durations, Family, Labels

Format = Literal["text", "openmetrics", "protobuf"]

CONTENT_TYPES: dict[Format, str] = {
    "text": "text/plain; version=0.0.4; charset=utf-8",
    "openmetrics": "application/openmetrics-text; version=1.0.0; charset=utf-8",
    "protobuf": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
}
ZERO_THRESHOLD = 2.0**-128
"""Width of the bucket of zero, as client_golang has it: nothing else is in it."""
READY = "/-/ready"
"""Answered without a page: a probe every ten seconds would cost what a scrape does."""
COMPRESSION = 1
"""Of gzip. At 9, the library's, a page of 100 MB takes longer to compress than to make."""

_number: Callable[[float], str] = floatToGoString
_TYPES = {"counter": wire.COUNTER, "gauge": wire.GAUGE, "histogram": wire.HISTOGRAM}


def negotiated(accept: str) -> Format:
    """What the client wants most of what there is; text for one that names nothing."""
    best: tuple[float, Format] = (0.0, "text")
    for item in accept.split(","):
        media, *rest = [part.strip().lower() for part in item.split(";")]
        given = dict(part.split("=", 1) for part in rest if "=" in part)
        found: Format | None = None
        if media == "application/vnd.google.protobuf":
            if given.get("proto") == "io.prometheus.client.metricfamily" and given.get("encoding") == "delimited":
                found = "protobuf"
        elif media == "application/openmetrics-text":
            found = "openmetrics"
        elif media == "text/plain":
            found = "text"
        try:
            quality = float(given.get("q", "1"))
        except ValueError:
            continue
        if found and quality > best[0]:
            best = quality, found
    return best[1]


def page(families: Iterable[Family], form: Format) -> list[bytes]:
    """Parts of the page, in order."""
    if form == "protobuf":
        return [part for family in families for part in _protobuf(family)]
    families = list(families)
    parts = [_by_library([family for family in families if not family.columns], form)]
    for family in families:
        if family.columns:
            parts += _columns_as_text(family, form)
    return [*parts, _END] if form == "openmetrics" else parts


_END = b"# EOF\n"


def _by_library(families: list[Family], form: Format) -> bytes:
    """Without the end of the page."""
    write = openmetrics.generate_latest if form == "openmetrics" else text.generate_latest
    return write(_Library(families)).removesuffix(_END)


class _Library:
    """A registry, as far as the library's writers ask for one."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            yield _of_library(family)


def _of_library(family: Family) -> Metric:
    spec = family.metric
    if spec.type == "histogram":
        histogram = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        for labels, told in family.histograms.items():
            buckets = [(_number(bound), count) for bound, count in told.by_octave(spec.octaves)]
            histogram.add_metric(labels, buckets, told.sum_s)
        return histogram
    kind = CounterMetricFamily if spec.type == "counter" else GaugeMetricFamily
    out = kind(spec.name, spec.help, labels=spec.labels)
    for labels, value in family.samples.items():
        out.add_metric(labels, value)
    return out


# ---- columns as text


def _columns_as_text(family: Family, form: Format) -> list[bytes]:
    """As the library would: what it writes of the single series, if there are any, is the head of the family."""
    name = family.metric.name
    parts = [_by_library([Family(family.metric, family.samples)], form)]
    for column in family.columns:
        labels = column.written("text", _label_text)
        values = map(_number, column.values.tolist())
        parts.append("".join([f"{name}{one} {value}\n" for one, value in zip(labels, values, strict=True)]).encode())
    return parts


def _label_text(names: tuple[str, ...], row: Labels) -> str:
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(zip(names, row, strict=True)))
    return f"{{{written}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


# ---- protobuf


def _protobuf(family: Family) -> Iterator[bytes]:
    spec = family.metric
    told = wire.MetricFamily(name=spec.name, help=spec.help, type=_TYPES[spec.type])
    for labels, value in family.samples.items():
        _value(told.metric.add(label=_pairs(spec.labels, labels)), spec, value)
    for labels, durations in family.histograms.items():
        metric = told.metric.add(label=_pairs(spec.labels, labels))
        metric.histogram.CopyFrom(native_histogram(spec, durations))
    body = [told.SerializeToString()]
    for column in family.columns:
        # Of a series but its value changes from one scrape to the next, and that stands at the end.
        heads = column.written(spec.type, lambda names, row: _head(spec, names, row))
        values = column.values.astype("<f8").tobytes()
        body += [part for at, head in enumerate(heads) for part in (head, values[8 * at : 8 * at + 8])]
    if len(body) > 1 or told.metric:
        yield _varint(sum(map(len, body)))
        yield from body


def _pairs(names: Iterable[str], values: Iterable[str]) -> list[wire.LabelPair]:
    return [wire.LabelPair(name=name, value=value) for name, value in zip(names, values, strict=True)]


def _value(metric: wire.Metric, spec: Spec, value: float) -> None:
    (metric.counter if spec.type == "counter" else metric.gauge).value = value


def _head(spec: Spec, names: tuple[str, ...], row: Labels) -> bytes:
    """A Metric within its family, but for the eight bytes of its value."""
    metric = wire.Metric(label=_pairs(names, row))
    _value(metric, spec, 1.0)
    return wire.MetricFamily(metric=[metric]).SerializeToString()[:-8]


def native_histogram(spec: Spec, told: Durations) -> wire.Histogram:
    """With the buckets of text beside the native ones: a server that was not told to take those takes these."""
    out = wire.Histogram(sample_count=told.count, sample_sum=told.sum_s, schema=told.schema)
    out.zero_threshold, out.zero_count = ZERO_THRESHOLD, told.zero
    for bound, count in told.by_octave(spec.octaves)[:-1]:
        out.bucket.add(cumulative_count=count, upper_bound=bound)
    end, before = 0, 0
    for bucket, count in sorted(told.counts.items()):
        if out.positive_span and bucket == end:
            out.positive_span[-1].length += 1
        else:
            out.positive_span.add(offset=bucket - end, length=1)
        out.positive_delta.append(count - before)
        end, before = bucket + 1, count
    return out


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


# ---- HTTP


def application(families: Callable[[], Iterable[Family]]) -> Any:
    """A WSGI application that serves them as the client asks: `Accept`, and gzip where it takes that."""

    def serve(
        environ: Mapping[str, str], start_response: Callable[[str, list[tuple[str, str]]], object]
    ) -> list[bytes]:
        if environ.get("PATH_INFO") == READY:
            start_response("200 OK", [("Content-Length", "0")])
            return []
        form = negotiated(environ.get("HTTP_ACCEPT", ""))
        parts = page(families(), form)
        headers = [("Content-Type", CONTENT_TYPES[form]), ("Vary", "Accept, Accept-Encoding")]
        if "gzip" in environ.get("HTTP_ACCEPT_ENCODING", ""):
            headers.append(("Content-Encoding", "gzip"))
            parts = _gzipped(parts)
        headers.append(("Content-Length", str(sum(map(len, parts)))))
        start_response("200 OK", headers)
        return parts

    return serve


def _gzipped(parts: list[bytes]) -> list[bytes]:
    packer = zlib.compressobj(COMPRESSION, wbits=31)
    return [packed for part in parts if (packed := packer.compress(part))] + [packer.flush()]
