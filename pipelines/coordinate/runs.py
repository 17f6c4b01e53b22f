"""Bookkeeping of runs: an attempt has ended when all its processes have, or when they fell silent, though nobody said
so.

A worker sees the ranks of its own partitions only, so here is where a run over many hosts ends.
Agents announce running processes again every few minutes; a killed trainer or host announces nothing. Its end is the
last announcement. Should it speak again after all, that row is newer and the run is running again.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fleetscope.pipelines.dimensions import PRESUMED_SEEN_NS
from fleetscope.schema.tables import RUNS

SILENT_AFTER_NS = 15 * 60 * 1_000_000_000
"""Three missed announcements: those come every five minutes at the latest."""


def silent_runs(runs: pa.Table, now_ns: int, silent_after_ns: int = SILENT_AFTER_NS) -> pa.Table:
    """Rows (schema RUNS) that end the runs of `runs` (one row a key) which have no end and were last seen before
    now - silent_after: end_ns = the last time they were seen, seen_ns 1 ns newer, so that this row wins.

    A run that only headers told of (dimensions.PRESUMED_SEEN_NS) was not seen at any time that is known: it has no end.
    """
    seen = runs.column("seen_ns")
    told: Any = pc.greater(seen, PRESUMED_SEEN_NS)
    quiet: Any = pc.and_(told, pc.and_(pc.equal(runs.column("end_ns"), 0), pc.less(seen, now_ns - silent_after_ns)))
    found = runs.filter(quiet)
    ended = found.set_column(RUNS.get_field_index("end_ns"), RUNS.field("end_ns"), found.column("seen_ns"))
    newer = pc.add(found.column("seen_ns"), 1)
    return ended.set_column(RUNS.get_field_index("seen_ns"), RUNS.field("seen_ns"), newer)


def finished_runs(runs: pa.Table, processes: pa.Table) -> pa.Table:
    """Rows (schema RUNS) that end the runs of `runs` which have no end though every process known of them has one:
    end_ns = the latest of those. Both tables with one row a key. A rank that is heard of later makes the run go on."""
    ends: dict[tuple[int, int], list[int]] = {}
    known = (processes.column(name).to_pylist() for name in ("run", "attempt", "end_ns", "seen_ns"))
    last_seen: dict[tuple[int, int], int] = {}
    for run, attempt, end_ns, seen_ns in zip(*known, strict=True):
        ends.setdefault((run, attempt), []).append(end_ns or 0)
        last_seen[run, attempt] = max(seen_ns, last_seen.get((run, attempt), 0))
    keys = list(zip(runs.column("run").to_pylist(), runs.column("attempt").to_pylist(), strict=True))
    open_now = [not end_ns for end_ns in runs.column("end_ns").to_pylist()]
    over = [is_open and all(ends.get(key, [0])) for key, is_open in zip(keys, open_now, strict=True)]
    found = runs.filter(pa.array(over, pa.bool_()))
    chosen = [key for key, is_over in zip(keys, over, strict=True) if is_over]
    seen = found.column("seen_ns").to_numpy()
    newer = np.maximum(seen, np.array([last_seen[key] for key in chosen], np.int64)) + 1
    latest = pa.array([max(ends[key]) for key in chosen], pa.int64())
    ended = found.set_column(RUNS.get_field_index("end_ns"), RUNS.field("end_ns"), latest)
    return ended.set_column(RUNS.get_field_index("seen_ns"), RUNS.field("seen_ns"), pa.array(newer, pa.int64()))
