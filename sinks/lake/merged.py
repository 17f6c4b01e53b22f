"""Rows of rollup tables, merged on read: late data leaves several rows of a key until a replace merges them.

The law of each column is that of the pipeline's merge (a test holds the two together); here it is SQL, so that a query
pays only for the columns it reads.
"""

import duckdb
import pyarrow as pa

from fleetscope.schema.tables import TableSpec
from fleetscope.sinks.lake.encode import from_stored, spec_of, stored_schema, to_stored

_MINIMUM = frozenset({"min_ns"})
_MAXIMUM = frozenset({"max_ns"})
_NEWEST = frozenset({"dur_ns", "run", "attempt", "host", "rank", "source", "program", "map"})
"""Facts of the key rather than sums; rows agree on them, or one of them does not know (0, -1, '')."""


_COUNT_PER_BUCKET = """list_transform(list_sort(list_distinct(_index)), lambda bucket: list_sum(list_transform(
    list_filter(list_zip(_index, _count), lambda pair: pair[1] = bucket), lambda pair: pair[2]))::BIGINT)"""


def _aggregate(table: str, column: str, kind: str) -> str:
    name = f'"{column}"'
    if column in _MINIMUM:
        return f"min({name})"
    if column in _MAXIMUM:
        return f"max({name})"
    if column == "err_ns":
        # -1 is unknown, and unknown is worse than any number
        return f"CASE WHEN min({name}) < 0 THEN -1 ELSE max({name}) END"
    if column == "flags":
        return f"bit_or({name})"
    if table == "step" and column in _NEWEST:
        return f"max({name})"
    return f"sum({name})::{kind}"


def _sql_type(kind: str) -> str:
    return {"int64": "BIGINT", "int32": "INTEGER", "int16": "SMALLINT", "uint8": "SMALLINT", "uint32": "INTEGER"}[kind]


def merged_sql(spec: TableSpec, source: str) -> str:
    """SELECT with one row a key from `source` (a FROM clause), columns in the table's order, then its partition
    columns."""
    key = ", ".join(f'"{name}"' for name in spec.key)
    histogram = "hist_index" in spec.schema.names
    inner = [key]
    outer = []
    for field in spec.schema:
        if field.name in spec.key:
            outer.append(f'"{field.name}"')
        elif field.name == "hist_index":
            outer.append("list_sort(list_distinct(_index)) AS hist_index")
        elif field.name == "hist_count":
            outer.append(f"{_COUNT_PER_BUCKET} AS hist_count")
        else:
            kind = "VARCHAR" if str(field.type) == "string" else _sql_type(str(field.type))
            inner.append(f'{_aggregate(spec.name, field.name, kind)} AS "{field.name}"')
            outer.append(f'"{field.name}"')
    if histogram:
        inner += ["flatten(list(hist_index)) AS _index", "flatten(list(hist_count)) AS _count"]
    inner += [f"min({name}) AS {name}" for name in spec.partitions]
    outer += list(spec.partitions)
    # names come from the schema, the source from views.py
    grouped = f"SELECT {', '.join(inner)} FROM {source} GROUP BY {key}"  # noqa: S608
    return f"SELECT {', '.join(outer)} FROM ({grouped})"  # noqa: S608


def newest_sql(spec: TableSpec, source: str, age: str) -> str:
    """SELECT with the newest row of each key."""
    key = ", ".join(f'"{name}"' for name in spec.key)
    rank = f'row_number() OVER (PARTITION BY {key} ORDER BY "{age}" DESC)'
    return f"SELECT * FROM {source} QUALIFY {rank} = 1"  # noqa: S608


def merge_by_sql(table: str, rows: pa.Table) -> pa.Table:
    """`rows` of a rollup table with every key once, sorted by key, by the law above: a `fold.Merge`."""
    spec = spec_of(table)
    with duckdb.connect(":memory:", config={"threads": 1}) as connection:
        stored = to_stored(table, rows)
        for name in spec.partitions:
            stored = stored.append_column(name, pa.nulls(stored.num_rows, pa.string()))
        connection.register("parts", stored)
        columns = ", ".join(f'"{name}"' for name in spec.schema.names)
        key = ", ".join(f'"{name}"' for name in spec.key)
        query = f"SELECT {columns} FROM ({merged_sql(spec, 'parts')}) ORDER BY {key}"  # noqa: S608 - names are ours
        merged = connection.sql(query).to_arrow_table()
    return from_stored(table, merged.cast(stored_schema(table))).cast(spec.schema)
