"""SQL over a snapshot: a DuckDB connection with one view a table, and views that say names.

Rollups are merged and dimensions reduced to their newest rows in the view, and only where files make it necessary.
Names are joined late: a symbol that arrives after its events resolves them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
from duckdb.func import ARROW

from fleetscope.schema.columns import is_later
from fleetscope.schema.tables import TABLES, TableSpec
from fleetscope.schema.vocabulary import Kind, LinkRole, SpanFlag
from fleetscope.sinks.lake.dimension import age_column
from fleetscope.sinks.lake.encode import spec_of, stored_schema
from fleetscope.sinks.lake.merged import merged_sql, newest_sql

if TYPE_CHECKING:
    from fleetscope.sinks.lake.read import Snapshot

_DUCKDB_TYPES = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "int16": "SMALLINT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "bool": "BOOLEAN",
    "binary": "BLOB",
}

_ZEROS = dict.fromkeys(("int64", "int32", "uint8", "uint32", "double"), "0") | {"string": "''", "bool": "false"}


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _path(value: str) -> str:
    """A path as DuckDB must be given it: the characters it would expand are meant."""
    return _text("".join(f"[{character}]" if character in "*?[" else character for character in value))


def _empty(spec: TableSpec) -> str:
    columns = []
    for field in stored_schema(spec.name):
        kind = str(field.type)
        if kind.startswith("map<"):
            sql = f"MAP(VARCHAR, {_DUCKDB_TYPES[str(field.type.item_type)]})"
        elif kind.startswith("list<") and "struct" in kind:
            sql = "STRUCT(first BIGINT, last BIGINT)[]"
        elif kind.startswith("list<"):
            sql = f"{_DUCKDB_TYPES[str(field.type.value_type)]}[]"
        else:
            sql = _DUCKDB_TYPES[kind]
        columns.append(f'NULL::{sql} AS "{field.name}"')
    columns += [f"NULL::VARCHAR AS {name}" for name in spec.partitions]
    return f"(SELECT {', '.join(columns)} WHERE false)"


def _later(spec: TableSpec) -> list[pa.Field]:
    return [field for field in spec.schema if is_later(field)]


def _completed(spec: TableSpec, source: str) -> str:
    """`source` with the columns that all or some of its files lack (SQL for `encode.absent`)."""
    later = _later(spec)
    if not later:
        return source
    zeros = [
        f'coalesce("{field.name}", {_ZEROS[str(field.type)]}) AS "{field.name}"'
        for field in later
        if not field.nullable and str(field.type) in _ZEROS
    ]
    replaced = f" REPLACE ({', '.join(zeros)})" if zeros else ""
    # The empty side brings the columns that no file has.
    return f"(SELECT *{replaced} FROM (SELECT * FROM {_empty(spec)} UNION ALL BY NAME SELECT * FROM {source}))"  # noqa: S608


def _source(connection: duckdb.DuckDBPyConnection, snapshot: "Snapshot", spec: TableSpec, keys: Sequence[str]) -> str:
    if not keys:
        return _empty(spec)
    if snapshot.store.is_local:
        paths = ", ".join(_path(snapshot.store.location(key)) for key in keys)
        by_name = ", union_by_name = true" if _later(spec) else ""
        partitions = ", ".join(f"{name}: VARCHAR" for name in spec.partitions)
        types = (
            f", hive_partitioning = true, hive_types = {{{partitions}}}"
            if partitions
            else ", hive_partitioning = false"
        )
        return _completed(spec, f"read_parquet([{paths}]{types}{by_name})")
    # named in a statement of ours only; partition values come from the files' paths, as DuckDB takes them on disk
    connection.register(f"_{spec.name}", snapshot.partitioned(spec.name, keys))
    return _completed(spec, f'(SELECT * FROM "_{spec.name}")')  # noqa: S608 - names are ours


_COMPUTED = {
    "spans": "*, dur_ns - child_ns AS self_ns",
    "op_10s": "*, sum_ns - child_ns AS self_ns",
}


_FLEET_NS = "_fleet_ns"


def _aligned(connection: duckdb.DuckDBPyConnection, snapshot: "Snapshot", spec: TableSpec, source: str) -> str:
    """`source` with t_ns by the fleet's clock. Computed only where a query looks at t_ns."""
    if not snapshot.is_aligned(spec.name):
        return source
    if not connection.sql(f"SELECT 1 FROM duckdb_functions() WHERE function_name = '{_FLEET_NS}'").fetchall():  # noqa: S608

        def fleet_ns(names: pa.ChunkedArray, t_ns: pa.ChunkedArray, t_sub: pa.ChunkedArray) -> pa.Array:
            columns = (column.to_numpy() for column in (names, t_ns, t_sub))
            return pa.array(snapshot.alignment.place(*columns).t_ns)

        connection.create_function(_FLEET_NS, fleet_ns, ["BIGINT"] * 3, "BIGINT", type=ARROW)
    sub = "t_sub::BIGINT" if "t_sub" in spec.schema.names else "0::BIGINT"
    return f'(SELECT * REPLACE ({_FLEET_NS}("map", t_ns, {sub}) AS t_ns) FROM {source})'  # noqa: S608 - names are ours


def connect(
    snapshot: "Snapshot",
    tables: Sequence[str],
    from_ns: int | None,
    to_ns: int | None,
    threads: int | None,
    written: bool = False,
) -> duckdb.DuckDBPyConnection:
    """See Snapshot.duckdb. Time bounds leave out whole files of raw, rollup and log tables; they do not filter rows."""
    # extensions would be fetched over the network
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    if threads is not None:
        config["threads"] = threads
    connection = duckdb.connect(":memory:", config=config)
    # every process of a run announces the run: one segment can hold rows of one key many times, until it is folded
    fresh = {segment.key for manifest in snapshot.tail for segment in manifest.segments}
    for name in tables:
        spec = spec_of(name)
        bounds = (None, None) if spec.kind == "dimension" else snapshot.written_between(name, from_ns, to_ns)
        keys = [item.key for item in snapshot.files(name, *bounds)]
        source = _source(connection, snapshot, spec, keys)
        if len(keys) > 1 and spec.kind == "rollup":
            source = f"({merged_sql(spec, source)})"
        elif spec.kind == "dimension" and (len(keys) > 1 or fresh.intersection(keys)):
            source = f"({newest_sql(spec, source, age_column(spec))})"
        elif spec.kind == "raw" and "map" in spec.schema.names:
            source = f"(SELECT *, t_ns AS written_ns FROM {source})" if written else source  # noqa: S608 - names are ours
            source = _aligned(connection, snapshot, spec, source)
        # nothing in these statements comes from data: names are ours, paths are quoted
        connection.execute(f'CREATE VIEW "{name}" AS SELECT {_COMPUTED.get(name, "*")} FROM {source}')  # noqa: S608
    if set(tables) >= set(TABLES):
        for name, sql in NAMED_VIEWS.items():
            connection.execute(f'CREATE VIEW "{name}" AS {sql}')
    return connection


OP_IDENTITY = """
    op_identity AS (
        SELECT l.process, g.program AS seen_program, g.op AS seen_op, k.program, k.op
        FROM program_loads l JOIN ops g ON g.program = l.program_id
            JOIN ops k ON k.program = l.program AND k.name = g.name)"""
"""CTE: spans that came before the table of their program carry a provisional program with ordinals of its own.
`program_loads` says which program it was, the names in the two tables which op."""


def _resolved(table: str, where: str = "TRUE") -> str:
    """CTE `s`: rows of `table`, each under the program and op it really was."""
    return f"""{OP_IDENTITY},
        s AS (
            SELECT s.* REPLACE (
                coalesce(i.program, l.program, s.program) AS program, coalesce(i.op, s.op) AS op)
            FROM {table} s
            LEFT JOIN program_loads l ON l.process = s.process AND l.program_id = s.program AND {where}
            LEFT JOIN op_identity i ON i.process = s.process AND i.seen_program = s.program AND i.seen_op = s.op
                AND {where})"""  # noqa: S608


_WHO = """
    h.name AS host_name, p.run_name, p.attempt_name, p.run, p.attempt, p.rank,
    d.key AS device_key, d.local_name AS device_name, d.sku"""

_JOIN_WHO = """
    LEFT JOIN hosts h ON h.host = s.host
    LEFT JOIN processes p ON p.process = s.process
    LEFT JOIN devices d ON d.device = s.device"""

_OP = f"""
    coalesce(CASE WHEN s.kind = {int(Kind.MODULE)} THEN m.module END, o.name, n.name, m.module) AS name,
    m.module, o.category, o.opcode, o.op_name, o.source_file, o.source_line, o.flops, o.model_flops, o.bytes_hbm"""

_JOIN_OP = f"""
    LEFT JOIN ops o ON o.program = s.program AND o.op = s.op AND s.kind != {int(Kind.MODULE)}
    LEFT JOIN programs m ON m.program = s.program
    LEFT JOIN names n ON n.program = s.program"""

_ROLE = f"""CASE s.role WHEN {int(LinkRole.PRODUCES)} THEN 'produces' WHEN {int(LinkRole.CONSUMES)} THEN 'consumes'
    ELSE 'both' END"""

NAMED_VIEWS = {
    "spans_named": f"""
        WITH {_resolved("spans", f"s.flags & {int(SpanFlag.PROVISIONAL_PROGRAM)} != 0")}
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, {_OP}, {_WHO} FROM s {_JOIN_OP} {_JOIN_WHO}""",  # noqa: S608
    "ops_named": f"""
        WITH {_resolved("op_10s")}
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, {_OP}, {_WHO} FROM s {_JOIN_OP} {_JOIN_WHO}""",  # noqa: S608
    "devices_named": f"""
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, {_WHO} FROM device_10s s {_JOIN_WHO}""",  # noqa: S608
    "samples_named": f"""
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, coalesce(s.value_int::DOUBLE, s.value_float) AS value,
            e.name AS series_name, e.unit, e.monotonic, e.labels, {_WHO}
        FROM samples s LEFT JOIN series e ON e.series = s.series {_JOIN_WHO}""",  # noqa: S608
    "links_named": f"""
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, n.name, h.name AS host_name, p.pid, p.run_name, p.attempt_name,
            p.rank, l.name AS thread, {_ROLE} AS role_name
        FROM links s LEFT JOIN names n ON n.program = s.program LEFT JOIN hosts h ON h.host = s.host
        LEFT JOIN processes p ON p.process = s.process
        LEFT JOIN lines l ON l.process = s.process AND l.device = 0 AND l.line = s.line""",  # noqa: S608
    "steps_named": """
        SELECT s.*, make_timestamp_ns(s.t_ns) AS t, h.name AS host_name, r.name AS run_name, r.attempt_name
        FROM step s LEFT JOIN hosts h ON h.host = s.host
        LEFT JOIN runs r ON r.run = s.run AND r.attempt = s.attempt""",
    "ledger_now": """
        SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1""",
}
"""View -> SQL. Symbols that are not there yet leave NULL, never a guess."""
