"""Probes as the agent runs them: the port, the keys, who is known, and what is told to others of where this host is."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from fleetscope.agents.clocks import HostClocks
from fleetscope.agents.node.control import ControlReader
from fleetscope.agents.node.facts import Host
from fleetscope.agents.probes import (
    TOLD_EVERY_S,
    Directory,
    Exchange,
    KeyFile,
    Me,
    Peer,
    ProbePort,
    Roster,
    parse_address,
    peers,
    signed,
)
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import ProbeConfig
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.identity import host_id
from fleetscope.transport import Log

log = logging.getLogger(__name__)

RING_S = 10.0
"""Between two looks at whom the graph names."""
ROSTER_S = 60.0
BOOT_BYTES = 36
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104: compared with, not bound to
_U64 = (1 << 64) - 1


class Probing:
    """Raises ConfigInvalid for addresses and keys that cannot be used. `tell` puts a message on the peers topic."""

    def __init__(
        self,
        config: ProbeConfig,
        host: Host,
        clocks: HostClocks,
        topic: str,
        open_log: Callable[[], Log],
        tell: Callable[[bytes], object],
    ) -> None:
        if config.key_file is None:
            raise ConfigInvalid("agent.probes.key_file is missing")
        self._config, self._host, self._clocks, self._tell = config, host, clocks, tell
        self._keys = KeyFile(config.key_file)
        self._id = host_id(host.cluster, host.name)
        self._boot = host.boot_id.encode("ascii", "replace")[:BOOT_BYTES]
        self._known = [
            Peer(host_id(host.cluster, name), name, parse_address(address))
            for name, address in config.known.items()
            if name != host.name
        ]
        self.directory = Directory(host.cluster, lambda: self._keys.keys)
        self.port = ProbePort(
            parse_address(config.address), lambda: self._keys.keys, self._me, clocks.read_raw, self._choose,
            1 / config.rate_hz,
        )  # fmt: skip
        try:
            self._announced = self._reached_at()
        except ConfigInvalid:
            self.port.stop()
            raise
        self._reader = ControlReader(open_log, topic, self.directory, self._heard, "fleetscope-peers")
        self._changed = True
        self._roster_s = self._tell_s = self._ring_s = float("-inf")
        self._chosen: list[Peer] = []
        self._ring_of: Roster | None = None

    def _me(self) -> Me:
        return Me(self._id, self._boot, self._clocks.raw.resets)

    def _reached_at(self) -> str:
        """What others are told; "" for an address of this machine alone, where only known hosts are asked."""
        if self._config.announce:
            parse_address(self._config.announce)
            return self._config.announce
        ip, port = self.port.address
        if ip in _WILDCARDS:
            raise ConfigInvalid("agent.probes.announce must say where other hosts reach a wildcard address")
        return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"

    def start(self) -> None:
        self.tick(time.monotonic())
        self.port.start()
        self._reader.start()

    def stop(self) -> None:
        self._reader.stop()
        self.port.stop()

    def _heard(self) -> None:
        """On the reader's thread."""
        self._changed = True

    def tick(self, now_s: float) -> None:
        """Once a round: keys, who is known, and the word of where this host is."""
        self._keys.look()
        if now_s - self._tell_s >= TOLD_EVERY_S:
            self._tell_s = now_s
            said = wire.ProbeAddress(
                cluster=self._host.cluster, host=self._host.name, address=self._announced,
                group=self._config.group, at_ns=time.time_ns(),
            )  # fmt: skip
            self._tell(signed(said, self._keys.keys[0]).SerializeToString())
        if self._changed or now_s - self._roster_s >= ROSTER_S:
            self._changed, self._roster_s = False, now_s
            known = self.directory.roster(self._known)
            self.port.know(Roster(peer for peer in known.by_id.values() if peer.id != self._id))

    def _choose(self, roster: Roster) -> Sequence[Peer]:
        """On the port's thread."""
        now_s = time.monotonic()
        if roster is not self._ring_of or now_s - self._ring_s >= RING_S:
            self._ring_of, self._ring_s = roster, now_s
            listed = list(roster.by_id.values())
            ids, groups = [peer.id & _U64 for peer in listed], [peer.group for peer in listed]
            config = self._config
            places = peers(ids, groups, self._id & _U64, config.group, config.peers, time.time()) if listed else []
            self._chosen = [listed[place] for place in places]
        return self._chosen

    def take(self) -> tuple[list[Exchange], Counter[str]]:
        return self.port.take()

    def values(self) -> list[tuple[str, dict[str, str], float]]:
        """For the agent's page."""
        port, counts = self.port, self.port.counts
        refused = port.refused + Counter({f"directory_{why}": n for why, n in self.directory.refused.items()})
        return [
            ("fleetscope_agent_probes_sent_total", {}, counts["sent"]),
            ("fleetscope_agent_probes_answered_total", {}, counts["answered"]),
            ("fleetscope_agent_probes_lost_total", {}, port.lost),
            ("fleetscope_agent_probe_exchanges_total", {}, counts["exchanges"]),
            ("fleetscope_agent_probe_peers", {}, port.peers),
            ("fleetscope_agent_probe_kernel_stamps", {}, int(port.kernel_stamps)),
            *(("fleetscope_agent_probes_refused_total", {"reason": why}, n) for why, n in refused.items()),
        ]
