"""Rows of dimension tables: the newest row of a key is the only one that counts."""

import numpy as np
import pyarrow as pa

from fleetscope.schema.tables import TableSpec


def age_column(spec: TableSpec) -> str:
    """What decides which row of a key is newest: seen_ns, or the table's time where there is none."""
    return "seen_ns" if "seen_ns" in spec.schema.names else spec.time


def newest(spec: TableSpec, rows: pa.Table) -> pa.Table:
    """One row a key, sorted by key: the one with the highest age column; of equals, the last in the table."""
    if rows.num_rows < 2:
        return rows
    order = rows.sort_by([(name, "ascending") for name in (*spec.key, age_column(spec))])
    last = np.ones(order.num_rows, dtype=bool)
    differs = np.zeros(order.num_rows - 1, dtype=bool)
    for name in spec.key:
        values = order.column(name).to_numpy()
        differs |= values[1:] != values[:-1]
    last[:-1] = differs
    return order if last.all() else order.filter(pa.array(last))
