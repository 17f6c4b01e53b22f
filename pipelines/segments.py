"""Rows of raw tables -> segments, a row group at a time: few large files without holding an epoch in memory."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from fleetscope.pipelines.plan import Plan, segment_name
from fleetscope.schema.errors import FleetscopeError
from fleetscope.sinks.lake.encode import ROW_GROUP_ROWS, Profile
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.segment import SegmentRef, write_segment


@dataclass(slots=True)
class Segments:
    """Collects rows by table; a table that reaches a full row group (~130 MB of spans) is written at once."""

    plan: Plan
    store: ObjectStore
    _waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    _refs: list[SegmentRef] = field(default_factory=list)
    _files: int = 0

    def add(self, table: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        if sum(part.num_rows for part in waiting) >= ROW_GROUP_ROWS:
            self._write(table)

    def _write(self, table: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(table))
        name = segment_name(self.plan, str(self._files))
        self._files += 1
        profile: Profile = "portable" if self.plan.encoding == "portable" else "compact"
        self._refs += write_segment(self.store, table, rows, name, profile)

    def close(self) -> list[SegmentRef]:
        """Write the rest; references of everything written."""
        for table in sorted(self._waiting):
            self._write(table)
        return self._refs

    def discard(self) -> None:
        """Delete what was written: nobody will commit it, and on a full disk it is what stands in the way."""
        discard(self.store, self._refs)


def discard(store: ObjectStore, refs: Iterable[SegmentRef]) -> None:
    """Delete segments that no manifest names. What cannot be deleted now is swept with other orphans in a day."""
    for ref in refs:
        with suppress(FleetscopeError):
            store.delete(ref.key)
