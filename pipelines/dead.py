"""Rows of the dead letters: what could not be used, where it lies in the log, why, and its bytes as they came."""

from typing import Any

from fleetscope.schema.errors import FleetscopeError


def dead_letter(
    now_ns: int, place: tuple[str, int, int], error: FleetscopeError, value: bytes, *, source: int = 0, rows: int = 0
) -> dict[str, Any]:
    """`place` is (topic, partition, offset). Source and rows are 0 when the header could not be believed."""
    topic, partition, offset = place
    return {
        "now_ns": now_ns,
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "error": error.number,
        "message": f"{topic}/{partition}@{offset}: {error}",
        "source": source,
        "rows": rows,
        "value": value,
    }
