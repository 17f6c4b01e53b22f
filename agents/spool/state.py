"""Numbering states as JSON, and how two copies are joined.

Every field only grows, so the join of copies from different places is the larger of each: order does not matter, and a
state that could not be written in one place may be read from another.
"""

import json
from collections.abc import Mapping
from typing import Any

from fleetscope.agents.batches import SourceState

States = dict[int, SourceState]


def encode_states(states: Mapping[int, SourceState]) -> bytes:
    """{"<source id>": [next batch, next event, {reason: events}, mark]}"""
    rows = {
        str(source): [state.next_batch, state.next_event, state.dropped, state.mark] for source, state in states.items()
    }
    return json.dumps(rows, separators=(",", ":")).encode()


def decode_states(data: bytes) -> States:
    """Raises ValueError on anything `encode_states` does not write."""
    if not data:
        return {}
    try:
        rows: dict[str, Any] = json.loads(data)
        return {
            int(source): SourceState(
                int(batch), int(event), {str(reason): int(count) for reason, count in dropped.items()}, str(mark)
            )
            for source, (batch, event, dropped, mark) in rows.items()
        }
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no numbering states: {error}") from error


def join_states(into: States, other: Mapping[int, SourceState]) -> None:
    """Each field of `into` becomes the larger one; the mark is that of the state with the higher batch number."""
    for source, state in other.items():
        mine = into.get(source)
        if mine is None:
            into[source] = SourceState(state.next_batch, state.next_event, dict(state.dropped), state.mark)
            continue
        if state.next_batch >= mine.next_batch:
            mine.mark = state.mark
        mine.next_batch = max(mine.next_batch, state.next_batch)
        mine.next_event = max(mine.next_event, state.next_event)
        for reason, events in state.dropped.items():
            mine.dropped[reason] = max(mine.dropped.get(reason, 0), events)
