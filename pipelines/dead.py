"""Rows of the dead letters: what could not be used, where it lies in the log, why, and its bytes as they came."""

from typing import Any, Final

from fleetscope.schema.errors import BatchUnprocessable, FleetscopeError

DEFECTS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What a stage raises on input it does not survive. Input must not stop a chain: a batch that does this is set aside.

Errors of I/O are not among them: they say nothing about the batch.
"""


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


def unprocessable(error: Exception) -> FleetscopeError:
    """The numbered error of a defect."""
    return BatchUnprocessable(f"{type(error).__name__}: {error}")
