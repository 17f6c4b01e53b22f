"""The two back ends as the contract suite sees them, with what is legitimately different about each."""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition

from fleetscope.transport import Log, TopicSpec, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.embedded.catalog import Catalog
from fleetscope.transport.embedded.maintain import expire
from fleetscope.transport.log import Message


class Quirks(ABC):
    """A back end under test."""

    def __init__(self) -> None:
        self._opened: list[Log] = []

    @property
    @abstractmethod
    def url(self) -> str: ...

    def open(self, **settings: Any) -> Log:
        log = open_log(self.url, **settings)
        self._opened.append(log)
        return log

    def topic(self, log: Log, partitions: int = 1, **spec: Any) -> str:
        """A new topic nobody else uses."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        log.create_topics([TopicSpec(name, partitions, **spec)])
        return name

    @abstractmethod
    def drop_before(self, topic: str, offset: int) -> None:
        """Remove messages below `offset` as retention would (at least one of them)."""

    @abstractmethod
    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        """While this lasts the log cannot take a message into partition 0."""

    @abstractmethod
    def backpressure_settings(self) -> dict[str, Any]: ...

    def close(self) -> None:
        for log in self._opened:
            log.close()


class EmbeddedQuirks(Quirks):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def drop_before(self, topic: str, offset: int) -> None:
        stored = Catalog(self.folder).load(topic)
        files = stored.partition(0)
        bases = files.bases()
        assert any(0 < base <= offset for base in bases), "the test must have rolled a segment"
        size_bytes = sum(files.path(base).stat().st_size for base in bases if base >= offset)
        expire(files, None, size_bytes, time.time_ns() // 1_000_000)

    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        fd = os.open(self.folder / "topics" / topic / "0" / "append.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(fd)

    def backpressure_settings(self) -> dict[str, Any]:
        return {}


class KafkaQuirks(Quirks):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    @property
    def url(self) -> str:
        return self.broker.url

    def drop_before(self, topic: str, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.delete_records({TopicPartition(topic, 0): offset})
        admin.close()

    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        self.broker.pause()
        try:
            yield
        finally:
            self.broker.resume()

    def backpressure_settings(self) -> dict[str, Any]:
        return {"buffer_bytes": 100_000}


@pytest.fixture(params=["embedded", "kafka"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Quirks]:
    if request.param == "embedded":
        quirks: Quirks = EmbeddedQuirks(tmp_path / "log")
    else:
        quirks = KafkaQuirks(request.getfixturevalue("kafka_broker"))
    yield quirks
    quirks.close()


@pytest.fixture
def read_all() -> Callable[..., list[Message]]:
    def read(log: Log, topic: str, partition: int = 0) -> list[Message]:
        start, end = log.start_offsets(topic)[partition], log.end_offsets(topic)[partition]
        return list(log.read(topic, partition, start, end))

    return read
