"""Maps are kept as long as rows refer to them, and provisional ones a day, for readers that pin their version."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.schema.rational import apply
from fleetscope.schema.tables import TABLES
from fleetscope.schema.vocabulary import WRITTEN
from fleetscope.sinks.lake.alignment import Alignment, columns_of, superseded
from fleetscope.sinks.lake.drop import drop_rows
from fleetscope.sinks.lake.fold import read_stored

DAY_NS = 86_400 * 10**9
"""Pins of provisional maps hold so long; and rows of a batch may be so much older than their segment was told."""

PLACED = tuple(name for name, spec in TABLES.items() if spec.kind == "raw" and "map" in spec.schema.names)


def expire_maps(moments: Moments, now_ns: int) -> int:
    """Drop the rows of clock_maps that nothing refers to; how many went. Costs one reading of the table."""
    files = {name: moments.tables[name].live() for name in PLACED if moments.tables[name].refresh() >= 0}
    firsts = [item.first for items in files.values() for item in items]
    if any(first is None for first in firsts):
        return 0
    oldest = min([first for first in firsts if first is not None], default=now_ns)

    def referred() -> pa.Array:
        parts = [
            pc.unique(read_stored(moments.store, name, item.path, ["map"]).column("map"))
            for name, items in files.items()
            for item in items
        ]
        return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())

    gone = drop_rows(moments.tables["clock_maps"], lambda rows: unreferred(rows, oldest, now_ns, referred))
    if gone:
        moments.touch("clock_maps")
    return gone


def unreferred(rows: pa.Table, oldest_ns: int, now_ns: int, referred: Callable[[], pa.Array]) -> NDArray[np.bool_]:
    """Which rows of clock_maps nothing refers to. `oldest_ns`: of all rows that are placed by maps, as written;
    `referred`: asked only if need be, the segments they name.

    A host's map goes a day after the oldest row there is, and after that row's largest correction: rows were written by
    wall clocks, and may lie far from where they are. What leads to a host's counter was told last when rows of it came.
    """
    columns = columns_of(rows)
    solved = (columns["ref"] == 0) & (columns["version"] > WRITTEN)
    line = (columns[name] for name in ("x0", "y0", "n", "d"))
    sound = (columns["n"] > 0) & (columns["d"] > 0)
    x0, y0, n, d = (np.where(sound, column, 1) for column in line)
    ends = apply(columns["valid_to"], x0, y0, n, d)
    before = oldest_ns - DAY_NS - Alignment.of(rows).widest_ns
    gone = solved & sound & (ends < before)
    gone |= superseded(rows) & (columns["seen_ns"] < now_ns - DAY_NS)
    told_before = ~solved & (columns["seen_ns"] < before)
    gone |= told_before & (columns["ref"] != 0)
    segments = told_before & (columns["ref"] == 0)
    if segments.any():
        gone |= segments & ~np.isin(columns["map"], referred().to_numpy(zero_copy_only=False))
    return np.asarray(gone, bool)
