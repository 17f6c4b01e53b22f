"""One chain of one worker: where it stands, what is new, one epoch at a time."""

import logging
import time
from collections.abc import Callable

from fleetscope.pipelines import handed
from fleetscope.pipelines.commit import Carried
from fleetscope.pipelines.drivers.generation import carried_at
from fleetscope.pipelines.plan import Plan, Position, States, new_attempt, ranges
from fleetscope.pipelines.state import PartitionState, load_partition
from fleetscope.schema.config import Config
from fleetscope.schema.errors import (
    ChainLost,
    ChainStopped,
    EpochFailed,
    FleetscopeError,
    LedgerBroken,
    UnknownTopic,
)
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.generation import Generation
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.transport.log import Log
from fleetscope.transport.topics import Topics

logger = logging.getLogger(__name__)

Run = Callable[[Plan, States], None]
"""Runs the graph on a plan and the states its partitions begin with. What it raises is only a hint: whether the epoch
is real is read from the lake."""


LOOK_AT_ALL = 64
"""Every so many epochs idle partitions are read too: their gaps grow old and their sources end."""


GONE_S = 5.0
"""How long a topic must be unknown to the log before its chains stop."""


class ChainRunner:
    """Not thread-safe. `load` before anything else, and after ChainLost."""

    def __init__(self, config: Config, log: Log, store: ObjectStore, generation: Generation, chain: int) -> None:
        self._config = config
        self._log = log
        self._topics = Topics(config.log.topic_prefix)
        self._store = store
        self._lake = Chain(store, chain)
        self.chain = chain
        self.generation = generation
        self.manifest: Manifest | None = None
        self._carried = Carried(generation.number, generation.topic_id, {}, {})
        self._decoded: dict[int, tuple[bytes, PartitionState]] = {}
        self._held_since_ns: int | None = None
        self.backlog = False
        self._adopted_s = time.monotonic()
        self._gone_since_s: float | None = None
        self.owes_counters = False
        """Whether exporters may not have all counters of this chain: nobody knows what the last worker published."""

    def load(self) -> None:
        """Take the newest manifest as the truth. Raises GenerationFenced when the chains were dealt anew."""
        known = self.manifest
        self._adopt(self._lake.latest(known.number if known else 0))
        dealt_anew = known is None and self.generation.number > 1
        self.owes_counters |= dealt_anew or self.manifest != known

    def _adopt(self, manifest: Manifest | None) -> None:
        self._carried = carried_at(self._store, self.generation, self.chain, manifest)
        if manifest != self.manifest:
            self._adopted_s = time.monotonic()
        self.manifest = manifest
        since = [part.held_since_ns for part in self._carried.partitions.values() if part.held_since_ns]
        self._held_since_ns = min(since, default=None)

    @property
    def states(self) -> list[PartitionState]:
        """Of all partitions; those that did not change since the last call are not decoded again."""
        for number, part in self._carried.partitions.items():
            if self._decoded.get(number, (b"",))[0] != part.state:
                state = handed.unpacked(part.state) or load_partition(part.state)
                self._decoded[number] = (part.state, state)
        return [self._decoded[number][1] for number in self._carried.partitions if number in self._decoded]

    @property
    def number(self) -> int:
        """Of the newest manifest; before the first of its generation, of the last one before."""
        return self.manifest.number if self.manifest else self.generation.bases.get(self.chain, 0)

    @property
    def now_ns(self) -> int:
        """Of the newest manifest of the chain, and no earlier than anything the generation began with."""
        return max(self.generation.now_ns, self.manifest.now_ns if self.manifest else 0)

    @property
    def last_rows(self) -> int:
        """Events stored by the newest epoch."""
        return self.manifest.counts.get("stored", 0) if self.manifest else 0

    @property
    def packed(self) -> dict[int, bytes]:
        return {number: part.state for number, part in self._carried.partitions.items()}

    @property
    def changed_runs(self) -> set[str]:
        return set(self._carried.changed_runs)

    @property
    def offsets(self) -> dict[int, int]:
        return {number: part.offset for number, part in self._carried.partitions.items()}

    def wakes_in_s(self, now_ns: int) -> float | None:
        """Seconds until held batches may go on without their bracket; None if none wait."""
        if self._held_since_ns is None:
            return None
        return max(0.0, (self._held_since_ns - self._now(now_ns)) / 1e9 + self._config.worker.clock_wait_s)

    def _now(self, clock_ns: int) -> int:
        """The `now` of an epoch that begins when this machine's clock shows `clock_ns`: those of a chain only grow.

        When the clock is set back by hours they go on at half its pace, until it has caught up: they would stand still
        otherwise, and what waits for a second would wait for hours.
        """
        passed_ns = int((time.monotonic() - self._adopted_s) * 1e9)
        return max(clock_ns, self.now_ns + 1 + passed_ns // 2)

    def plan(self, now_ns: int) -> Plan | None:
        """The next epoch, or None when nothing is new and nothing waits. Raises ChainStopped."""
        generation, carried = self.generation, self._carried
        manifest = self.manifest
        number = self.number + 1
        positions = []
        for partition in generation.chains[self.chain]:
            known = carried.partitions.get(partition)
            start = known.offset if known else generation.starts.get(partition, 0)
            positions.append(Position(partition, start, bool(known and known.held_since_ns)))
        try:
            parts = ranges(
                self._log,
                generation.topic,
                generation.topic_id,
                positions,
                self._config.worker.epoch_max_bytes,
                len(generation.starts),
                all_of_them=number % LOOK_AT_ALL == 1,
            )
        except UnknownTopic as error:
            raise self._gone(error) from error
        self._gone_since_s = None
        if all(part.end == part.start and not part.expired for part in parts) and self.wakes_in_s(now_ns) != 0.0:
            return None
        return Plan(
            chain=self.chain,
            number=number,
            generation=generation.number,
            attempt=new_attempt(),
            parent=manifest.digest if manifest else "",
            now_ns=self._now(now_ns),
            log_url=self._config.log_url,
            topic=generation.topic,
            topic_id=generation.topic_id,
            programs_topic=self._topics.programs,
            programs=self._log.end_offsets(self._topics.programs),
            lake_url=self._config.lake_url,
            encoding=self._config.lake.encoding,
            clock_wait_ns=int(self._config.worker.clock_wait_s * 1e9),
            partitions=parts,
        )

    def _gone(self, error: Exception) -> FleetscopeError:
        """A broker that just came up may not know its topics yet; one that still does not has none."""
        now_s = time.monotonic()
        self._gone_since_s = now_s if self._gone_since_s is None else self._gone_since_s
        if now_s - self._gone_since_s < GONE_S:
            return EpochFailed(f"chain {self.chain}: {error}")
        return ChainStopped(f"chain {self.chain}: {error}; it was deleted, and what it held with it")

    def run(self, plan: Plan, run: Run) -> Manifest:
        """Run the epoch and see what became of it.

        Raises ChainLost when another attempt owns the number (call `load`), EpochFailed when the number is still free
        (the same offsets may be tried again), ChainStopped.
        """
        began = time.monotonic()
        failure: Exception | None = None
        try:
            run(plan, self.packed)
        except ChainStopped:
            raise
        except LedgerBroken as error:
            # Running it again would find the same; going on without the equation would hide a loss.
            raise ChainStopped(f"chain {self.chain}, epoch {plan.number}: {error}") from error
        except Exception as error:
            failure = error
        manifest = self._lake.get(plan.number)
        if manifest is None:
            if failure is None or self._lake.latest(plan.number) is not None:
                raise ChainLost(f"chain {self.chain}: epoch {plan.number} is gone or was never written") from failure
            raise EpochFailed(f"chain {self.chain}, epoch {plan.number}: {failure}") from failure
        if manifest.attempt != plan.attempt:
            raise ChainLost(f"chain {self.chain}: epoch {plan.number} belongs to attempt {manifest.attempt}")
        self._adopt(manifest)
        ends = {part.partition: part.end for part in plan.partitions}
        self.backlog = any(ends[item.partition] > item.end for item in manifest.offsets)
        logger.debug("chain %d: epoch %d in %.3f s", self.chain, plan.number, time.monotonic() - began)
        return manifest
