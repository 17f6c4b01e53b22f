"""Follow all partitions of a topic of an embedded log."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleetscope.transport.errors import TopicRecreated
from fleetscope.transport.log import Message

if TYPE_CHECKING:
    from fleetscope.transport.embedded.log import EmbeddedLog

SELDOM = 4


class EmbeddedTail:
    """See `transport.log.Tail`. While it waits it looks at the files after `poll_s`, then less and less often, at least
    every `SELDOM` x `poll_s`: 0.2 ms a look, and each node agent follows a topic that is silent for hours."""

    def __init__(self, log: EmbeddedLog, topic: str, start: Mapping[int, int], poll_s: float) -> None:
        self._log = log
        self._topic = topic
        self._topic_id = log.topic(topic).topic_id
        self._positions = {**log.start_offsets(topic), **start}
        self._goal = log.ends(topic, sync=False)
        self._poll_s = poll_s

    def poll(self, timeout_s: float = 0.0, max_bytes: int = 16 * 1024 * 1024) -> list[Message]:
        deadline = time.monotonic() + timeout_s
        pause_s = self._poll_s
        while True:
            messages = self._look(max_bytes)
            left_s = deadline - time.monotonic()
            if messages or left_s <= 0:
                return messages
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, SELDOM * self._poll_s)

    def positions(self) -> dict[int, int]:
        return dict(self._positions)

    def caught_up(self) -> bool:
        return all(self._positions[partition] >= goal for partition, goal in self._goal.items())

    def close(self) -> None:
        """Nothing is held between polls."""

    def _look(self, max_bytes: int) -> list[Message]:
        topic_id = self._log.topic(self._topic).topic_id
        if topic_id != self._topic_id:
            raise TopicRecreated(f"{self._topic}: followed under id {self._topic_id}, it now has {topic_id}")
        out: list[Message] = []
        left_bytes = max_bytes
        for partition, end in self._log.ends(self._topic, sync=False).items():
            position = self._positions[partition]
            if position == end or left_bytes <= 0:
                continue
            complete = True
            for message in self._log.read(self._topic, partition, position, end):
                out.append(message)
                left_bytes -= len(message.value)
                if left_bytes <= 0:
                    complete = message.offset + 1 == end
                    break
            self._positions[partition] = end if complete else out[-1].offset + 1
        return out
