"""The /metrics page of each simulated host, as its node agent would serve it; a silent host's page is out of reach."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from fleetscope.agents.node.chips import STATES
from fleetscope.agents.node.metrics import MetricsServer, Page, Values
from fleetscope.agents.simulated.hardware import chip_values, host_values
from fleetscope.agents.simulated.host import Host

THROTTLED = "fleetscope_chip_throttled"
HOT = {"reason": "thermal", "vendor_reason": "simulated"}


@dataclass(slots=True)
class HostPage:
    """Of one host. Counters are added up second by second."""

    host: Host
    busy: float = 0.0
    busy_s: float = 0.0
    seconds: int = 0
    steps: int = 0
    energy_j: dict[int, float] = field(default_factory=dict)
    throttled_s: dict[int, float] = field(default_factory=dict)
    address: str = "127.0.0.1:0"
    _server: MetricsServer | None = None

    def second(self, busy: float, steps: int) -> None:
        """One more second at `busy` share, in which `steps` steps ended."""
        self.busy = busy
        self.busy_s += busy
        self.seconds += 1
        self.steps += steps
        for chip in self.host.chips:
            now = chip.readings(busy)
            self.energy_j[chip.number] = self.energy_j.get(chip.number, 0.0) + now["fleetscope_chip_power_watts"]
            self.throttled_s[chip.number] = self.throttled_s.get(chip.number, 0.0) + now[THROTTLED]

    def reachable(self, wanted: bool) -> None:
        """Open or close the page; once it was open it stays at its address."""
        if wanted and self._server is None:
            sources = (self._agent, self._process, self._chips, self._host)
            self._server = MetricsServer(self.address, Page(self.host.name, sources))
            self.address = self._server.address
        elif not wanted and self._server is not None:
            self._server.stop()
            self._server = None

    def _agent(self) -> Values:
        host = self.host
        spool, sent = host.spool.stats(), host.sender.stats
        yield "fleetscope_agent_time_seconds", {}, host.wall.one(host.now_ns) / 1e9
        yield "fleetscope_agent_events_total", {}, spool.events
        yield "fleetscope_agent_spool_bytes", {}, spool.size_bytes
        yield "fleetscope_agent_spool_capacity_bytes", {}, spool.cap_bytes
        yield "fleetscope_agent_sent_messages_total", {}, sent.messages
        yield "fleetscope_agent_log_failing_seconds", {}, 0.0
        yield "fleetscope_agent_processes", {}, 1
        yield "fleetscope_agent_clock_events_total", {"reason": "start"}, 1
        yield "fleetscope_agent_clock_source_missing", {"source": "ptp", "reason": "simulated"}, 1

    def _process(self) -> Values:
        source = self.host.process
        if self.steps:
            who = {"run": source.run, "rank": str(source.rank), "pid": str(source.pid)}
            yield "fleetscope_profiler_steps_total", who, self.steps
            yield "fleetscope_open_span_seconds", who, 0.0

    def _chips(self) -> Values:
        owner = {"run": self.host.process.run, "attempt": self.host.process.attempt}
        for chip in self.host.chips:
            who = {"device": chip.device.key, "sku": chip.device.sku}
            detail = {
                "fleetscope_chip_temperature_celsius": {"sensor": "chip"},
                "fleetscope_chip_clock_hertz": {"clock": "core"},
                THROTTLED: HOT,
            }
            for name, value in chip.readings(self.busy).items():
                yield name, who | detail.get(name, {}), value
            yield from chip_values(chip, self.busy, self.busy_s)
            yield "fleetscope_chip_energy_joules_total", who, self.energy_j.get(chip.number, 0.0)
            seconds = self.throttled_s.get(chip.number, 0.0)
            yield "fleetscope_chip_throttle_seconds_total", who | HOT, seconds
            now = "busy" if self.busy > 0 else "allocated_idle"
            for state in STATES:
                yield "fleetscope_chip_state", who | {"state": state}, int(state == now)
            yield "fleetscope_chip_owner_info", who | owner, 1

    def _host(self) -> Values:
        yield from host_values(self.seconds, self.busy_s)


class Pages:
    """Pages of all hosts. `targets`: file their addresses are written to, as Prometheus' file_sd reads it."""

    def __init__(self, hosts: list[Host], targets: Path) -> None:
        self._pages = {host.number: HostPage(host) for host in hosts}
        for page in self._pages.values():
            page.reachable(True)
        addresses = [page.address for page in self._pages.values()]
        targets.write_text(json.dumps([{"targets": addresses, "labels": {"job": "fleetscope-agent"}}]))

    def second(self, host: Host, busy: float, steps: int, silent: bool) -> None:
        """What a second brought, and whether the host can be asked now."""
        page = self._pages[host.number]
        page.second(busy, steps)
        page.reachable(not silent)

    def close(self) -> None:
        for page in self._pages.values():
            page.reachable(False)
