"""Append to Kafka: idempotent, acknowledged by all replicas, with a bounded buffer."""

from __future__ import annotations

import time
from threading import Condition, Thread
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors

from fleetscope.transport.errors import (
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
    FleetscopeError,
    LogClosed,
    LogTimeout,
)
from fleetscope.transport.kafka.client import connect
from fleetscope.transport.kafka.faults import translate, translate_delivery, translated
from fleetscope.transport.kafka.preflight import reachable
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.log import Headers

# Python objects and batch framing around a message: what small messages cost in memory beside their bytes.
_OVERHEAD_BYTES = 1024
_RETIRE_S = 2.0


class _Client:
    """A KafkaProducer and when each message it has not settled was handed to it, oldest first.

    kafka-python 3.0.12 does not survive its own delivery timeout: when a batch that was sent once expires, the producer
    id is reset and never asked for again; from then on nothing is sent, and nothing expires any more either (seen for
    40 s after a broker that was stopped for 5 s went on). So its timeout is set out of reach, and a client that has
    held a message for `delivery_timeout_s` is retired: forced to fail what it has, and replaced.
    """

    __slots__ = ("handed_over_s", "next_ticket", "producer")

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.handed_over_s: dict[int, float] = {}
        self.next_ticket = 0

    def ticket(self) -> int:
        self.next_ticket += 1
        self.handed_over_s[self.next_ticket] = time.monotonic()
        return self.next_ticket

    def usable(self, patience_s: float) -> bool:
        # One refused message ends an idempotent producer of kafka-python: it fails all that follow with the same error
        # (seen with a message over the topic's limit).
        if self.producer._transaction_manager.has_fatal_error():
            return False
        return time.monotonic() - next(iter(self.handed_over_s.values()), time.monotonic()) < patience_s

    def retire(self) -> None:
        """Returns at once; its own thread then fails all messages and ends."""
        self.producer._sender.force_close()
        # Held until then: dropped earlier, its destructor would flush, and wait.
        Thread(target=self._bury, name="fleetscope-kafka-retired", daemon=True).start()

    def _bury(self) -> None:
        self.producer._sender.join()
        self.producer.close(0)


class Delivery:
    """One message on its way; see `transport.log.Pending`."""

    __slots__ = ("_future", "_give_up_s", "_producer", "_what")

    def __init__(self, producer: Producer, future: Any, give_up_s: float, what: str) -> None:
        self._producer = producer
        self._future = future
        self._give_up_s = give_up_s
        self._what = what

    def done(self) -> bool:
        if not self._future.is_done and time.monotonic() > self._give_up_s:
            self._producer.retire_if_stuck()
        return bool(self._future.is_done)

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            try:
                give_up_in_s = max(0.0, self._give_up_s - time.monotonic())
                written = self._future.get(give_up_in_s if timeout_s is None else min(timeout_s, give_up_in_s))
            except kafka_errors.KafkaTimeoutError:
                if self._future.is_done or (until_s is not None and time.monotonic() >= until_s):
                    raise
                self._producer.retire_if_stuck()
                written = self._future.get(_RETIRE_S if until_s is None else max(0.0, until_s - time.monotonic()))
        except Exception as error:
            if not self._future.is_done:
                raise DeliveryUnknown(f"{self._what}: not acknowledged after {timeout_s} s") from error
            raise translate_delivery(error, self._what) from error
        return written.partition, written.offset


class Producer:
    """Thread-safe. Connects on the first append."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._changed = Condition()
        self._client: _Client | None = None
        self._no_client: FleetscopeError | None = None
        self._connector: Thread | None = None
        self._waiting_bytes = 0
        self._closed = False
        self._failure: FleetscopeError | None = None
        self.delivered = 0
        self.failed = 0

    def append(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> Delivery:
        """BufferFull after `append_block_s` without room."""
        size_bytes = len(key) + len(value or b"") + sum(len(n) + len(v) for n, v in headers) + _OVERHEAD_BYTES
        what = f"{topic}/{partition}"
        client, ticket = self._reserve(size_bytes, what)
        try:
            future = client.producer.send(topic, value, key, list(headers), partition, timestamp_ms)
        except Exception as error:
            self._release(client, ticket, size_bytes)
            if isinstance(error, kafka_errors.KafkaTimeoutError):
                raise LogTimeout(f"{what}: no metadata of the topic in time") from error
            if isinstance(error, kafka_errors.IllegalStateError):
                raise (LogClosed if self._closed else LogTimeout)(f"{what}: {error}") from error
            if isinstance(error, kafka_errors.KafkaError):
                raise translate(error, what) from error
            raise
        give_up_s = time.monotonic() + self._cluster.settings.delivery_timeout_s
        future.add_callback(lambda _: self._settle(client, ticket, size_bytes, None))
        future.add_errback(lambda error: self._settle(client, ticket, size_bytes, translate_delivery(error, what)))
        return Delivery(self, future, give_up_s, what)

    def prepare(self, topic: str) -> None:
        """Learn who leads the topic, so that `append` does not wait for it. BrokerUnavailable if nobody says."""
        deadline = time.monotonic() + self._cluster.settings.connect_timeout_s
        with self._changed:
            client = self._usable_client(deadline)
        while True:
            try:
                with translated(topic):
                    client.producer.partitions_for(topic)
                return
            except LogTimeout as error:
                if time.monotonic() > deadline:
                    raise BrokerUnavailable(f"{self._cluster}: no metadata of {topic}") from error

    def flush(self, timeout_s: float) -> None:
        """LogTimeout if something is still on its way; else the first failure since the last flush, if any."""
        with self._changed:
            client = self._client
        if client is not None:
            patience_s = self._cluster.settings.delivery_timeout_s
            try:
                client.producer.flush(min(timeout_s, patience_s))
            except kafka_errors.KafkaTimeoutError:
                if timeout_s < patience_s:
                    raise LogTimeout(f"{self._cluster}: messages still unacknowledged after {timeout_s} s") from None
                self.retire_if_stuck()
                client.producer._sender.join(_RETIRE_S)
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def retire_if_stuck(self) -> None:
        with self._changed:
            client = self._client
            if client is not None and not client.usable(self._cluster.settings.delivery_timeout_s):
                self._client = None
                client.retire()

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._closed = True
            client, self._client = self._client, None
            self._changed.notify_all()
        if client is None:
            return
        try:
            client.producer.close(timeout_s)
        except kafka_errors.KafkaTimeoutError:
            # It flushes first, and a flush that times out leaves the sender thread running for ever.
            client.retire()

    def _reserve(self, size_bytes: int, what: str) -> tuple[_Client, int]:
        settings = self._cluster.settings
        deadline = time.monotonic() + settings.append_block_s
        with self._changed:
            client = self._usable_client(deadline)
            while self._waiting_bytes > 0 and self._waiting_bytes + size_bytes > settings.buffer_bytes:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise BufferFull(
                        f"{what}: {self._waiting_bytes} of {settings.buffer_bytes} bytes wait for {self._cluster}"
                    )
                client = self._usable_client(deadline)
            self._waiting_bytes += size_bytes
            return client, client.ticket()

    def _usable_client(self, deadline: float) -> _Client:
        """Called with the lock held; gives it up while it waits. Why there is no client, if there is none in time."""
        while True:
            if self._closed:
                raise LogClosed(f"{self._cluster} was closed")
            if self._client is not None and not self._client.usable(self._cluster.settings.delivery_timeout_s):
                self._client.retire()
                self._client = None
            if self._client is not None:
                return self._client
            if self._connector is None:
                # In a thread, because bootstrapping takes as long as the broker is away, which `append` must not.
                self._connector = Thread(target=self._connect, name="fleetscope-kafka-connect", daemon=True)
                self._connector.start()
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not self._changed.wait(left_s):
                raise BrokerUnavailable(f"{self._cluster}: no connection yet")
            if self._client is None and self._connector is None and self._no_client is not None:
                raise self._no_client

    def _connect(self) -> None:
        client, failure = None, None
        try:
            reachable(self._cluster)
            with translated(str(self._cluster)):
                client = _Client(connect(KafkaProducer, self._cluster.producer()))
        except FleetscopeError as error:
            failure = error
        with self._changed:
            if self._closed and client is not None:
                client.retire()
                client = None
            self._client, self._no_client, self._connector = client, failure, None
            self._changed.notify_all()

    def _release(self, client: _Client, ticket: int, size_bytes: int) -> None:
        with self._changed:
            del client.handed_over_s[ticket]
            self._waiting_bytes -= size_bytes
            self._changed.notify_all()

    def _settle(self, client: _Client, ticket: int, size_bytes: int, failure: FleetscopeError | None) -> None:
        with self._changed:
            del client.handed_over_s[ticket]
            self._waiting_bytes -= size_bytes
            if failure is None:
                self.delivered += 1
            else:
                self.failed += 1
                self._failure = self._failure or failure
            self._changed.notify_all()
