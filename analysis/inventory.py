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
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
    ]
)


def inventory(snapshot: Snapshot) -> pa.Table:
    """One row a table: files, rows, bytes, time range. Rows of rollups and dimensions are counted as stored."""
    rows = []
    for name, spec in TABLES.items():
        files = snapshot.files(name)
        count = sum(item.rows for item in files)
        size = sum(item.size_bytes for item in files)
        rows.append(
            {
                "table": name,
                "kind": spec.kind,
                "files": len(files),
                "rows": count,
                "size_bytes": size,
                "bytes_per_row": size / count if count else None,
                "first_ns": min((item.first for item in files if item.first is not None), default=None),
                "last_ns": max((item.last for item in files if item.last is not None), default=None),
            }
        )
    return pa.Table.from_pylist(rows, _COLUMNS)
