"""What was looked at: the completeness partials of hosts, and the stretches in which devices were observed."""

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.elements import BatchMeta
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.step import COVERAGE
from fleetscope.schema.tables import COMPLETENESS
from fleetscope.schema.vocabulary import WINDOW_NS


def completeness(batches: list[BatchMeta], err_ns: np.ndarray) -> pa.Table:
    """One row per (window of a batch's end, host)."""
    ends = [batch.placement[-1].at(batch.info.tick_to) // WINDOW_NS * WINDOW_NS for batch in batches]
    rows = pa.table(
        {
            "t_ns": ends,
            "host": [batch.info.host for batch in batches],
            "observed": [1] * len(batches),
            "events": [batch.rows for batch in batches],
            "lost": [batch.dropped for batch in batches],
            "late": [batch.rows if batch.late else 0 for batch in batches],
            "err_ns": err_ns,
        },
        schema=COMPLETENESS,
    )
    return merge("completeness", [rows])


def coverage(batches: list[BatchMeta]) -> pa.Table:
    """A stretch per device batch."""
    seen = [batch for batch in batches if batch.info.device and batch.info.tick_to > batch.info.tick_from]
    return pa.table(
        {
            "process": [batch.info.process for batch in seen],
            "host": [batch.info.host for batch in seen],
            "run": [batch.run for batch in seen],
            "attempt": [batch.attempt for batch in seen],
            "rank": [batch.rank for batch in seen],
            "begin_ns": [batch.placement[0].at(batch.info.tick_from) for batch in seen],
            "end_ns": [batch.placement[-1].at(batch.info.tick_to) for batch in seen],
        },
        schema=COVERAGE,
    )
