"""Parts of an epoch -> one Part: rollup rows of one key become one row, everything else is put side by side."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.elements import Part
from fleetscope.pipelines.merge import merge
from fleetscope.schema.tables import TABLES


def merge_parts(parts: Iterable[Part]) -> Part:
    """Associative and commutative but for the order of facts and of rows that have no key."""
    parts = list(parts)
    if len(parts) == 1:
        return parts[0]
    tables: dict[str, list[pa.Table]] = {}
    facts: dict[str, list[Any]] = {}
    for part in parts:
        for name, table in part.tables.items():
            tables.setdefault(name, []).append(table)
        for kind, found in part.facts.items():
            facts.setdefault(kind, []).extend(found)
    return Part({name: _together(name, found) for name, found in tables.items()}, facts)


def _together(name: str, tables: list[pa.Table]) -> pa.Table:
    if len(tables) == 1:
        return tables[0]
    spec = TABLES.get(name)
    if spec is not None and spec.kind == "rollup":
        return merge(name, tables)
    return pa.concat_tables(tables)
