"""A lake in which every row can be accounted for; run as a program it is one actor that a test may kill.

Epoch N of chain k writes spans with seq = k * 10^6 + N * ROWS + (0 ... ROWS - 1), one op_10s row counting them, one
hosts row. So in every snapshot: no seq twice, and the sum of the counts is the number of spans.

    python world.py coordinate LAKE          one round and one replace, then prints "done"
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.tables import HOSTS, OP_10S, SPANS
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.manifest import Manifest, OffsetRange
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.segment import write_segment

ROWS = 3
NOON_NS = 1_749_988_800_000_000_000


def _rows(schema: pa.Schema, rows: int, **columns: object) -> pa.Table:
    arrays = []
    for field in schema:
        value: object = columns.get(field.name, "" if pa.types.is_string(field.type) else 0)
        if pa.types.is_nested(field.type):
            value = [[]] * rows
        arrays.append(pa.array([value] * rows if isinstance(value, int | str) else value, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def seqs(chain: int, number: int) -> list[int]:
    return [chain * 1_000_000 + number * ROWS + row for row in range(ROWS)]


def commit_epoch(store: ObjectStore, chain: int = 0, attempt: str = "a") -> Manifest:
    """The chain's next epoch. EpochFenced if another attempt was first."""
    log = Chain(store, chain)
    parent = log.latest()
    number = 1 if parent is None else parent.number + 1
    name = f"{chain}-{number}-{attempt}"
    times = NOON_NS + np.arange(ROWS) + number
    segments = (
        *write_segment(store, "spans", _rows(SPANS, ROWS, t_ns=times, seq=seqs(chain, number)), f"{name}-0"),
        *write_segment(
            store, "op_10s", _rows(OP_10S, 1, t_ns=NOON_NS, op=number % 2, count=ROWS, weight=1), f"{name}-1"
        ),
        *write_segment(store, "hosts", _rows(HOSTS, 1, host=number % 3, cpus=number, seen_ns=number), f"{name}-2"),
    )
    begin = number * 10
    offsets = (OffsetRange("t", "topic-id", chain, begin, begin + 10),)
    digest = "" if parent is None else parent.digest
    return log.commit(Manifest(chain, number, 1, attempt, digest, number, offsets, segments))


def check(store: ObjectStore, expected: set[int] | None = None, *, include_tail: bool = True) -> int:
    """The accounting above, in one snapshot; the number of spans."""
    snapshot = Snapshot.open(store, include_tail=include_tail)
    found = snapshot.table("spans", ["seq"]).column("seq").to_pylist()
    counted = sum(snapshot.dataset("op_10s").to_table(["count"]).column("count").to_pylist())
    assert len(found) == len(set(found)), f"rows twice: {sorted(found)}"
    assert counted == len(found), f"{counted} counted, {len(found)} there: tables of different moments"
    if expected is not None:
        assert set(found) == expected
    return len(found)


def coordinate(store: ObjectStore, name: str, small_files: int = 4) -> None:
    moments = Moments(store, merge_rows, name)
    moments.make()
    for table in ("spans", "op_10s"):
        if replace_small(moments.tables[table], merge_rows, small_files=small_files).files:
            moments.touch(table)
    moments.make()


if __name__ == "__main__":
    coordinate(open_store(Path(sys.argv[2])), "killed")
    print("done")
