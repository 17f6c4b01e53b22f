"""The fleet as a whole: steps of one run over all chips, second by second, paced or as fast as it goes."""

import logging
import shutil
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.agents.batches import Draft, span_rows
from fleetscope.agents.programs.chunks import chunks
from fleetscope.agents.simulated.delivery import FaultyLog
from fleetscope.agents.simulated.faults import Fault, parse_faults
from fleetscope.agents.simulated.host import RAW, Chip, Host, announce, make_host, process_of
from fleetscope.agents.simulated.pages import Pages
from fleetscope.agents.simulated.program import make_program
from fleetscope.agents.simulated.shim import Shim, shims
from fleetscope.agents.simulated.steps import FleetStep, fleet_step
from fleetscope.agents.simulated.timekeeping import Timekeeping
from fleetscope.agents.simulated.truth import Truth
from fleetscope.agents.spool import Sender, Spool
from fleetscope.agents.spool.record import Topic
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.schema.errors import FaultUnknown
from fleetscope.schema.vocabulary import BatchFlag, Kind
from fleetscope.transport import Topics, open_log
from fleetscope.transport.rights import Role, of_role

log = logging.getLogger(__name__)

BEGIN_NS = 1_796_000_003 * 10**9 + 137_000_000
"""Begin of a simulation that is not paced, inside a 10 s window: fixed, so that everything follows from the seed."""
SECOND_NS = 1_000_000_000
UNPACED_S = 10
"""An unpaced fleet talks to the log every so many seconds of its time."""
ANNOTATION_NS = 900_000
"""A step's annotation lasts until the dispatch is done, not until the devices are."""
_HELD = ("lost", "late", "duplicate")


def _over(step: FleetStep, ready: NDArray[np.int64]) -> int:
    """When devices and main threads are through with a step: the next one begins on none of them before."""
    return max(step.last, int(ready[1].max()) + ANNOTATION_NS)


class Simulation:
    """`run` makes `seconds` of fleet time. One run ("attempt 1") spans all hosts; a host is one process and rank."""

    def __init__(
        self,
        config: Config,
        *,
        hosts: int = 8,
        chips: int = 4,
        seconds: float = 120.0,
        seed: int = 1,
        truth: Path | None = None,
        speed: str = "1",
        faults: list[str] | None = None,
        run: str = "simulated",
        ops: int = 1500,
        step_ms: float = 500.0,
        busy: float = 0.0,
        shim: bool = False,
        pages: Path | None = None,
    ) -> None:
        # pages: file for the addresses of the hosts' /metrics pages; they are served until `run` returns.
        # busy: share of the step time the longest line is scaled to; 0 leaves the durations of the pinned generator.
        if ops < 10:
            raise FaultUnknown("a step has at least 10 ops")
        self._config = config
        self._speed = 0.0 if speed == "max" else float(speed)
        self._seconds = seconds
        self._step_ns = int(step_ms * 1e6)
        self._faults = parse_faults(faults or [], seconds, hosts, chips)
        self._program = make_program(seed, ops, busy * step_ms * 1e6)
        self._truth = Truth(truth)
        self._begin_ns = time.time_ns() if self._speed else BEGIN_NS
        self._topics = Topics(config.log.topic_prefix)
        self._log = open_log(config.log_url)
        self._log.create_topics(of_role(Role.AGENT, self._topics, self._topics.specs(config.log.partitions)))
        self._now_ns = 0
        self._open_ns = 0
        self._rng = np.random.default_rng([seed, 3])
        attempt = f"{run}-{seed}" if not self._speed else f"{run}-{self._begin_ns // SECOND_NS}"
        config.spool_dir.mkdir(parents=True, exist_ok=True)
        self._spools = Path(tempfile.mkdtemp(prefix="simulated-", dir=config.spool_dir))
        self._hosts = [
            make_host(
                number, chips, int(seconds) + 2, seed, cluster=config.cluster, run=run, attempt=attempt,
                begin_ns=self._begin_ns, folder=self._spools / f"{number}",
                log=self._faulty(number), sender=self._sender,
            )
            for number in range(hosts)
        ]  # fmt: skip
        for fault in self._faults:
            if fault.kind == "clock_step":
                step = (int(fault.at * 1e9), int(fault.amount * 1e6))
                self._hosts[fault.host].wall.steps.append(step)
        group = identity.key_hash("collective", config.cluster, run, attempt, self._program.table.program, 0, 0)
        self._timekeeping = Timekeeping(self._hosts, self._faults, seed, self._begin_ns, group)
        self._shims = shims(self._hosts, self._program.table.program, seed) if shim else []
        self._network = ThreadPoolExecutor(hosts, "sim-network")
        self._pages = Pages(self._hosts, pages) if pages is not None else None
        self.events = 0

    def _faulty(self, host: int) -> FaultyLog:
        mine = [fault for fault in self._faults if fault.host == host and fault.kind in _HELD]
        return FaultyLog(self._log, host, self._topics.telemetry, mine, lambda: self._now_ns)

    def _sender(self, spool: Spool, target: FaultyLog) -> Sender:
        return Sender(spool, lambda: target, self._topics, self._config.log.partitions)  # type: ignore[arg-type, return-value]

    def run(self, stop: threading.Event) -> None:
        """Until `seconds` are over or `stop` is set; what was made is sent before it returns."""
        self._introduce()
        started = time.monotonic()
        pending: list[tuple[int, FleetStep, NDArray[np.int64]]] = []
        step_at, number, second = SECOND_NS // 10, 0, 0
        while second < self._seconds and not stop.is_set():
            second += 1
            edge = second * SECOND_NS
            while step_at < edge:
                step, ready = self._step(number, step_at)
                pending.append((number, step, ready))
                for made in self._shims:
                    self._truth.write("executions", made.add(number, step, int(ready[1, made.host.number])))
                step_at = max(step_at + self._step_ns, _over(step, ready) + 2_000)
                number += 1
            if self._speed:
                stop.wait(max(0.0, started + second / self._speed - time.monotonic()))
            self._now_ns = edge
            done = [item for item in pending if _over(item[1], item[2]) < edge]
            pending = [item for item in pending if _over(item[1], item[2]) >= edge]
            # A device that is busy with a step has not been seen beyond the step's begin.
            self._open_ns = min((int(step.begin.min()) for _, step, _ in pending), default=edge)
            self._second(second, done)
            for made in self._shims:
                self._executions(made, edge)
        for made in self._shims:
            self._executions(made, self._now_ns, last=True)
        self._finish()

    # ---- making

    def _active(self, kind: str, second: float) -> list[Fault]:
        return [fault for fault in self._faults if fault.kind == kind and fault.active(second)]

    def _step(self, number: int, at_ns: int) -> tuple[FleetStep, NDArray[np.int64]]:
        """Step `number` that the run begins at `at_ns`: the fleet's spans, and when each host had its data."""
        waits = 1_000_000 + self._rng.exponential(200_000, len(self._hosts))
        for fault in self._active("straggler", at_ns / 1e9):
            waits[fault.host] += fault.amount * 1e9
        ready = at_ns + waits.astype(np.int64)
        start, slow = [], []
        for host in self._hosts:
            for chip in host.chips:
                start.append(int(ready[host.number]) + int(self._rng.integers(20_000, 50_000)))
                slow.append(chip.slowdown)
        step = fleet_step(self._program, self._rng, np.array(start, np.int64), np.array(slow))
        return step, np.stack([np.full(len(self._hosts), at_ns), ready])

    def _introduce(self) -> None:
        table = self._program.table
        for host in self._hosts:
            announce(host, table.program, table.module, self._begin_ns, len(self._hosts))
            for chip in host.chips:
                chip.unwrapper.observe(chip.counter.one(0) % chip.register.modulus, host.raw.one(0))
            host.raw_to = host.thread_to = host.raw.one(0)
            # As a real agent does at its start: what is read before the first look at the clocks has no bracket.
            host.put(
                Draft(source=host.agent, tick_from=host.raw_to, tick_to=host.raw_to, clock=RAW, rows=None,
                      snapshots=host.snapshots(0)),
                0.0,
            )  # fmt: skip
        for made in self._shims:
            made.begin()
        for key, chunk in chunks(table):
            self._hosts[0].spool.put_message(Topic.PROGRAMS, key, chunk.SerializeToString())
        self._truth.write("clocks", [
            {"host": host.number, "chip": chip.number, "device": chip.device_id, "key": chip.device.key,
             "register": chip.shape, "period_num": chip.register.period_num, "period_den": chip.register.period_den,
             "ppm": chip.ppm}
            for host in self._hosts for chip in host.chips
        ])  # fmt: skip
        self._truth.write("faults", [
            {"kind": fault.kind, "host": fault.host, "chip": fault.chip, "at_s": fault.at, "lasting_s": fault.lasting,
             "amount": fault.amount, "count": fault.count}
            for fault in self._faults
        ])  # fmt: skip

    def _second(self, second: int, done: list[tuple[int, FleetStep, NDArray[np.int64]]]) -> None:
        """Everything that ended in this second, as batches of each host; then what the network takes."""
        for host in self._hosts:
            host.now_ns = self._now_ns
            host.raw_epoch = self._timekeeping.epoch(host.number, second)
            self._truth.write("host_clocks", [self._timekeeping.truth(host.number, second)])
            for fault in self._faults:
                if fault.kind == "restart" and fault.host == host.number and second - 1 <= fault.at < second:
                    host.restart()
                    announce(
                        host, self._program.table.program, self._program.table.module, self._begin_ns, len(self._hosts)
                    )
            if self._timekeeping.paused(host.number, second - 1):
                continue  # what it did in this second is in no batch, nor in the truth
            self._counters(host, second, done)
            for chip in host.chips:
                self._device_batch(host, chip, second, done)
            self._host_batch(host, second, done)
        # An append waits for the disk (up to 1 s): hosts wait side by side, as real ones do, and less often when
        # fleet time runs faster than the disk.
        if self._speed or second % UNPACED_S == 0:
            list(self._network.map(lambda host: self._exchange(host, second), self._hosts))

    def _exchange(self, host: Host, second: int) -> None:
        silent = any(fault.host == host.number for fault in self._active("silent", second))
        if not silent and not self._timekeeping.paused(host.number, second - 1):
            self._send(host)
        host.log.release(self._now_ns)

    def _send(self, host: Host) -> None:
        if not host.sender.drain(2.0 if self._speed else 60.0):
            log.warning("%s: the log takes nothing, %d batches wait", host.name, host.spool.stats().batches)

    def _counters(self, host: Host, second: int, done: list[tuple[int, FleetStep, NDArray[np.int64]]]) -> None:
        busy = min(1.0, sum((step.last - int(ready[0, 0])) for _, step, ready in done) / SECOND_NS)
        for chip in host.chips:
            throttles = [
                fault.amount
                for fault in self._active("throttle", second)
                if (fault.host, fault.chip) == (host.number, chip.number)
            ]
            chip.warm(busy, max(throttles, default=1.0))
        if self._pages is not None:
            silent = any(fault.host == host.number for fault in self._active("silent", second))
            self._pages.second(host, busy, len(done), silent)
        draft = host.samples(self._now_ns, [busy] * len(host.chips))
        self.events += draft.row_count
        host.put(draft, second)
        host.raw_to = draft.tick_to
        record = self._timekeeping.record(host.number, second, draft.snapshots, done)
        host.spool.put_message(Topic.CLOCKS, host.name.encode(), record.SerializeToString())

    def _device_batch(
        self, host: Host, chip: Chip, second: int, done: list[tuple[int, FleetStep, NDArray[np.int64]]]
    ) -> None:
        column = host.number * len(host.chips) + chip.number
        size = len(self._program.kind) + 1
        rows = len(done) * size
        begin = np.concatenate([step.begin[column] for _, step, _ in done]) if done else np.empty(0, np.int64)
        end = np.concatenate([step.end[column] for _, step, _ in done]) if done else np.empty(0, np.int64)
        op = np.tile(done[0][1].op, len(done)) if done else np.empty(0, np.int64)
        line = np.tile(done[0][1].line, len(done)) if done else np.empty(0, np.int32)
        kind = np.tile(done[0][1].kind, len(done)) if done else np.empty(0, np.uint8)
        number = np.repeat([item[0] for item in done], size).astype(np.int64)
        true_to = max((int(step.end[column].max()) for _, step, _ in done), default=chip.true_to)
        if not done:
            seen = min(self._now_ns - SECOND_NS // 2, self._open_ns)
            true_to = max(chip.true_to, seen) if second > 1 else chip.true_to
        start, stop_ = chip.ticks(begin), chip.ticks(end)
        tick_to = int(chip.ticks(np.array([true_to], np.int64))[0]) + (1 if done else 0)
        tick_to = max(tick_to, chip.tick_to)
        order = np.lexsort((start - stop_, start, line))
        program = self._program.table.program
        made = span_rows(
            start=start[order], dur=(stop_ - start)[order], line=line[order], kind=kind[order],
            program=program, op=op[order], exec=number[order], step=number[order],
        )  # fmt: skip
        draft = Draft(
            source=host.process, tick_from=chip.tick_to, tick_to=tick_to, clock=chip.epoch, device=chip.device,
            rows=made, window=None,
        )  # fmt: skip
        first = host.put(draft, second)
        self.events += rows
        if self._truth.wanted:
            self._tell(host, chip.number, chip.device_id, first, made, begin[order], end[order])
            self._truth.write("ranges", [{
                "host": host.number, "chip": chip.number, "device": chip.device_id, "tick_from": chip.tick_to,
                "tick_to": tick_to, "true_from_ns": chip.true_to + self._begin_ns,
                "true_to_ns": true_to + self._begin_ns, "rows": rows,
            }])  # fmt: skip
        chip.tick_to, chip.true_to = tick_to, true_to

    def _executions(self, made: Shim, true_ns: int, last: bool = False) -> None:
        for told in made.settle(true_ns, last):
            draft = Draft(
                made.host.process, told.tick_from, told.tick_to, made.host.raw_epoch, told.device, told.rows,
                flags=int(BatchFlag.EXECUTIONS),
            )  # fmt: skip
            made.host.put(draft, true_ns / 1e9)
            self.events += told.rows.num_rows

    def _host_batch(self, host: Host, second: int, done: list[tuple[int, FleetStep, NDArray[np.int64]]]) -> None:
        """Main thread: waiting for data, then the step annotation with the dispatch inside it."""
        if not done:
            return
        begin, end, kind, name, steps = [], [], [], [], []
        for number, _, ready in done:
            at, data = int(ready[0, host.number]), int(ready[1, host.number])
            for what, text, first, last in (
                (Kind.DATA_WAIT, "data_wait", at, data - 1_000),
                (Kind.STEP, "train", data, data + ANNOTATION_NS),
                (Kind.DISPATCH, "dispatch", data + 5_000, data + 15_000),
            ):
                begin.append(first)
                end.append(last)
                kind.append(int(what))
                name.append(identity.name_program(text))
                steps.append(number)
            self._truth.write("steps", [{
                "host": host.number, "step": number, "true_begin_ns": data + self._begin_ns,
                "wall_begin_ns": host.wall.one(data), "data_wait_ns": data - at,
                "flops": self._program.flops * len(host.chips),
            }])  # fmt: skip
        first_ns, last_ns = np.array(begin, np.int64), np.array(end, np.int64)
        start, stop_ = host.raw.at(first_ns), host.raw.at(last_ns)
        order = np.lexsort((start - stop_, start))
        made = span_rows(
            start=start[order], dur=(stop_ - start)[order], line=0, kind=np.array(kind, np.uint8)[order],
            program=np.array(name, np.int64)[order], step=np.array(steps, np.int64)[order],
        )  # fmt: skip
        tick_to = int(stop_.max()) + 1
        draft = Draft(source=host.process, tick_from=host.thread_to, tick_to=tick_to, clock=host.raw_epoch, rows=made)
        host.thread_to = tick_to
        first = host.put(draft, second)
        self.events += len(begin)
        self._tell(host, -1, 0, first, made, first_ns[order], last_ns[order])

    def _tell(
        self, host: Host, chip: int, device: int, first: int, rows: pa.RecordBatch, begin: NDArray[np.int64],
        end: NDArray[np.int64],
    ) -> None:  # fmt: skip
        if not self._truth.wanted or not rows.num_rows:
            return
        count = rows.num_rows
        known = {name: rows.column(name) for name in ("start", "dur", "line", "kind", "program", "op", "exec", "step")}
        source = host.source_id
        self._truth.write("spans", {
            **known,
            "host": np.full(count, host.number, np.int32), "chip": np.full(count, chip, np.int32),
            "process": np.full(count, identity.process_id(host.process)), "device": np.full(count, device),
            "source": np.full(count, source), "seq": np.arange(first, first + count),
            "true_begin_ns": begin + self._begin_ns, "true_end_ns": end + self._begin_ns,
            "wall_begin_ns": host.wall.at(begin), "wall_end_ns": host.wall.at(end),
        })  # fmt: skip

    def _finish(self) -> None:
        """The end of the run, everything that is still somewhere, and the record of what went wrong on the way."""
        for host in self._hosts:
            host.voices[host.process.pid].again(process_of(host, self._begin_ns, len(self._hosts)))
            event = wire.RunEvent(event="end", at_ns=host.wall.one(self._now_ns))
            host.say(host.process, wire.Announcement(run_event=event))
            host.put(Draft(source=host.process, clock=host.raw_epoch), self._now_ns / 1e9)
        list(self._network.map(self._send, self._hosts))
        for host in self._hosts:
            host.log.release()
            self._truth.write("damage", [
                {"kind": item.kind, "host": item.host, "source": item.source, "batch": item.batch, "first": item.first,
                 "rows": item.rows, "at_ns": item.at_ns}
                for item in host.log.damage
            ])  # fmt: skip
        if self._pages is not None:
            self._pages.close()
        self._network.shutdown()
        self._log.flush()
        for host in self._hosts:
            host.spool.close()
        shutil.rmtree(self._spools, ignore_errors=True)
        self._truth.close()
        self._log.close()
