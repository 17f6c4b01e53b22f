"""The embedded implementation of `transport.log.Log`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit

from fleetscope.transport.embedded.append import PartitionAppender
from fleetscope.transport.embedded.catalog import Catalog, StoredTopic, write_durably
from fleetscope.transport.embedded.keeper import Keeper
from fleetscope.transport.embedded.maintain import compact, expire
from fleetscope.transport.embedded.read import PartitionReader
from fleetscope.transport.embedded.record import encode_headers
from fleetscope.transport.embedded.settings import EmbeddedSettings
from fleetscope.transport.embedded.tail import EmbeddedTail
from fleetscope.transport.errors import (
    Backpressure,
    BadLogUrl,
    LogClosed,
    LogDamaged,
    MessageTooLarge,
    NotATombstoneTopic,
    OffsetOutOfRange,
    TopicRecreated,
)
from fleetscope.transport.log import Headers, Message, TopicInfo, TopicSpec
from fleetscope.transport.names import check_name
from fleetscope.transport.partition import partition_of
from fleetscope.transport.settings import Setting, settings_from

_ROLL_MS = 3_600_000
_MAINTAIN_IDLE_ROLL_MIN_MS = 1_000


@dataclass(frozen=True, slots=True)
class Written:
    """The embedded log has no buffer: a message is written when `append` returns."""

    partition: int
    offset: int

    def done(self) -> bool:
        return True

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        return self.partition, self.offset


class _Topic:
    """A stored topic and what is open of it."""

    def __init__(self, stored: StoredTopic, settings: EmbeddedSettings) -> None:
        self.stored = stored
        self._settings = settings
        self._mutex = Lock()
        self.appenders: dict[int, PartitionAppender] = {}
        self.readers: dict[int, PartitionReader] = {}

    def appender(self, partition: int) -> PartitionAppender:
        appender = self.appenders.get(partition)
        if appender is None:
            spec, settings = self.stored.spec, self._settings
            segment_bytes = settings.compacted_segment_bytes if spec.compacted else settings.segment_bytes
            if spec.retention_bytes is not None:
                segment_bytes = min(segment_bytes, max(spec.retention_bytes // 8, 1))
            roll_ms = None if spec.retention_ms is None else min(_ROLL_MS, max(spec.retention_ms // 2, 1))
            with self._mutex:
                appender = self.appenders.get(partition)
                if appender is None:
                    files = self.stored.partition(partition)
                    appender = self.appenders[partition] = PartitionAppender(files, segment_bytes, roll_ms)
        return appender

    def reader(self, partition: int) -> PartitionReader:
        with self._mutex:
            reader = self.readers.get(partition)
            if reader is None:
                reader = self.readers[partition] = PartitionReader(self.stored.partition(partition))
            return reader

    def close(self) -> None:
        with self._mutex:
            for appender in self.appenders.values():
                appender.close()
            for reader in self.readers.values():
                reader.close()


class EmbeddedLog:
    """See `transport.log.Log`. Several processes may have the same folder open."""

    def __init__(self, root: Path, settings: EmbeddedSettings) -> None:
        self.settings = settings
        self._catalog = Catalog(root)
        self._mutex = Lock()
        self._open: dict[str, _Topic] = {}
        self._retired: list[_Topic] = []
        self._counts: Counter[str] = Counter()
        self._keeper = Keeper(self._sync_all, self._maintain, settings.sync_s, settings.sync_bytes)
        self._closed = False

    def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        for spec in specs:
            self._catalog.create(spec)

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            self._catalog.delete(name)

    def topics(self) -> tuple[str, ...]:
        return self._catalog.names()

    def topic(self, name: str) -> TopicInfo:
        return self._topic(name).stored.info

    def append(
        self,
        topic: str,
        key: bytes,
        value: bytes | None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Written:
        found = self._topic(topic)
        if self._keeper.failure is not None:
            raise LogDamaged(f"{self._catalog.root}: what was appended could not be synced: {self._keeper.failure}")
        spec = found.stored.spec
        raw_headers = encode_headers(headers) if headers else b""
        size_bytes = len(key) + len(raw_headers) + len(value or b"")
        if size_bytes > spec.max_message_bytes:
            raise MessageTooLarge(f"{topic}: a message of {size_bytes} bytes, the limit is {spec.max_message_bytes}")
        if value is None and not spec.compacted:
            raise NotATombstoneTopic(f"{topic} is not compacted")
        if partition is None:
            partition = partition_of(key, spec.partitions)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        with self._translated(found):
            try:
                appender = found.appender(partition)
                appended = appender.append(key, raw_headers, value, timestamp_ms, self.settings.append_block_s)
                if self.settings.sync == "always":
                    appender.sync()
            except Backpressure:
                self._counts["backpressure"] += 1
                raise
        self._counts["appended"] += 1
        self._counts["appended_bytes"] += appended.size_bytes
        if self.settings.sync == "group":
            self._keeper.appended(appended.size_bytes, appended.rolled)
        return Written(partition, appended.offset)

    def flush(self, timeout_s: float = 30.0) -> None:
        self._check_open()
        with self._translated(None):
            self._sync_all()

    def start_offsets(self, topic: str) -> dict[int, int]:
        found = self._topic(topic)
        with self._translated(found):
            return {n: found.reader(n).start_offset() for n in range(found.stored.info.partitions)}

    def end_offsets(self, topic: str) -> dict[int, int]:
        return self.ends(topic, sync=True)

    def ends(self, topic: str, sync: bool) -> dict[int, int]:
        """`end_offsets`, whose durability a reader that stores none of them need not pay for."""
        found = self._topic(topic)
        with self._translated(found):
            return {n: found.reader(n).end_offset(sync) for n in range(found.stored.info.partitions)}

    def read(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        max_bytes: int | None = None,
        topic_id: str | None = None,
    ) -> Iterator[Message]:
        found = self._topic(topic)
        info = found.stored.info
        if topic_id is not None and topic_id != info.topic_id:
            raise TopicRecreated(f"{topic}: id {topic_id} was asked for, it now has {info.topic_id}")
        left_bytes = max_bytes
        with self._translated(found):
            for message in found.reader(partition).read(start, end):
                yield message
                if left_bytes is not None:
                    left_bytes -= len(message.value)
                    if left_bytes <= 0:
                        return

    def read_compacted(self, topic: str) -> dict[bytes, bytes]:
        newest: dict[bytes, bytes] = {}
        starts, ends = self.start_offsets(topic), self.ends(topic, sync=False)
        for partition, end in ends.items():
            for message in self.read(topic, partition, starts[partition], end):
                if message.tombstone:
                    newest.pop(message.key, None)
                elif message.unreadable is None:
                    newest[message.key] = message.value
        return newest

    def tail(self, topic: str, start: Mapping[int, int] | None = None) -> EmbeddedTail:
        return EmbeddedTail(self, topic, start or {}, self.settings.tail_poll_s)

    def commit_advisory(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        folder = self._catalog.root / "groups" / check_name(group)
        folder.mkdir(exist_ok=True)
        merged = {**self.committed_advisory(group, topic), **offsets}
        write_durably(folder / f"{check_name(topic)}.json", {str(n): offset for n, offset in merged.items()})

    def committed_advisory(self, group: str, topic: str) -> dict[int, int]:
        path = self._catalog.root / "groups" / check_name(group) / f"{check_name(topic)}.json"
        try:
            return {int(n): int(offset) for n, offset in json.loads(path.read_bytes()).items()}
        except FileNotFoundError:
            return {}

    def counters(self) -> dict[str, int]:
        counts = Counter(self._counts)
        with self._mutex:
            for topic in [*self._open.values(), *self._retired]:
                for appender in topic.appenders.values():
                    counts["torn_tails"] += appender.torn_tails
                    counts["damaged_tails"] += appender.damaged_tails
                for reader in topic.readers.values():
                    counts["unreadable"] += reader.unreadable
        return dict(counts)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._keeper.stop()
        try:
            self._sync_all()
        finally:
            with self._mutex:
                for topic in [*self._open.values(), *self._retired]:
                    topic.close()
                self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LogClosed(f"{self._catalog.root} was closed")

    def _topic(self, name: str) -> _Topic:
        """The open topic; opened anew if it was deleted or created again since."""
        self._check_open()
        stamp = self._catalog.stamp(name)
        with self._mutex:
            topic = self._open.get(name)
            if topic is not None and topic.stored.stamp == stamp:
                return topic
            if topic is not None:
                # Other threads may be in the middle of it; its files are closed with the log.
                self._retired.append(self._open.pop(name))
            topic = self._open[name] = _Topic(self._catalog.load(name), self.settings)
            return topic

    @contextmanager
    def _translated(self, topic: _Topic | None) -> Iterator[None]:
        """OSErrors as our own: a file that is gone means that the topic is, or that retention overtook us."""
        try:
            yield
        except OSError as error:
            self._check_open()
            if topic is not None and isinstance(error, FileNotFoundError):
                name = topic.stored.info.name
                if self._catalog.stamp(name) != topic.stored.stamp:
                    raise TopicRecreated(f"{name} was deleted while in use") from error
                raise OffsetOutOfRange(f"{name}: {error.filename} went away while it was read") from error
            raise LogDamaged(f"{self._catalog.root}: {error}") from error

    def _sync_all(self) -> None:
        with self._mutex:
            appenders = [appender for topic in self._open.values() for appender in topic.appenders.values()]
        for appender in appenders:
            appender.sync()

    def _maintain(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._mutex:
            topics = list(self._open.values())
        for topic in topics:
            spec = topic.stored.spec
            for partition, appender in list(topic.appenders.items()):
                files = topic.stored.partition(partition)
                try:
                    if spec.compacted:
                        self._counts["compacted_segments"] += compact(
                            files, self.settings.compacted_segment_bytes, self.settings.tombstone_ms, now_ms
                        )
                        continue
                    if spec.retention_ms is not None:
                        appender.roll_if_older(max(spec.retention_ms, _MAINTAIN_IDLE_ROLL_MIN_MS))
                    self._counts["expired_segments"] += expire(files, spec.retention_ms, spec.retention_bytes, now_ms)
                except FileNotFoundError:
                    continue  # the topic was deleted meanwhile


def folder_of(url: str) -> Path:
    """Of `file:///path`. Raises BadLogUrl."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        raise BadLogUrl(f"log URL {url!r}: an embedded log is file:// and an absolute path, as in file:///var/lib/log")
    return Path(unquote(parts.path))


def open_embedded(url: str, settings: Mapping[str, Setting]) -> EmbeddedLog:
    """`file:///path`; the folder is made if it is missing."""
    folder = folder_of(url)
    chosen = settings_from(EmbeddedSettings, url, settings)
    if chosen.sync not in ("group", "always", "never"):
        raise BadLogUrl(f"log URL: sync={chosen.sync!r} is none of group, always, never")
    try:
        return EmbeddedLog(folder, chosen)
    except OSError as error:
        raise LogDamaged(f"{folder}: {error.strerror}") from error
