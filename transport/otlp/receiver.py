"""One OTLP receiver, through OpenTelemetry's exporter: it encodes, compresses, and tries again what may be tried again.

What it does not tell its caller is read off the answers here: how many points were rejected, how long to stay away.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests as http
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource

from fleetscope.schema import secrets
from fleetscope.schema.config import OtlpConfig
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.transport.families import Family
from fleetscope.transport.otlp.points import Starts, requests

ANSWER_BYTES = 64 << 10
"""Read of an answer; a receiver that sends more is not listened to."""
LONGEST_HOLD_S = 3600.0
"""A Retry-After beyond it is somebody's mistake."""

# It says each attempt of each push, an outage long.
logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class Answer:
    """`outcome`: one of push.OUTCOMES, of all points but `rejected`."""

    outcome: str
    rejected: int = 0
    reason: str = ""


class _Session(http.Session):
    """Keeps the last answer of a request, and reads no more of it than is of use."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self.status = 0
        self.body = b""
        self.held_s = 0.0
        self.error = ""
        self._timeout_s = timeout_s

    def request(self, *args: Any, **more: Any) -> http.Response:
        self.status, self.body, self.held_s = 0, b"", 0.0
        end_s = time.monotonic() + self._timeout_s
        try:
            with super().request(*args, **{**more, "stream": True}) as response:
                # read1 returns what one receive gave: who sends a byte now and then is not waited for.
                while len(self.body) < ANSWER_BYTES and time.monotonic() < end_s:
                    piece = response.raw.read1(4096, decode_content=True)
                    if not piece:
                        break
                    self.body += piece
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            raise
        self.held_s = _seconds(response.headers.get("Retry-After", ""))
        self.status = response.status_code
        return response


class Receiver:
    """Where metrics go. Not for two threads at once."""

    def __init__(self, config: OtlpConfig, about: Mapping[str, str]) -> None:
        self._config = config
        parts = urlsplit(config.endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise ConfigInvalid(
                "otlp.endpoint is no http(s)://host:port/path without credentials (otlp.headers has those)"
            )
        files = (config.certificate_file, config.client_certificate_file, config.client_key_file)
        for path in files:
            if path is not None and not path.is_file():
                raise ConfigInvalid(f"otlp: no file {path}")
        self._session = _Session(config.timeout_s)
        self._session.headers.update(self._headers())
        self._resource = Resource.create({**about, **config.attributes})
        self._starts = Starts()
        self._held_until_s = 0.0
        certificate, client, key = (str(path) if path is not None else None for path in files)
        self._exporter = OTLPMetricExporter(
            endpoint=config.endpoint,
            certificate_file=certificate,
            client_certificate_file=client,
            client_key_file=key,
            timeout=config.timeout_s,
            compression=Compression.Gzip,
            session=self._session,
        )

    def requests(self, families: Iterable[Family]) -> Iterator[tuple[int, MetricsData]]:
        """(points, request) of all series as they are now."""
        return requests(families, self._starts, time.time_ns(), self._resource)

    def send(self, request: MetricsData) -> Answer:
        """At most `otlp.timeout_s`, repeats included; at once where it was told to stay away."""
        if time.monotonic() < self._held_until_s:
            return Answer("throttled", reason="it asked to be left alone (Retry-After)")
        try:
            self._session.headers.update(self._headers())
        except ConfigInvalid as error:
            return Answer("refused", reason=str(error))
        self._session.status, self._session.error = 0, "no answer in time"
        self._exporter.export(request)
        status = self._session.status
        if self._session.held_s and status in (429, 503):
            self._held_until_s = time.monotonic() + min(self._session.held_s, LONGEST_HOLD_S)
        if 200 <= status < 300:
            return _partial(self._session.body)
        outcome = {429: "throttled", 0: "unreachable"}.get(status, "unavailable" if status >= 500 else "refused")
        return Answer(outcome, reason=f"HTTP {status}" if status else self._session.error)

    def close(self) -> None:
        """Ends the wait between two attempts."""
        self._exporter.shutdown()

    def _headers(self) -> dict[str, str]:
        """Read anew for each push: a token that is renewed is renewed in its file."""
        found = {name: value.get_secret_value() for name, value in self._config.headers.items()}
        if self._config.headers_file is not None:
            found |= (told := _from_file(self._config.headers_file))
            secrets.remember(told.values())
        for name, value in found.items():
            if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum() or not value.isprintable():
                raise ConfigInvalid(f"otlp: header {name[:40]!r} cannot be sent")
        return found


def _from_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"otlp.headers_file {path}: {error}") from error
    found = {}
    for number, line in enumerate(lines, 1):
        name, colon, value = line.partition(":")
        if line.strip() and not colon:
            raise ConfigInvalid(f"otlp.headers_file {path}, line {number}: not `name: value`")
        if line.strip():
            found[name.strip()] = value.strip()
    return found


def _partial(body: bytes) -> Answer:
    try:
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return Answer("accepted")
    return Answer("accepted", max(0, partial.rejected_data_points), partial.error_message)


def _seconds(retry_after: str) -> float:
    """Of a Retry-After header, a number of seconds or a date; 0 for none."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0
