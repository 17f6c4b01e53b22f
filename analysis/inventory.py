"""What is in the lake: files, rows and bytes by table."""

import pyarrow as pa

from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.read import Snapshot

_COLUMNS = pa.schema(
    [
        ("table", pa.string()),
        ("kind", pa.string()),
        ("files", pa.int64()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("bytes_per_row", pa.float64()),
        ("first", pa.string()),
        ("last", pa.string()),
    ]
)


def inventory(snapshot: Snapshot) -> pa.Table:
    """One row a table: files, rows, bytes, UTC time range. Rows of rollups and dimensions are counted as stored."""
    rows = []
    for name, spec in TABLES.items():
        files = snapshot.files(name)
        count = sum(item.rows for item in files)
        size = sum(item.size_bytes for item in files)
        firsts = [item.first for item in files if item.first is not None]
        lasts = [item.last for item in files if item.last is not None]
        rows.append(
            {
                "table": name,
                "kind": spec.kind,
                "files": len(files),
                "rows": count,
                "size_bytes": size,
                "bytes_per_row": size / count if count else None,
                "first": utc(min(firsts)) if firsts else None,
                "last": utc(max(lasts)) if lasts else None,
            }
        )
    return pa.Table.from_pylist(rows, _COLUMNS)


def utc(ns: int) -> str:
    """2026-11-30 10:00:00.123456789 of fleet ns; a time no calendar holds is given as the number."""
    import datetime as dt

    try:
        second = dt.datetime.fromtimestamp(ns // 10**9, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(ns)
    return f"{second:%Y-%m-%d %H:%M:%S}.{ns % 10**9:09d}"
