"""Who writes and reads what: the rights of each role on the log, and no more of them than its code uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleetscope.transport.log import TopicSpec
from fleetscope.transport.topics import Topics

WORKER_GROUP = "fleetscope-worker"
"""Whose advisory offsets show a worker's progress in the displays of Kafka tools."""


class Role(StrEnum):
    """What a process of ours is to the log."""

    AGENT = "agent"
    WORKER = "worker"
    COORDINATOR = "coordinator"
    EXPORTER = "exporter"


@dataclass(frozen=True, slots=True)
class Rights:
    """Topic and group names. It does without what it only `looks` at."""

    writes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    """Topics of which it asks the end alone, where it may."""

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics, each once."""
        return tuple(dict.fromkeys((*self.writes, *self.reads)))


def rights_of(role: Role, topics: Topics) -> Rights:
    """The rights of one role. `fleetscope windows`, which a person runs, takes those of the coordinator."""
    if role is Role.AGENT:
        writes = (topics.telemetry, topics.clocks, topics.programs, topics.reports, topics.peers)
        return Rights(writes, (topics.control, topics.peers))
    if role is Role.WORKER:
        return Rights((topics.metrics,), (topics.telemetry, topics.programs), (WORKER_GROUP,))
    if role is Role.COORDINATOR:
        return Rights(
            (topics.control, topics.metrics, topics.clock_maps),
            (topics.programs, topics.reports, topics.clocks, topics.clock_maps),
        )
    return Rights(reads=(topics.metrics,), looks=(topics.telemetry,))


def of_role(role: Role, topics: Topics, specs: Sequence[TopicSpec]) -> list[TopicSpec]:
    """Those of `specs` that the role uses: it may neither make nor see the others where rights are given by role."""
    used = rights_of(role, topics).topics
    return [spec for spec in specs if spec.name in used]
