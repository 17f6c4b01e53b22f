"""Readers: one moment of all tables, as files, Arrow or SQL.

A snapshot is the newest round and, unless told otherwise, the committed manifests behind it, so that an epoch is
visible as soon as its manifest is. Its files stay for an hour after they were replaced; a snapshot held longer may find
them gone. Rows of raw tables are read where the newest maps of the fleet's clock put them (`alignment`), not where they
were written.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from fleetscope.schema.errors import SegmentInvalid
from fleetscope.schema.tables import TABLES
from fleetscope.sinks.lake.alignment import Alignment
from fleetscope.sinks.lake.chain import Chain, chain_numbers
from fleetscope.sinks.lake.dimension import newest
from fleetscope.sinks.lake.encode import filled, from_stored, spec_of, stored_schema
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.rounds import Round, newest_round
from fleetscope.sinks.lake.segment import table_root
from fleetscope.sinks.lake.tables import live_files, open_version, parse_stats

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file of a snapshot. `first`, `last`: bounds of the table's time column, inclusive; None: not known."""

    key: str
    rows: int
    size_bytes: int
    partition: Mapping[str, str]
    first: int | None
    last: int | None

    def may_hold(self, from_ns: int | None, to_ns: int | None) -> bool:
        """Whether a row with from_ns <= time < to_ns can be in it."""
        if from_ns is not None and self.last is not None and self.last < from_ns:
            return False
        return not (to_ns is not None and self.first is not None and self.first >= to_ns)


class Snapshot:
    """One moment of the lake. Make it with `open`; cheap until a table is asked for."""

    def __init__(
        self, store: ObjectStore, round_: Round | None, tail: Iterable[Manifest], clock_version: int | None = None
    ) -> None:
        self.store = store
        self.round = round_
        self.tail = tuple(tail)
        self._clock_version = clock_version
        self._files: dict[str, tuple[FileRef, ...]] = {}

    @classmethod
    def open(cls, store: ObjectStore, *, include_tail: bool = True, clock_version: int | None = None) -> "Snapshot":
        """The newest round; with `include_tail` also every manifest committed since. An empty lake is an empty
        snapshot. `clock_version`: maps of the fleet's clock solved later do not count; 0: rows as they were written."""
        round_ = newest_round(store)
        tail: list[Manifest] = []
        if include_tail:
            folded = {} if round_ is None else dict(round_.folded)
            for number in chain_numbers(store):
                tail += Chain(store, number).after(folded.get(number, 0))
        return cls(store, round_, tail, clock_version)

    @cached_property
    def alignment(self) -> Alignment:
        """Where rows of raw tables lie by the maps of the version this snapshot reads."""
        if self._clock_version == 0 or not self.files("clock_maps"):
            return Alignment.of(spec_of("clock_maps").schema.empty_table())
        return Alignment.of(self.table("clock_maps"), self._clock_version)

    def is_aligned(self, table: str) -> bool:
        """Whether rows of the table are placed by `alignment`."""
        spec = spec_of(table)
        return spec.kind == "raw" and "map" in spec.schema.names and bool(self.alignment)

    def written_between(self, table: str, from_ns: int | None, to_ns: int | None) -> tuple[int | None, int | None]:
        """Bounds of the times that rows of [from_ns, to_ns) were written with."""
        if (from_ns is None and to_ns is None) or not self.is_aligned(table):
            return from_ns, to_ns
        wide = self.alignment.widest_ns
        return None if from_ns is None else from_ns - wide, None if to_ns is None else to_ns + wide

    @property
    def now_ns(self) -> int:
        """Newest `now` of what it holds, 0 for an empty lake."""
        made = 0 if self.round is None else self.round.made_ns
        return max([made, *(manifest.now_ns for manifest in self.tail)])

    def files(self, table: str, from_ns: int | None = None, to_ns: int | None = None) -> tuple[FileRef, ...]:
        """Files that may hold rows with from_ns <= time < to_ns."""
        if table not in self._files:
            self._files[table] = tuple(self._list(table))
        return tuple(item for item in self._files[table] if item.may_hold(from_ns, to_ns))

    def _list(self, table: str) -> Iterable[FileRef]:
        spec = spec_of(table)
        root = table_root(table)
        version = None if self.round is None else self.round.versions.get(table)
        if version is not None:
            handle = open_version(self.store, table, version)
            if handle is None:
                raise SegmentInvalid(f"table {table} of round {self.round.number if self.round else 0} is gone")
            for item in live_files(table, handle):
                key = f"{root}/{item.path}"
                yield FileRef(key, item.rows, item.size_bytes, item.partition, item.first, item.last)
        for manifest in self.tail:
            for segment in manifest.segments:
                if segment.table == table:
                    first, last = parse_stats(spec.time, segment.stats)
                    yield FileRef(segment.key, segment.rows, segment.size_bytes, segment.partition, first, last)

    def dataset(self, table: str, from_ns: int | None = None, to_ns: int | None = None) -> ds.Dataset:
        """The table's physical rows: rollup keys may repeat, dimension rows may be outdated. Stored types (`encode`),
        partition columns left out, columns that a file lacks null."""
        filesystem = self.store.filesystem()
        paths = [self.store.location(item.key) for item in self.files(table, from_ns, to_ns)]
        form = ds.ParquetFileFormat()
        fragments = [form.make_fragment(path, filesystem=filesystem) for path in paths]
        return ds.FileSystemDataset(fragments, stored_schema(table), form, filesystem)

    def partitioned(self, table: str, keys: Iterable[str]) -> ds.Dataset:
        """The named files of a table with its partition columns, as strings, behind the stored ones."""
        filesystem, form, spec = self.store.filesystem(), ds.ParquetFileFormat(), spec_of(table)
        wanted = set(keys)
        fragments = []
        for item in self.files(table):
            if item.key in wanted:
                values = [ds.field(name) == item.partition[name] for name in spec.partitions]
                given = {"partition_expression": reduce(and_, values)} if values else {}
                fragments.append(form.make_fragment(self.store.location(item.key), filesystem=filesystem, **given))
        columns = stored_schema(table)
        for name in spec.partitions:
            columns = columns.append(pa.field(name, pa.string()))
        return ds.FileSystemDataset(fragments, columns, form, filesystem)

    def table(
        self,
        name: str,
        columns: list[str] | None = None,
        filters: Any = None,
        *,
        from_ns: int | None = None,
        to_ns: int | None = None,
    ) -> pa.Table:
        """Rows of a table in its schema's types: dimension rows newest of their key, rollup rows merged.

        `filters` is a pyarrow expression over any column; `from_ns <= time < to_ns` prunes whole files. Raises
        SegmentInvalid if a file is gone: open a new snapshot.
        """
        spec = spec_of(name)
        bounds = _between(spec.time, from_ns, to_ns)
        condition = bounds if filters is None else filters if bounds is None else bounds & filters
        try:
            if self.is_aligned(name):
                rows = self._aligned(name, self.written_between(name, from_ns, to_ns))
                rows = rows if condition is None else rows.filter(condition)
            elif spec.kind in ("raw", "log"):
                rows = filled(name, self.dataset(name, from_ns, to_ns).to_table(columns, filter=condition))
            elif spec.kind == "dimension":
                rows = newest(spec, from_stored(name, filled(name, self.dataset(name).to_table())))
                rows = rows if condition is None else rows.filter(condition)
            else:
                rows = self._merged(name, from_ns, to_ns)
                rows = rows if condition is None else rows.filter(condition)
        except (FileNotFoundError, OSError, pa.ArrowInvalid) as error:
            raise SegmentInvalid(f"table {name}: {error}") from error
        rows = from_stored(name, rows if columns is None else rows.select(columns))
        return pa.Table.from_arrays(rows.columns, schema=pa.schema([spec.schema.field(at) for at in rows.schema.names]))

    def _aligned(self, name: str, written: tuple[int | None, int | None]) -> pa.Table:
        dataset = self.dataset(name, *written)
        rows = filled(name, dataset.to_table(filter=_between(spec_of(name).time, *written)))
        return self.alignment.moved(rows)

    def _merged(self, name: str, from_ns: int | None, to_ns: int | None) -> pa.Table:
        with self.duckdb([name], from_ns=from_ns, to_ns=to_ns) as connection:
            columns = ", ".join(f'"{column}"' for column in stored_schema(name).names)
            rows = connection.sql(f'SELECT {columns} FROM "{name}"').to_arrow_table()  # noqa: S608 - names are ours
        return rows.cast(stored_schema(name))

    def duckdb(
        self,
        tables: Iterable[str] | None = None,
        *,
        from_ns: int | None = None,
        to_ns: int | None = None,
        threads: int | None = None,
        written: bool = False,
    ) -> "duckdb.DuckDBPyConnection":
        """An in-memory connection with a view for each table (default: all) and the named views of `views`. Close
        it. `written`: rows that have a map also have `written_ns`, the time they were written with."""
        from fleetscope.sinks.lake.views import connect

        return connect(self, tuple(tables) if tables is not None else tuple(TABLES), from_ns, to_ns, threads, written)


def _between(time: str, from_ns: int | None, to_ns: int | None) -> Any:
    condition = None if from_ns is None else ds.field(time) >= from_ns
    if to_ns is not None:
        upper = ds.field(time) < to_ns
        condition = upper if condition is None else condition & upper
    return condition
