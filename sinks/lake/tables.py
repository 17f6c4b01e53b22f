"""Delta tables of the lake: made once, held open, committed to under app transactions.

A held handle that is refreshed costs 1-7 ms where opening costs 2-20, and sees new app transactions (measured on
deltalake 1.6.6); an unrefreshed one does not. Two rules keep commits exact: a commit that folds carries one transaction
a chain, a commit that removes files carries the transaction REPLACE. Without the second, two replaces of the same files
both succeed.
"""

import contextlib
import json
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from fleetscope.schema.errors import FoldConflict, LakeUnavailable
from fleetscope.sinks.lake.encode import Profile, spec_of, stored_schema
from fleetscope.sinks.lake.failures import of_table, why
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.segment import STATS_COLUMNS, SegmentRef, table_root

REPLACE = "fleetscope.replace"
"""App transaction of every commit that removes files."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of one version of a table. `first` and `last` bound its time column, both inclusive, None when not
    stated."""

    path: str
    size_bytes: int
    rows: int
    partition: Mapping[str, str]
    modified_ms: int
    first: int | None
    last: int | None


def _configuration(table: str) -> dict[str, str | None]:
    spec = spec_of(table)
    columns = [name for name in dict.fromkeys((spec.time, *STATS_COLUMNS)) if name in spec.schema.names]
    return {
        # opening a table reads the log since the last checkpoint; at 50 commits it stays below ~20 ms
        "delta.checkpointInterval": "50",
        # A commit lists the log: 10 us a file, so a day of 15 s rounds would make each commit 60 ms slower (measured:
        # 11 ms at 70 files, 21 ms at 1 000). Readers need the versions of an hour.
        "delta.logRetentionDuration": "interval 2 hours",
        "delta.enableExpiredLogCleanup": "true",
        "delta.deletedFileRetentionDuration": "interval 2 hours",
        # parsing statistics of all 21 columns of every file is most of what opening costs
        "delta.dataSkippingStatsColumns": ",".join(columns),
    }


def open_version(store: ObjectStore, table: str, version: int | None = None) -> DeltaTable | None:
    """A table for reading, None if it was never made."""
    try:
        return DeltaTable(store.location_url(table_root(table)), version=version, storage_options=store.options)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise of_table(error, f"table {table}") from None


def live_files(table: str, handle: DeltaTable) -> list[LiveFile]:
    """Files of the handle's version, from the log alone."""
    spec = spec_of(table)
    # to plain Arrow through the C interface: the library hands out arro3 tables
    actions: Any = pa.table(handle.get_add_actions())
    names = actions.schema.names
    columns = {name: actions.column(name) for name in ("path", "size_bytes", "num_records", "modification_time")}

    def nested(group: str, name: str) -> list[Any]:
        if group not in names or actions.schema.field(group).type.get_field_index(name) < 0:
            return [None] * actions.num_rows
        found: list[Any] = pa.chunked_array(
            [chunk.field(name) for chunk in actions.column(group).chunks],
            actions.schema.field(group).type.field(name).type,
        ).to_pylist()
        return found

    partitions = [nested("partition", name) for name in spec.partitions]
    lows, highs = nested("min", spec.time), nested("max", spec.time)
    return [
        LiveFile(path, size, rows, dict(zip(spec.partitions, values, strict=True)), modified, low, high)
        for path, size, rows, modified, low, high, *values in zip(
            *(column.to_pylist() for column in (columns["path"], columns["size_bytes"], columns["num_records"])),
            columns["modification_time"].to_pylist(),
            lows,
            highs,
            *partitions,
            strict=True,
        )
    ]


class LakeTable:
    """One Delta table, for the coordinator: refresh, look, commit. Not for several threads."""

    def __init__(self, store: ObjectStore, name: str, profile: Profile = "compact") -> None:
        self.store = store
        self.name = name
        self.spec = spec_of(name)
        self.profile: Profile = profile
        self._handle: DeltaTable | None = None
        self._transactions: dict[tuple[int, str], int] = {}

    @property
    def version(self) -> int:
        """Version seen at the last refresh or commit; -1 before the table exists."""
        return -1 if self._handle is None else int(self._handle.version())

    def refresh(self, *, create: bool = False) -> int:
        """See the newest version; its number, -1 if there is no table."""
        if self._handle is not None:
            try:
                self._handle.update_incremental()
                return self._evolved()
            except (DeltaError, OSError):
                # a handle held past the log's retention cannot follow it any more
                self._handle = None
        self._handle = open_version(self.store, self.name)
        if self._handle is None and create:
            self._create()
        return self._evolved()

    def _evolved(self) -> int:
        """Give a table of an earlier format the columns it lacks; its files stay. The version after it.

        One commit of metadata alone, once in the life of a format. A coordinator of an earlier release that lives on
        leaves the columns out, which a reader fills.
        """
        if self._handle is None:
            return -1
        known = {field.name for field in self._handle.schema().fields}
        lacking = [field for field in stored_schema(self.name) if field.name not in known]
        if lacking:
            fields = Schema.from_arrow(pa.schema(lacking)).fields
            # An error here means that another coordinator did it in the same moment: the next refresh shows its doing.
            with contextlib.suppress(DeltaError):
                self._handle.alter.add_columns(fields)
            self._handle.update_incremental()
        return self.version

    def _create(self) -> None:
        columns = stored_schema(self.name)
        for name in self.spec.partitions:
            columns = columns.append(pa.field(name, pa.string()))
        # an error here means that another coordinator made it in the same moment
        with contextlib.suppress(DeltaError):
            DeltaTable.create(
                self.store.location_url(table_root(self.name)),
                columns,
                mode="ignore",
                partition_by=list(self.spec.partitions),
                name=self.name,
                configuration=_configuration(self.name),
                storage_options=self.store.options,
            )
        self._handle = open_version(self.store, self.name)
        if self._handle is None:
            raise LakeUnavailable(f"table {self.name} could not be made")

    def transaction(self, app: str) -> int:
        """Newest version of an app transaction as of the last refresh, 0 if it never was."""
        if self._handle is None:
            return 0
        # asking costs up to 1 ms: times 21 tables and 16 chains that would be more than the fold itself
        key = (self.version, app)
        if key not in self._transactions:
            self._transactions = {at: number for at, number in self._transactions.items() if at[0] == self.version}
            self._transactions[key] = self._handle.transaction_version(app) or 0
        return self._transactions[key]

    def live(self) -> list[LiveFile]:
        """Files of the version last seen."""
        return [] if self._handle is None else live_files(self.name, self._handle)

    def commit(
        self,
        adds: Sequence[SegmentRef],
        removes: Sequence[LiveFile],
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> int:
        """One Delta commit on top of the version last seen; returns the version after it.

        Raises FoldConflict if it was refused or its outcome is not known: refresh, compare `transaction`, decide again.
        """
        if self._handle is None:
            raise LakeUnavailable(f"table {self.name} is not open")
        now_ms = time.time_ns() // 1_000_000
        carried = dict(transactions)
        if removes:
            carried[REPLACE] = self.transaction(REPLACE) + 1
        actions: list[AddAction | RemoveAction] = [
            AddAction(item.path, item.size_bytes, dict(item.partition), now_ms, data_change, item.stats)
            for item in adds
        ]
        actions += [
            RemoveAction(item.path, data_change, now_ms, item.size_bytes, dict(item.partition)) for item in removes
        ]
        fault_point("delta.before_commit")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                self._handle.create_write_transaction(
                    actions,
                    "append",
                    self._handle.schema(),
                    partition_by=list(self.spec.partitions),
                    commit_properties=CommitProperties(
                        app_transactions=[Transaction(app, number) for app, number in sorted(carried.items())]
                    ),
                )
        except (DeltaError, OSError) as error:
            raise FoldConflict(f"table {self.name}: {why(error)}") from None
        fault_point("delta.committed")
        return self.refresh()


def parse_stats(spec_time: str, stats: str) -> tuple[int | None, int | None]:
    """(first, last) of the time column from a SegmentRef's stats."""
    document = json.loads(stats)
    return document["minValues"].get(spec_time), document["maxValues"].get(spec_time)
