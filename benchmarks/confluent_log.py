"""The Kafka log with librdkafka's producer and consumers under it: what `kafka_clients.py` compares with.

Topics, offsets and groups are kafka-python's, as in `KafkaLog`: they cost nothing. Not shipped; 0022 says why.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Record

from fleetscope.transport import errors
from fleetscope.transport.kafka.consume import RangeReader, check_range
from fleetscope.transport.kafka.log import KafkaLog
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.log import MAX_MESSAGE_BYTES, Headers, Message

_AT_ONCE = 500
_READ_S = 0.5
_CONSUMER_BYTES = 32 << 20


def _client(cluster: Cluster) -> dict[str, Any]:
    chosen, login = cluster.settings, cluster.login()
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(cluster.servers),
        "client.id": chosen.client_id,
        "security.protocol": chosen.security_protocol,
        "reconnect.backoff.max.ms": 1000,
        "socket.timeout.ms": int(chosen.request_timeout_s * 1000),
        "log_level": 0,
        "error_cb": lambda error: None,
    }
    if login:
        config |= {"sasl.mechanism": login["sasl_mechanism"], "sasl.username": chosen.sasl_user}
        config["sasl.password"] = login["sasl_plain_password"]
    if chosen.ssl_ca_file:
        config["ssl.ca.location"] = chosen.ssl_ca_file
    return config


def _error(error: KafkaError, what: str) -> errors.FleetscopeError:
    text = f"{what}: {error.str()}"
    if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return errors.AccessDenied(text)
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return errors.MessageTooLarge(text)
    if error.code() == KafkaError._AUTHENTICATION:
        return errors.LoginRefused(text)
    return errors.DeliveryUnknown(text)


def _message(record: Record) -> Message:
    headers = tuple((name, value or b"") for name, value in record.headers() or ())
    return Message(
        record.topic(), record.partition(), record.offset(), record.key() or b"", record.value() or b"", headers,
        record.timestamp()[1], record.value() is None,
    )  # fmt: skip


class Delivery:
    """One message on its way; see `transport.log.Pending`."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[tuple[int, int]]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        try:
            return self._future.result(timeout_s)
        except FutureTimeout as error:
            raise errors.DeliveryUnknown(f"not acknowledged after {timeout_s} s") from error


class ConfluentProducer:
    """As `transport.kafka.produce.Producer`."""

    def __init__(self, cluster: Cluster) -> None:
        chosen = cluster.settings
        self._block_s = chosen.append_block_s
        self._producer = Producer(
            {
                **_client(cluster),
                "enable.idempotence": True,
                "linger.ms": chosen.linger_ms,
                "batch.size": chosen.batch_bytes,
                "message.max.bytes": MAX_MESSAGE_BYTES,
                "queue.buffering.max.kbytes": max(1, chosen.buffer_bytes // 1024),
                "delivery.timeout.ms": int(chosen.delivery_timeout_s * 1000),
            }
        )
        self._closed, self._room = threading.Event(), threading.Event()
        self._failure: errors.FleetscopeError | None = None
        self.delivered = self.failed = 0
        self._poller = threading.Thread(target=self._poll, name="confluent-poll", daemon=True)
        self._poller.start()

    def append(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> Delivery:
        what = f"{topic}/{partition}"
        future: Future[tuple[int, int]] = Future()

        def told(error: KafkaError | None, record: Record) -> None:
            self._room.set()
            if error is None:
                self.delivered += 1
                future.set_result((record.partition(), record.offset()))
            else:
                self.failed += 1
                failure = _error(error, what)
                self._failure = self._failure or failure
                future.set_exception(failure)

        deadline = time.monotonic() + self._block_s
        while True:
            if self._closed.is_set():
                raise errors.LogClosed("the log was closed")
            try:
                self._producer.produce(
                    topic, value, key, partition, on_delivery=told, timestamp=timestamp_ms, headers=list(headers)
                )
                return Delivery(future)
            except BufferError as error:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise errors.BufferFull(f"{what}: {len(self._producer)} messages wait") from error
                self._room.clear()
                self._room.wait(min(left_s, 0.05))

    def prepare(self, topic: str) -> None:
        try:
            self._producer.list_topics(topic, 5)
        except KafkaException as error:
            raise errors.BrokerUnavailable(f"{topic}: {error.args[0].str()}") from error

    def flush(self, timeout_s: float) -> None:
        if self._producer.flush(timeout_s):
            raise errors.LogTimeout(f"messages still unacknowledged after {timeout_s} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self, timeout_s: float) -> None:
        self._closed.set()
        self._producer.flush(timeout_s)
        self._poller.join()

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(0.1)


class _Followed:
    """A consumer of some partitions of one topic."""

    def __init__(self, cluster: Cluster, topic: str, positions: Mapping[int, int], wait_ms: int) -> None:
        fetch_bytes = cluster.settings.fetch_bytes
        self.topic = topic
        self.next = min(positions.values())
        self.consumer = Consumer(
            {
                **_client(cluster),
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": wait_ms,
                "fetch.max.bytes": max(fetch_bytes, MAX_MESSAGE_BYTES),
                "max.partition.fetch.bytes": fetch_bytes,
                "queued.max.messages.kbytes": _CONSUMER_BYTES // 1024,
            }
        )
        self.seek(positions)

    def seek(self, positions: Mapping[int, int]) -> None:
        self.consumer.assign([TopicPartition(self.topic, part, at) for part, at in positions.items()])

    def take(self, timeout_s: float) -> list[Record]:
        """At once what is there; else the first that comes. Ends of partitions come as records with an error."""
        first = self.consumer.poll(timeout_s)
        return [] if first is None else [first, *self.consumer.consume(_AT_ONCE, 0.0)]


class ConfluentReader:
    """As `transport.kafka.consume.RangeReader`, with a consumer for each partition."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._offsets = RangeReader(cluster)
        self._followed: dict[tuple[str, str, int], tuple[_Followed, deque[Record]]] = {}
        self.unreadable = 0

    def offsets(self, topic: str, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        return self._offsets.offsets(topic, partitions)

    def read(self, topic: str, topic_id: str, partition: int, start: int, end: int) -> Iterator[Message]:
        key = (topic, topic_id, partition)
        if key not in self._followed:
            self._followed[key] = _Followed(self._cluster, topic, {partition: start}, 1), deque()
        followed, waiting = self._followed[key]
        if followed.next != start:
            waiting.clear()
            followed.seek({partition: start})
        position = followed.next = start
        deadline = time.monotonic() + self._cluster.settings.read_timeout_s
        while position < end:
            if not waiting:
                waiting.extend(followed.take(_READ_S))
                if time.monotonic() > deadline:
                    raise errors.LogTimeout(f"{topic}/{partition}: nothing came at offset {position}")
                continue
            record = waiting[0]
            error = record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise _error(error, f"{topic}/{partition}")
            if error is None and record.offset() >= end:
                return
            waiting.popleft()
            deadline = time.monotonic() + self._cluster.settings.read_timeout_s
            if error is None:
                position = followed.next = record.offset() + 1
                yield _message(record)
            else:
                position = followed.next = max(position, record.offset())

    def close(self) -> None:
        for followed, _ in self._followed.values():
            followed.consumer.close()
        self._followed.clear()
        self._offsets.close()


class ConfluentTail:
    """See `transport.log.Tail`."""

    def __init__(
        self, cluster: Cluster, topic: str, start: Mapping[int, int], starts: dict[int, int], ends: dict[int, int]
    ) -> None:
        self._positions = {**starts, **start}
        self._goal = ends
        for partition, position in self._positions.items():
            check_range(f"{topic}/{partition}", position, position, starts[partition], ends[partition])
        self._followed = _Followed(cluster, topic, self._positions, cluster.settings.fetch_wait_ms)

    def poll(self, timeout_s: float = 0.0, max_bytes: int = 16 * 1024 * 1024) -> list[Message]:
        out: list[Message] = []
        taken_bytes = 0
        deadline = time.monotonic() + timeout_s
        while taken_bytes < max_bytes:
            taken = self._followed.take(0.0 if out else max(0.0, deadline - time.monotonic()))
            for record in taken:
                at = record.offset() + (record.error() is None)
                self._positions[record.partition()] = max(self._positions[record.partition()], at)
                if record.error() is None:
                    out.append(_message(record))
                    taken_bytes += len(out[-1].value)
            if not taken and (out or time.monotonic() >= deadline):
                break
        return out

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def caught_up(self) -> bool:
        return all(self._positions[partition] >= goal for partition, goal in self._goal.items())

    def close(self) -> None:
        self._followed.consumer.close()


class ConfluentLog(KafkaLog):
    """See `transport.log.Log`."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._reader.close()
        self._producer: Any = ConfluentProducer(cluster)
        self._reader: Any = ConfluentReader(cluster)

    def tail(self, topic: str, start: Mapping[int, int] | None = None) -> Any:
        starts, ends = self._reader.offsets(topic, range(self.topic(topic).partitions))
        return ConfluentTail(self._cluster, topic, start or {}, starts, ends)
