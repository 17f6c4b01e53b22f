"""Fold: bring committed manifests into a Delta table, each exactly once.

Raw and log tables: the segments themselves become files of the table. Rollups: all segments of the fold are merged by
the pipeline's own law (given by the caller) into one file a partition; unmerged, per-epoch rollup rows would take as
much space as the raw events. Dimensions: new rows are merged into the small files there are, so a table of 10 k rows is
one file, and a large one is rewritten a logarithmic number of times.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from fleetscope.schema.errors import FoldConflict, SegmentInvalid
from fleetscope.sinks.lake.dimension import newest
from fleetscope.sinks.lake.encode import absent, from_stored, spec_of, stored_schema, to_stored
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.segment import SegmentRef, table_root, write_file
from fleetscope.sinks.lake.tables import LakeTable, LiveFile

Merge = Callable[[str, pa.Table], pa.Table]
"""(rollup table's name, rows in its schema, keys repeated) -> rows with every key once."""

ABSORB_ROWS = 10_000
"""Dimension files up to this size are rewritten with every fold that brings rows of their table."""
ATTEMPTS = 8


def chain_app(chain: int) -> str:
    """App transaction of a chain in every table: its version is the newest manifest folded."""
    return f"fleetscope.chain-{chain}"


def read_stored(store: ObjectStore, table: str, path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One file's rows as stored (`encode.stored_schema`), of `columns` alone where given. Raises SegmentInvalid naming
    it.

    Not `pq.read_table`: that builds a dataset first, which is half of the time for a file of 10 k rows.
    """
    key = f"{table_root(table)}/{path}"
    schema = stored_schema(table)
    if columns is not None:
        schema = pa.schema([field for field in schema if field.name in columns])
    try:
        with store.filesystem().open_input_file(store.location(key)) as file:
            rows = pq.ParquetFile(file).read(columns, use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise SegmentInvalid(f"{key}: {error}") from error
    if rows.schema.types == schema.types and rows.schema.names == schema.names:
        return pa.Table.from_arrays(rows.columns, schema=schema)
    return _conform(rows, table, schema, key)


def _conform(rows: pa.Table, table: str, schema: pa.Schema, key: str) -> pa.Table:
    """Rows of a file an older version wrote, with the columns it lacks."""
    columns = []
    for field in schema:
        declared, index = spec_of(table).schema.field(field.name), rows.schema.get_field_index(field.name)
        try:
            columns.append(absent(declared, rows.num_rows) if index < 0 else rows.column(index).cast(field.type))
        except pa.ArrowInvalid as error:
            raise SegmentInvalid(f"{key}: column {field.name!r}: {error}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def read_rows(store: ObjectStore, table: str, paths: Iterable[str]) -> pa.Table:
    """Rows of files (paths relative to the table) in the table's schema. Raises SegmentInvalid naming the file."""
    stored = pa.concat_tables([read_stored(store, table, path) for path in paths])
    return from_stored(table, stored).cast(spec_of(table).schema)


def fold_table(
    table: LakeTable, manifests: Mapping[int, Sequence[Manifest]], floor: Mapping[int, int], merge: Merge
) -> Mapping[int, int]:
    """Fold what is new of `manifests` (chain -> ascending, without holes); returns chain -> number the table is folded
    to.

    `floor`: what the newest round says is folded; a table whose epochs had nothing for it stays behind in its own
    transactions. Raises FoldConflict when other coordinators win every time, SegmentInvalid for a damaged segment.
    """
    for _ in range(ATTEMPTS):
        # What is compared and what is committed upon must be one version: a refresh in between would carry another
        # coordinator's commit into the snapshot, where the library no longer sees a conflict, and rows would double.
        table.refresh(create=_has_segments(table.name, manifests))
        reached = {chain: max(table.transaction(chain_app(chain)), floor.get(chain, 0)) for chain in manifests}
        segments: list[SegmentRef] = []
        transactions: dict[str, int] = {}
        for chain, items in manifests.items():
            for manifest in items:
                if manifest.number <= reached[chain]:
                    continue
                own = [segment for segment in manifest.segments if segment.table == table.name]
                if own:
                    segments += own
                    transactions[chain_app(chain)] = manifest.number
                reached[chain] = manifest.number
        if not segments:
            return reached
        fault_point("fold.compared")
        adds, removes = _prepare(table, segments, merge)
        try:
            table.commit(adds, removes, transactions)
        except FoldConflict:
            continue
        return reached
    raise FoldConflict(f"table {table.name}: {ATTEMPTS} commits were refused")


def _has_segments(table: str, manifests: Mapping[int, Sequence[Manifest]]) -> bool:
    return any(segment.table == table for items in manifests.values() for item in items for segment in item.segments)


def fold_rows(table: LakeTable, rows: pa.Table, transactions: Mapping[str, int]) -> None:
    """Merge rows the coordinator made itself (ops, programs, runs) into a dimension table. Harmless when repeated."""
    if rows.num_rows == 0:
        return
    for _ in range(ATTEMPTS):
        table.refresh(create=True)
        adds, removes = _absorb(table, {}, rows)
        try:
            table.commit(adds, removes, transactions)
        except FoldConflict:
            continue
        return
    raise FoldConflict(f"table {table.name}: {ATTEMPTS} commits were refused")


def _prepare(table: LakeTable, segments: Sequence[SegmentRef], merge: Merge) -> tuple[list[SegmentRef], list[LiveFile]]:
    if table.spec.kind in ("raw", "log"):
        return list(segments), []
    by_partition: dict[tuple[tuple[str, str], ...], list[SegmentRef]] = defaultdict(list)
    for segment in segments:
        by_partition[tuple(segment.partition.items())].append(segment)
    adds: list[SegmentRef] = []
    removes: list[LiveFile] = []
    for partition, items in by_partition.items():
        rows = read_rows(table.store, table.name, (item.path for item in items))
        if table.spec.kind == "dimension":
            added, removed = _absorb(table, dict(partition), rows)
            adds += added
            removes += removed
        else:
            adds.append(write_rows(table, dict(partition), merge(table.name, rows), "f"))
    fault_point("fold.merged")
    return adds, removes


def _absorb(table: LakeTable, partition: Mapping[str, str], rows: pa.Table) -> tuple[list[SegmentRef], list[LiveFile]]:
    rows = newest(table.spec, rows)
    removes: list[LiveFile] = []
    candidates = [item for item in table.live() if dict(item.partition) == dict(partition)]
    for item in sorted(candidates, key=lambda item: (item.rows, item.path)):
        if item.rows > max(ABSORB_ROWS, 2 * rows.num_rows):
            break
        # older rows first: of rows equally new, the later one wins
        rows = newest(table.spec, pa.concat_tables([read_rows(table.store, table.name, [item.path]), rows]))
        removes.append(item)
    return [write_rows(table, partition, rows, "d")], removes


def write_rows(table: LakeTable, partition: Mapping[str, str], rows: pa.Table, prefix: str) -> SegmentRef:
    name = f"{prefix}-{uuid.uuid4().hex[:16]}"
    return write_file(table.store, table.spec, partition, to_stored(table.name, rows), name, table.profile)
