"""Bookkeeping of runs: an attempt whose processes fell silent has ended, though nobody said so.

Agents announce running processes again every few minutes; a killed trainer or host announces nothing. Its end is the
last announcement. Should it speak again after all, that row is newer and the run is running again.
"""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.schema.tables import RUNS

SILENT_AFTER_NS = 15 * 60 * 1_000_000_000
"""Three missed announcements: those come every five minutes at the latest."""


def silent_runs(runs: pa.Table, now_ns: int, silent_after_ns: int = SILENT_AFTER_NS) -> pa.Table:
    """Rows (schema RUNS) that end the runs of `runs` (one row a key) which have no end and were last seen before
    now - silent_after: end_ns = the last time they were seen, seen_ns 1 ns newer, so that this row wins."""
    seen = runs.column("seen_ns")
    quiet: Any = pc.and_(pc.equal(runs.column("end_ns"), 0), pc.less(seen, now_ns - silent_after_ns))
    found = runs.filter(quiet)
    ended = found.set_column(RUNS.get_field_index("end_ns"), RUNS.field("end_ns"), found.column("seen_ns"))
    newer = pc.add(found.column("seen_ns"), 1)
    return ended.set_column(RUNS.get_field_index("seen_ns"), RUNS.field("seen_ns"), newer)
