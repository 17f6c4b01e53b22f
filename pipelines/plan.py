"""The plan of one epoch: which offsets of each partition, with which state, under which number: a graph's input."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from fleetscope.schema.errors import ChainStopped
from fleetscope.sinks.lake.manifest import OffsetRange
from fleetscope.transport.log import Log

CODE_VERSION = "1"
"""Of the pipeline's arithmetic. Raise it when equal input would give other rows."""


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Offsets [start, end) to read of one partition, at most `max_bytes` of values (at least one message).

    `expired`: messages the log's retention removed before anyone read them; they are counted, their events show as
    gaps. `idle`: nothing is new and nothing waits, so its state is carried on unseen.
    """

    partition: int
    start: int
    end: int
    max_bytes: int
    expired: int
    idle: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """One epoch of one chain. `parent`: digest of manifest number - 1; `programs`: end offsets of op tables used."""

    chain: int
    number: int
    generation: int
    attempt: str
    parent: str
    now_ns: int
    log_url: str
    topic: str
    topic_id: str
    programs_topic: str
    programs: Mapping[int, int]
    lake_url: str
    encoding: str
    clock_wait_ns: int
    partitions: tuple[PartitionPlan, ...]

    @property
    def messages(self) -> int:
        """At most; a byte cap or a compacted log give fewer."""
        return sum(part.end - part.start for part in self.partitions)

    def of(self, partition: int) -> PartitionPlan:
        (part,) = (part for part in self.partitions if part.partition == partition)
        return part

    def to_bytes(self) -> bytes:
        # Not asdict: it copies every value of every partition, 1.7 ms a call.
        document = {field.name: getattr(self, field.name) for field in fields(self)}
        document["programs"] = {str(partition): end for partition, end in self.programs.items()}
        document["partitions"] = [
            {field.name: getattr(part, field.name) for field in fields(part)} for part in self.partitions
        ]
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Plan":
        document = json.loads(data)
        document["programs"] = {int(partition): end for partition, end in document["programs"].items()}
        document["partitions"] = tuple(PartitionPlan(**part) for part in document["partitions"])
        return cls(**document)


States = Mapping[int, bytes]
"""Partition -> its carried state after the parent epoch, packed (b"": nobody has read it yet)."""


def new_attempt() -> str:
    """Unique to one try of one worker: names its files and its manifest."""
    return secrets.token_hex(6)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a chain stands in one partition. `holds`: admitted batches wait in it for a clock bracket."""

    partition: int
    next_offset: int
    holds: bool


def ranges(
    log: Log,
    topic: str,
    topic_id: str,
    positions: Sequence[Position],
    max_bytes: int,
    partitions: int,
    *,
    all_of_them: bool = False,
) -> tuple[PartitionPlan, ...]:
    """What is new in each partition, held against the log as it is now; partitions with nothing new have start = end.

    Raises ChainStopped if the topic was made anew or a committed offset lies above the log's end: the data the
    manifests speak of are not those in the log, and going on would repeat or skip events without anybody noticing. Also
    if it has more partitions than `partitions`: nobody reads them, and hosts whose key now leads elsewhere would have
    their numbers in one partition and their batches in another.
    `max_bytes` is shared by the partitions that have something new. `all_of_them`: none counts as idle.
    """
    found = log.topic(topic)
    if found.topic_id != topic_id:
        raise ChainStopped(f"topic {topic!r} is {found.topic_id}, the chain was built on {topic_id}: it was made anew")
    if found.partitions > partitions:
        raise ChainStopped(f"topic {topic!r} has {found.partitions} partitions, the chains were built on {partitions}")
    ends = log.end_offsets(topic)
    for position in positions:
        end = ends.get(position.partition)
        if end is None:
            raise ChainStopped(f"{topic}/{position.partition} does not exist any more")
        if position.next_offset > end:
            raise ChainStopped(
                f"{topic}/{position.partition}: committed up to offset {position.next_offset}, the log ends at {end}"
            )
    busy = sum(1 for position in positions if ends[position.partition] > position.next_offset)
    # A question to the broker costs ~3 ms of CPU, and an idle worker asks every two seconds.
    starts = log.start_offsets(topic) if busy else {}
    plans = []
    for position in positions:
        begin = max(position.next_offset, starts.get(position.partition, 0))
        plans.append(
            PartitionPlan(
                position.partition,
                begin,
                ends[position.partition],
                max(1, max_bytes // max(1, busy)),
                begin - position.next_offset,
                not all_of_them and ends[position.partition] == position.next_offset and not position.holds,
            )
        )
    return tuple(plans)


QUIET_ROWS = 500
"""Events of an epoch that is nearly nothing but its fixed cost (~0.04 CPU-s)."""
QUIET_STRETCH = 1.5
"""How much longer a period becomes then: 1 s for a batch to fill + 3 s + 0.5 s to the page stay within the freshness
budget of 5 s, and a 1 Hz trickle costs two thirds."""


def next_period_s(shortest_s: float, longest_s: float, last_run_s: float, last_rows: int, backlog: bool) -> float:
    """Pause between the starts of two epochs: longer when epochs take long or hold nearly nothing, none while there is
    a backlog.

    An epoch has a fixed cost (~0.04 CPU-s), so a slow machine gets fewer, larger ones; never slower than `longest_s`,
    which the freshness budget allows.
    """
    if backlog:
        return 0.0
    least_s = shortest_s * (QUIET_STRETCH if 0 < last_rows < QUIET_ROWS else 1.0)
    return min(longest_s, max(least_s, 1.5 * last_run_s))


def offset_ranges(plan: Plan, reached: Mapping[int, int]) -> tuple[OffsetRange, ...]:
    """The manifest's ranges, given the offset each partition was really read up to.

    Expired messages belong to the range: ranges of successive manifests join.
    """
    return tuple(
        OffsetRange(plan.topic, plan.topic_id, part.partition, part.start - part.expired, reached[part.partition])
        for part in plan.partitions
    )


def segment_name(plan: Plan, tag: str) -> str:
    """Name of a file of this attempt: two workers at one epoch never meet in a file, and a sweep sees whose it was."""
    return f"{plan.chain}-{plan.number}-{plan.attempt}-{tag}"
