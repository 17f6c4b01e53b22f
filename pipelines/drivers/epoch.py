"""The worker: takes chains, runs their epochs, publishes what each made real.

Killed at any moment it loses nothing: all it knows stands in the newest manifest, and a started epoch whose manifest is
missing never happened. Two workers on one chain are safe and wasteful: one of them wins each number.
"""

import logging
import threading
import time

from fleetscope.pipelines import counters
from fleetscope.pipelines.drivers.chain import ChainRunner, Run
from fleetscope.pipelines.plan import next_period_s
from fleetscope.schema.config import Config
from fleetscope.schema.errors import (
    ChainLost,
    ChainStopped,
    ConfigInvalid,
    EpochFailed,
    FleetscopeError,
    Permanent,
    Retryable,
)
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.generation import Generation, current_generation, spread, start_generation
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.transport.log import Log
from fleetscope.transport.open import shared_log
from fleetscope.transport.topics import Topics

logger = logging.getLogger(__name__)

RETRY_S = (0.5, 1.0, 2.0, 5.0)
ADVISORY_GROUP = "fleetscope-worker"

EPOCH_LIMIT_S = 600.0
"""A worker that slept longer in one epoch knows nothing any more: it starts again from the newest manifest."""


def ensure_generation(config: Config, log: Log, store: ObjectStore) -> Generation:
    """The lake's generation, begun at the log's start if there is none. ConfigInvalid if chain_count is another."""
    topics = Topics(config.log.topic_prefix)
    found = current_generation(store)
    if found is None:
        info = log.topic(topics.telemetry)
        chains = spread(range(info.partitions), config.worker.chain_count)
        starts = log.start_offsets(topics.telemetry)
        fresh = Generation(1, topics.telemetry, info.topic_id, chains, starts, dict.fromkeys(chains, 0))
        return start_generation(store, fresh)
    partitions = [partition for owned in found.chains.values() for partition in owned]
    if found.chains != spread(sorted(partitions), config.worker.chain_count):
        raise ConfigInvalid(
            f"worker.chain_count {config.worker.chain_count}: the lake is in generation {found.number} with "
            f"{len(found.chains)} chains"
        )
    return found


class Worker:
    """Owns `worker.chains` of the configuration (all, if empty). Threads: none of its own."""

    def __init__(self, config: Config, run: Run | None = None, log: Log | None = None) -> None:
        self._config = config
        self._log = log or shared_log(config.log_url)
        self._topics = Topics(config.log.topic_prefix)
        retention_ms = int(config.log.retention_hours * 3_600_000)
        self._log.create_topics(self._topics.specs(config.log.partitions, retention_ms, config.log.retention_bytes))
        self._store = open_store(config.lake_path)
        generation = ensure_generation(config, self._log, self._store)
        owned = config.worker.chains or sorted(generation.chains)
        unknown = sorted(set(owned) - set(generation.chains))
        if unknown:
            raise ConfigInvalid(
                f"worker.chains {unknown}: generation {generation.number} has {sorted(generation.chains)}"
            )
        self._chains = [ChainRunner(config, self._log, self._store, generation, chain) for chain in owned]
        self._run_graph = run
        self._last_run_s = 0.0

    def _graph(self) -> Run:
        if self._run_graph is None:
            from fleetscope.pipelines.drivers.runner import EmbeddedGraph

            if self._config.worker.runner == "FnApiRunner":
                self._run_graph = EmbeddedGraph()
            else:
                from fleetscope.pipelines.drivers.portable import PortableGraph

                self._run_graph = PortableGraph(self._config.worker.runner)
        return self._run_graph

    def start(self) -> None:
        """Take the newest manifest of each chain; publish its counters again, since the last worker may not have."""
        for chain in self._chains:
            known = chain.manifest
            chain.load()
            if chain.manifest is not None and chain.manifest != known:
                self._publish(chain, everything=True)

    def run(self, stop: threading.Event) -> None:
        """Epochs until `stop`. Raises the last ChainStopped when no chain is left."""
        self.start()
        section = self._config.worker
        failures = 0
        stopped: FleetscopeError | None = None
        while not stop.is_set():
            began = time.monotonic()
            for chain in list(self._chains):
                try:
                    self._epoch(chain)
                    failures = 0
                except ChainStopped as error:
                    logger.error("chain %d stops: %s", chain.chain, error)
                    self._chains.remove(chain)
                    stopped = error
                except ChainLost as error:
                    logger.info("chain %d: %s", chain.chain, error)
                except FleetscopeError as error:
                    failures += 1
                    logger.warning("chain %d: %s", chain.chain, error)
            if not self._chains and stopped is not None:
                raise stopped
            if failures:
                stop.wait(RETRY_S[min(failures, len(RETRY_S)) - 1])
                continue
            backlog = any(chain.backlog for chain in self._chains)
            rows = sum(chain.last_rows for chain in self._chains)
            period = next_period_s(section.epoch_s, section.epoch_max_s, self._last_run_s, rows, backlog)
            pause = max(0.0, period - (time.monotonic() - began))
            wakes = [s for chain in self._chains if (s := chain.wakes_in_s(time.time_ns())) is not None]
            stop.wait(min([pause, *wakes]) if not backlog else 0.0)

    def run_once(self) -> int:
        """Drain what is in the log now, held batches included, and return the number of epochs committed.

        Raises the error of a chain that cannot go on.
        """
        self.start()
        epochs = 0
        for chain in self._chains:
            failures = 0
            while True:
                try:
                    if self._epoch(chain):
                        epochs += 1
                        failures = 0
                        continue
                except ChainLost:
                    continue
                except Retryable as error:
                    failures += 1
                    logger.warning("chain %d: %s", chain.chain, error)
                    if failures > len(RETRY_S):
                        raise
                    time.sleep(RETRY_S[failures - 1])
                    continue
                wakes = chain.wakes_in_s(time.time_ns())
                if wakes is None:
                    break
                time.sleep(wakes)
        return epochs

    def _epoch(self, chain: ChainRunner) -> bool:
        """One epoch of a chain; False if there was nothing to do."""
        plan = chain.plan(time.time_ns())
        if plan is None:
            chain.backlog = False
            return False
        began = time.monotonic()
        try:
            chain.run(plan, self._graph())
        except (ChainLost, EpochFailed):
            chain.load()
            raise
        self._last_run_s = time.monotonic() - began
        if self._last_run_s > EPOCH_LIMIT_S:
            chain.load()
        fault_point("worker.before_publish")
        self._publish(chain, everything=False)
        return True

    def _publish(self, chain: ChainRunner, *, everything: bool) -> None:
        """Counters of the newest manifest. Not reaching the log is no failure: the next record has it all."""
        manifest = chain.manifest
        assert manifest is not None
        only = None if everything else chain.changed_runs
        try:
            for record in counters.records(manifest.chain, manifest.number, manifest.now_ns, chain.states, only):
                self._append(record)
            self._log.commit_advisory(ADVISORY_GROUP, self._topics.telemetry, chain.offsets)
        except FleetscopeError as error:
            logger.warning("chain %d: counters of epoch %d not published: %s", chain.chain, manifest.number, error)

    def _append(self, record: MetricsRecord) -> None:
        try:
            self._log.append(self._topics.metrics, counters.key_of(record), record.SerializeToString())
        except Permanent as error:
            # Of one run: those of the others are not to wait for it.
            logger.warning("chain %d: counters of run %.80r: %s", record.chain, record.run, error)
