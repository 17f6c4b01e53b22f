"""The one protocol of the log: append, end offsets, read a planned range.

Two implementations stand behind it, `embedded` (a folder) and `kafka`; `tests/transport/test_contract.py` holds both to
this page. Everything here is in terms of (topic, partition, offset): offsets of a partition grow, are never given twice
while the topic lives, and may have gaps (compaction, Kafka control records). A gap is therefore no loss; losses are
found by the batch numbers inside the values.

A topic has an id besides its name. Offsets are only comparable under the same id: a topic that was deleted and created
again starts at 0, and a worker that trusted its stored offsets would skip or repeat data without noticing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from fleetscope.transport.errors import FleetscopeError

Headers = tuple[tuple[str, bytes], ...]

# The wire's hard batch size is 8 MiB (DESIGN 3.1); key, headers and framing of the record come on top.
MAX_VALUE_BYTES = 8 * 1024 * 1024
MAX_MESSAGE_BYTES = MAX_VALUE_BYTES + 256 * 1024


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """What a topic is created with. Retention bounds are per partition; None means unbounded.

    A compacted topic keeps the newest value of each key for ever and ignores the retention bounds.
    """

    name: str
    partitions: int = 1
    retention_ms: int | None = None
    retention_bytes: int | None = None
    compacted: bool = False
    max_message_bytes: int = MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it exists: `topic_id` survives restarts and differs when the topic was created anew."""

    name: str
    topic_id: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Message:
    """One record of the log.

    `tombstone` marks a deleted key of a compacted topic (value is b""). `unreadable` is set when the stored bytes fail
    their checksum: key, headers and value are then empty, the error names the place, `raw` holds what was found there
    (at most 64 kiB), and the reader has already gone on. Exactly one such message is given per lost offset.
    """

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    headers: Headers
    timestamp_ms: int
    tombstone: bool = False
    unreadable: FleetscopeError | None = None
    raw: bytes = b""


class Pending(Protocol):
    """The delivery of one appended message."""

    def done(self) -> bool:
        """True once `result` answers (or raises) without waiting."""

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        """(partition, offset). Raises what the delivery failed with, or DeliveryUnknown when time is up."""


class Tail(Protocol):
    """A reader of all partitions of a topic that goes on for ever. One thread at a time."""

    def poll(self, timeout_s: float = 0.0, max_bytes: int = 16 * 1024 * 1024) -> list[Message]:
        """New messages, offset order within a partition; an empty list when none came within `timeout_s`.

        LoginRefused (Kafka) soon after the password was changed: make a new tail, which reads it anew.
        """

    def positions(self) -> dict[int, int]:
        """Partition -> the next offset to be given."""

    def caught_up(self) -> bool:
        """True if everything that was in the topic when `tail` was called has been given."""

    def close(self) -> None: ...


class Log(Protocol):
    """Safe to use from several threads, unless said otherwise. All calls raise only `transport.errors`."""

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing; existing topics are left as they are. TopicConflict if the partitions differ."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics with their data; missing ones are ignored."""

    def topics(self) -> tuple[str, ...]:
        """Names of all topics, sorted, without those the broker keeps for itself."""

    def topic(self, name: str) -> TopicInfo:
        """UnknownTopic if it does not exist."""

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Hand a message to the log; a value of None is a tombstone (compacted topics only).

        Without `partition` it is `partition_of(key)`, on both back ends. Messages handed over by one thread for one
        partition get ascending offsets in that order. Never waits longer than the `append_block_s` setting (0.5 s):
        a full buffer, a held lock or a full disk raises Backpressure and nothing of the message was kept.
        (The first append to a topic may also wait `request_timeout_s` for the broker to tell what the topic is.)
        MessageTooLarge if it exceeds the topic's limit.
        """

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait until all appended messages are as durable as the back end makes them. Raises the first failure."""

    def start_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> offset of the oldest message still there (= end offset when empty)."""

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Partition -> offset the next message will get. What lies below is durable."""

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        max_bytes: int | None = None,
        topic_id: str | None = None,
    ) -> Iterator[Message]:
        """The messages with start <= offset < end, in order.

        With `max_bytes` (of values) it stops early, after at least one message; the next offset to ask for is the last
        one + 1. OffsetOutOfRange if start is below the log's start or start or end above its end; TopicRecreated if
        `topic_id` is given and the topic has another one. Checks are made on the first step of the iterator.
        """

    def read_compacted(self, topic: str) -> dict[bytes, bytes]:
        """Newest value by key over all partitions up to the present end; deleted keys are absent."""

    def tail(self, topic: str, start: Mapping[int, int] | None = None) -> Tail:
        """Follow a topic from `start` (partition -> offset; missing partitions and None: from the log's start)."""

    def commit_advisory(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Publish a group's progress for lag displays. Nothing of ours reads it back to decide where to start."""

    def committed_advisory(self, group: str, topic: str) -> dict[int, int]:
        """What `commit_advisory` last published; partitions never published are absent."""

    def counters(self) -> dict[str, int]:
        """What happened since open: appended, appended_bytes, backpressure, torn_tails, unreadable, ..."""

    def close(self) -> None:
        """Flush (5 s) and release everything. Appends in other threads then raise LogClosed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
