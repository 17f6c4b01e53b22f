"""The topics of DESIGN 3.1: their names under a prefix, and what each is created with."""

from __future__ import annotations

from dataclasses import dataclass

from fleetscope.transport.log import TopicSpec

DEFAULT_PREFIX = "fleetscope"
DEFAULT_PARTITIONS = 4

HOUR_MS = 3_600_000
GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Topics:
    """Topic names under one prefix: `Topics("fleetscope").telemetry == "fleetscope.telemetry"`.

    A prefix of its own gives a second, separate fleet on the same broker.
    """

    prefix: str = DEFAULT_PREFIX

    @property
    def telemetry(self) -> str:
        """Batches of spans and samples; key = host, so one host is ordered in one partition."""
        return f"{self.prefix}.telemetry"

    @property
    def clocks(self) -> str:
        """Clock snapshots, probes, collective arrivals: small, read whole by the coordinator."""
        return f"{self.prefix}.clocks"

    @property
    def programs(self) -> str:
        """Compacted: op tables in chunks of at most 1 MiB."""
        return f"{self.prefix}.programs"

    @property
    def clock_maps(self) -> str:
        """Compacted: clock -> fleet time segments."""
        return f"{self.prefix}.clock_maps"

    @property
    def metrics(self) -> str:
        """Compacted: cumulative counters per (chain, N) for the exporters."""
        return f"{self.prefix}.metrics"

    @property
    def captures(self) -> str:
        """Capture requests and their answers."""
        return f"{self.prefix}.captures"

    @property
    def reports(self) -> str:
        """How far each rank is and what its windows cost: agents to coordinator, only the newest of a rank counts."""
        return f"{self.prefix}.reports"

    @property
    def control(self) -> str:
        """Compacted: cadences and switches of runs, coordinator to agents, read whole by each."""
        return f"{self.prefix}.control"

    @property
    def peers(self) -> str:
        """Compacted: where each host is probed, agents to agents."""
        return f"{self.prefix}.peers"

    def specs(
        self,
        partitions: int = DEFAULT_PARTITIONS,
        retention_ms: int = 24 * HOUR_MS,
        retention_bytes: int = 4 * GIB,
    ) -> tuple[TopicSpec, ...]:
        """All of them. `partitions` and the retention bounds are telemetry's; one partition is enough for the others,
        since they are small and each of their readers wants all of them."""
        return (
            TopicSpec(self.telemetry, partitions, retention_ms, retention_bytes),
            TopicSpec(self.clocks, 1, retention_ms, GIB),
            TopicSpec(self.programs, compacted=True),
            TopicSpec(self.clock_maps, compacted=True),
            TopicSpec(self.metrics, compacted=True),
            TopicSpec(self.captures, 1, 7 * 24 * HOUR_MS, GIB),
            # A report older than minutes says nothing: 2 000 hosts make 20 MB in a quarter of an hour.
            TopicSpec(self.reports, 1, HOUR_MS, GIB // 4),
            TopicSpec(self.control, compacted=True),
            TopicSpec(self.peers, compacted=True),
        )
