"""What a reader merges by SQL is what the pipeline's merge gives, for every rollup table."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.merge import merge
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.encode import stored_schema, to_stored
from fleetscope.sinks.lake.merged import merged_sql

_ROLLUPS = sorted(name for name, spec in TABLES.items() if spec.kind == "rollup")


def _column(random: np.random.Generator, field: pa.Field, rows: int, key: bool) -> list[Any]:
    if field.name == "source":
        return random.choice(["declared", "inferred"], rows).tolist()
    if field.name in ("run", "host", "program") and not key:
        return random.choice(np.array([0, 5, 9, -(2**63), -7]), rows).tolist()
    unsigned = str(field.type).startswith("u") or field.name == "count"
    return random.integers(0 if unsigned or key else -1, 2 if key else 6 if unsigned else 40, rows).tolist()


def _merge_by_sql(name: str, rows: pa.Table) -> list[dict[str, Any]]:
    spec = TABLES[name]
    parts = to_stored(name, rows)
    for column in spec.partitions:
        parts = parts.append_column(column, pa.nulls(parts.num_rows, pa.string()))
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        connection.register("parts", parts)
        order = ", ".join(spec.key)
        merged = connection.sql(f"SELECT * FROM ({merged_sql(spec, 'parts')}) ORDER BY {order}").to_arrow_table()
    found: list[dict[str, Any]] = merged.select(spec.schema.names).cast(stored_schema(name)).to_pylist()
    return found


@pytest.mark.property
@pytest.mark.parametrize("name", _ROLLUPS)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 60))
def test_the_two_merges_agree(name: str, seed: int, rows: int) -> None:
    spec = TABLES[name]
    random = np.random.default_rng(seed)
    buckets = [sorted(random.choice([-32768, -2, 0, 31], random.integers(0, 4), replace=False)) for _ in range(rows)]
    columns = []
    for field in spec.schema:
        if field.name == "hist_index":
            values: Any = buckets
        elif field.name == "hist_count":
            values = [random.integers(1, 6, len(found)).tolist() for found in buckets]
        else:
            values = _column(random, field, rows, field.name in spec.key)
        if field.name == "count":
            counts = values
        if field.name == "min_ns":  # a row that counts no span has 0 here
            values = [least if count else 0 for least, count in zip(values, counts, strict=True)]
        columns.append(pa.array(values, field.type))
    table = pa.Table.from_arrays(columns, schema=spec.schema)
    assert _merge_by_sql(name, table) == merge(name, [table]).to_pylist()
