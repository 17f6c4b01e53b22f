"""Values of messages that wait for a clock bracket, so that the next epoch need not fetch them again.

Only a cache: what is not here (a worker that just started) is read from the log, which keeps a day.
"""

from fleetscope.pipelines.plan import Plan
from fleetscope.transport.errors import OffsetOutOfRange
from fleetscope.transport.log import Log

CACHE_BYTES = 64 << 20

_Key = tuple[str, int, int]


class HeldValues:
    """Bounded map (topic id, partition, offset) -> value; the oldest goes first."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._values: dict[_Key, bytes] = {}

    def put(self, plan: Plan, partition: int, offset: int, value: bytes) -> None:
        key = (plan.topic_id, partition, offset)
        self._bytes += len(value) - len(self._values.pop(key, b""))
        self._values[key] = value
        while self._bytes > self._limit_bytes:
            self._bytes -= len(self._values.pop(next(iter(self._values))))

    def get(self, plan: Plan, partition: int, offset: int, log: Log) -> bytes:
        """From memory or from the log; OffsetOutOfRange if the log no longer has it, UnreadableRecord if damaged."""
        value = self._values.get((plan.topic_id, partition, offset))
        if value is not None:
            return value
        for message in log.read(plan.topic, partition, offset, offset + 1, topic_id=plan.topic_id):
            if message.unreadable is not None:
                raise message.unreadable
            return message.value
        raise OffsetOutOfRange(f"{plan.topic}/{partition}@{offset} waited for a clock and is no longer in the log")

    def drop(self, plan: Plan, partition: int, offset: int) -> None:
        self._bytes -= len(self._values.pop((plan.topic_id, partition, offset), b""))


HELD = HeldValues()
"""Of this process: stages are made anew each epoch, this is not."""
