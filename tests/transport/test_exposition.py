"""Pages as text, OpenMetrics and protobuf: the same series in each, columns as the library writes single series."""

import gzip
import math
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from google.protobuf.internal.decoder import _DecodeVarint32  # type: ignore[attr-defined]
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from fleetscope.schema import exposition_pb2 as wire
from fleetscope.schema.exponential import SKEW, native_bucket
from fleetscope.schema.metrics import metric
from fleetscope.transport.exposition import Format, application, negotiated, page
from fleetscope.transport.families import Column, Durations, Family, Members

pytestmark = pytest.mark.unit

BUSY = metric("fleetscope_device_busy_seconds_total")
STEP = metric("fleetscope_run_step_duration_seconds")
LAG = metric("fleetscope_pipeline_lag_seconds")
ODD = 'quo"te\\back\nline'
ROWS = [("a", "h0", "d0", "TPU v6e"), ("a", "h1", ODD, ""), ("a", "h2", "d2", "ü")]
VALUES = [0.0, 1234567.875, math.inf]


def _families(as_columns: bool) -> list[Family]:
    members = Members(BUSY.labels, ("a", "other", "other", "other"), 100)
    places = np.array([members.place(row) for row in ROWS])
    column = Column(members, places, np.array(VALUES))
    busy = Family(BUSY, columns=(column,)) if as_columns else Family(BUSY, dict(zip(ROWS, VALUES, strict=True)))
    steps = Durations(5)
    steps.add([-3, -2, 40], [2, 1, 4], 1, 9.75)
    return [busy, Family(LAG, {("0",): 1.5}), Family(STEP, histograms={("a",): steps})]


def _messages(data: bytes) -> Iterator[wire.MetricFamily]:
    at = 0
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        yield wire.MetricFamily.FromString(data[at : at + size])
        at += size


@pytest.mark.parametrize("form", ["text", "openmetrics"])
def test_columns_are_written_as_the_library_writes_single_series(form: Format) -> None:
    def lines(as_columns: bool) -> list[bytes]:
        return sorted(b"".join(page(_families(as_columns), form)).splitlines())

    assert lines(True) == lines(False)
    whole = b"".join(page(_families(True), form)).decode()
    parse = parse_openmetrics if form == "openmetrics" else parse_text
    found = {family.name: family for family in parse(whole)}
    told = {sample.labels["device"]: sample.value for sample in found["fleetscope_device_busy_seconds"].samples}
    assert told == {"d0": 0.0, ODD: 1234567.875, "d2": math.inf}
    buckets = {
        sample.labels["le"]: sample.value
        for sample in found["fleetscope_run_step_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    # Buckets -3, -2 end at or below 1 s, 40 is in (2^(39/32), 2^(40/32)] s.
    assert (buckets["0.5"], buckets["1.0"], buckets["2.0"], buckets["4.0"], buckets["+Inf"]) == (1, 4, 4, 8, 8)


@pytest.mark.parametrize("as_columns", [True, False])
def test_protobuf_has_the_same_series_and_native_buckets(as_columns: bool) -> None:
    found = {family.name: family for family in _messages(b"".join(page(_families(as_columns), "protobuf")))}
    busy = found[BUSY.name]
    assert busy.type == wire.COUNTER
    told = {tuple(pair.value for pair in one.label): one.counter.value for one in busy.metric}
    assert told == dict(zip(ROWS, VALUES, strict=True))
    assert all(one.counter.HasField("value") for one in busy.metric), "0 is written"
    assert found[LAG.name].metric[0].gauge.value == 1.5
    histogram = found[STEP.name].metric[0].histogram
    assert (histogram.schema, histogram.sample_count, histogram.zero_count, histogram.sample_sum) == (5, 8, 1, 9.75)
    # By the format: a span's offset is from the end of the one before, a delta from the count before.
    assert [(span.offset, span.length) for span in histogram.positive_span] == [(-3, 2), (41, 1)]
    assert list(histogram.positive_delta) == [2, -1, 3]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text"),
        ("*/*", "text"),
        ("text/html", "text"),
        ("text/plain;version=0.0.4", "text"),
        ("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "openmetrics"),
        # Prometheus 2.42 and 3 with native histograms.
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
         "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "protobuf"),
        ("application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=text, text/plain;q=0.1",
         "text"),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", "text"),
        ("application/openmetrics-text;q=high", "text"),
        (";;;,,=", "text"),
    ],
)  # fmt: skip
def test_the_client_says_which_form(accept: str, form: str) -> None:
    assert negotiated(accept) == form


def test_a_page_is_compressed_where_that_is_taken() -> None:
    told: dict[str, str] = {}
    app = application(lambda: _families(True))
    start = lambda status, headers: told.update(dict(headers))  # noqa: E731
    plain = b"".join(app({}, start))
    assert int(told["Content-Length"]) == len(plain)
    packed = b"".join(app({"HTTP_ACCEPT_ENCODING": "gzip"}, start))
    assert (told["Content-Encoding"], int(told["Content-Length"])) == ("gzip", len(packed))
    assert gzip.decompress(packed) == plain
    assert app({"PATH_INFO": "/-/ready"}, start) == []
    assert told["Content-Length"] == "0"


def test_scrapes_at_once_and_members_that_come_meanwhile_change_no_label() -> None:
    members = Members(BUSY.labels, ("a", "other", "other", "other"), 10**6)
    rows = [("a", f"h{i}", "d", "x") for i in range(3000)]
    pages: list[bytes] = []

    def scrape(upto: int) -> None:
        places = np.arange(1, upto + 1)
        pages.append(b"".join(page([Family(BUSY, columns=(Column(members, places, places.astype(float)),))], "text")))

    threads = [threading.Thread(target=scrape, args=(upto,)) for upto in (1000, 2000, 3000, 3000)]
    for number, row in enumerate(rows):  # as a scrape does, under the exporter's lock
        members.place(row)
        if number in (1000, 2000):
            threads.pop(0).start()
    for thread in threads:
        thread.start()
    while len(pages) < 4:
        time.sleep(0.01)
    for one in pages:
        (family,) = parse_text(one.decode())
        assert all(sample.labels["host"] == f"h{int(sample.value) - 1}" for sample in family.samples)


@pytest.mark.property
@pytest.mark.parametrize("schema", [5, 3, 0])
def test_a_native_bucket_holds_the_durations_between_its_bounds_times_the_skew(schema: int) -> None:
    """Bounds of the lake's buckets by its definition, 2^(i/32) ns, in floating point with room for its rounding."""
    index = np.arange(-1, 53 * 32)
    bucket = native_bucket(index, schema)
    low_s, high_s = 2.0 ** (index / 32) * 1e-9, 2.0 ** ((index + 1) / 32) * 1e-9
    # The specification's: bucket k reaches up to 2^(k / 2^schema).
    bounds = 2.0 ** (np.stack([bucket - 1, bucket], axis=1) / (1 << schema)) * SKEW
    assert np.all(low_s >= bounds[:, 0] * (1 - 1e-12))
    assert np.all(high_s <= bounds[:, 1] * (1 + 1e-12))
    assert pytest.approx(1.00619, abs=1e-5) == SKEW


@pytest.mark.unit
def test_label_sets_beyond_the_budget_are_folded_and_not_remembered() -> None:
    members = Members(("host",), ("other",), 2)
    for _ in range(2):
        assert [members.place((f"h{number}",)) for number in range(1000)] == [1, 2] + [0] * 998
    assert len(members._places) == len(members.rows) == 3
