"""Device windows and programs of processes -> drafts and op tables. One worker thread, a bounded queue."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from fleetscope.agents.batches import Draft, clean_text
from fleetscope.agents.node.collectives import RawOf
from fleetscope.agents.node.harvest import Harvested, discard, waiting
from fleetscope.agents.node.kept import forget
from fleetscope.agents.node.matching import AROUND_NS, Matched, Unmatched, alignments, certain, modules_of
from fleetscope.agents.node.pairing import Unplaced, pairs, programs_of
from fleetscope.agents.node.process import Process
from fleetscope.agents.profiler import protocol
from fleetscope.agents.programs.chunks import chunks
from fleetscope.agents.programs.optable import Program, read_program
from fleetscope.agents.redaction import KEEP_ALL, Redaction, redacted
from fleetscope.agents.spool import Spool, Topic
from fleetscope.agents.xspace import DeviceSpans, convert, read_xspace
from fleetscope.agents.xspace.cpu import MODULE_LINE
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.identity import device_id, key_hash
from fleetscope.schema.vocabulary import Kind, SpanFlag

log = logging.getLogger(__name__)

QUEUE_BYTES = 128 << 20
"""One 64 MiB program and some windows of 4 MiB. What finds it full is dropped and counted, never waited for."""
WAITING_JOBS = 4096
"""Of any size: an empty body costs a place as well."""

SHIPPED_PROGRAMS = 4096
"""Fingerprints remembered as sent. The topic is compacted, so forgetting one costs a message, not a row."""

UNMATCHED, UNMATCHED_S = 16, 120.0
"""Windows of a process that wait for what ran meanwhile, and how long."""


@dataclass(frozen=True, slots=True)
class Job:
    process: Process
    message: protocol.Window | protocol.Program | Harvested | Matched
    body: bytes
    kept: Path | None = None


class Decoder:
    """`devices` names the device a capture calls by (platform, ordinal) in a process of this host."""

    def __init__(
        self,
        spool: Spool,
        lock: threading.Lock,
        devices: Callable[[Process, DeviceSpans], wire.Device],
        queue_bytes: int = QUEUE_BYTES,
        redaction: Redaction = KEEP_ALL,
    ) -> None:
        self._spool = spool
        self._lock = lock
        self._devices = devices
        self._redaction = redaction
        self._queue_bytes = queue_bytes
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._waiting_lock = threading.Lock()
        self._shipped: dict[int, None] = {}
        self._thread = threading.Thread(target=self._run, name="fleetscope-decoder", daemon=True)
        self.busy_s = 0.0
        self.spans = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Finish what waits, as far as time allows."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def harvest(self, process: Process) -> None:
        """Queue the HLO that the process's shim has left, as far as there is room. Called under the agent's lock."""
        if process.pjrt is None or process.segment is None:
            return
        for message, body in waiting(process.segment.path, process.harvesting):
            if not self.offer(process, message, body):
                return
            process.harvesting.add(message.load)

    def match(
        self, process: Process, now_s: float, raw: wire.ClockEpoch, raw_of: Callable[[str], RawOf | None]
    ) -> None:
        """Name the programs of windows by what ran meanwhile, and place their clocks by it, once all of that was told.
        `raw`: the present epoch of MONOTONIC_RAW; `raw_of`: of a counter, None where nobody can say. Called under the
        agent's lock."""
        if process.pjrt is None:
            return
        self._pair(process, now_s, raw, raw_of)
        if not process.unmatched:
            return
        waiting, process.unmatched = process.unmatched, []
        for window in waiting:
            told = [process.pjrt.executions.told_until(key) for key in window.devices]
            if now_s < window.until_s and any(until is None or until < window.end for until in told):
                process.unmatched.append(window)
                continue
            found = certain(
                alignments(seen, process.pjrt.ran(key, window.begin, window.end))
                for key, seen in window.devices.items()
            )
            if not found or not self.offer(process, Matched(found), b""):
                process.pjrt.counts["window_unmatched"] += 1

    def _pair(
        self, process: Process, now_s: float, ref: wire.ClockEpoch, raw_of: Callable[[str], RawOf | None]
    ) -> None:
        assert process.pjrt is not None
        waiting, process.unplaced = process.unplaced, []
        for window in waiting:
            told = [process.pjrt.executions.told_until(key) for key in window.devices]
            if now_s < window.until_s and any(until is None or until < window.end for until in told):
                process.unplaced.append(window)
                continue
            of_tick = raw_of(process.clock.clock)
            for key, seen in window.devices.items():
                ran = process.pjrt.executed(key, window.begin, window.end, of_tick) if of_tick is not None else []
                found = pairs(seen, ran, ref)
                if found:
                    process.read_clocks(found)
                process.pjrt.counts["window_placed" if found else "window_unplaced"] += 1

    def offer(
        self,
        process: Process,
        message: protocol.Window | protocol.Program | Harvested | Matched,
        body: bytes,
        kept: Path | None = None,
    ) -> bool:
        """False if the queue is full: the caller counts it. Called under the agent's lock. `kept`: its file, which goes
        when it is decoded."""
        with self._waiting_lock:
            if self._waiting_bytes + len(body) > self._queue_bytes and self._waiting_bytes:
                return False
            if self._queue.qsize() >= WAITING_JOBS:
                return False  # bodies of no bytes fill the queue as well
            self._waiting_bytes += len(body)
        process.pending += 1
        self._queue.put(Job(process, message, body, kept))
        return True

    def idle(self) -> bool:
        return self._waiting_bytes == 0

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            begin = time.thread_time()
            try:
                self.work(job)
            except FleetscopeError as error:
                self._undecodable(job, error)
            except Exception as error:  # a defect in decoding must not end the only decoder
                log.exception("decoding")
                self._undecodable(job, error)
            finally:
                forget(job.kept)
                with self._waiting_lock:
                    self._waiting_bytes -= len(job.body)
                busy_s = time.thread_time() - begin
                with self._lock:
                    job.process.pending -= 1
                    job.process.meter.ns["decode"] += busy_s * 1e9
                self.busy_s += busy_s

    def _undecodable(self, job: Job, error: Exception) -> None:
        log.warning("%s of process %d: %s", type(job.message).__name__.lower(), job.process.hello.pid, error)
        with self._lock:
            if isinstance(job.message, protocol.Window):
                job.process.windows["undecodable"] += 1
                if not job.process.final and not job.process.account.settled(job.message.window_id):
                    job.process.settle(job.message.window_id, [], {"window_undecodable": 1})
            else:
                job.process.windows["program_undecodable"] += 1
            if isinstance(job.message, Harvested):
                self._harvested(job.process, job.message, 0)

    def work(self, job: Job) -> None:
        """Decode one job and put what it became into the spool."""
        if isinstance(job.message, Harvested):
            self._shim_program(job.process, job.message, read_program(job.body))
        elif isinstance(job.message, Matched):
            self._matched(job.process, job.message)
        elif isinstance(job.message, protocol.Program):
            self._program(job.process, job.message, read_program(job.body))
        else:
            self._window(job.process, job.message, job.body)

    def _program(self, process: Process, message: protocol.Program, program: Program) -> None:
        # Events name the module by the id the process says.
        known = Program(program.program, program.module, message.program_id, program.ops, program.source)
        process.tables.add(known)
        # Spans of an earlier window name the program by its provisional key: that is this program too.
        keys = (message.program_id, process.tables.provisional_for(message.program_id))
        with self._lock:
            for key in keys:
                if key is not None:
                    load = wire.ProgramLoad(
                        program_id=key, program=known.program, module=self._module(known), at_ns=message.at_ns
                    )
                    process.announce(wire.Announcement(program_load=load))
        self._ship([known])

    def _shim_program(self, process: Process, message: Harvested, program: Program) -> None:
        """A program by the label its executions carry, and by the module's id for windows that name it so."""
        if process.pjrt is None:
            return
        label = process.pjrt.provisional(process.pjrt.label_of(message.load, program.module))
        keys = {label, *(key for key in (process.tables.provisional_for(program.module_id),) if key is not None)}
        with self._lock:
            if all(known.module_id != program.module_id for known in process.tables.programs()):
                process.tables.add(program)
            for key in keys:
                load = wire.ProgramLoad(
                    program_id=key, program=program.program, module=self._module(program), at_ns=time.time_ns()
                )
                process.announce(wire.Announcement(program_load=load))
            self._harvested(process, message, program.program)
        self._ship([program])

    def _matched(self, process: Process, message: Matched) -> None:
        """Windows to come name the programs rightly; of those before, `program_loads` says which they were."""
        harvested = {program.program: program for program in process.tables.programs()}
        for program_id, fingerprint in message.programs.items():
            program, key = harvested.get(fingerprint), process.tables.provisional_for(program_id)
            if program is None or key is None:
                continue
            process.tables.add(replace(program, module_id=program_id))
            with self._lock:
                load = wire.ProgramLoad(
                    program_id=key, program=fingerprint, module=self._module(program), at_ns=time.time_ns()
                )
                process.announce(wire.Announcement(program_load=load))

    def _harvested(self, process: Process, message: Harvested, fingerprint: int) -> None:
        if process.pjrt is not None:
            process.pjrt.learn(message.load, fingerprint)
        discard(message.path)
        process.harvesting.discard(message.load)

    def _module(self, program: Program) -> str:
        return self._redaction.of("programs", clean_text(program.module))

    def _ship(self, programs: Iterable[Program]) -> None:
        for program in programs:
            if program.source != "provisional" and program.program in self._shipped:
                continue
            kept = [
                self._spool.put_message(Topic.PROGRAMS, key, chunk.SerializeToString())
                for key, chunk in chunks(redacted(program, self._redaction))
            ]
            if all(kept):
                self._shipped[program.program] = None
                if len(self._shipped) > SHIPPED_PROGRAMS:
                    del self._shipped[next(iter(self._shipped))]

    def _window(self, process: Process, message: protocol.Window, body: bytes) -> None:
        space = read_xspace(body, f"window {message.window_id} of process {process.hello.pid}")
        capture = convert(space, process.tables, start_ns=message.opened.realtime_ns, host=False)
        self._ship(process.tables.new_provisional())
        drafts = [self._draft(process, message, len(body), spans) for spans in capture.devices]
        seen = {draft.device.key for draft in drafts if draft.device is not None}
        for device in process.devices.values():
            if device.key not in seen and device.platform == "cpu":
                drafts.append(self._nothing(process, message, len(body), device))
        with self._lock:
            if process.final:
                # Its numbers are retired: what came after its end would be a source of its own.
                process.windows["late"] += 1
                return
            if process.account.settled(message.window_id):
                # An earlier life was killed between keeping its rows and removing its file.
                process.windows["again"] += 1
                return
            process.windows["decoded"] += 1
            for spans, draft in zip(capture.devices, drafts, strict=False):
                self._announce(process, spans, draft)
            self.spans += process.settle(message.window_id, drafts)
            self._wait_for_shim(process, message, capture.devices, drafts)

    def _wait_for_shim(
        self, process: Process, message: protocol.Window, devices: Sequence[DeviceSpans], drafts: Sequence[Draft]
    ) -> None:
        """A TPU's windows name programs by fingerprints of its own, and their times are nobody's; what the shim is told
        says which and when they were."""
        if process.pjrt is None or process.segment is None:
            return
        info = process.clock
        raw_ns, counter, _, _ = recorder.read_clocks(info.clock)

        def ticks(at_raw_ns: int) -> int:
            return counter + (at_raw_ns - raw_ns) * info.period_den // info.period_num

        begin = ticks(message.opened.raw_before_ns - AROUND_NS)
        end = ticks(message.closed.raw_after_ns + AROUND_NS)
        until_s = time.monotonic() + UNMATCHED_S
        tpus = [
            (draft.device.key, spans, draft.clock)
            for spans, draft in zip(devices, drafts, strict=False)
            if spans.platform == "tpu" and draft.device is not None and draft.clock is not None
        ]
        seen = {key: modules_of(spans, process.tables) for key, spans, _ in tpus}
        seen = {key: modules for key, modules in seen.items() if modules}
        if seen and len(process.unmatched) < UNMATCHED:
            process.unmatched.append(Unmatched(seen, begin, end, until_s))
        programs = {
            key: found
            for key, spans, clock in tpus
            if (found := programs_of(spans, process.tables, clock, message.opened)) is not None
        }
        if programs and len(process.unplaced) < UNMATCHED:
            process.unplaced.append(Unplaced(programs, begin, end, until_s))

    def _nothing(self, process: Process, message: protocol.Window, size: int, device: wire.Device) -> Draft:
        """A device that was looked at and did nothing: time observed, not unknown (host clocks only)."""
        clock = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
        window = _window(process, message, size, message.length_ns, 0)
        begin, end = message.opened.realtime_ns, message.closed.realtime_ns
        return Draft(process.source, begin, max(begin, end), clock, device, window=window)

    def _draft(self, process: Process, message: protocol.Window, size: int, spans: DeviceSpans) -> Draft:
        clock, tick_from, tick_to, length = window_ticks(message, spans)
        device = self._devices(process, spans)
        rows = inside(spans.rows, tick_from, tick_to)
        kind = rows.column("kind").to_numpy()
        flags = rows.column("flags").to_numpy()
        whole = (kind == Kind.MODULE) & (flags & SpanFlag.TRUNCATED == 0)
        window = _window(process, message, size, length, int(whole.sum()))
        if clock.device:
            clock.device = device.key
        return Draft(process.source, tick_from, tick_to, clock, device, rows, window)

    def _announce(self, process: Process, spans: DeviceSpans, draft: Draft) -> None:
        assert draft.device is not None
        process.devices[draft.device.key] = draft.device
        process.announce(wire.Announcement(device=wire.DeviceInfo(device=draft.device)))
        device = device_id(draft.device.key)
        for line, name in spans.lines.items():
            # A CPU's lines are threads of the process, named by it; others' are the runtime's.
            told = self._redaction.of("annotations", name) if spans.platform == "cpu" and line != MODULE_LINE else name
            info = wire.LineInfo(device=device, line=line, name=clean_text(told))
            process.announce(wire.Announcement(line=info))
        for program, name in spans.names.items():
            process.announce(wire.Announcement(name=wire.NameInfo(program=program, name=clean_text(name))))


def _window(process: Process, message: protocol.Window, size: int, length: int, executions: int) -> wire.Window:
    return wire.Window(
        id=key_hash("window", process.id, message.window_id),
        length_ticks=length,
        executions=executions,
        step=message.step,
        xspace_bytes=size,
        stop_ns=message.stop_ns,
        open_delay_ns=message.open_delay_ns,
        program=clean_text(message.program, 128),
        execution=message.execution,
    )


def window_ticks(message: protocol.Window, spans: DeviceSpans) -> tuple[wire.ClockEpoch, int, int, int]:
    """(clock, from, to, W) of a window in the ticks of the device's spans.

    Spans in wall time are bounded by the brackets at opening and closing. A clock of the session's own (TPU raw time,
    picoseconds) has no bracket: its range is what its events cover, and W the host's measure of it.
    """
    clock = wire.ClockEpoch(
        clock=spans.clock.name, period_num=spans.clock.period_num, period_den=spans.clock.period_den, width_bits=64
    )
    if spans.clock.absolute:
        begin, end = message.opened.realtime_ns, message.closed.realtime_ns
        return clock, begin, max(end, begin), message.length_ns
    clock.device = "own"
    clock.resets = message.window_id & 0xFFFFFFFF
    length = message.length_ns * clock.period_den // clock.period_num
    if not spans.rows.num_rows:
        return clock, 0, length, length
    start = spans.rows.column("start").to_numpy()
    begin = int(start.min())
    end = int((start + spans.rows.column("dur").to_numpy()).max())
    return clock, begin, max(end, begin), length


def inside(rows: pa.RecordBatch, tick_from: int, tick_to: int) -> pa.RecordBatch:
    """The rows wholly in the range, as a sampled window counts them: weight 0.

    The estimator divides by W - d, the places a span of length d could have begun in a window of W; what the session
    recorded before it was known to record, or after it was told to stop, had other places.
    """
    start = rows.column("start").to_numpy()
    kept = (start >= tick_from) & (start + rows.column("dur").to_numpy() <= tick_to)
    chosen = rows if kept.all() else rows.take(pa.array(np.flatnonzero(kept)))
    weight = pa.array(np.zeros(chosen.num_rows, np.int32))
    return chosen.set_column(chosen.schema.get_field_index("weight"), chosen.schema.field("weight"), weight)
