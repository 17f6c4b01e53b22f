"""The exporter role: tails fleetscope.metrics, serves /metrics. Stateless: a restart reads the topic again."""

import logging
import socket
import threading
import time

from google.protobuf.message import DecodeError

from fleetscope.schema.config import Config
from fleetscope.schema.errors import AddressInUse, ConfigInvalid, FleetscopeError, Retryable
from fleetscope.schema.metrics import metric
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.prometheus.shard import Shard
from fleetscope.sinks.prometheus.state import FleetState
from fleetscope.transport import Log, Message, Tail, Topics, open_log
from fleetscope.transport.errors import LoginRefused
from fleetscope.transport.exposition import application
from fleetscope.transport.families import Family, Labels
from fleetscope.transport.otlp import pusher
from fleetscope.transport.rights import Role, of_role
from fleetscope.transport.scrape import ScrapeServer

log = logging.getLogger(__name__)

POLL_S = 0.25
"""How long a poll waits for a record: the exporter's share of the 5 s from event to /metrics."""

ENDS_S = 5.0
"""Between two looks at the log's end. Beyond three of them without an answer it is not known."""

AHEAD_NS = 3_600_000_000_000
"""Clocks of workers and exporters differ by seconds; an hour is no clock any more."""


class Exporter:
    """Serves /metrics on `config.exporter.address` until `stop` is set. `port` is known once `start` returned."""

    def __init__(self, config: Config, log_: Log | None = None) -> None:
        self._config = config
        self._log = log_ or open_log(config.log_url)
        self._lock = threading.Lock()
        section = config.exporter
        self._state = FleetState(
            int(section.stale_s * 1e9), int(section.linger_s * 1e9), section.series_per_run, Shard.parse(section.shard)
        )
        self._records = self._unreadable = 0
        self._ends: tuple[float, dict[int, int]] | None = None
        """When the log's end was read (monotonic seconds), and where it was, by partition."""
        self._pusher = pusher(
            config.otlp,
            "fleetscope-exporter",
            f"{socket.gethostname()}:{section.address.rpartition(':')[2]}",
            self.families,
            cluster=config.cluster,
        )
        self._server: ScrapeServer | None = None
        self._looked_s = float("-inf")
        self.port = 0

    @property
    def address(self) -> str:
        """http://host:port/metrics"""
        return f"http://{self._config.exporter.address.rpartition(':')[0]}:{self.port}/metrics"

    def start(self) -> None:
        """Open the port. Raises ConfigInvalid for a malformed address, AddressInUse when another process holds it."""
        host, _, port = self._config.exporter.address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigInvalid(f"exporter.address {self._config.exporter.address!r} is not host:port")
        try:
            self._server = ScrapeServer(host, int(port), application(self.families))
        except OverflowError as error:
            raise ConfigInvalid(f"exporter.address {self._config.exporter.address!r}: {error}") from error
        except OSError as error:
            raise AddressInUse(f"exporter.address {host}:{port}: {error}") from error
        self.port = self._server.port
        if self._pusher is not None:
            self._pusher.start()

    def families(self) -> list[Family]:
        """All series as they stand now."""
        with self._lock:
            known = self._ends is not None and time.monotonic() - self._ends[0] < 3 * ENDS_S
            found = list(self._state.families(time.time_ns(), self._ends[1] if self._ends and known else None))
            for name, count in (("records", self._records), ("unreadable", self._unreadable)):
                found.append(Family(metric(f"fleetscope_exporter_{name}_total"), {(): float(count)}))
        shard = self._state.shard
        found.append(Family(metric("fleetscope_exporter_shards"), {(str(shard),): float(shard.count)}))
        if self._pusher is not None:
            points: dict[Labels, float] = {(outcome,): float(count) for outcome, count in self._pusher.points.items()}
            found.append(Family(metric("fleetscope_exporter_otlp_points_total"), points))
            found.append(Family(metric("fleetscope_exporter_otlp_failing_seconds"), {(): self._pusher.failing_s}))
        return found

    def run(self, stop: threading.Event) -> None:
        """Tail the topic until `stop`; a broker that is away leaves the last values standing."""
        if self._server is None:
            self.start()
        topics = Topics(self._config.log.topic_prefix)
        self._log.create_topics(of_role(Role.EXPORTER, topics, topics.specs(self._config.log.partitions)))
        tail: Tail | None = None
        try:
            while not stop.is_set():
                try:
                    tail = tail or self._log.tail(topics.metrics)
                    self.poll(tail)
                    self.look_at_end(topics.telemetry)
                except (Retryable, LoginRefused) as error:
                    log.warning("metrics topic unreadable, trying again: %s", error)
                    if tail is not None and isinstance(error, LoginRefused):
                        tail.close()
                        tail = None  # the next one reads the password anew
                    stop.wait(1.0)
        finally:
            if tail is not None:
                tail.close()
            self.close()

    def poll(self, tail: Tail, timeout_s: float = POLL_S) -> int:
        """Take what is new; the number of records taken. What is no record is counted, never fatal."""
        messages = tail.poll(timeout_s)
        now_ns = time.time_ns()
        with self._lock:
            for message in messages:
                if message.tombstone:
                    continue
                record = _record(message, now_ns)
                if record is None:
                    self._unreadable += 1
                    log.warning("no metrics record at %s[%d]@%d", message.topic, message.partition, message.offset)
                    continue
                self._state.take(record, now_ns)
                self._records += 1
        return len(messages)

    def look_at_end(self, topic: str) -> None:
        """Where the log ends now, every few seconds: a worker that stands still cannot say how much it has to read."""
        now_s = time.monotonic()
        if now_s - self._looked_s < ENDS_S:
            return
        first, self._looked_s = self._looked_s == float("-inf"), now_s
        try:
            ends = self._log.end_offsets(topic)
        except FleetscopeError as error:
            # Rights to look there, or the topic, may be wanting: that costs one series.
            log.log(logging.WARNING if first else logging.DEBUG, "backlogs are not known: %s", error)
            return
        with self._lock:
            self._ends = (now_s, ends)

    def close(self) -> None:
        """Close the port and stop to push."""
        if self._pusher is not None:
            self._pusher.stop()
        if self._server is not None:
            self._server.stop()
            self._server = None


def _record(message: Message, now_ns: int) -> MetricsRecord | None:
    """None for what is no record, and for one from a time to come: it would stand before all true ones of its run."""
    if message.unreadable is not None:
        return None
    try:
        record = MetricsRecord.FromString(message.value)
    except DecodeError:
        return None
    return record if max(record.now_ns, record.event_ns) <= now_ns + AHEAD_NS else None
