"""The coordinator: looks every second, folds every 15 s or 200 k rows, and does the upkeep.

Two may run: rounds and Delta commits fence them, so a second one is harmless. It is also useless work, so one that sees
another make rounds stands by, and takes over when committed manifests wait too long.
"""

import logging
import os
import secrets
import socket
import threading
import time

import pyarrow as pa

from fleetscope.pipelines.coordinate.cadence import Cadences
from fleetscope.pipelines.coordinate.clock_metrics import clock_key, clock_records
from fleetscope.pipelines.coordinate.clock_tables import ClockTables
from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.programs import Programs
from fleetscope.pipelines.coordinate.published import KEY, round_record
from fleetscope.pipelines.coordinate.solver import Solver
from fleetscope.pipelines.coordinate.tail import pending_rows
from fleetscope.pipelines.coordinate.upkeep import Upkeep
from fleetscope.pipelines.merge import merge
from fleetscope.schema.config import Config
from fleetscope.schema.errors import FleetscopeError, Retryable
from fleetscope.sinks.lake.fold import Merge
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.sinks.lake.rounds import Round
from fleetscope.transport.log import Log
from fleetscope.transport.open import open_log
from fleetscope.transport.rights import Role, of_role
from fleetscope.transport.topics import Topics

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""A look costs one folder listing and one failed open a chain: ~0.1 ms."""
LEAST_S = 5.0
"""Between two rounds, however many rows wait: a round costs ~10 ms of CPU and one file of the log a table."""
STANDBY_ROUNDS = 4
"""A coordinator stands by until manifests have waited this many round periods without the other making a round."""
RETRY_S = 5.0


def merge_rows(table: str, rows: pa.Table) -> pa.Table:
    """The pipeline's own merge, as the fold wants it."""
    return merge(table, [rows])


class Coordinator:
    """One coordinator process. `log` is needed for symbols only; without it `ops` and `programs` stay as they are."""

    def __init__(
        self, config: Config, *, store: ObjectStore | None = None, log: Log | None = None, merge: Merge = merge_rows
    ) -> None:
        self._config = config
        self._store = store or open_store(config.lake_url, config.lake_options)
        self._log = log
        self._owns_log = False
        self.name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.moments = Moments(self._store, merge, self.name, config.lake.encoding)
        self.upkeep = Upkeep(self.moments, merge, config.lake)
        self._programs: Programs | None = None
        self._cadences: Cadences | None = None
        self.solver: Solver | None = None
        self._clock_tables: ClockTables | None = None
        self._told = 0
        self._waiting_since: float | None = None
        self._made_at = float("-inf")
        self._heard_at = float("-inf")

    def round_once(self) -> Round | None:
        """Symbols, then rounds until all that was committed is folded; the last one, None if there was nothing new or
        another coordinator was first."""
        self._symbols()
        if self._clock_tables is not None:
            self._clock_tables.fold()
        record = self.moments.make()
        while record is not None and self.moments.behind:
            following = self.moments.make()
            if following is None:
                break
            record = following
        if record is not None:
            self._made_at = time.monotonic()
            self._waiting_since = None
        return record

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; what is committed then is folded before it returns. Raises what trying again cannot
        mend."""
        try:
            while not stop.wait(LOOK_S):
                try:
                    self._tick()
                except Retryable as error:
                    _log.warning("%s", error)
                    stop.wait(RETRY_S)
            self._last_round()
        finally:
            self.close()

    def _last_round(self) -> None:
        try:
            self.round_once()
        except Retryable as error:
            _log.warning("%s", error)

    def close(self) -> None:
        if self._programs is not None:
            self._programs.close()
            self._programs = None
        if self._cadences is not None:
            self._cadences.close()
            self._cadences = None
        if self.solver is not None:
            self.solver.close()
            self.solver = self._clock_tables = None
        if self._log is not None and self._owns_log:
            self._log.close()
            self._log = None

    def _tick(self) -> None:
        seen = self.moments.last
        tails = self.moments.look()
        now = time.monotonic()
        if self.moments.last is not seen:
            self._heard_at = now
            self._waiting_since = None
        waiting = any(tail.manifests for tail in tails) or self.moments.touched
        waiting = waiting or (self._clock_tables is not None and self._clock_tables.waiting)
        self._waiting_since = (self._waiting_since or now) if waiting else None
        if self._standing_by(now):
            self._leave_clocks()
            return
        period_s = self._config.coordinator.round_s
        if self._waiting_since is not None and now - self._made_at >= LEAST_S:
            full = pending_rows(tails) >= self._config.coordinator.round_rows
            if full or now - self._waiting_since >= period_s:
                self.round_once()
        else:
            self._symbols()
        self._tell_cadences()
        self._tell_clocks()
        self._tell_round()
        self.upkeep.tick()

    def _standing_by(self, now: float) -> bool:
        """Whether another coordinator made the newest round and is not overdue."""
        last = self.moments.last
        if last is None or last.made_by == self.name:
            return False
        patience_s = STANDBY_ROUNDS * self._config.coordinator.round_s
        waited_s = 0.0 if self._waiting_since is None else now - self._waiting_since
        # at the start nothing was heard: a round found lying there may be years old
        return now - self._heard_at < patience_s or (self._heard_at > float("-inf") and waited_s < patience_s)

    def _opened_log(self) -> Log:
        if self._log is None:
            section = self._config.log
            topics, opened = Topics(section.topic_prefix), open_log(self._config.log_url)
            try:
                opened.create_topics(of_role(Role.COORDINATOR, topics, topics.specs(section.partitions)))
            except BaseException:
                opened.close()
                raise
            self._log, self._owns_log = opened, True
        return self._log

    def _tell_cadences(self) -> None:
        """When the ranks of runs take windows. What goes wrong here must not keep events from being folded."""
        try:
            if self._cadences is None:
                topics, log = Topics(self._config.log.topic_prefix), self._opened_log()
                if not {topics.reports, topics.control} <= set(log.topics()):
                    return
                profiler = self._config.profiler
                self._cadences = Cadences(
                    log, topics.reports, topics.control, self._store, profiler.window_s, profiler.window_budget
                )
            self._cadences.poll()
        except FleetscopeError as error:
            _log.warning("cadences: %s", error)
            if self._cadences is not None:
                self._cadences.close()
                self._cadences = None

    def _tell_clocks(self) -> None:
        """Where every host's clock stands. What goes wrong here must not keep events from being folded."""
        settings = self._config.coordinator.clocks
        if not settings.enabled:
            return
        try:
            if self.solver is None:
                topics, log = Topics(self._config.log.topic_prefix), self._opened_log()
                if not {topics.clocks, topics.clock_maps} <= set(log.topics()):
                    return
                self.solver = Solver(log, topics.clocks, topics.clock_maps, self._store, settings, self.name)
                if self._clock_tables is not None:
                    self._clock_tables.fold()  # what the solver of before left
                self._clock_tables = ClockTables(self.moments, self.solver)
            if self.solver.poll():
                self._publish_clocks(self.solver)
        except FleetscopeError as error:
            _log.warning("clocks of the fleet: %s", error)
            if self.solver is not None:
                self.solver.close()
                self.solver = None

    def _leave_clocks(self) -> None:
        """To whoever makes the rounds: rows that wait here would reach no reader before this one takes over."""
        if self.solver is None:
            return
        assert self._clock_tables is not None
        try:
            self._clock_tables.fold()
            self.solver.leave()
            self.solver = self._clock_tables = None
        except FleetscopeError as error:
            _log.warning("clocks of the fleet: %s", error)

    def _publish_clocks(self, solver: Solver) -> None:
        """What a hop brought: rows for the next round, series for exporters."""
        tables = self._clock_tables
        assert tables is not None
        now_ns = time.time_ns()
        tables.take(now_ns)
        topic, log = Topics(self._config.log.topic_prefix).metrics, self._opened_log()
        if topic in log.topics():
            for record in clock_records(solver, tables.refused, tables.steps, now_ns):
                log.append(topic, clock_key(record), record.SerializeToString())

    def _tell_round(self) -> None:
        """To exporters, once a round. Not reaching the log is no failure: the next round says more."""
        last = self.moments.last
        if last is None or last.number <= self._told:
            return
        try:
            topic, log = Topics(self._config.log.topic_prefix).metrics, self._opened_log()
            if topic in log.topics():
                log.append(topic, KEY, round_record(last, time.time_ns()).SerializeToString())
                self._told = last.number
        except FleetscopeError as error:
            _log.warning("round %d is not told to exporters: %s", last.number, error)

    def _symbols(self) -> None:
        if self._programs is None:
            topics, log = Topics(self._config.log.topic_prefix), self._opened_log()
            if topics.programs not in log.topics():
                return
            tables = self.moments.tables
            self._programs = Programs(log, topics.programs, tables["ops"], tables["programs"])
        try:
            if self._programs.poll():
                self.moments.touch("ops")
                self.moments.touch("programs")
        except Retryable as error:
            _log.warning("symbols: %s", error)
        except FleetscopeError as error:
            # the tables of symbols must not keep events from being folded
            _log.error("symbols stop: %s", error)
            self._programs.close()
            self._programs = None
