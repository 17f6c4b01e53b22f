"""The thread that carries a spool to the log: in order, until the log says it has it."""

import logging
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

from fleetscope.agents.spool.record import Topic
from fleetscope.agents.spool.spool import Delivery, Spool
from fleetscope.schema.errors import Backpressure, FleetscopeError, StateUnknown
from fleetscope.transport import Log, Pending, Topics
from fleetscope.transport.errors import LogClosed, LoginRefused, MessageTooLarge, UnknownTopic
from fleetscope.transport.rights import Role, of_role

log = logging.getLogger(__name__)

WINDOW_BYTES = 8 << 20
"""Given to the log at a time, at most a quarter of the spool: an overflow may not drop it, its fate being unknown."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
"""A broker that was away for minutes is found again within 5 s; a thousand agents do not come at once (full jitter)."""


@dataclass(frozen=True, slots=True)
class SenderStats:
    """Since start. `failing_since_s` is monotonic time of the first failure in a row, 0 while the log answers."""

    messages: int = 0
    bytes: int = 0
    failures: int = 0
    rewinds: int = 0
    failing_since_s: float = 0.0
    last_error: str = ""


class Sender:
    """Moves records to the topics of `prefix`. The log is opened by `open_log` and opened again when it was closed.

    A failed or unknown delivery is repeated with the same numbers: the pipeline drops what it has. Only a message the
    log will never take (too large) is given up, and counted.
    """

    def __init__(
        self,
        spool: Spool,
        open_log: Callable[[], Log],
        topics: Topics | None = None,
        partitions: int = 8,
    ) -> None:
        self._spool = spool
        self._open_log = open_log
        self._topics = topics or Topics()
        self._partitions = partitions
        self._window_bytes = min(WINDOW_BYTES, spool.cap_bytes // 4)
        self._names = {
            Topic.TELEMETRY: self._topics.telemetry,
            Topic.CLOCKS: self._topics.clocks,
            Topic.PROGRAMS: self._topics.programs,
            Topic.REPORTS: self._topics.reports,
            Topic.PEERS: self._topics.peers,
        }
        self._log: Log | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="fleetscope-sender", daemon=True)
        self.stats = SenderStats()

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send what is there while the log takes it, at most `timeout_s`; the rest stays in the spool."""
        deadline = time.monotonic() + timeout_s
        while self._thread.is_alive() and time.monotonic() < deadline and not self.stats.failing_since_s:
            if not self._spool.stats().in_flight and not self._spool.wait(0):
                break
            time.sleep(0.02)
        self._stop.set()
        self._spool.wake()
        if self._thread.is_alive():
            self._thread.join(max(1.0, deadline - time.monotonic()))

    def drain(self, timeout_s: float = 30.0) -> bool:
        """Without the thread: send everything that is in the spool now. False if time ran out first."""
        deadline = time.monotonic() + timeout_s
        while self._spool.wait(0):
            if not self._attempt() and time.monotonic() + FIRST_PAUSE_S > deadline:
                return False
        return True

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stop.is_set():
            if pause_s:
                self._stop.wait(random.uniform(pause_s / 2, pause_s))
            elif not self._spool.wait(1.0):
                continue
            if self._stop.is_set():
                break
            pause_s = 0.0 if self._attempt() else min(max(FIRST_PAUSE_S, pause_s * 2), LONGEST_PAUSE_S)
        if self._log is not None:
            self._log.close()

    def _attempt(self) -> bool:
        """One window of records. False: try again after a pause."""
        try:
            target = self._target()
            self._send(target)
        except FleetscopeError as error:
            self._failed(error)
            return False
        except Exception as error:  # a defect in a client library must not end the only thread that empties the spool
            log.exception("sender")
            self._failed(error)
            return False
        if self.stats.failing_since_s:
            log.info("the log takes messages again")
        self.stats = SenderStats(
            self.stats.messages, self.stats.bytes, self.stats.failures, self.stats.rewinds, 0.0, self.stats.last_error
        )
        return True

    def _target(self) -> Log:
        if self._log is None:
            opened = self._open_log()
            try:
                opened.create_topics(of_role(Role.AGENT, self._topics, self._topics.specs(self._partitions)))
            except BaseException:
                opened.close()
                raise
            self._log = opened
        return self._log

    def _failed(self, error: Exception) -> None:
        self._spool.rewind()
        first = not self.stats.failing_since_s
        if first:
            log.warning("the log takes nothing: %s", error)
        if isinstance(error, LogClosed | LoginRefused | UnknownTopic) or not isinstance(error, FleetscopeError):
            self._forget_log()
        self.stats = SenderStats(
            self.stats.messages,
            self.stats.bytes,
            self.stats.failures + 1,
            self.stats.rewinds + 1,
            self.stats.failing_since_s or time.monotonic(),
            str(error),
        )

    def _forget_log(self) -> None:
        if self._log is not None:
            try:
                self._log.close()
            except FleetscopeError as error:
                log.debug("closing the log: %s", error)
            self._log = None

    def _send(self, target: Log) -> None:
        """Hand over records, then wait for each in turn. Raises what a delivery failed with."""
        pending: deque[tuple[Delivery, Pending]] = deque()
        for delivery in self._spool.read(self._window_bytes):
            record = delivery.record
            try:
                pending.append((delivery, target.append(self._names[record.topic], record.key, record.value)))
            except Backpressure:
                if not pending:
                    raise
                break
            except MessageTooLarge as error:
                self._collect(pending)
                log.error("given up: %s", error)
                self._spool.reject(delivery, "batch_too_large")
        self._collect(pending)
        # After Backpressure the rest was read but not handed over.
        self._spool.rewind()

    def _collect(self, pending: deque[tuple[Delivery, Pending]]) -> None:
        while pending:
            delivery, answer = pending[0]
            try:
                answer.result(0.5)
            except MessageTooLarge as error:
                log.error("given up: %s", error)
                self._spool.reject(delivery, "batch_too_large")
            except StateUnknown:
                if not answer.done() and not self._stop.is_set():
                    continue
                raise
            else:
                self._spool.acknowledge(delivery)
                size = len(delivery.record.value)
                stats = self.stats
                self.stats = SenderStats(
                    stats.messages + 1,
                    stats.bytes + size,
                    stats.failures,
                    stats.rewinds,
                    stats.failing_since_s,
                    stats.last_error,
                )
            pending.popleft()
