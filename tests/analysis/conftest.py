"""Lakes made by hand, row by row, for what the simulator does not do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.segment import write_segment

T0 = 1_796_000_000 * 10**9
"""2026-11-30 00:53:20 UTC, the begin of a 10 s window."""


def _nothing(kind: pa.DataType) -> Any:
    if pa.types.is_string(kind):
        return ""
    if pa.types.is_binary(kind):
        return b""
    if pa.types.is_boolean(kind):
        return False
    return [] if pa.types.is_nested(kind) else 0


@pytest.fixture
def lake_of(tmp_path: Path) -> Callable[..., Snapshot]:
    """`lake_of(hosts=[{...}, ...], ...)`: a committed epoch of these rows; a column not given is 0, "" or empty, the
    time column T0."""

    def make(**tables: list[dict[str, Any]]) -> Snapshot:
        store = LocalFolder(tmp_path / "lake")
        segments = []
        for number, (name, rows) in enumerate(tables.items()):
            spec = TABLES[name]
            empty = {field.name: _nothing(field.type) for field in spec.schema}
            if spec.time:
                empty[spec.time] = T0
            for row in rows:
                assert not set(row) - set(empty), f"{name} has no {set(row) - set(empty)}"
            table = pa.Table.from_pylist([{**empty, **row} for row in rows], spec.schema)
            segments += write_segment(store, name, table, f"by-hand-{number}")
        Chain(store, 0).commit(Manifest(0, 1, 1, "a", "", T0, (), tuple(segments)))
        return Snapshot.open(store)

    return make
