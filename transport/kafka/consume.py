"""Read planned ranges of Kafka partitions with one consumer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka import errors as kafka_errors

from fleetscope.transport.errors import LogClosed, LoginRefused, LogTimeout, OffsetOutOfRange, UnreadableRecord
from fleetscope.transport.kafka.client import connect
from fleetscope.transport.kafka.faults import translated
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.log import Message

_POLL_MS = 500
# The client fetches ahead past the range and has one fetch in flight per broker: with the usual 500 ms of long
# poll, each change of partition waited as long (4 partitions: 40 MB/s instead of 120).
_WAIT_MS = 1
# Take whatever was fetched. A rest left in the client is parked when the partition is paused, and kafka-python 3.0.12
# looks for parked records only if its current ones are None, not if they are used up: the partition never moves again.
_ALL_FETCHED = 2**31


def message_of(record: Any) -> Message:
    """A record of the client as a Message; what cannot be read is marked so, never left out."""
    return Message(
        record.topic,
        record.partition,
        record.offset,
        record.key or b"",
        record.value or b"",
        tuple((name, value or b"") for name, value in record.headers),
        record.timestamp,
        record.value is None,
    )


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The last records fetched of a partition, which cover [begin, end). Kept, because a range ends where the log ended
    when it was planned, and a fetch usually brings what came since: the next epoch's beginning."""

    begin: int
    end: int
    records: list[Any]


class RangeReader:
    """Thread-safe: each step of a `read` takes a lock, so that several may be in progress on the one consumer.

    Assign, never subscribe: no group, no rebalance. All partitions are paused but the one being read; each is sought as
    soon as it is assigned, because kafka-python raises for *any* partition without a position, even a paused one.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mutex = Lock()
        self._client: Any = None
        self._positions: dict[TopicPartition, int] = {}
        self._chunks: dict[TopicPartition, _Chunk] = {}
        self._topic_ids: dict[str, str] = {}
        self._closed = False
        self.unreadable = 0

    def offsets(self, topic: str, partitions: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """(start offsets, end offsets) by partition: two requests for all partitions (3 ms)."""
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        timeout_ms = int(self._cluster.settings.request_timeout_s * 1000)
        with self._asking(f"{topic}: offsets"):
            client = self._connected()
            starts = client.beginning_offsets(wanted, timeout_ms)
            ends = client.end_offsets(wanted, timeout_ms)
        return {part.partition: starts[part] for part in wanted}, {part.partition: ends[part] for part in wanted}

    def read(self, topic: str, topic_id: str, partition: int, start: int, end: int) -> Iterator[Message]:
        """Messages of [start, end), whose bounds were checked. LogTimeout after `read_timeout_s` without progress."""
        part = TopicPartition(topic, partition)
        position = start
        patience_s = self._cluster.settings.read_timeout_s
        deadline = time.monotonic() + patience_s
        while position < end:
            with self._asking(f"{topic}/{partition} at {position}"):
                try:
                    records, reached = self._step(part, topic_id, position)
                except kafka_errors.CorruptRecordError as error:
                    records, reached = [], position
                    damaged: Message | None = self._lost(part, position, error)
                else:
                    damaged = None
            for record in records:
                if record.offset >= end:
                    return
                yield message_of(record)
            if damaged is not None:
                yield damaged
                reached = position + 1
            if reached > position:
                position = reached
                deadline = time.monotonic() + patience_s
            elif time.monotonic() > deadline:
                raise LogTimeout(f"{topic}/{partition}: nothing came at offset {position} of [{start}, {end})")

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            self._drop()

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """With the lock. A client whose login is refused is given up: the next one reads the password anew."""
        with self._mutex:
            try:
                with translated(what):
                    yield
            except LoginRefused:
                self._drop()
                raise

    def _step(self, part: TopicPartition, topic_id: str, position: int) -> tuple[list[Any], int]:
        """Some records from `position` on and the position after them, which is further if offsets were skipped."""
        if self._topic_ids.get(part.topic, topic_id) != topic_id:
            # What is buffered and cached belongs to the topic that was deleted.
            self._drop()
        self._topic_ids[part.topic] = topic_id
        chunk = self._chunks.get(part)
        if chunk is None or not chunk.begin <= position < chunk.end:
            chunk = self._chunks[part] = self._fetch(part, position)
        return [record for record in chunk.records if record.offset >= position], chunk.end

    def _fetch(self, part: TopicPartition, position: int) -> _Chunk:
        client = self._connected()
        if part not in self._positions:
            self._positions[part] = position
            client.assign(list(self._positions))
            for known, known_position in self._positions.items():
                client.seek(known, known_position)
            client.pause(*self._positions)
        elif self._positions[part] != position:
            client.seek(part, position)
            self._positions[part] = position
        client.resume(part)
        try:
            records = client.poll(_POLL_MS, _ALL_FETCHED).get(part, [])
            reached = records[-1].offset + 1 if records else client.position(part, 1000) or position
        except kafka_errors.CorruptRecordError:
            # The reader inside the client stands in the middle of the damaged batch: begin a new one.
            self._drop()
            raise
        finally:
            if self._client is not None:
                client.pause(part)
        self._positions[part] = reached
        return _Chunk(position, reached, records)

    def _lost(self, part: TopicPartition, offset: int, error: Exception) -> Message:
        self.unreadable += 1
        reason = UnreadableRecord(f"{part.topic}/{part.partition}, offset {offset}: {error}")
        return Message(part.topic, part.partition, offset, b"", b"", (), 0, unreadable=reason)

    def _connected(self) -> Any:
        if self._closed:
            raise LogClosed(f"{self._cluster} was closed")
        if self._client is None:
            self._client = connect(KafkaConsumer, self._cluster.consumer(_WAIT_MS))
        return self._client

    def _drop(self) -> None:
        if self._client is not None:
            self._client.close(autocommit=False, timeout_ms=1000)
            self._client = None
        self._positions.clear()
        self._chunks.clear()
        self._topic_ids.clear()


def check_range(name: str, start: int, end: int, log_start: int, log_end: int) -> None:
    """Kafka's poll says nothing of an offset above the end: it just returns no records, for ever."""
    if start < log_start:
        raise OffsetOutOfRange(f"{name}: offset {start} asked, the log starts at {log_start}")
    if start > log_end or end > log_end:
        raise OffsetOutOfRange(f"{name}: [{start}, {end}) asked, the log ends at {log_end}")
