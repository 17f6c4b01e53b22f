"""The worker: takes chains, runs their epochs, publishes what each made real.

Killed at any moment it loses nothing: all it knows stands in the newest manifest, and a started epoch whose manifest is
missing never happened. Two workers on one chain are safe and wasteful: one of them wins each number.
"""

import logging
import threading
import time

from fleetscope.pipelines import counters
from fleetscope.pipelines.drivers.chain import ChainRunner, Run
from fleetscope.pipelines.drivers.generation import ensure_generation
from fleetscope.pipelines.plan import next_period_s
from fleetscope.schema.config import Config
from fleetscope.schema.errors import (
    ChainLost,
    ChainStopped,
    ConfigInvalid,
    EpochFailed,
    FleetscopeError,
    GenerationFenced,
    GenerationPending,
    Permanent,
    Retryable,
)
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport.log import Log
from fleetscope.transport.open import shared_log
from fleetscope.transport.rights import WORKER_GROUP, Role, of_role
from fleetscope.transport.topics import Topics

logger = logging.getLogger(__name__)

RETRY_S = (0.5, 1.0, 2.0, 5.0)
PENDING_S = 1.0
"""Between two looks at whether the coordinator has folded what a new generation waits for."""

FLUSH_S = 5.0

EPOCH_LIMIT_S = 600.0
"""A worker that slept longer in one epoch knows nothing any more: it starts again from the newest manifest."""


class Worker:
    """Owns `worker.chains` of the configuration (all, if empty). Threads: none of its own."""

    def __init__(self, config: Config, run: Run | None = None, log: Log | None = None) -> None:
        self._config = config
        self._log = log or shared_log(config.log_url)
        self._topics = Topics(config.log.topic_prefix)
        retention_ms = int(config.log.retention_hours * 3_600_000)
        specs = self._topics.specs(config.log.partitions, retention_ms, config.log.retention_bytes)
        self._log.create_topics(of_role(Role.WORKER, self._topics, specs))
        self._store = open_store(config.lake_url, config.lake_options)
        self._chains: list[ChainRunner] = []
        self._run_graph = run
        self._last_run_s = 0.0
        try:
            self._join()
        except GenerationPending as error:
            # `up` must come so far that its coordinator runs
            logger.warning("%s", error)

    def _join(self) -> None:
        config = self._config
        generation = ensure_generation(config, self._log, self._store)
        owned = config.worker.chains or sorted(generation.chains)
        unknown = sorted(set(owned) - set(generation.chains))
        if unknown:
            raise ConfigInvalid(
                f"worker.chains {unknown}: generation {generation.number} has {sorted(generation.chains)}"
            )
        self._chains = [ChainRunner(config, self._log, self._store, generation, chain) for chain in owned]

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
        """Take the newest manifest of each chain; publish its counters again, since the last worker may not have.

        Raises GenerationPending (try again) while chains of another number wait for the coordinator.
        """
        if not self._chains:
            self._join()
        for chain in self._chains:
            chain.load()
            if chain.owes_counters:
                self._publish(chain)

    def _started(self, stop: threading.Event) -> bool:
        while not stop.is_set():
            try:
                self.start()
                return True
            except GenerationPending as error:
                logger.warning("%s", error)
                stop.wait(PENDING_S)
        return False

    def run(self, stop: threading.Event) -> None:
        """Epochs until `stop`. Raises the last ChainStopped or GenerationFenced when no chain is left."""
        if not self._started(stop):
            return
        section = self._config.worker
        failures = 0
        stopped: FleetscopeError | None = None
        while not stop.is_set():
            began = time.monotonic()
            for chain in list(self._chains):
                try:
                    self._epoch(chain)
                    failures = 0
                except (ChainStopped, GenerationFenced) as error:
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
        self._publish(chain)
        return True

    def _publish(self, chain: ChainRunner) -> None:
        """Counters of the newest manifest. Not reaching the log is no failure: the next record has it all."""
        everything = chain.owes_counters
        only = None if everything else chain.changed_runs
        try:
            for record in counters.records(
                chain.chain, chain.number, chain.now_ns, chain.states, only, chain.generation, chain.offsets
            ):
                self._append(record)
            if everything:
                # An exporter shows a new generation when it knows all of it: nothing may be missing silently.
                self._log.flush(FLUSH_S)
            chain.owes_counters = False
            self._log.commit_advisory(WORKER_GROUP, self._topics.telemetry, chain.offsets)
        except FleetscopeError as error:
            logger.warning("chain %d: counters of epoch %d not published: %s", chain.chain, chain.number, error)

    def _append(self, record: MetricsRecord) -> None:
        try:
            self._log.append(self._topics.metrics, counters.key_of(record), record.SerializeToString())
        except Permanent as error:
            # Of one run: those of the others are not to wait for it.
            logger.warning("chain %d: counters of run %.80r: %s", record.chain, record.run, error)
