"""A column as tables and payloads declare it, with its unit and meaning, and the format that brought it."""

import pyarrow as pa

FORMAT = 2
"""Of the tables; raised by 1 with every release that adds columns. Columns are only ever added."""


def field(name: str, kind: pa.DataType, unit: str, meaning: str, *, null: bool = False, since: int = 1) -> pa.Field:
    """`since`: the FORMAT that brought the column. Files of an earlier one lack it; readers take 0, "" or null."""
    later = {"since": str(since)} if since > 1 else {}
    return pa.field(name, kind, nullable=null, metadata={"unit": unit, "meaning": meaning} | later)


def is_later(column: pa.Field) -> bool:
    """Whether files may lack the column: it was added to a table that lakes already had."""
    return b"since" in (column.metadata or {})
