"""The loss ledger: equations that hold exactly before anything is committed, and the rows people read (DESIGN 3.6).

Per source, in events:
    arrived            = stored + dead-lettered + held + duplicate
    highest number + 1 = stored + dead-lettered + held + in open gaps + lost
The left sides come from headers, `stored` from rows written into segments: two counts that meet only here.
Per partition, in messages: read = taken + duplicate + dead-lettered, unreadable headers included.
"""

from collections.abc import Iterable
from typing import Any

from fleetscope.pipelines.state import PartitionState, SourceRecord
from fleetscope.schema.errors import LedgerBroken


def settle(partition: int, state: PartitionState, fates: Iterable[tuple[int, int, int, int]]) -> None:
    """Add an epoch's (source, events stored, events dead-lettered, messages dead-lettered after they were taken),
    then check.

    LedgerBroken names what does not add up.
    """
    for source, stored, dead, messages_dead in fates:
        record = state.sources.get(source)
        if record is None:
            raise LedgerBroken(f"partition {partition}: {stored} events stored of unknown source {source}")
        record.stored += stored
        record.dead += dead
        state.messages.taken -= messages_dead
        state.messages.dead += messages_dead
        record.changed = True
    held: dict[int, int] = {}
    for item in state.held:
        held[item.source] = held.get(item.source, 0) + item.rows
    for source, record in state.sources.items():
        _check_source(partition, source, record, held.get(source, 0))
    messages = state.messages
    if messages.read != messages.taken + messages.duplicate + messages.dead:
        raise LedgerBroken(
            f"partition {partition}: {messages.read} messages read, {messages.taken} taken + {messages.duplicate} "
            f"duplicate + {messages.dead} dead-lettered"
        )


def _check_source(partition: int, source: int, record: SourceRecord, held: int) -> None:
    kept = record.stored + record.dead + held
    numbers = record.numbers
    if record.arrived != kept + record.duplicate:
        raise LedgerBroken(
            f"partition {partition}, source {source}: {record.arrived} events arrived, {record.stored} stored + "
            f"{record.dead} dead-lettered + {held} held + {record.duplicate} duplicate"
        )
    if numbers.next_event != kept + numbers.gap_events + numbers.lost_events:
        raise LedgerBroken(
            f"partition {partition}, source {source}: numbers reach {numbers.next_event}, {kept} kept + "
            f"{numbers.gap_events} in gaps + {numbers.lost_events} lost"
        )


def rows(
    state: PartitionState, lost: dict[int, list[list[int]]], now_ns: int, chain: int, number: int
) -> list[dict[str, Any]]:
    """Rows of the ledger table for the sources that changed; cumulative, so the newest row of a source is its balance.

    `lost`: source -> ranges [first, last] closed as lost in this epoch.
    """
    return [
        {
            "now_ns": now_ns,
            "chain": chain,
            "epoch": number,
            "source": source,
            "host": record.host,
            "process": record.process,
            "produced": record.produced,
            "appended": record.numbers.next_event,
            "dropped": [(reason, events) for reason, events in sorted(record.dropped.items())],
            "stored": record.stored,
            "dead_lettered": record.dead,
            "duplicate": record.duplicate,
            "gaps": [
                {"first": gap.first_event, "last": gap.end_event - 1} for gap in record.numbers.gaps if gap.events
            ],
            "lost": [{"first": first, "last": last} for first, last in lost.get(source, [])],
        }
        for source, record in state.sources.items()
        if record.changed
    ]
