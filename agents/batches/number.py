"""Numbers of batches and events, given once, and the header that carries them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetscope.agents.batches.pack import Packed
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import WIRE_VERSION

NUMBERED_LOSSES = frozenset({"spool_full", "spool_disk", "batch_too_large"})
"""Reasons whose events had numbers when they were lost, so the pipeline sees gaps too. All others never had one.

So of a source: produced = numbered + sum of the other reasons.
"""


@dataclass(slots=True)
class SourceState:
    """What numbering must remember of one source. `dropped` is cumulative by reason.

    `mark` is the producer's: how far it had read its own source (a ring) when the newest batch was numbered, so that an
    agent killed between two batches goes on exactly there.
    """

    next_batch: int = 0
    next_event: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    mark: str = ""

    @property
    def produced(self) -> int:
        return self.next_event + sum(count for reason, count in self.dropped.items() if reason not in NUMBERED_LOSSES)

    def lose(self, lost: Mapping[str, int]) -> None:
        for reason, events in lost.items():
            if events:
                self.dropped[reason] = self.dropped.get(reason, 0) + events


@dataclass(frozen=True, slots=True)
class Numbered:
    """One value of fleetscope.telemetry with what bookkeeping needs to know of it."""

    source_id: int
    batch_number: int
    first_event: int
    rows: int
    key: bytes
    value: bytes


class Numberer:
    """Gives numbers under one incarnation. Not thread-safe; `states` may be restored from where they were stored."""

    def __init__(self, incarnation: int, states: Mapping[int, SourceState] | None = None) -> None:
        self.incarnation = incarnation
        self.states: dict[int, SourceState] = dict(states or {})

    def identify(self, source: wire.Source) -> tuple[wire.Source, int]:
        """The source under this incarnation, and its id."""
        stamped = wire.Source()
        stamped.CopyFrom(source)
        stamped.incarnation = self.incarnation
        return stamped, identity.source_id(stamped)

    def number(self, packed: Packed, sent_ns: int) -> Numbered:
        """The encoded batch under the next numbers of its source. The state moves on: a number is never given twice."""
        draft = packed.draft
        source, source_id = self.identify(draft.source)
        state = self.states.setdefault(source_id, SourceState())
        state.lose(draft.lost)
        if draft.mark:
            state.mark = draft.mark
        rows = draft.row_count
        batch_number, first_event = state.next_batch, state.next_event
        state.next_batch += 1
        state.next_event += rows
        batch = wire.Batch(
            version=WIRE_VERSION,
            source=source,
            source_id=source_id,
            payload_kind=draft.payload_kind,
            device=draft.device,
            clock=draft.clock,
            tick_from=draft.tick_from,
            tick_to=draft.tick_to,
            batch_number=batch_number,
            first_event=first_event,
            rows=rows,
            window=draft.window,
            dropped=[wire.Dropped(reason=reason, events=events) for reason, events in state.dropped.items()],
            produced=state.produced,
            snapshots=draft.snapshots,
            announcements=draft.announcements,
            sent_ns=sent_ns,
            flags=draft.flags,
            payload=packed.payload,
        )
        key = source.host.encode("utf-8", "surrogateescape")
        return Numbered(source_id, batch_number, first_event, rows, key, batch.SerializeToString())
