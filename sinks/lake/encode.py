"""How a table's columns become Parquet. Chosen by measurement (docs/design/0005-lake.md), per column kind, in two
profiles.

compact: zstd-3; BYTE_STREAM_SPLIT for times and rollup numbers, dictionaries for what repeats, DELTA for what counts
up.
portable: no INT64 BYTE_STREAM_SPLIT, which some engines cannot read (DELTA for times, PLAIN for other numbers).
Pages hold 100 k rows: ids of a periodic program compress only inside a page (op column 0.67 B at 20 k rows, 0.18 at 100
k).
"""

from functools import cache
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from fleetscope.schema.columns import is_later
from fleetscope.schema.errors import RowsMismatch
from fleetscope.schema.tables import TABLES, TableSpec

Profile = Literal["compact", "portable"]

ROW_GROUP_ROWS = 1 << 20
PAGE_ROWS = 100_000
PAGE_BYTES = 8 << 20

_COUNTING = frozenset({"seq", "exec", "offset"})
"""Columns that count up: DELTA."""
_TIMES = frozenset({"t_ns", "dur_ns", "now_ns"})
_SPLIT_KINDS = frozenset({"raw", "rollup"})


def spec_of(table: str) -> TableSpec:
    """The TableSpec; RowsMismatch names the nearest thing to say for a table that does not exist."""
    try:
        return TABLES[table]
    except KeyError:
        raise RowsMismatch(f"no table called {table!r}; there are {', '.join(TABLES)}") from None


@cache
def stored_schema(table: str) -> pa.Schema:
    """The table's columns as they stand in files: signed types only, because Delta has no others, all nullable, so that
    a column can be added later. uint8 -> int16; uint32 flags -> int32 with the same bits."""
    return pa.schema(
        [pa.field(field.name, _stored_type(field), metadata=field.metadata) for field in spec_of(table).schema]
    )


def _stored_type(field: pa.Field) -> pa.DataType:
    if pa.types.is_uint8(field.type):
        return pa.int16()
    return pa.int32() if pa.types.is_uint32(field.type) else field.type


def absent(field: pa.Field, rows: int) -> pa.Array:
    """Stored values of a declared column that a file does not have: null where it may be, else 0, false, "" or
    empty."""
    kind = _stored_type(field)
    if field.nullable:
        return pa.nulls(rows, kind)
    empty: Any = [] if pa.types.is_nested(kind) else "" if pa.types.is_string(kind) else 0
    return pa.repeat(pa.scalar(bool(empty) if pa.types.is_boolean(kind) else empty, kind), rows)


def filled(table: str, rows: pa.Table) -> pa.Table:
    """Rows read over files of several formats, as stored or not: null, which only a file without the column gives,
    becomes what `absent` says."""
    for field in spec_of(table).schema:
        index = rows.schema.get_field_index(field.name)
        if index < 0 or field.nullable or not is_later(field) or not rows.column(index).null_count:
            continue
        value = absent(field, 1)[0].cast(rows.schema.field(index).type)
        rows = rows.set_column(index, rows.schema.field(index), rows.column(index).fill_null(value))
    return rows


def to_stored(table: str, rows: pa.Table) -> pa.Table:
    """Rows of the table's schema (columns in any order) as stored_schema. Raises RowsMismatch naming the column."""
    columns = []
    for declared, field in zip(spec_of(table).schema, stored_schema(table), strict=True):
        found = rows.schema.get_field_index(declared.name)
        if found < 0:
            raise RowsMismatch(f"{table}: column {declared.name!r} is missing")
        column = rows.column(found)
        if not column.type.equals(declared.type):
            raise RowsMismatch(f"{table}: column {declared.name!r} is {column.type}, not {declared.type}")
        if pa.types.is_uint32(column.type):
            column = pa.chunked_array([chunk.view(pa.int32()) for chunk in column.chunks], pa.int32())
        elif column.type != field.type:
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=stored_schema(table))


def from_stored(table: str, rows: pa.Table) -> pa.Table:
    """Inverse of to_stored for the columns present; others (partition columns) stay as they are."""
    declared = spec_of(table).schema
    for index, name in enumerate(rows.schema.names):
        if name not in declared.names:
            continue
        field = declared.field(name)
        column = rows.column(index)
        if column.type == field.type:
            continue
        if pa.types.is_uint32(field.type) and pa.types.is_int32(column.type):
            column = pa.chunked_array([chunk.view(pa.uint32()) for chunk in column.chunks], pa.uint32())
        else:
            column = column.cast(field.type)
        rows = rows.set_column(index, field, column)
    return rows


def _column_plan(spec: TableSpec, profile: Profile) -> tuple[list[str], dict[str, str]]:
    """(dictionary columns, column -> encoding). pyarrow refuses a column in both."""
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for field in spec.schema:
        numeric = pa.types.is_int64(field.type) or pa.types.is_float64(field.type)
        unit = (field.metadata or {}).get(b"unit", b"")
        if pa.types.is_nested(field.type):
            dictionary.append(field.name)
        elif field.name in _COUNTING:
            encoding[field.name] = "DELTA_BINARY_PACKED"
        elif numeric and spec.kind in _SPLIT_KINDS and unit != b"id" and field.name not in spec.key:
            if profile == "compact":
                encoding[field.name] = "BYTE_STREAM_SPLIT"
            elif field.name in _TIMES:
                encoding[field.name] = "DELTA_BINARY_PACKED"
            else:
                encoding[field.name] = "PLAIN"
        else:
            dictionary.append(field.name)
    return dictionary, encoding


@cache
def _options(table: str, profile: Profile) -> dict[str, Any]:
    dictionary, encoding = _column_plan(spec_of(table), profile)
    nested = [field.name for field in stored_schema(table) if pa.types.is_nested(field.type)]
    # dictionary columns are named by Parquet path: a nested column by each of its leaves
    leaves = [path for path in _leaf_paths(table) if path.split(".", 1)[0] in nested]
    return {
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in dictionary if name not in nested] + leaves,
        "column_encoding": encoding,
        "data_page_size": PAGE_BYTES,
        "max_rows_per_page": PAGE_ROWS,
        "write_page_index": True,
        "store_schema": False,
    }


@cache
def _leaf_paths(table: str) -> tuple[str, ...]:
    sink = pa.BufferOutputStream()
    pq.write_table(stored_schema(table).empty_table(), sink)
    schema = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return tuple(schema.column(index).path for index in range(len(schema)))


def writer(table: str, sink: Any, profile: Profile) -> pq.ParquetWriter:
    """A ParquetWriter for the table's files; write stored rows, at most ROW_GROUP_ROWS a row group."""
    return pq.ParquetWriter(sink, stored_schema(table), **_options(table, profile))
