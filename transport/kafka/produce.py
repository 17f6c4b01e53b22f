"""Append to Kafka: idempotent, acknowledged by all replicas, with a bounded buffer."""

from __future__ import annotations

import time
from threading import Condition
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors

from fleetscope.transport.errors import BufferFull, DeliveryUnknown, FleetscopeError, LogClosed, LogTimeout
from fleetscope.transport.kafka.faults import translate, translate_delivery, translated
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.log import Headers

# Python objects and batch framing around a message: what small messages cost in memory beside their bytes.
_OVERHEAD_BYTES = 1024


class Delivery:
    """One message on its way; see `transport.log.Pending`."""

    __slots__ = ("_future", "_what")

    def __init__(self, future: Any, what: str) -> None:
        self._future = future
        self._what = what

    def done(self) -> bool:
        return bool(self._future.is_done)

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        try:
            written = self._future.get(timeout_s)
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
        self._client: Any = None
        self._waiting_bytes = 0
        self._closed = False
        self._failure: FleetscopeError | None = None
        self.delivered = 0
        self.failed = 0

    def append(
        self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> Delivery:
        """BufferFull after `append_block_s` without room, also for a message larger than the whole buffer."""
        size_bytes = len(key) + len(value or b"") + sum(len(n) + len(v) for n, v in headers) + _OVERHEAD_BYTES
        what = f"{topic}/{partition}"
        client = self._reserve(size_bytes, what)
        try:
            future = client.send(topic, value, key, list(headers), partition, timestamp_ms)
        except Exception as error:
            self._release(size_bytes)
            if isinstance(error, kafka_errors.KafkaTimeoutError):
                raise LogTimeout(f"{what}: no metadata of the topic in time") from error
            if isinstance(error, kafka_errors.IllegalStateError):
                raise LogClosed(str(error)) from error
            if isinstance(error, kafka_errors.KafkaError):
                raise translate(error, what) from error
            raise
        future.add_callback(lambda _: self._settle(size_bytes, None))
        future.add_errback(lambda error: self._settle(size_bytes, translate_delivery(error, what)))
        return Delivery(future, what)

    def flush(self, timeout_s: float) -> None:
        """LogTimeout if something is still on its way; else the first failure since the last flush, if any."""
        if self._client is not None:
            try:
                with translated(str(self._cluster)):
                    self._client.flush(timeout_s)
            except LogTimeout:
                raise LogTimeout(f"{self._cluster}: messages still unacknowledged after {timeout_s} s") from None
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def close(self, timeout_s: float) -> None:
        with self._changed:
            self._closed = True
            client, self._client = self._client, None
            self._changed.notify_all()
        if client is None:
            return
        try:
            client.close(timeout_s)
        except kafka_errors.KafkaTimeoutError:
            # close() flushes first, and a flush that times out leaves the sender thread running for ever.
            client.close(0)

    def _reserve(self, size_bytes: int, what: str) -> Any:
        settings = self._cluster.settings
        deadline = time.monotonic() + settings.append_block_s
        with self._changed:
            while not self._closed and self._waiting_bytes + size_bytes > settings.buffer_bytes:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise BufferFull(
                        f"{what}: {self._waiting_bytes} of {settings.buffer_bytes} bytes wait for {self._cluster}"
                    )
            if self._closed:
                raise LogClosed(f"{self._cluster} was closed")
            if self._client is not None and self._client._transaction_manager.has_fatal_error():
                # One refused message ends an idempotent producer of kafka-python: it fails all that follow with the
                # same error (seen with a message over the topic's limit). What it had is failed already; begin anew.
                self._client.close(0)
                self._client = None
            if self._client is None:
                with translated(str(self._cluster)):
                    self._client = KafkaProducer(**self._cluster.producer())
            self._waiting_bytes += size_bytes
            return self._client

    def _release(self, size_bytes: int) -> None:
        with self._changed:
            self._waiting_bytes -= size_bytes
            self._changed.notify_all()

    def _settle(self, size_bytes: int, failure: FleetscopeError | None) -> None:
        with self._changed:
            self._waiting_bytes -= size_bytes
            if failure is None:
                self.delivered += 1
            else:
                self.failed += 1
                self._failure = self._failure or failure
            self._changed.notify_all()
