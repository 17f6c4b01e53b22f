"""The control topic at a host: what the coordinator decided for runs, passed on to the processes of those runs.

Small and read whole: one message a run and decision, the newest of each key counts. A log that is away changes nothing
but that no news comes; what was told stays in force as far as it reaches.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from fleetscope.agents.batches import clean_text
from fleetscope.agents.profiler.protocol import Cost, Followed, Hello, Ran, Schedule, Stretch
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.identity import life_id
from fleetscope.transport import Log
from fleetscope.transport.log import Message

log = logging.getLogger(__name__)

POLL_S = 1.0
RETRY_S = 5.0
STRETCHES = 256
"""Of one decision. The coordinator keeps 64; all must go through a frame to each process."""
RUNS_KEPT = 4096
"""Attempts remembered, oldest out: the topic keeps one message an attempt until it is cleaned."""

REASON_CHARS = 256

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is known of one attempt."""

    number: int = 0
    stretches: tuple[Stretch, ...] = ()
    program: str = ""
    members: frozenset[int] = frozenset()
    """With a program: lives that count its executions alike. To others the stretches mean nothing."""


class Controls:
    """What the topic said, by (run, attempt). Safe from any thread."""

    def __init__(self, told: Callable[[str], str] = str) -> None:
        """`told`: what a run or attempt is called behind the agent's door. A person may name it as its processes do."""
        self._told = told
        self._lock = threading.Lock()
        self._decisions: dict[_Key, Decision] = {}
        self._switches: dict[_Key, tuple[int, str]] = {}
        self.refused = 0

    def take(self, message: Message) -> bool:
        """True if it changed something. What is not understood is counted in `refused`."""
        if message.unreadable is not None or message.tombstone:
            return False
        try:
            control = wire.Control.FromString(message.value)
        except DecodeError:
            self.refused += 1
            return False
        kind = control.WhichOneof("what")
        with self._lock:
            if kind == "cadence":
                return self._cadence(control.cadence)
            if kind == "windows":
                return self._switch(control.windows)
        return False

    def _cadence(self, cadence: wire.Cadence) -> bool:
        key = (self._told(cadence.run), self._told(cadence.attempt))
        if cadence.number <= self._decisions.get(key, Decision()).number:
            return False
        if len(cadence.stretches) > STRETCHES:
            self.refused += 1
            return False
        stretches = tuple(
            Stretch(item.from_step, item.until_step, item.k, max(1, item.strata))
            for item in cadence.stretches
            if item.program == cadence.program
        )
        if not all(map(sound, stretches)):
            self.refused += 1
            return False
        self._decisions.pop(key, None)
        self._decisions[key] = Decision(cadence.number, stretches, cadence.program, frozenset(cadence.members))
        _forget_oldest(self._decisions)
        return True

    def _switch(self, switch: wire.WindowSwitch) -> bool:
        key = (self._told(switch.run), self._told(switch.attempt))
        # The log's order counts, not `issued_ns`: a switch of a host whose clock ran ahead would stand for hours.
        before = self._switches.pop(key, None)
        reason = clean_text(switch.reason, REASON_CHARS) or "off"
        now = self._switches[key] = (switch.issued_ns, reason if switch.off else "")
        if now == before:
            return False
        _forget_oldest(self._switches)
        return True

    def schedule(self, hello: Hello) -> Schedule | None:
        """What a process is to be told; None while nothing concerns its run."""
        run, attempt = clean_text(hello.run, 256), clean_text(hello.attempt, 256)
        with self._lock:
            decision = self._decisions.get((run, attempt))
            switches = [self._switches[key] for key in ((run, ""), (run, attempt)) if key in self._switches]
        if decision is None and not switches:
            return None
        decision = decision or Decision()
        off = max(switches)[1] if switches else ""
        life = life_id(hello.boot_id, hello.pid, hello.start_ticks, hello.rank)
        stretches = decision.stretches if not decision.program or life in decision.members else ()
        return Schedule(hello.attempt, decision.number, stretches, off, decision.program)


def sound(stretch: Stretch) -> bool:
    """It is what placement.opening() is defined for."""
    powers = all(n >= 1 and n & (n - 1) == 0 for n in (stretch.every, stretch.strata))
    return powers and stretch.every >= 2 and 0 <= stretch.from_step < stretch.until_step


def _forget_oldest(kept: dict[_Key, Decision] | dict[_Key, tuple[int, str]]) -> None:
    if len(kept) > RUNS_KEPT:
        del kept[next(iter(kept))]


class Taker(Protocol):
    """What a topic's messages go to."""

    def take(self, message: Message) -> bool:
        """True if it changed something."""


class ControlReader:
    """The thread that follows a compacted topic and calls `changed` after each batch that held news."""

    def __init__(
        self,
        open_log: Callable[[], Log],
        topic: str,
        controls: Taker,
        changed: Callable[[], None],
        name: str = "fleetscope-control",
    ) -> None:
        self._open_log = open_log
        self._topic = topic
        self._controls = controls
        self._changed = changed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(POLL_S + 4)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except FleetscopeError as error:
                self._failed(error)
            except Exception as error:  # a defect in a client library must not end the thread
                log.exception("%s", self._topic)
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.failures == 1:
            log.warning("%s cannot be read: %s", self._topic, error)
        self._stop.wait(RETRY_S)

    def _follow(self) -> None:
        with self._open_log() as opened:
            # Whoever is first of agent and coordinator makes it; the sender of this agent does within a second.
            while self._topic not in opened.topics():
                if self._stop.wait(POLL_S):
                    return
            tail = opened.tail(self._topic)
            try:
                while not self._stop.is_set():
                    news = [self._controls.take(message) for message in tail.poll(POLL_S)]
                    if any(news):
                        self._changed()
            finally:
                tail.close()


def report(source: wire.Source, hello: Hello, cost: Cost, at_ns: int) -> wire.RankReport:
    """What the coordinator learns of a rank; `cost` as account.plausible() leaves it."""
    return wire.RankReport(
        source=source,
        world_size=max(0, hello.world_size),
        at_ns=at_ns,
        step=cost.step,
        steps=max(0, cost.steps),
        period_ns=max(0, cost.period_ns),
        longest_ns=max(0, cost.longest_ns),
        settled_steps=max(0, cost.settled_steps),
        windows=max(0, cost.windows),
        cost_ns=max(0, cost.start_ns) + max(0, cost.stop_ns),
        stall_ns=max(0, cost.stall_ns),
        stalls=max(0, cost.stalls),
        configured_k=max(0, cost.configured_k),
        schedule=max(0, cost.schedule),
        breaker=cost.breaker,
        ran=[_ran(ran) for ran in cost.ran],
        followed=_followed(cost.followed),
    )


def _ran(ran: Ran) -> wire.RankReport.Ran:
    return wire.RankReport.Ran(program=ran.program, executions=max(0, ran.executions), busy_ns=max(0, ran.busy_ns))


def _followed(followed: Followed) -> wire.RankReport.Followed:
    return wire.RankReport.Followed(
        program=followed.program,
        execution=followed.execution,
        period_ns=max(0, followed.period_ns),
        longest_ns=max(0, followed.longest_ns),
        settled=max(0, followed.settled),
        mark_ns=max(0, followed.mark_ns),
        marked=followed.marked,
        after_ns=max(0, followed.after_ns),
    )


def report_key(source: wire.Source) -> bytes:
    return f"{source.run}/{source.attempt}/{source.rank}".encode()
