"""Follow all partitions of a Kafka topic, with a consumer of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from fleetscope.transport.errors import Retryable
from fleetscope.transport.kafka.client import connect
from fleetscope.transport.kafka.consume import check_range, message_of
from fleetscope.transport.kafka.faults import translated
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.log import Message

_POLL_RECORDS = 500
_SILENCE_S = 10.0
_ANSWER_MS = 1000


class KafkaTail:
    """See `transport.log.Tail`. Waits in the broker's long poll, so waiting costs next to nothing."""

    def __init__(
        self, cluster: Cluster, topic: str, start: Mapping[int, int], starts: dict[int, int], ends: dict[int, int]
    ) -> None:
        self._topic = topic
        self._heard_s = time.monotonic()
        self._positions = {**starts, **start}
        self._goal = ends
        for partition, position in self._positions.items():
            check_range(f"{topic}/{partition}", position, position, starts[partition], ends[partition])
        with translated(topic):
            self._client: Any = connect(KafkaConsumer, cluster.consumer(cluster.settings.fetch_wait_ms))
            parts = [TopicPartition(topic, partition) for partition in self._positions]
            self._client.assign(parts)
            for part in parts:
                self._client.seek(part, self._positions[part.partition])

    def poll(self, timeout_s: float = 0.0, max_bytes: int = 16 * 1024 * 1024) -> list[Message]:
        out: list[Message] = []
        taken_bytes = 0
        timeout_ms = int(timeout_s * 1000)
        with translated(self._topic):
            while taken_bytes < max_bytes:
                polled = self._client.poll(timeout_ms, _POLL_RECORDS)
                if not polled:
                    break
                for part, records in polled.items():
                    self._positions[part.partition] = records[-1].offset + 1
                    for record in records:
                        taken_bytes += len(record.value or b"")
                        out.append(message_of(record))
                timeout_ms = 0
            self._skip_gaps()
        now = time.monotonic()
        if out:
            self._heard_s = now
        elif now - self._heard_s > _SILENCE_S:
            self._heard_s = now
            self._ask()
        return out

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def caught_up(self) -> bool:
        return all(self._positions[partition] >= goal for partition, goal in self._goal.items())

    def close(self) -> None:
        self._client.close(autocommit=False, timeout_ms=1000)

    def _ask(self) -> None:
        """Something that must be answered: kafka-python 3.0.12 polls empty for ever when it cannot log in any more.
        LoginRefused then; a broker that is away is waited for, as before."""
        parts = [TopicPartition(self._topic, partition) for partition in self._positions]
        with suppress(Retryable), translated(self._topic):
            self._client.end_offsets(parts, _ANSWER_MS)

    def _skip_gaps(self) -> None:
        """Compaction may have removed the last records below the end: the consumer's position passes them silently."""
        for partition, goal in self._goal.items():
            if self._positions[partition] < goal:
                reached = self._client.position(TopicPartition(self._topic, partition), 1000)
                self._positions[partition] = max(self._positions[partition], reached or 0)
