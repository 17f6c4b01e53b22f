"""What is pushed by OTLP, and what a receiver can do about it: all answers of a built one, over HTTP."""

import contextlib
import gzip
import http.server
import importlib
import inspect
import logging
import math
import pkgutil
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp
from opentelemetry.sdk.resources import Resource
from pydantic import SecretStr

from fleetscope.schema.config import OtlpConfig
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.metrics import metric, metrics
from fleetscope.schema.otlp import conventions, told
from fleetscope.transport.families import Classic, Durations, Family
from fleetscope.transport.otlp import Pusher, pusher
from fleetscope.transport.otlp.points import POINTS, Starts, requests
from fleetscope.transport.otlp.receiver import Receiver

S = 1_000_000_000
TOKEN = "not-to-be-seen-anywhere"
POWER = metric("fleetscope_chip_power_watts")
BUSY = metric("fleetscope_device_busy_seconds_total")
STEP = metric("fleetscope_run_step_duration_seconds")
CHIP = ("h0", "GPU-1", "H200")

# ---- names


def _convention() -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Of OpenTelemetry's own package: metric -> (instrument, unit), and attributes."""
    sources = []
    for package in ("opentelemetry.semconv._incubating.metrics", "opentelemetry.semconv._incubating.attributes",
                    "opentelemetry.semconv.attributes", "opentelemetry.semconv.metrics"):  # fmt: skip
        path = importlib.import_module(package).__path__
        modules = [importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(path)]
        sources += [inspect.getsource(module) for module in modules]
    text = "\n".join(sources)
    described = re.findall(r'Final = "([\w.]+)"\n"""(.*?)"""', text, re.DOTALL)
    known = {}
    for name, about in described:
        found = re.search(r"Instrument: (\w+)\nUnit: (\S+)", about)
        if found:
            known[name] = (found[1], found[2])
    return known, set(re.findall(r'Final(?:\[\w+\])? = \(?\s*"([\w.]+)"', text))


@pytest.mark.unit
def test_names_kinds_units_and_attributes_are_those_of_the_conventions() -> None:
    known, attributes = _convention()
    kinds = {"counter": "counter", "updown": "updowncounter", "gauge": "gauge"}
    for name, how in conventions().items():
        assert known[how.name] == (kinds[how.kind], how.unit), name
        assert (how.kind == "counter") == (metrics()[name].type == "counter"), name
        for attribute, text in how.attributes:
            assert attribute in attributes or attribute.startswith("fleetscope."), attribute
            assert set(re.findall(r"{(\w+)}", text)) <= set(metrics()[name].labels), name
        series = {label: f"<{label}>" for label in metrics()[name].labels}
        said = " ".join(how.of(series).values())
        assert all(f"<{label}>" in said for label in series if label not in ("host", "sku")), "two series would be one"


# ---- points


def _decoded(families: list[Family], starts: Starts, now_ns: int) -> dict[str, otlp.Metric]:
    from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

    found = {}
    for _, request in requests(families, starts, now_ns, Resource({"host.name": "h0"})):
        for of_resource in encode_metrics(request).resource_metrics:
            for scope in of_resource.scope_metrics:
                found |= {one.name: one for one in scope.metrics}
    return found


@pytest.mark.unit
def test_a_sum_is_cumulative_and_says_since_when_over_a_reset() -> None:
    starts = Starts()
    row = ("a", "h1", "d0", "TPU v6e")
    seen = []
    for second, value in ((10, 5.0), (20, 9.0), (30, 2.0), (40, 3.0)):
        (found,) = _decoded([Family(BUSY, {row: value})], starts, second * S).values()
        assert (found.name, found.unit, found.sum.is_monotonic) == (BUSY.name, "s", True)
        assert found.sum.aggregation_temporality == otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
        (point,) = found.sum.data_points
        assert {one.key: one.value.string_value for one in point.attributes} == dict(zip(BUSY.labels, row, strict=True))
        seen.append((point.start_time_unix_nano // S, point.time_unix_nano // S, point.as_double))
    # It fell between 20 and 30: what it counts now it counts since 20 at the earliest.
    assert seen == [(10, 10, 5.0), (10, 20, 9.0), (20, 30, 2.0), (20, 40, 3.0)]
    _decoded([], starts, 50 * S)
    (back,) = _decoded([Family(BUSY, {row: 9.0})], starts, 60 * S).values()
    assert back.sum.data_points[0].start_time_unix_nano == 60 * S, "a series that was gone is a new one"


@pytest.mark.unit
def test_histograms_keep_their_buckets() -> None:
    steps = Durations(5)
    steps.add([-3, -2, 2], [2, 1, 4], 1, 9.75)
    classic = Classic([0.5, 2.0], [3, 3, 8], 31.5)
    of_tpu = metric("fleetscope_tpu_operation_seconds")
    families = [Family(STEP, histograms={("a",): steps}), Family(of_tpu, classic={("h0", "x", ""): classic})]
    found = _decoded(families, Starts(), 10 * S)
    (point,) = found[STEP.name].exponential_histogram.data_points
    assert (point.scale, point.count, point.zero_count, point.sum) == (5, 8, 1, 9.75)
    # Bucket k of Prometheus ends at base^k, index i of OTLP begins at base^i (both specifications).
    assert (point.positive.offset, list(point.positive.bucket_counts)) == (-4, [2, 1, 0, 0, 0, 4])
    assert not point.HasField("max")
    (other,) = found[of_tpu.name].histogram.data_points
    assert (list(other.explicit_bounds), list(other.bucket_counts), other.count) == ([0.5, 2.0], [3, 0, 5], 8)


@pytest.mark.unit
def test_chips_go_by_the_conventions_and_requests_are_bounded() -> None:
    errors = [Family(metric("fleetscope_chip_ecc_errors_total"), {(*CHIP, "corrected"): 3.0}),
              Family(metric("fleetscope_chip_faults_total"), {(*CHIP, "79"): 1.0})]  # fmt: skip
    found = _decoded([Family(POWER, {CHIP: 700.0}), errors[0]], Starts(), S)
    (point,) = found["hw.power"].gauge.data_points
    assert {one.key: one.value.string_value for one in point.attributes} == {
        "hw.id": "GPU-1", "hw.type": "gpu", "hw.model": "H200",
    }  # fmt: skip
    assert found["hw.errors"].sum.is_monotonic
    many = Family(BUSY, {("a", "h", str(device), "x"): 1.0 for device in range(2 * POINTS + 7)})
    sizes = [size for size, _ in requests([*errors, many], Starts(), S, Resource({}))]
    assert sizes == [POINTS, POINTS, 9]


# ---- receivers

Answer = Callable[["_Handler"], None]


@dataclass
class Fake:
    """A receiver that does what `answer` says; `came`: what it was sent."""

    answer: Answer | None = None
    came: list[ExportMetricsServiceRequest] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    port: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def config(self, **more: object) -> OtlpConfig:
        endpoint = f"http://127.0.0.1:{self.port}/v1/metrics"
        return OtlpConfig.model_validate({"endpoint": endpoint, "interval_s": 1, "timeout_s": 30, **more})


class _Handler(http.server.BaseHTTPRequestHandler):
    fake: Fake

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.fake.came.append(ExportMetricsServiceRequest.FromString(gzip.decompress(body)))
        self.fake.headers.append(dict(self.headers.items()))
        if self.fake.answer is not None:
            self.fake.answer(self)
        else:
            self.say(200, ExportMetricsServiceResponse().SerializeToString())

    def say(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def fake() -> Iterator[Fake]:
    made = Fake()
    handler = type("_Of", (_Handler,), {"fake": made})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # type: ignore[assignment]
    made.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.over.set()
    server.shutdown()
    server.server_close()


def _families() -> list[Family]:
    return [Family(POWER, {CHIP: 700.0}), Family(BUSY, {("a", "h0", "d0", "x"): 1.0})]


def _pusher(config: OtlpConfig) -> Pusher:
    made = pusher(config, "fleetscope-agent", "h0", _families, cluster="prod", host="h0")
    assert made is not None
    return made


def _some(made: Pusher) -> dict[str, int]:
    return {outcome: points for outcome, points in made.points.items() if points}


@pytest.mark.unit
def test_what_arrives_says_whose_it_is_and_carries_the_token(
    fake: Fake, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.pod.name=agent-7,k8s.node.name=n7")
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "headers"
    file.write_text(f"Authorization: Bearer {TOKEN}\n\nX-Scope-OrgID: 7\n")
    config = fake.config(headers_file=file, headers={"x-more": SecretStr(TOKEN)}, attributes={"team": "a"})
    made = _pusher(config)
    made.push()
    file.write_text(f"Authorization: Bearer {TOKEN}2\n")
    made.push()
    assert _some(made) == {"accepted": 4}
    assert [one["Authorization"] for one in fake.headers] == [f"Bearer {TOKEN}", f"Bearer {TOKEN}2"], "a renewed token"
    assert fake.headers[0]["X-Scope-OrgID"] == "7"
    (of_resource,) = fake.came[0].resource_metrics
    said = {one.key: one.value.string_value for one in of_resource.resource.attributes}
    assert said.items() >= {
        "service.name": "fleetscope-agent", "service.instance.id": "h0", "host.name": "h0", "k8s.cluster.name": "prod",
        "k8s.pod.name": "agent-7",
        "k8s.node.name": "n7", "team": "a",
    }.items()  # fmt: skip
    assert TOKEN not in caplog.text + repr(config) + str(made.__dict__)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda h: h.say(400, b"no"), {"refused": 2}),
        (lambda h: h.say(401), {"refused": 2}),
        (lambda h: h.say(307, Location="http://127.0.0.1:9/"), {"refused": 2}),
        (lambda h: h.say(500), {"unavailable": 2}),
        (lambda h: h.say(429, Retry_After="3000"), {"throttled": 2}),
        (lambda h: h.say(503, Retry_After="3000"), {"unavailable": 2}),
        (lambda h: h.connection.shutdown(socket.SHUT_RDWR), {"unreachable": 2}),
        (lambda h: h.say(200, b"\xff\xff no protobuf"), {"accepted": 2}),
    ],
    ids=["400", "401", "redirect", "500", "429", "503", "closed", "odd body"],
)  # fmt: skip
def test_what_did_not_arrive_is_counted_by_why(fake: Fake, answer: Answer, expected: dict[str, int]) -> None:
    fake.answer = answer
    # A connection that was closed is tried again until the time is over.
    made = _pusher(fake.config(timeout_s=1 if "unreachable" in expected else 30))
    made.push()
    assert _some(made) == expected
    assert (made.failing_s > 0) == ("accepted" not in expected)


@pytest.mark.fault
def test_points_that_were_rejected_are_counted(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    said = ExportMetricsServiceResponse()
    said.partial_success.rejected_data_points, said.partial_success.error_message = 1, "too old"
    fake.answer = lambda handler: handler.say(200, said.SerializeToString())
    made = _pusher(fake.config())
    made.push()
    assert _some(made) == {"accepted": 1, "rejected": 1}
    assert "too old" in caplog.text
    fake.answer = None
    made.push()
    assert _some(made) == {"accepted": 3, "rejected": 1}
    assert made.failing_s == 0


@pytest.mark.fault
def test_who_asks_to_be_left_alone_is_and_then_not_any_more(fake: Fake) -> None:
    fake.answer = lambda handler: handler.say(429, Retry_After="3000")
    receiver = Receiver(fake.config(), {})
    made = Pusher(receiver, fake.config(), _families)
    made.push()
    made.push()
    assert (len(fake.came), _some(made)) == (1, {"throttled": 4})
    fake.answer = None
    receiver._held_until_s = time.monotonic() - 1  # 50 minutes later
    made.push()
    assert (len(fake.came), _some(made)) == (2, {"throttled": 4, "accepted": 2})


@pytest.mark.fault
def test_a_503_is_tried_again_within_the_push(fake: Fake) -> None:
    def first_no(handler: _Handler) -> None:
        handler.say(503 if len(fake.came) == 1 else 200, Retry_After="0")

    fake.answer = first_no
    made = _pusher(fake.config())
    made.push()
    assert (len(fake.came), _some(made)) == (2, {"accepted": 2})


def _trickle(handler: _Handler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.fake.over.wait(0.05):
            handler.wfile.write(b"x")


def _endless(handler: _Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        for _ in range(2000):
            handler.wfile.write(b"x" * (1 << 20))


@pytest.mark.fault
@pytest.mark.parametrize(
    ("answer", "outcomes"),
    # Where this machine is slow, half a second is over before the status has come.
    [(lambda h: h.fake.over.wait(60), {"unreachable"}), (_trickle, {"accepted", "unreachable"}),
     (_endless, {"accepted", "unreachable"})],
    ids=["hangs", "trickles", "never ends"],
)  # fmt: skip
def test_a_receiver_that_keeps_us_waiting_is_left(fake: Fake, answer: Answer, outcomes: set[str]) -> None:
    fake.answer = answer
    made = _pusher(fake.config(timeout_s=0.5))
    made.push()
    assert sum(_some(made).values()) == 2
    assert set(_some(made)) <= outcomes


@pytest.mark.fault
def test_the_rest_of_a_push_is_not_sent_to_who_did_not_take_its_begin(fake: Fake) -> None:
    fake.answer = lambda handler: handler.say(500)
    many = Family(BUSY, {("a", "h", str(device), "x"): 1.0 for device in range(3 * POINTS)})
    made = Pusher(Receiver(fake.config(), {}), fake.config(), lambda: [many])
    made.push()
    assert (len(fake.came), _some(made)) == (1, {"unavailable": 3 * POINTS})


@pytest.mark.fault
def test_the_thread_goes_on_over_an_outage_and_stops_within_one(fake: Fake) -> None:
    outage = [True]
    fake.answer = lambda handler: handler.say(500 if outage[0] else 200)
    made = _pusher(fake.config())
    made.start()
    end_s = time.monotonic() + 60
    while not made.points["unavailable"] and time.monotonic() < end_s:
        time.sleep(0.02)
    outage[0] = False
    while not made.points["accepted"] and time.monotonic() < end_s:
        time.sleep(0.02)
    fake.answer = lambda handler: handler.fake.over.wait(60)
    made.stop()
    assert made.points["unavailable"] >= 2
    assert made.points["accepted"] >= 2


@pytest.mark.unit
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"endpoint": "collector:4318"}, "no http"),
        ({"endpoint": f"http://u:{TOKEN}@c:4318/v1/metrics"}, "without credentials"),
        ({"certificate_file": "/nowhere/ca.crt"}, "no file /nowhere"),
        ({"headers_file": "/nowhere/headers"}, "headers_file /nowhere"),
        ({"headers": {"a": f"{TOKEN}\r\nHost: b"}}, "header 'a'"),
        ({"headers": {"a b": "c"}}, "header 'a b'"),
    ],
    ids=["no url", "password", "no certificate", "no headers", "two lines", "no name"],
)
def test_what_cannot_be_is_refused_at_start_without_the_secret(wrong: dict[str, object], reason: str) -> None:
    config = OtlpConfig.model_validate({"endpoint": "http://127.0.0.1:9/v1/metrics", **wrong})
    with pytest.raises(ConfigInvalid, match=reason) as error:
        pusher(config, "fleetscope-agent", "h0", _families)
    assert TOKEN not in str(error.value)


@pytest.mark.unit
def test_a_malformed_line_is_named_by_its_number(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text(f"a: b\n{TOKEN}\n")
    with pytest.raises(ConfigInvalid, match="line 2") as error:
        pusher(OtlpConfig(endpoint="http://c/v1/metrics", headers_file=file), "s", "i", _families)
    assert TOKEN not in str(error.value)


@pytest.mark.unit
def test_nothing_is_pushed_where_nothing_was_asked_for() -> None:
    assert pusher(OtlpConfig(), "s", "i", _families) is None
    assert told(BUSY).name == BUSY.name
    assert math.isclose(OtlpConfig().interval_s, 60)
