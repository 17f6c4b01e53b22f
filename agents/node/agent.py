"""The node agent: wiring, and the loop that runs once a second."""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fleetscope.agents.batches import Announcer, Draft, sample_rows
from fleetscope.agents.clocks import ClockSources, HostClocks, KeptEpochs
from fleetscope.agents.collectors import Collector
from fleetscope.agents.collectors.amd import AmdCollector
from fleetscope.agents.collectors.host import HostCollector
from fleetscope.agents.collectors.kubelet import KubeletCollector
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.collectors.peak import cpu_peak
from fleetscope.agents.collectors.tpu import TpuCollector
from fleetscope.agents.node.account import ABANDONED, plausible
from fleetscope.agents.node.answers import answer
from fleetscope.agents.node.chips import Chips
from fleetscope.agents.node.collect import CollectorRunner
from fleetscope.agents.node.control import ControlReader, Controls, report, report_key
from fleetscope.agents.node.devices import Devices
from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.governed import keep, load
from fleetscope.agents.node.governor import Governor
from fleetscope.agents.node.kept import KeptFrames, forget
from fleetscope.agents.node.metrics import (
    MetricsServer,
    Page,
    Values,
    families_of,
    governor_values,
    own_cost,
)
from fleetscope.agents.node.owners import Holders, Owner
from fleetscope.agents.node.process import Key, Process
from fleetscope.agents.node.registry import Registry
from fleetscope.agents.node.saved import SavedHellos
from fleetscope.agents.node.server import Connection, SocketServer
from fleetscope.agents.node.timekeeper import Timekeeper
from fleetscope.agents.node.values import collected_values, open_values, otlp_values, process_values
from fleetscope.agents.node.windows import Decoder
from fleetscope.agents.profiler import protocol
from fleetscope.agents.redaction import Redaction, admitted, answered
from fleetscope.agents.spool import Sender, Spool, Topic
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.schema.identity import device_id, key_hash
from fleetscope.transport import Log, Topics, open_log
from fleetscope.transport.otlp import pusher

log = logging.getLogger(__name__)

HURRY = 20
"""The period gets at most so much shorter while rings fill fast: at 50 ms a ring of 32 768 records holds 600 k/s."""
ORPHANS_S = 10.0
STOP_S = 5.0
MASK = (1 << 64) - 1
PEAK_LABEL = "peak_flops_per_s"


def next_period(period_s: float, longest_s: float, fullest: float) -> float:
    """Until the next round, when the fullest ring was `fullest` of itself after `period_s`.

    Shortens at once, because what is overwritten is lost, and lengthens slowly.
    """
    if fullest > 0.5:
        return max(longest_s / HURRY, period_s * 0.3 / fullest)
    return min(longest_s, period_s * 1.25) if fullest < 0.3 else period_s


class NodeAgent:
    """One a host. `run(stop)` is all a caller needs; `start`, `tick` and `close` are its parts, for tests.

    Raises AgentRunning if another agent has the socket or the spool, ConfigInvalid for addresses that cannot be used.
    Nothing after the start raises: what cannot be kept is dropped and counted.
    """

    def __init__(
        self,
        config: Config,
        *,
        collectors: Sequence[Collector] | None = None,
        clocks: HostClocks | None = None,
        sources: ClockSources | None = None,
        log_opener: Callable[[], Log] | None = None,
    ) -> None:
        self.config = config
        self.host = Host.here(config.cluster, config.agent.host)
        self.clocks = clocks or HostClocks(kept=KeptEpochs(config.state_dir / "clocks.json", self.host.boot_id))
        kubelet = KubeletCollector(config.agent.pod_resources)
        found = collectors
        if found is None:
            tpu = TpuCollector(self.host.name, config.agent.tpu_runtime, config.agent.tpu_plugin)
            found = (HostCollector(), NvidiaCollector(), AmdCollector(), tpu, kubelet)
        self.runners = [
            CollectorRunner(collector, max(config.agent.sample_s, collector.period_s), self.clocks.now)
            for collector in found
        ]
        self.redaction = Redaction(config.agent.redaction)
        holders = Holders(redaction=self.redaction)
        self.chips = Chips(self.runners, self._greeted, lambda: kubelet.in_kubernetes, holders)
        self._open_log = log_opener or (lambda: open_log(config.log_url))
        self._announcer = Announcer()
        self._devices: dict[bytes, wire.Announcement] = {}
        """Of this host, as they were announced."""
        self._last_tick: int | None = None
        self._counter = self.clocks.counter
        """Of which `_last_tick` is."""
        self._orphans_s = float("-inf")
        self._period_s = config.agent.batch_s
        self._stopped = False
        self._chips_lock = threading.Lock()
        """Two scrapes at once must not both forget what the other still needs."""
        self._started_ns = time.monotonic_ns()
        self.failed_rounds = 0
        self._governed = config.state_dir / "governed.json"
        self.governor = Governor(config.governor, config.profiler, load(self._governed, self.host.boot_id))
        if self.redaction.hides("annotations"):
            # It holds names of sites: the next life of this agent decides anew.
            self._governed.unlink(missing_ok=True)
        self.controls = Controls(lambda name: self.redaction.of("runs", name))
        self._topics = Topics(config.log.topic_prefix)
        self.timekeeper = Timekeeper(
            config, self.host, self.clocks, sources, self._open_log,
            lambda topic, value: self.spool.put_message(topic, self.host.name.encode(), value),
        )  # fmt: skip
        self._control = ControlReader(self._open_log, self._topics.control, self.controls, self._tell_schedules)
        self._shown = self._page()
        host = self.host
        self._pusher = pusher(
            config.otlp,
            "fleetscope-agent",
            host.name,
            lambda: families_of(self._shown),
            cluster=host.cluster,
            host=host.name,
        )

    # ---- life

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set: work; then ship what is there, at most about 10 s."""
        self.start()
        try:
            while not stop.is_set():
                begin = time.monotonic()
                self._guarded_tick()
                while not stop.wait(min(0.1, max(0.01, begin + self._period_s - time.monotonic()))):
                    if time.monotonic() >= begin + self._period_s:
                        break
        finally:
            self.close()

    def _guarded_tick(self) -> None:
        """A defect in one round, or in one process' data, must not end the recording of all."""
        try:
            self.tick()
        except Exception:
            log.exception("a round failed")
            self.failed_rounds += 1

    def start(self) -> None:
        config = self.config
        state = config.state_dir
        self.spool = Spool.at(config.spool_dir, config.agent.spool_bytes, config.agent.batch_bytes)
        self._note_boot()
        self.sender = Sender(self.spool, self._open_log, self._topics, config.log.partitions)
        saved = SavedHellos(state / "processes")
        self.kept = KeptFrames(self._frames())
        devices = Devices(
            self.host,
            lambda: [device for runner in self.runners for device in runner.devices()],
            lambda: {key: path for runner in self.runners for key, path in runner.paths.items()},
        )
        self.registry = Registry(
            self.host, self.spool, saved, config.agent.shm_dir, self.kept, devices, self.clocks, self.redaction
        )
        self.decoder = Decoder(self.spool, self.registry.lock, devices, redaction=self.redaction)
        try:
            self.server = SocketServer(
                config.agent_socket, self._handle, self._closed, lambda message: admitted(message, self.redaction)
            )
        except BaseException:
            self.spool.close()
            raise
        try:
            self.timekeeper.open()
            # A port nobody chose must not keep a second agent (a test, a demo) from starting; one that was chosen must.
            chosen = "metrics_address" in config.agent.model_fields_set
            self.metrics = MetricsServer(config.agent.metrics_address, self._shown, fallback=not chosen)
        except BaseException:
            self.server.stop()
            self.timekeeper.abandon()
            self.spool.close()
            raise
        self._announcer.add(wire.Announcement(host=self.host.info()))
        with self.registry.lock:
            self.registry.adopt()
            self._take_up()
        self.sender.start()
        self.decoder.start()
        self.server.start()
        self._control.start()
        self.timekeeper.start()
        for runner in self.runners:
            runner.start()
        if self._pusher is not None:
            self._pusher.start()
        self._peak = threading.Thread(target=self._measure_peak, name="fleetscope-peak", daemon=True)
        self._peak.start()
        log.info("agent of %s: socket %s, metrics %s", self.host.name, self.server.path, self.metrics.address)

    def _frames(self) -> Path:
        """What a process sent is on no disk where its names may not be told."""
        on_disk = self.config.spool_dir / "windows"
        if not self.redaction.active:
            return on_disk
        shutil.rmtree(on_disk, ignore_errors=True)  # of before
        return self.config.agent.shm_dir / f"fleetscope-frames-{key_hash(str(self.config.state_dir)) & MASK:016x}"

    def _take_up(self) -> None:
        """Windows and programs an earlier life was killed over. Those of a process nobody knows any more are lost."""
        for path, key, message, body in self.kept.load():
            process = self.registry.get(key)
            if process is not None:
                self._offer(process, message, body, path)
                continue
            if isinstance(message, protocol.Window):
                self.spool.lose(self.host.source(), {ABANDONED: 1})
            forget(path)

    def _note_boot(self) -> None:
        """Sources of an earlier boot will never be heard of again: their numbers need no keeping."""
        marker = self.config.spool_dir / "boot"
        try:
            if not marker.exists() or marker.read_text() != self.host.boot_id:
                self.spool.retire_all()
                marker.write_text(self.host.boot_id)
        except OSError as error:
            log.warning("%s: %s", marker, error)

    def close(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        if self._pusher is not None:
            self._pusher.stop()
        self._control.stop()
        self.server.stop()
        for runner in self.runners:
            runner.stop()
        self.decoder.stop()
        self._guarded_tick()
        self.timekeeper.stop()
        self.registry.close()
        self.sender.stop(STOP_S)
        self.metrics.stop()
        self.spool.close()

    def _measure_peak(self) -> None:
        peak = cpu_peak(self.config.state_dir, self.host.boot_id)
        if peak is not None:
            with self.registry.lock:
                self.registry.relabel({PEAK_LABEL: f"{peak:.6g}"})

    # ---- the loop

    def tick(self) -> float:
        """One round: snapshot, heartbeat with host samples, all rings. Seconds until the next should begin."""
        now_s = time.monotonic()
        self.timekeeper.check()
        ticks = self.clocks.ticks()
        now_tick = ticks[self.clocks.counter.clock]
        # After now_tick, so that this bracket covers all the round ships and the pipeline need not wait for another.
        snapshots = self.clocks.snapshot()
        self._heartbeat(now_tick, now_s, snapshots)
        with self.registry.lock:
            for process in self.registry:
                try:
                    self.decoder.harvest(process)
                    self.decoder.match(process, now_s, self.clocks.raw, self.timekeeper.records.raw_of)
                except Exception:
                    log.exception("programs of process %d", process.hello.pid)
                    self.failed_rounds += 1
            fullest = self.registry.collect(ticks, now_s, time.time_ns())
            self.timekeeper.observe(self.registry)
            if now_s - self._orphans_s >= ORPHANS_S:
                self._orphans_s = now_s
                self.registry.adopt_orphans()
            if not self._stopped:  # else there is nobody left to tell
                self._govern(now_s)
        longest_s = self.config.agent.batch_s
        self._period_s = next_period(self._period_s, longest_s, fullest)
        return self._period_s

    def _govern(self, now_s: float) -> None:
        decided = self.governor.look(now_s, self.registry, self.registry.round_cost.record_ns)
        if decided:
            if not self.redaction.hides("annotations"):
                keep(self._governed, self.host.boot_id, self.governor.carried())
            self.server.post(lambda hello: self._governed_config(hello, decided))

    def _governed_config(self, hello: protocol.Hello, decided: frozenset[Key]) -> protocol.Config | None:
        """On the server's thread."""
        key = (hello.pid, hello.start_ticks)
        if key not in decided:
            return None
        with self.registry.lock:
            return self._config_of(key)

    def _heartbeat(self, now_tick: int, now_s: float, snapshots: list[wire.ClockSnapshot]) -> None:
        ticks: list[int] = []
        ids: list[int] = []
        devices: list[int] = []
        values: list[int | float] = []
        refused = 0
        changed, self._counter = self._counter != self.clocks.counter, self.clocks.counter
        if changed:
            log.warning("clock change: %s, now %s", self.clocks.changes[-1], self._counter.clock)
            self._last_tick = None
        for runner in self.runners:
            readings, brackets, dropped = runner.take()
            if changed:  # they are ticks of the epoch before
                refused += sum(len(samples) for _, samples in readings)
                readings = []
            snapshots += self.timekeeper.of_now(brackets)
            refused += dropped
            for tick, samples in readings:
                for sample in samples:
                    self._announcer.add(wire.Announcement(series=sample.series.info()))
                    ticks.append(tick)
                    ids.append(sample.series.id)
                    devices.append(device_id(sample.device) if sample.device else 0)
                    values.append(sample.value)
        self._announce_devices()
        since = self._last_tick if self._last_tick is not None else min([now_tick, *ticks])
        until = max([now_tick, *(tick + 1 for tick in ticks)])
        rows = sample_rows(tick=ticks, series=ids, values=values, device=devices) if ticks else None
        self._last_tick = until
        self.spool.put(
            Draft(
                self.host.source(),
                min([since, *ticks]),
                until,
                self.clocks.counter,
                rows=rows,
                snapshots=snapshots,
                announcements=self._announcer.due(now_s),
                lost={"sentinel_value": refused} if refused else {},
            )
        )
        self.timekeeper.tick(now_s, snapshots)

    def _announce_devices(self) -> None:
        """Those that are there: parts of a chip are made anew with other ids, and what is gone was told."""
        there = {
            device.SerializeToString(deterministic=True): wire.Announcement(device=wire.DeviceInfo(device=device))
            for runner in self.runners
            for device in runner.devices()
        }
        for key, gone in self._devices.items():
            if key not in there:
                self._announcer.withdraw(gone)
        for announcement in there.values():
            self._announcer.add(announcement)
        self._devices = there

    # ---- messages of processes, on the server's thread

    def _handle(self, connection: Connection, message: protocol.Message, body: bytes) -> tuple[protocol.Message, ...]:
        kept = None
        if isinstance(message, protocol.Window | protocol.Program) and connection.hello is not None:
            # Before the lock is taken: a disk may be slow.
            kept = self.kept.keep((connection.hello.pid, connection.hello.start_ticks), message, body)
        with self.registry.lock:
            if isinstance(message, protocol.Hello):
                config, schedule = self._greet(connection, message), self._schedule(message)
                return (config,) if schedule is None else (config, schedule)
            if isinstance(message, protocol.Query):
                processes = sorted(self.registry, key=lambda process: process.key)
                return (answer(message, self._about, self.governor, processes, self.clocks.ticks()),)
            hello = connection.hello
            process = self.registry.get((hello.pid, hello.start_ticks)) if hello is not None else None
            if process is None or process.final:
                forget(kept)
                return ()
            if isinstance(message, protocol.Window | protocol.Program):
                self._offer(process, message, body, kept)
                if isinstance(message, protocol.Window):
                    self.timekeeper.records.window(message.opened, message.closed)
            elif isinstance(message, protocol.Cost):
                process.cost = plausible(message)
                process.account.note(message)
                process.meter.said(process.cost)
                self._report(process)
            elif isinstance(message, protocol.End):
                process.ended_at_ns = message.at_ns
        return ()

    def _report(self, process: Process) -> None:
        """Every few seconds, as the process does: the coordinator decides by how far the ranks are."""
        if process.cost.steps > 0 or process.cost.ran:
            said = report(process.source, process.hello, process.cost, time.time_ns())
            self.spool.put_message(Topic.REPORTS, report_key(process.source), said.SerializeToString())

    def _tell_schedules(self) -> None:
        """On the control reader's thread: every process whose run is concerned hears what is in force now."""
        self.server.post(self._schedule)

    def _schedule(self, hello: protocol.Hello) -> protocol.Schedule | None:
        return answered(self.controls.schedule(hello), self.redaction)

    def _greet(self, connection: Connection, hello: protocol.Hello) -> protocol.Config:
        if hello.version != protocol.VERSION:
            return protocol.Config(enabled=False)
        process = self.registry.greet(hello, connection)
        connection.forget_descriptor()
        if process is None:
            return protocol.Config(enabled=False)
        if not process.connected:
            # Nobody knows yet how fast its rings fill.
            self._period_s = min(self._period_s, self.config.agent.batch_s / 4)
        process.connected = True
        return self._config_of(process.key)

    def _config_of(self, key: Key) -> protocol.Config:
        profiler, governed = self.config.profiler, self.governor.of(key)
        return protocol.Config(
            enabled=profiler.enabled,
            window_s=profiler.window_s,
            window_max_bytes=profiler.window_max_bytes,
            steps_between_windows=profiler.steps_between_windows,
            allow=tuple(profiler.allow),
            window_budget=profiler.window_budget,
            level=self.governor.rung(key).level,
            categories_off=tuple(profiler.categories_off),
            thin=governed.thin.names,
            thin_rest=governed.thin.rest,
            thin_windows=governed.window_shift,
        )

    def _offer(
        self, process: Process, message: protocol.Window | protocol.Program, body: bytes, kept: Path | None
    ) -> None:
        if self.decoder.offer(process, message, body, kept):
            return
        forget(kept)
        if isinstance(message, protocol.Window):
            # Counted as lost when its number is passed over, or the process ends.
            process.windows["overflow"] += 1
            process.account.exists(message.window_id)
        else:
            process.windows["program_overflow"] += 1

    def _closed(self, connection: Connection) -> None:
        hello = connection.hello
        if hello is not None:
            with self.registry.lock:
                process = self.registry.get((hello.pid, hello.start_ticks))
                if process is not None:
                    process.connected = False

    # ---- what it says about itself

    def _page(self) -> Page:
        return Page(
            self.host.name,
            (
                own_cost,
                self._pipe_values,
                lambda: process_values(self.registry),
                lambda: open_values(self.registry, self.clocks.ticks()),
                self._governor_values,
                lambda: collected_values(self.runners),
                self._chip_values,
                lambda: otlp_values(self._pusher),
            ),
        )

    @property
    def _all_failed_rounds(self) -> int:
        """Its own and those of single processes."""
        return self.failed_rounds + self.registry.failed

    def _about(self) -> dict[str, object]:
        """The agent in one row."""
        spool, sender = self.spool.stats(), self.sender.stats
        own = {name: value for name, _, value in own_cost()}
        return {
            "host": self.host.name,
            "pid": os.getpid(),
            "version": self.host.info().agent_version,
            "up_ns": time.monotonic_ns() - self._started_ns,
            "cpu_ns": int(own["fleetscope_agent_cpu_seconds_total"] * 1e9),
            "memory_bytes": int(own["fleetscope_agent_memory_bytes"]),
            "round_ns": int(self._period_s * 1e9),
            "failed_rounds": self._all_failed_rounds,
            "processes": sum(not process.final for process in self.registry),
            "connections": self.server.connections,
            "events": spool.events,
            "lost": sum(spool.lost.values()) + sum(spool.dropped.values()),
            "spool_bytes": spool.size_bytes,
            "spool_capacity_bytes": spool.cap_bytes,
            "sent_messages": sender.messages,
            "log_failing_ns": int(self._log_failing_s() * 1e9),
            "metrics": self.metrics.address,
            "step_budget_ratio": self.governor.budgets.step_budget,
            "core_budget_ratio": self.governor.budgets.core_budget,
        }

    def _log_failing_s(self) -> float:
        since_s = self.sender.stats.failing_since_s
        return time.monotonic() - since_s if since_s else 0.0

    def _governor_values(self) -> Values:
        with self.registry.lock:
            yield from governor_values(self.governor, list(self.registry))

    def _pipe_values(self) -> Values:
        spool, sender = self.spool.stats(), self.sender.stats
        yield "fleetscope_agent_events_total", {}, spool.events
        yield "fleetscope_agent_batches_total", {}, spool.batches
        for reason, events in {**spool.lost, **spool.dropped}.items():
            yield "fleetscope_agent_dropped_events_total", {"reason": reason}, events
        yield "fleetscope_agent_spool_bytes", {}, spool.size_bytes
        yield "fleetscope_agent_spool_capacity_bytes", {}, spool.cap_bytes
        yield "fleetscope_agent_sent_messages_total", {}, sender.messages
        yield "fleetscope_agent_sent_bytes_total", {}, sender.bytes
        yield "fleetscope_agent_send_failures_total", {}, sender.failures
        yield "fleetscope_agent_log_failing_seconds", {}, self._log_failing_s()
        yield "fleetscope_agent_connections", {}, self.server.connections
        yield "fleetscope_agent_refused_frames_total", {}, self.server.counts["garbage"]
        yield "fleetscope_agent_decode_seconds_total", {}, self.decoder.busy_s
        yield "fleetscope_agent_failed_rounds_total", {}, self._all_failed_rounds
        yield from self.timekeeper.values()

    def _greeted(self) -> dict[int, Owner]:
        with self.registry.lock:
            return {
                process.os_pid: Owner(run=process.source.run, attempt=process.source.attempt)
                for process in self.registry
                if process.os_pid and not process.final
            }

    def _chip_values(self) -> Values:
        with self._chips_lock:
            yield from list(self.chips.values())
