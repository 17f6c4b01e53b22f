"""Segments: immutable Parquet files under the Delta tables' roots, invisible until a manifest names them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.schema.tables import RETENTION_CLASS, TableSpec
from fleetscope.sinks.lake.encode import ROW_GROUP_ROWS, Profile, spec_of, to_stored, writer
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import ObjectStore

HOUR_NS = 3_600_000_000_000
EARLIEST_NS = 946_684_800_000_000_000
LATEST_NS = 4_102_444_800_000_000_000
"""2000 and 2100. Times outside are kept as they are in one partition (1970-01-01), or nonsense would make a folder an
hour."""

STATS_COLUMNS = ("host", "process", "device")
"""Columns with minimum and maximum in the stats, besides the time column: what readers filter by. Every further column
costs ~60 bytes in each manifest and each Delta commit."""


@dataclass(frozen=True, slots=True)
class SegmentRef:
    """A file of a table. `path` is relative to the table's root; `stats` is Delta's JSON (numRecords, minValues,
    maxValues)."""

    table: str
    path: str
    partition: Mapping[str, str]
    rows: int
    size_bytes: int
    stats: str

    @property
    def key(self) -> str:
        """Of its file in the lake."""
        return f"{table_root(self.table)}/{self.path}"


def table_root(table: str) -> str:
    """Folder of a table: files and Delta log."""
    return f"tables/{table}"


def partition_of(spec: TableSpec, hour: int) -> dict[str, str]:
    """Partition values for an hour since the epoch (UTC), in the order of the table's partition columns."""
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    values = {"date": moment.strftime("%Y-%m-%d"), "hour": moment.strftime("%H"), "retention_class": RETENTION_CLASS}
    return {name: values[name] for name in spec.partitions}


def partition_path(partition: Mapping[str, str]) -> str:
    """Folder of a partition below its table's root, as Delta and Hive write it."""
    return "".join(f"{name}={value}/" for name, value in partition.items())


def _split(spec: TableSpec, rows: pa.Table) -> list[tuple[dict[str, str], pa.Table]]:
    if not spec.partitions:
        return [({}, rows)]
    length_ns = HOUR_NS if "hour" in spec.partitions else 24 * HOUR_NS
    times = rows.column(spec.time).to_numpy()
    hours = length_ns // HOUR_NS
    earliest, latest = int(times.min()), int(times.max())
    if earliest >= EARLIEST_NS and latest < LATEST_NS and earliest // length_ns == latest // length_ns:
        return [(partition_of(spec, earliest // length_ns * hours), rows)]
    bins = np.where((times >= EARLIEST_NS) & (times < LATEST_NS), times, 0) // length_ns
    return [(partition_of(spec, int(value) * hours), rows.filter(pa.array(bins == value))) for value in np.unique(bins)]


class StatsOf:
    """Statistics of stored rows, added up table by table, as Delta's JSON."""

    def __init__(self, spec: TableSpec) -> None:
        self._names = [name for name in dict.fromkeys((spec.time, *STATS_COLUMNS)) if name in spec.schema.names]
        self._lowest: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self.rows = 0

    def add(self, rows: pa.Table) -> None:
        """Take these stored rows in."""
        self.rows += rows.num_rows
        for name in self._names:
            found = pc.min_max(rows.column(name)).as_py()
            if found["min"] is not None:
                self._lowest[name] = min(found["min"], self._lowest.get(name, found["min"]))
                self._highest[name] = max(found["max"], self._highest.get(name, found["max"]))

    def to_json(self) -> str:
        """As Delta's add action carries it."""
        stats = {"numRecords": self.rows, "minValues": self._lowest, "maxValues": self._highest}
        return json.dumps(stats, separators=(",", ":"))


def write_file(
    store: ObjectStore,
    spec: TableSpec,
    partition: Mapping[str, str],
    rows: pa.Table,
    name: str,
    profile: Profile = "compact",
) -> SegmentRef:
    """One immutable file of stored rows of one partition. A name that is taken gets a suffix: nothing is ever
    overwritten."""

    def write(sink: Any) -> None:
        with writer(spec.name, sink, profile) as parquet:
            parquet.write_table(rows, row_group_size=ROW_GROUP_ROWS)

    folder = partition_path(partition)
    stats = StatsOf(spec)
    stats.add(rows)
    again = 0
    while True:
        path = f"{folder}{name}{f'-again{again}' if again else ''}.parquet"
        size = store.add_file(f"{table_root(spec.name)}/{path}", write)
        if size is not None:
            fault_point("segment.written")
            return SegmentRef(spec.name, path, dict(partition), rows.num_rows, size, stats.to_json())
        again += 1


def write_segment(
    store: ObjectStore, table_name: str, rows: pa.Table, name: str, profile: Profile = "compact"
) -> tuple[SegmentRef, ...]:
    """Write rows of a lake table as segments, one for each UTC partition they fall into; durable when this returns.

    `name` must be unique to the attempt: `<chain>-<epoch>-<attempt>-<i>`. No rows give no segment. Raises RowsMismatch,
    LakeFull (nothing visible was left), LakeUnavailable.
    """
    spec = spec_of(table_name)
    stored = to_stored(table_name, rows)
    if stored.num_rows == 0:
        return ()
    return tuple(write_file(store, spec, partition, part, name, profile) for partition, part in _split(spec, stored))
