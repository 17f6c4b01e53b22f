"""The Kafka implementation of `transport.log.Log`."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Self

from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import ConfigResource
from kafka.structs import OffsetAndMetadata

from fleetscope.transport.errors import (
    AccessDenied,
    Backpressure,
    LogClosed,
    LoginRefused,
    MessageTooLarge,
    NotATombstoneTopic,
    Retryable,
    TopicConflict,
    TopicRecreated,
    UnknownTopic,
)
from fleetscope.transport.kafka.consume import RangeReader, check_range
from fleetscope.transport.kafka.faults import translate, translated
from fleetscope.transport.kafka.preflight import connect_admin, who
from fleetscope.transport.kafka.produce import Delivery, Producer
from fleetscope.transport.kafka.settings import Cluster, KafkaSettings, cluster_of
from fleetscope.transport.kafka.tail import KafkaTail
from fleetscope.transport.log import MAX_MESSAGE_BYTES, Headers, Message, TopicInfo, TopicSpec
from fleetscope.transport.names import check_name
from fleetscope.transport.partition import partition_of
from fleetscope.transport.settings import Setting

_FRAMING_BYTES = 1024
_CLOSE_S = 5.0
# Also what the first question about a group may take: it makes the cluster's topic of offsets.
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class _Known:
    """What `append` must know of a topic."""

    partitions: int
    compacted: bool
    max_message_bytes: int


class KafkaLog:
    """See `transport.log.Log`. `end_offsets` are of what all in-sync replicas have."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mutex = Lock()
        self._admin: Any = connect_admin(cluster)
        self._producer = Producer(cluster)
        self._reader = RangeReader(cluster)
        self._known: dict[str, _Known] = {}
        self._counts: Counter[str] = Counter()
        self._closed = False

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        missing = {}
        for spec in specs:
            existing = self._describe(spec.name)
            if existing is None:
                missing[spec.name] = spec
            elif len(existing["partitions"]) != spec.partitions:
                raise TopicConflict(
                    f"{spec.name} exists with {len(existing['partitions'])} partitions, asked for {spec.partitions}"
                )
        if not missing:
            return
        replicas = self._cluster.settings.replication_factor
        wanted = {
            name: {"num_partitions": spec.partitions, "replication_factor": replicas, "configs": configs_of(spec)}
            for name, spec in missing.items()
        }
        with translated("create topics"):
            try:
                self.admin.create_topics(wanted)
            except kafka_errors.TopicAlreadyExistsError:
                # Somebody else was faster; what they made is checked as any existing topic.
                self.create_topics(specs)
            self.admin.wait_for_topics(list(missing))

    def delete_topics(self, names: Sequence[str]) -> None:
        present = [name for name in names if self._describe(name) is not None]
        if not present:
            return
        with translated("delete topics"):
            self.admin.delete_topics(present)
        deadline = time.monotonic() + self._cluster.settings.request_timeout_s
        while any(self._describe(name) is not None for name in present) and time.monotonic() < deadline:
            time.sleep(0.05)

    def topics(self) -> tuple[str, ...]:
        described = self._ask("list topics", lambda admin: admin.describe_topics())
        return tuple(sorted(entry["name"] for entry in described if not entry["is_internal"]))

    def topic(self, name: str) -> TopicInfo:
        entry = self._describe(name)
        if entry is None:
            self._known.pop(name, None)
            raise UnknownTopic(f"no topic {name} at {self._cluster}")
        known = self._known.get(name)
        if known is not None and known.partitions != len(entry["partitions"]):
            self._known.pop(name, None)
        return TopicInfo(name, str(uuid.UUID(str(entry["topic_id"]))), len(entry["partitions"]))

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        known = self._known.get(topic) or self._learn(topic)
        size_bytes = len(key) + len(value or b"") + sum(len(name) + len(item) for name, item in headers)
        # Asked before, not after: a message the broker refuses for its size takes all that are under way with it.
        if size_bytes + _FRAMING_BYTES > known.max_message_bytes:
            raise MessageTooLarge(f"{topic}: a message of {size_bytes} bytes, the limit is {known.max_message_bytes}")
        partitions = known.partitions
        if partition is None:
            partition = partition_of(key, partitions)
        elif not 0 <= partition < partitions:
            raise UnknownTopic(f"{topic} has {partitions} partitions, no partition {partition}")
        if value is None and not known.compacted:
            raise NotATombstoneTopic(f"{topic} is not compacted")
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        try:
            delivery = self._producer.append(topic, partition, key, value, headers, timestamp_ms)
        except Backpressure:
            self._counts["backpressure"] += 1
            raise
        self._counts["appended"] += 1
        self._counts["appended_bytes"] += size_bytes
        return delivery

    def flush(self, timeout_s: float = 30.0) -> None:
        self._producer.flush(timeout_s)

    def start_offsets(self, topic: str) -> dict[int, int]:
        return self._reader.offsets(topic, range(self.topic(topic).partitions))[0]

    def end_offsets(self, topic: str) -> dict[int, int]:
        return self._reader.offsets(topic, range(self.topic(topic).partitions))[1]

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        max_bytes: int | None = None,
        topic_id: str | None = None,
    ) -> Iterator[Message]:
        info = self.topic(topic)
        if topic_id is not None and topic_id != info.topic_id:
            raise TopicRecreated(f"{topic}: id {topic_id} was asked for, it now has {info.topic_id}")
        if not 0 <= partition < info.partitions:
            raise UnknownTopic(f"{topic} has {info.partitions} partitions, no partition {partition}")
        starts, ends = self._reader.offsets(topic, [partition])
        check_range(f"{topic}/{partition}", start, end, starts[partition], ends[partition])
        left_bytes = max_bytes
        for message in self._reader.read(topic, info.topic_id, partition, start, end):
            yield message
            if left_bytes is not None:
                left_bytes -= len(message.value)
                if left_bytes <= 0:
                    return

    def read_compacted(self, topic: str) -> dict[bytes, bytes]:
        newest: dict[bytes, bytes] = {}
        starts, ends = self._reader.offsets(topic, range(self.topic(topic).partitions))
        for partition, end in ends.items():
            for message in self.read(topic, partition, starts[partition], end):
                if message.tombstone:
                    newest.pop(message.key, None)
                elif message.unreadable is None:
                    newest[message.key] = message.value
        return newest

    def tail(self, topic: str, start: Mapping[int, int] | None = None) -> KafkaTail:
        starts, ends = self._reader.offsets(topic, range(self.topic(topic).partitions))
        return KafkaTail(self._cluster, topic, start or {}, starts, ends)

    def commit_advisory(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        wanted = {TopicPartition(topic, part): OffsetAndMetadata(at, "", None) for part, at in offsets.items()}

        def commit(admin: Any) -> None:
            """Raises what is said of a partition: that the group's coordinator is still loading is asked again."""
            for kind in admin.alter_group_offsets(group, wanted).values():
                if kind is not kafka_errors.NoError:
                    raise kind()

        self._ask(f"commit of {check_name(group)} for {topic}", commit)

    def committed_advisory(self, group: str, topic: str) -> dict[int, int]:
        found = self._ask(f"group {check_name(group)}", lambda admin: admin.list_group_offsets({group: None})).get(
            group, {}
        )
        return {part.partition: at.offset for part, at in found.items() if part.topic == topic and at.offset >= 0}

    def counters(self) -> dict[str, int]:
        own = {
            "delivered": self._producer.delivered,
            "failed": self._producer.failed,
            "unreadable": self._reader.unreadable,
        }
        return {**self._counts, **{name: count for name, count in own.items() if count}}

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._producer.close(_CLOSE_S)
        self._reader.close()
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def settings(self) -> KafkaSettings:
        """As the log was opened with."""
        return self._cluster.settings

    @property
    def admin(self) -> Any:
        """kafka-python's KafkaAdminClient, for what no other log has: rights, configuration."""
        if self._closed:
            raise LogClosed(f"{self._cluster} was closed")
        return self._admin

    def _ask(self, what: str, request: Callable[[Any], Any]) -> Any:
        """The admin client answers "node not ready" at once, for a second after each failed connection. One whose
        login is refused is replaced, once: the password may have been changed, and is read anew."""
        deadline = time.monotonic() + _PATIENCE_S
        replaced = False
        while True:
            try:
                with translated(what):
                    return request(self.admin)
            except LoginRefused:
                if replaced:
                    raise
                self._replace_admin()
                replaced = True
            except Retryable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _replace_admin(self) -> None:
        fresh = connect_admin(self._cluster)
        with self._mutex:
            if not self._closed:
                fresh, self._admin = self._admin, fresh
        fresh.close()

    def _describe(self, name: str) -> dict[str, Any] | None:
        (entry,) = self._ask(check_name(name), lambda admin: admin.describe_topics([name]))
        kind = kafka_errors.for_code(entry["error_code"])
        if kind is kafka_errors.UnknownTopicOrPartitionError:
            return None
        if kind is not kafka_errors.NoError:
            raise translate(kind(), name)
        found: dict[str, Any] = entry
        return found

    def _learn(self, topic: str) -> _Known:
        """Asked once per topic and process: all of it is fixed when a topic is made, or changed by hand and rarely."""
        partitions = self.topic(topic).partitions
        resource = ConfigResource("topic", topic, {"cleanup.policy": None, "max.message.bytes": None})
        answer = self._ask(topic, lambda admin: admin.describe_configs([resource], config_filter="all"))
        found = answer["topic"][topic]
        if not found:  # kafka-python 3.0.12 drops the error of the answer
            raise AccessDenied(f"{topic}: {who(self._cluster)} may not DESCRIBE_CONFIGS it, as a writer must")
        self._producer.prepare(topic)
        limit_bytes = int(found["max.message.bytes"]["value"])
        compacted = "compact" in found["cleanup.policy"]["value"]
        known = self._known[topic] = _Known(partitions, compacted, min(limit_bytes, MAX_MESSAGE_BYTES))
        return known


def configs_of(spec: TopicSpec) -> dict[str, str]:
    """Kafka's topic configuration for `spec`."""
    configs = {"max.message.bytes": str(spec.max_message_bytes)}
    if spec.compacted:
        # Kafka compacts closed segments only, and its default segment is 1 GiB or a week: a reader that starts anew
        # would read all of it.
        return {**configs, "cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
    return {
        **configs,
        "cleanup.policy": "delete",
        "retention.ms": str(-1 if spec.retention_ms is None else spec.retention_ms),
        "retention.bytes": str(-1 if spec.retention_bytes is None else spec.retention_bytes),
    }


def open_kafka(url: str, settings: Mapping[str, Setting]) -> KafkaLog:
    """`kafka://host:port[,host:port...]`."""
    return KafkaLog(cluster_of(url, settings))
