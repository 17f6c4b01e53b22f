"""The processes of this host that were heard of, from their first hello until their last event is taken."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fleetscope.agents.clocks import HostClocks
from fleetscope.agents.node.devices import Devices
from fleetscope.agents.node.facts import Host, pid_namespace, start_ticks
from fleetscope.agents.node.kept import KeptFrames
from fleetscope.agents.node.meter import RoundCost
from fleetscope.agents.node.process import Key, Process
from fleetscope.agents.node.saved import SavedHellos
from fleetscope.agents.node.server import Connection
from fleetscope.agents.profiler import protocol
from fleetscope.agents.profiler.segment import SUFFIX, owner
from fleetscope.agents.redaction import KEEP_ALL, Redaction, admitted
from fleetscope.agents.spool import Spool
from fleetscope.native.recorder import Segment

log = logging.getLogger(__name__)

PROCESS_LIMIT = 1024
ORPHAN_AGE_S = 60.0
"""A dead process' ring that nobody drained for so long belongs to nobody else."""
LAST_WINDOW_S = 30.0
"""How long the end of a process waits for its windows to be decoded."""
FAREWELL_S = 5.0
RETURN_S = 30.0
"""How long a process of which cannot be told whether it lives has to say hello again: it tries every 10 s at the
latest (agents/profiler/connection.py), and its thread may be busy with a window."""


class Registry:
    """Guarded by `lock`, which the decoder shares."""

    def __init__(
        self,
        host: Host,
        spool: Spool,
        saved: SavedHellos,
        shm_dir: Path,
        kept: KeptFrames,
        devices: Devices | None = None,
        clocks: HostClocks | None = None,
        redaction: Redaction = KEEP_ALL,
    ) -> None:
        self.lock = threading.Lock()
        self._clocks = clocks or HostClocks()
        self._host = host
        self._namespace = pid_namespace()
        self._spool = spool
        self._saved = saved
        self._shm_dir = shm_dir
        self._kept = kept
        self._devices = devices
        self._redaction = redaction
        self._processes: dict[Key, Process] = {}
        self._died_s: dict[Key, float] = {}
        self._missed_s: dict[Key, float] = {}
        """Since when nothing tells whether a process lives."""
        self.labels: dict[str, str] = {}
        """Of processes whose platform is the CPU: its measured peak."""
        self.refused = self.segments_refused = 0
        self.finished = 0
        self.round_cost = RoundCost()
        self.failed = 0
        """Rounds of one process that failed."""

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._processes.values()))

    def __len__(self) -> int:
        return len(self._processes)

    def get(self, key: Key) -> Process | None:
        return self._processes.get(key)

    def greet(self, hello: protocol.Hello, peer: Connection | None = None, pid: int = 0) -> Process | None:
        """The process that says hello; None if there are too many, or it is known to have ended. Without `peer` it is
        one of an earlier life of this agent, which saw it as `pid`."""
        key = (hello.pid, hello.start_ticks)
        labels = self._labels_for(hello)
        process = self._processes.get(key)
        known = process.hello if process is not None else None
        if process is None:
            if len(self._processes) >= PROCESS_LIMIT:
                self.refused += 1
                return None
            process = self._processes[key] = Process(
                self._host, hello, self._spool, labels, self._devices, self._redaction
            )
        elif process.final:
            return None
        else:
            process.greet(hello, labels)
        seen = process.os_pid
        if peer is None:
            process.life.remember(pid)
        else:
            process.life.meet(peer.socket, peer.pid)
        self.segments_refused += not process.attach(peer.descriptor if peer is not None else -1)
        if (hello, process.os_pid) != (known, seen):
            self._saved.keep(hello, process.os_pid, self._namespace)
        return process

    def _labels_for(self, hello: protocol.Hello) -> dict[str, str]:
        return dict(self.labels) if hello.platform == "cpu" else {}

    def relabel(self, labels: dict[str, str]) -> None:
        """Labels that became known after processes had said hello."""
        self.labels = labels
        for process in self:
            process.greet(process.hello, self._labels_for(process.hello))

    def adopt(self) -> None:
        """Processes of an earlier life of this agent, alive or dead, that it had not seen off."""
        for hello, pid in self._saved.load(self._host.boot_id, self._namespace):
            # One whose ring is gone has ended; its last losses may be untold. It may be of before names were redacted.
            said = admitted(hello, self._redaction)
            assert isinstance(said, protocol.Hello)
            self.greet(said, pid=pid)

    def adopt_orphans(self) -> None:
        """Rings of dead processes that never met an agent, or whose hello was lost: their run is unknown."""
        for path in sorted(self._shm_dir.glob(f"*{SUFFIX}")) if self._shm_dir.is_dir() else ():
            key = owner(path.name, SUFFIX)
            if key is None:
                continue
            try:
                young = time.time() - path.stat().st_mtime < ORPHAN_AGE_S
                if key in self._processes or young or start_ticks(key[0]) == key[1]:
                    continue
                segment = Segment(str(path))
                if segment.held:
                    continue  # by a process of another pid namespace
                info = segment.info
            except (OSError, ValueError) as error:
                log.debug("%s: %s", path, error)
                continue
            if (info.pid, info.start_ticks, info.boot_id) == (*key, self._host.boot_id):
                self._missed_s[key] = float("-inf")
                self.greet(_unknown(str(path), info.pid, info.start_ticks, info.boot_id, info.anchor[2]))

    def collect(self, ticks: Mapping[str, int], now_s: float, now_ns: int) -> float:
        """Drain all rings up to `ticks`, by clock; end the processes that are gone. How full the fullest ring was."""
        fullest = 0.0
        for process in self:
            try:
                self._place(process)
                fullest = max(fullest, self._collect(process, ticks, now_s, now_ns))
            except Exception:
                # What one process left must not keep the rings of all others from being drained.
                log.exception("process %d", process.hello.pid)
                self.failed += 1
        return fullest

    def _place(self, process: Process) -> None:
        """In which epoch of its clock the process stamps, and whether that is the present one."""
        if process.segment is None:
            return
        info = process.segment.info
        if process.resets is None:
            process.resets = self._clocks.resets(info.clock, info.anchor)
        process.outdated = process.resets < self._clocks.present(info.clock)

    def _collect(self, process: Process, ticks: Mapping[str, int], now_s: float, now_ns: int) -> float:
        if process.final:
            self._see_off(process, now_s)
            return 0.0
        if self._counts_as_alive(process, now_s):
            meter, begin_ns = process.meter, time.thread_time_ns()
            meter.round_records = 0
            fullest = process.collect(ticks, now_s)
            spent_ns = time.thread_time_ns() - begin_ns
            meter.ns["drain"] += spent_ns
            self.round_cost.add(meter.round_records, spent_ns)
            return fullest
        died_s = self._died_s.setdefault(process.key, now_s)
        if process.pending and now_s - died_s < LAST_WINDOW_S:
            return 0.0
        process.finish(ticks, now_s, now_ns)
        # Before its hello goes: a kill in between finds a process whose account is closed.
        self._kept.forget_all(process.key)
        self.finished += 1
        return 0.0

    def close(self) -> None:
        for process in self:
            process.life.close()

    def _counts_as_alive(self, process: Process, now_s: float) -> bool:
        lives = process.lives()
        if process.connected or lives:
            self._missed_s.pop(process.key, None)
            return True
        if lives is not None or process.ended_at_ns:
            return False
        return now_s - self._missed_s.setdefault(process.key, now_s) < RETURN_S

    def _see_off(self, process: Process, now_s: float) -> None:
        if now_s - self._died_s.get(process.key, 0.0) < FAREWELL_S:
            return
        process.say_goodbye()
        if self._spool.untold(process.source):
            # Found: on a full disk the last losses of a process that had ended were in no batch, and so in no ledger.
            self._died_s[process.key] = now_s
            return
        self._saved.forget(*process.key)
        self._spool.retire(process.source)
        del self._processes[process.key]
        self._died_s.pop(process.key, None)
        self._missed_s.pop(process.key, None)


def _unknown(segment: str, pid: int, started: int, boot_id: str, realtime_ns: int) -> protocol.Hello:
    return protocol.Hello(
        version=protocol.VERSION,
        pid=pid,
        start_ticks=started,
        boot_id=boot_id,
        run="",
        attempt="",
        rank=0,
        world_size=0,
        command="",
        python="",
        jax="",
        jaxlib="",
        platform="",
        segment=segment,
        started_ns=realtime_ns,
    )
