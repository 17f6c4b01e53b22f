"""Rows of a dimension table that nothing refers to any more leave it, in one fenced commit."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.schema.errors import FoldConflict
from fleetscope.sinks.lake.fold import ATTEMPTS, read_rows, write_rows
from fleetscope.sinks.lake.segment import SegmentRef
from fleetscope.sinks.lake.tables import LakeTable, LiveFile


def drop_rows(table: LakeTable, chosen: Callable[[pa.Table], NDArray[np.bool_]]) -> int:
    """Take out the rows of which `chosen`, asked once about all of them, says so; how many went.

    Files without such a row stay. Raises FoldConflict when other coordinators win every time.
    """
    for _ in range(ATTEMPTS):
        table.refresh()
        files = table.live()
        parts = [read_rows(table.store, table.name, [item.path]) for item in files]
        if not parts:
            return 0
        gone = chosen(pa.concat_tables(parts))
        adds: list[SegmentRef] = []
        removes: list[LiveFile] = []
        for item, rows, own in zip(files, parts, np.split(gone, np.cumsum([len(p) for p in parts])[:-1]), strict=True):
            if own.any():
                removes.append(item)
                if not own.all():
                    adds.append(write_rows(table, item.partition, rows.filter(pa.array(~own)), "x"))
        if not removes:
            return 0
        try:
            table.commit(adds, removes, {})
        except FoldConflict:
            continue
        return int(gone.sum())
    raise FoldConflict(f"table {table.name}: {ATTEMPTS} commits were refused")
