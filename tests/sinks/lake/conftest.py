"""Stores of every kind, and rows whose content a test can foresee."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import obstore.store
import pyarrow as pa
import pytest

from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.sinks.lake.remote_store import RemoteStore

HOUR_NS = 3_600_000_000_000
NOON_NS = 1_750_000_000_000_000_000 // (24 * HOUR_NS) * 24 * HOUR_NS + 12 * HOUR_NS
"""2025-06-15 12:00:00 UTC."""


@pytest.fixture(params=["folder", "obstore-folder", "obstore-memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    """Each implementation of the protocol."""
    if request.param == "folder":
        yield LocalFolder(tmp_path / "lake")
    elif request.param == "obstore-folder":
        (tmp_path / "lake").mkdir()
        yield RemoteStore.over(obstore.store.LocalStore(tmp_path / "lake"), str(tmp_path / "lake"))
    elif request.param == "s3":
        server = request.getfixturevalue("s3")
        yield open_store(f"s3://lake/{tmp_path.name} 1/{uuid.uuid4().hex}", server.options())
    else:
        yield open_store("memory:///")


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "lake")


Rows = Callable[..., pa.Table]


@pytest.fixture(scope="session")
def noon_ns() -> int:
    return NOON_NS


@pytest.fixture(scope="session")
def make_rows() -> Rows:
    """`make_rows(table, n, **columns)`: n rows; a column not given is 0, "", false or empty, the time column noon +
    i."""

    def value(kind: pa.DataType) -> Any:
        if pa.types.is_string(kind):
            return ""
        if pa.types.is_binary(kind):
            return b""
        if pa.types.is_boolean(kind):
            return False
        if pa.types.is_nested(kind):
            return []
        return 0

    def make(table: str, rows: int, **columns: Any) -> pa.Table:
        spec = TABLES[table]
        arrays = []
        for field in spec.schema:
            given = columns.get(field.name)
            if given is None and field.name == spec.time:
                given = NOON_NS + np.arange(rows)
            if given is None:
                given = [value(field.type)] * rows
            elif isinstance(given, int | float | str | bool | bytes):
                given = [given] * rows
            arrays.append(pa.array(given, field.type))
        return pa.Table.from_arrays(arrays, schema=spec.schema)

    return make
