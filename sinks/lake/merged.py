"""Rows of rollup tables, merged on read: late data leaves several rows of a key until a replace merges them.

The law of each column is that of the pipeline's merge (a test holds the two together); here it is SQL, so that a query
pays only for the columns it reads.
"""

from fleetscope.schema.tables import TableSpec

_LAW = {
    ("op_10s", "min_ns"): "counted_min",
    ("op_10s", "max_ns"): "max",
    ("device_10s", "err_ns"): "worst",
    ("device_10s", "run_ahead_max"): "max",
    ("completeness", "err_ns"): "worst",
    ("step", "run"): "known",
    ("step", "host"): "known",
    ("step", "program"): "known",
    ("step", "rank"): "max",
    ("step", "source"): "min",
    ("step", "flags"): "bit_or",
    ("step", "confidence"): "max",
    ("step_program", "host"): "known",
}
"""(table, column) -> aggregate; where none is named, numbers add. The words are those of pipelines/merge.py."""

_SQL = {
    "max": "max({0})",
    "min": "min({0})",
    "bit_or": "bit_or({0})",
    # a row that counts nothing has no shortest span
    "counted_min": 'coalesce(min({0}) FILTER ("count" > 0), 0)',
    # -1 is unknown, and unknown is worse than any number
    "worst": "CASE WHEN min({0}) < 0 THEN -1 ELSE max({0}) END",
    # ids are signed hashes and 0 means none; the largest as an unsigned number
    "known": "coalesce(max({0}) FILTER ({0} < 0), max({0}))",
}

_COUNT_PER_BUCKET = """list_transform(list_sort(list_distinct(_index)), lambda bucket: list_sum(list_transform(
    list_filter(list_zip(_index, _count), lambda pair: pair[1] = bucket), lambda pair: pair[2]))::BIGINT)"""


def _aggregate(table: str, column: str, kind: str) -> str:
    law = _LAW.get((table, column))
    return f'sum("{column}")::{kind}' if law is None else _SQL[law].format(f'"{column}"')


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
