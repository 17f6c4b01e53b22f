"""What the newest MetricsRecord of every (chain, run, part) says, merged into series.

Records are cumulative, so the newest epoch of a key is all that counts: replays, late starts and a second exporter give
the same values. Counters of one series add over chains, bucket by bucket where they are histograms; a gauge belongs to
its chain by its labels.

When chains are dealt anew, those of the new generation begin with what the old ones counted, so a run must never be the
sum of both, nor of a part of the new. The old generation is shown until every chain of the new one has spoken.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fleetscope.schema.metrics import metrics
from fleetscope.schema.vocabulary import COORDINATOR_CHAIN
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.prometheus.merge import Merged, Runs
from fleetscope.sinks.prometheus.shard import WHOLE, Shard
from fleetscope.transport.families import Family, Labels

BACKLOG = "fleetscope_pipeline_backlog_messages"


@dataclass(slots=True)
class _Shown:
    """One key's record as shown: one too old to move live series waits in `newest`."""

    newest: MetricsRecord
    live: MetricsRecord | None = None


@dataclass(slots=True)
class FleetState:
    """Newest records by (generation, chain, run, part). All times in ns.

    Only data younger than `stale_ns` moves live series (a pipeline catching up on an hour of backlog would otherwise
    draw it as the present); a series leaves `linger_ns` after the last event of its run in any chain. More than
    `series_per_run` label sets of one metric in a run are added up under host and device "other". Of hosts only those
    of `shard` are shown.
    """

    stale_ns: int
    linger_ns: int
    series_per_run: int
    shard: Shard = WHOLE
    _shown: dict[tuple[int, int, str, int], _Shown] = field(default_factory=dict)
    _complete: int = 0
    """Newest generation of which every chain has spoken, 0: none."""
    _spoken: dict[int, set[int]] = field(default_factory=dict)
    """Chains of newer generations whose own record came."""
    _coordinator: dict[int, MetricsRecord] = field(default_factory=dict)
    """By part: 0, what the newest round holds, whichever generation wrote it; others, the fleet's clock."""
    _runs: Runs = field(init=False)

    def __post_init__(self) -> None:
        self._runs = Runs(self.series_per_run, self.shard)

    def take(self, record: MetricsRecord, now_ns: int) -> None:
        """Take a record in any order; an older epoch of its key is ignored, and so is a generation that has ended."""
        if record.chain == COORDINATOR_CHAIN:
            # Two coordinators may speak; rounds and hops are numbered once for both.
            before = self._coordinator.get(record.part)
            if before is None or record.epoch >= before.epoch:
                self._coordinator[record.part] = record
            return
        generation = max(1, record.generation)
        if generation < self._complete:
            return
        key = (generation, record.chain, record.run, record.part)
        shown = self._shown.get(key)
        if shown is None:
            shown = self._shown[key] = _Shown(record)
        elif record.epoch < shown.newest.epoch:
            return
        shown.newest = record
        if now_ns - record.event_ns <= self.stale_ns:
            shown.live = record
        if not record.run and generation > self._complete:
            self._hear(generation, record)

    def _hear(self, generation: int, record: MetricsRecord) -> None:
        """A chain's own record is its last of an epoch: what it counted before has been taken."""
        spoken = self._spoken.setdefault(generation, set())
        spoken.add(record.chain)
        if record.chains and spoken >= set(record.chains):
            self._complete = generation
            self._shown = {key: shown for key, shown in self._shown.items() if key[0] >= generation}
            self._spoken = {number: chains for number, chains in self._spoken.items() if number > generation}

    @property
    def generation(self) -> int:
        """The one that is shown: the newest that is complete, else the oldest there is."""
        return self._complete or min((key[0] for key in self._shown), default=0)

    def expire(self, now_ns: int) -> None:
        """Forget runs whose last event is older than `linger_ns`. The pipeline's own record (run "") stays."""
        newest: dict[tuple[int, str], int] = {}
        for (generation, _, run, _), shown in self._shown.items():
            newest[generation, run] = max(shown.newest.event_ns, newest.get((generation, run), 0))
        for key in list(self._shown):
            if key[2] and now_ns - newest[key[0], key[2]] > self.linger_ns:
                del self._shown[key]
        self._runs.keep({key[2] for key in self._shown})

    def families(self, now_ns: int, ends: Mapping[int, int] | None = None) -> Iterable[Family]:
        """Series as they stand now. A first record is shown even when stale: a counter has to start somewhere.

        `ends`: the log's end by partition of the telemetry topic; None: not known, and so no backlog either.
        """
        self.expire(now_ns)
        merged = Merged(self._runs)
        for run, record, event_ns in self._speaking():
            merged.add(run, record, max(0, now_ns - event_ns) / 1e9)
        yield from merged.families()
        known = metrics()
        if ends is not None and self.shard.has(None):
            yield Family(known[BACKLOG], self._backlog(ends))
        overflow: dict[Labels, float] = {(run,): float(folded) for run, folded in merged.folded.items()}
        yield Family(known["fleetscope_exporter_series_over_budget"], overflow)
        yield Family(known["fleetscope_exporter_unknown_samples"], {(): float(merged.unknown)})

    def _backlog(self, ends: Mapping[int, int]) -> dict[Labels, float]:
        """What each chain that is shown has still to read. A chain that has told no offsets is an older worker's."""
        found: dict[Labels, float] = {}
        current = self.generation
        for (generation, chain, run, _), shown in self._shown.items():
            if generation == current and not run and shown.newest.committed:
                behind = (ends.get(at.partition, 0) - at.offset for at in shown.newest.committed)
                found[(str(chain),)] = float(sum(max(0, messages) for messages in behind))
        return found

    def _speaking(self) -> Iterable[tuple[str, MetricsRecord, int]]:
        """(run, record as it is shown, newest event) of the generation that is shown, and of the coordinator."""
        current = self.generation
        for (generation, _, run, _), shown in sorted(self._shown.items(), key=lambda item: item[0]):
            if generation == current:
                yield run, shown.live or shown.newest, shown.newest.event_ns
        hop = max((record.epoch for part, record in self._coordinator.items() if part), default=0)
        for part, record in sorted(self._coordinator.items(), key=lambda item: item[0]):
            # Of a fleet that shrank the last parts are not told again.
            if part == 0 or record.epoch == hop:
                yield "", record, record.event_ns
