"""What goes wrong between a spool and the log: batches lost, late or sent twice, and a record of which."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleetscope.agents.simulated.faults import Fault
from fleetscope.schema.wire_pb2 import Batch
from fleetscope.transport import Log, Pending


@dataclass(frozen=True, slots=True)
class Damage:
    """Events [first, first + rows) of a source, and what happened to their batch."""

    kind: str
    host: int
    source: int
    batch: int
    first: int
    rows: int
    at_ns: int


class _Swallowed:
    """The delivery of a message the log never saw: the sender believes it went well."""

    def done(self) -> bool:
        return True

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        return 0, 0


@dataclass(slots=True)
class FaultyLog:
    """A Log that mistreats the telemetry of one host as its faults say; everything else passes through.

    `now_ns`: simulation time. Only batches with rows of a training process are touched: a loss is a loss of events.
    """

    inner: Log
    host: int
    topic: str
    faults: list[Fault]
    now_ns: Callable[[], int]
    damage: list[Damage] = field(default_factory=list)
    _held: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    _counts: dict[int, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def append(self, topic: str, key: bytes, value: bytes | None, *args: Any, **more: Any) -> Pending:
        """As Log.append."""
        fault = self._due() if topic == self.topic and value is not None else None
        if fault is not None:
            batch = Batch.FromString(value or b"")
            if batch.rows and batch.source.pid:
                self._counts[id(fault)] = self._counts.get(id(fault), 0) + 1
                at = self.now_ns()
                self.damage.append(
                    Damage(
                        fault.kind, self.host, batch.source_id, batch.batch_number, batch.first_event, batch.rows, at
                    )
                )
                if fault.kind == "lost":
                    return _Swallowed()
                if fault.kind == "late":
                    self._held.append((at + int(fault.amount * 1e9), (topic, key, value, *args), more))
                    return _Swallowed()
                self.inner.append(topic, key, value, *args, **more)
        return self.inner.append(topic, key, value, *args, **more)

    def _due(self) -> Fault | None:
        second = self.now_ns() / 1e9
        for fault in self.faults:
            if fault.active(second) and self._counts.get(id(fault), 0) < fault.count:
                return fault
        return None

    def release(self, now_ns: int | None = None) -> None:
        """Send what was held back long enough; everything when no time is given."""
        due = [held for held in self._held if now_ns is None or held[0] <= now_ns]
        self._held = [held for held in self._held if held not in due]
        for _, args, more in due:
            self.inner.append(*args, **more)
