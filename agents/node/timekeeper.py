"""Everything the agent does about time, in one place: sources, records and probes, from start to stop."""

from collections.abc import Callable, Iterable, Sequence

from fleetscope.agents.clocks import ClockSources, HostClocks
from fleetscope.agents.node.clocking import ClockRecords
from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.metrics import Values
from fleetscope.agents.node.probing import Probing
from fleetscope.agents.node.process import Process
from fleetscope.agents.spool import Topic
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.transport import Log, Topics


class Timekeeper:
    """`put` keeps a message of this host for a topic. `tick` and `check` are the agent's loop's."""

    def __init__(
        self,
        config: Config,
        host: Host,
        clocks: HostClocks,
        sources: ClockSources | None,
        open_log: Callable[[], Log],
        put: Callable[[Topic, bytes], object],
    ) -> None:
        self._config, self._host, self._open_log, self._put = config, host, open_log, put
        self.clocks = clocks
        self.sources = sources or ClockSources()
        self.records = ClockRecords(
            host, clocks, self.sources, config.agent.snapshot_s, lambda value: put(Topic.CLOCKS, value)
        )
        self.probing: Probing | None = None
        self._resets, self._anew = clocks.raw.resets, False

    def open(self) -> None:
        """Take the probe port, where there is one. Raises ConfigInvalid."""
        probes = self._config.agent.probes
        if probes.enabled:
            topic = Topics(self._config.log.topic_prefix).peers
            self.probing = Probing(
                probes, self._host, self.clocks, topic, self._open_log, lambda value: self._put(Topic.PEERS, value)
            )

    def abandon(self) -> None:
        """After open(), where start() will not come."""
        if self.probing is not None:
            self.probing.port.stop()

    def start(self) -> None:
        self.sources.start()
        if self.probing is not None:
            self.probing.start()

    def check(self) -> None:
        """Before a round's snapshots."""
        self.records.check()
        resets = self.clocks.raw.resets
        self._anew, self._resets = resets != self._resets, resets

    def of_now(self, brackets: list[wire.ClockSnapshot]) -> list[wire.ClockSnapshot]:
        """Brackets that collectors took since the round before, of the present epoch: none where it began since."""
        for bracket in brackets:
            bracket.ref.resets = self._resets
        return [] if self._anew else brackets

    def tick(self, now_s: float, snapshots: Sequence[wire.ClockSnapshot]) -> None:
        """With a round's snapshots."""
        if self.probing is None:
            self.records.tick(now_s, snapshots)
        else:
            self.probing.tick(now_s)
            self.records.tick(now_s, snapshots, *self.probing.take())

    def observe(self, processes: Iterable[Process]) -> None:
        """What processes passed together with others in this round. Under the agent's lock."""
        for process in processes:
            passed = process.collectives.take()
            if passed:
                self.records.observe(process.source, process.hello.world_size, process.clock.clock, passed)

    def stop(self) -> None:
        """After the last round, while messages are still taken."""
        if self.probing is not None:
            self.probing.stop()
        self.records.stop()
        self.sources.stop()

    def values(self) -> Values:
        """For the agent's page."""
        yield "fleetscope_agent_clock_steps_total", {}, self.clocks.steps
        yield "fleetscope_agent_clock_changes_total", {}, len(self.clocks.changes)
        for reason, count in self.records.reasons.items():
            yield "fleetscope_agent_clock_events_total", {"reason": reason}, count
        if self.records.overflow:
            yield "fleetscope_agent_dropped_events_total", {"reason": "collective_overflow"}, self.records.overflow
        for source, why in self.sources.missing.items():
            yield "fleetscope_agent_clock_source_missing", {"source": source, "reason": why}, 1
        if self.probing is not None:
            yield from self.probing.values()
