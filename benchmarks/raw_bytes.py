"""Bytes an event of the pinned generator (DESIGN 10) takes: on the wire, as a committed segment, after a replace; and
the CPU of the replace. Beside them the entropy floor of the generator: what no lossless form can go under.

    python benchmarks/raw_bytes.py [--steps 7] [--batches 2]

The last line is JSON. Exit 1 if a budget of DESIGN 9 is broken: raw <= 4.9 B/event in segments of >= 200 k rows and <=
2.2x the floor, wire <= 6 B/event, replace <= 0.4 us/event of CPU.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pinned import BEGIN_NS, PERIOD_DEN, PERIOD_NUM, PinnedBatch, batches, encode, program, source
from report import report

from fleetscope.agents.batches.pack import encode_rows
from fleetscope.schema import identity
from fleetscope.schema.durations import nominal_ns
from fleetscope.schema.payloads import WIRE_SPANS
from fleetscope.schema.rational import floor_mul
from fleetscope.schema.tables import SPANS
from fleetscope.schema.vocabulary import Kind, SpanFlag
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.fold import fold_table
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.segment import SegmentRef, write_segment
from fleetscope.sinks.lake.tables import LakeTable

RAW_BUDGET, FLOOR_RATIO_BUDGET, WIRE_BUDGET, REPLACE_BUDGET_US = 4.9, 2.2, 6.0, 0.4
LEAST_ROWS = 200_000
SMALL_FILES = 64
REPEATS = 5


def floor_bytes() -> float:
    """Entropy of one event: its gaps (a container has a second one, before its end) and its duration given its op.

    A gap is uniform on 0..300 ns, seen in ticks of 1.25 ns; a duration is normal with 2 % noise, in ticks (the formula
    of the differential entropy, which is exact to < 1 % where the spread is over a tick); a container's duration
    follows from the rest.
    """
    plan = program()
    ticks = np.arange(301) * PERIOD_DEN // PERIOD_NUM
    share = np.bincount(ticks) / 301
    gap_bits = float(-(share[share > 0] * np.log2(share[share > 0])).sum())
    container = plan.kind == Kind.CONTAINER
    spread = np.maximum(0.02 * plan.median_ns[~container] * PERIOD_DEN / PERIOD_NUM, 1.0)
    duration_bits = float(np.log2(spread * math.sqrt(2 * math.pi * math.e)).sum())
    ops = len(plan.median_ns)
    tokens = sum(len(line.tokens) for line in plan.lines)
    return (gap_bits * tokens + duration_bits) / ops / 8


def _children(line: NDArray[np.int32], start: NDArray[np.int64], stop: NDArray[np.int64]) -> NDArray[np.int64]:
    """Ticks of directly nested spans, by a stack; rows in order (line, start, -dur)."""
    inside = [0] * len(start)
    begins, ends, lines = start.tolist(), stop.tolist(), line.tolist()
    stack: list[int] = []
    for row, begin in enumerate(begins):
        while stack and (lines[stack[-1]] != lines[row] or ends[stack[-1]] <= begin):
            stack.pop()
        if stack:
            inside[stack[-1]] += ends[row] - begin
        stack.append(row)
    return np.asarray(inside, np.int64)


def _in_order(batch: PinnedBatch) -> dict[str, NDArray[np.generic]]:
    order = np.lexsort((-batch.columns["dur"].astype(np.int64), batch.columns["start"], batch.columns["line"]))
    return {name: column[order] for name, column in batch.columns.items()}


def wire_rows(batch: PinnedBatch) -> pa.RecordBatch:
    columns = _in_order(batch)
    arrays = [
        pa.nulls(batch.rows, pa.string()) if field.name == "args" else pa.array(columns[field.name], field.type)
        for field in WIRE_SPANS
    ]
    return pa.record_batch(arrays, schema=WIRE_SPANS)


def lake_rows(batch: PinnedBatch) -> pa.Table:
    """The batch as rows of `spans`, placed by its true clock."""
    columns = _in_order(batch)
    start, dur = columns["start"].astype(np.int64), columns["dur"].astype(np.int64)
    ticks_a_s = round(1e9 * PERIOD_DEN / PERIOD_NUM * (1 + batch.clock.ppm * 1e-6))
    key = f"host-{batch.host}/chip-{batch.device}"
    origin = source(batch.host, batch.device)
    made: dict[str, NDArray[np.generic] | int] = {
        **columns,
        "t_ns": BEGIN_NS + floor_mul(start - batch.clock.base, 1_000_000_000, ticks_a_s),
        "dur_ns": nominal_ns(dur, PERIOD_NUM, PERIOD_DEN),
        "child_ns": nominal_ns(_children(columns["line"].astype(np.int32), start, start + dur), PERIOD_NUM, PERIOD_DEN),
        "map": identity.key_hash("map", key, batch.number),
        "host": identity.host_id("pinned", f"host-{batch.host}"),
        "process": identity.process_id(origin),
        "device": identity.device_id(key),
        "flags": int(SpanFlag.UNSYNCED),
        "seq": batch.first_event + np.arange(batch.rows),
    }
    arrays = []
    for field in SPANS:
        column = made.get(field.name, 0)
        arrays.append(pa.array(np.full(batch.rows, column) if isinstance(column, int) else column, field.type))
    return pa.Table.from_arrays(arrays, schema=SPANS)


def wire_bytes(batch: PinnedBatch) -> int:
    """Size of the message: its header as the generator makes it, its payload as agents encode it."""
    header = len(encode(batch)) - len(_payload_of(encode(batch)))
    return header + len(encode_rows(wire_rows(batch)))


def _payload_of(message: bytes) -> bytes:
    from fleetscope.schema.wire_pb2 import Batch

    return Batch.FromString(message).payload


def _parts(rows: pa.Table, count: int) -> Iterator[pa.Table]:
    size = math.ceil(rows.num_rows / count)
    for begin in range(0, rows.num_rows, size):
        yield rows.slice(begin, size)


def replace_cost(rows: pa.Table, folder: Path) -> tuple[float, float]:
    """(us of CPU an event, B/event after it) of replacing SMALL_FILES files of one partition."""
    store = LocalFolder(folder)
    segments: list[SegmentRef] = []
    for index, part in enumerate(_parts(rows, SMALL_FILES)):
        segments += write_segment(store, "spans", part, f"0-1-bench-{index}")
    manifest = Chain(store, 0).commit(Manifest(0, 1, 1, "bench", "", 0, (), tuple(segments)))
    table = LakeTable(store, "spans")
    fold_table(table, {0: [manifest]}, {}, lambda _, part: part)
    begin = time.process_time()
    done = replace_small(table, lambda _, part: part, small_files=SMALL_FILES)
    spent = time.process_time() - begin
    if done.rows != rows.num_rows:
        raise SystemExit(f"replaced {done.rows} of {rows.num_rows} rows")
    return spent / rows.num_rows * 1e6, sum(item.size_bytes for item in table.live()) / rows.num_rows


def column_bytes(store: LocalFolder, segments: tuple[SegmentRef, ...]) -> dict[str, float]:
    """B/event by column, those over 0.01."""
    sums: dict[str, int] = {}
    for segment in segments:
        metadata = pq.ParquetFile(store.location(segment.key)).metadata
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                sums[column.path_in_schema] = sums.get(column.path_in_schema, 0) + column.total_compressed_size
    total = sum(segment.rows for segment in segments)
    return {name: round(size / total, 3) for name, size in sums.items() if size / total > 0.01}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=7, help="steps a batch")
    parser.add_argument("--batches", type=int, default=1, help="batches a device; 64 devices")
    arguments = parser.parse_args()
    made = list(batches(arguments.steps, arguments.batches))
    rows = pa.concat_tables([lake_rows(batch) for batch in made])
    wire = sum(wire_bytes(batch) for batch in made[:16]) / sum(batch.rows for batch in made[:16])
    with tempfile.TemporaryDirectory() as folder:
        store = LocalFolder(Path(folder) / "raw")
        segments = write_segment(store, "spans", rows, "0-1-bench-0")
        raw = sum(segment.size_bytes for segment in segments) / rows.num_rows
        columns = column_bytes(store, segments)
        small_raw = write_segment(store, "spans", rows.slice(0, 20_000), "0-1-bench-1")[0].size_bytes / 20_000
        # the first one also pays for starting the library's threads; shared machines are slow in bursts
        tries = [replace_cost(rows, Path(folder) / f"replace-{index}") for index in range(REPEATS)]
        replace_us, replaced = min(tries)
    floor = floor_bytes()
    least = min(segment.rows for segment in segments)
    result = {
        "events": rows.num_rows,
        "smallest_segment_rows": least,
        "raw_bytes_an_event": round(raw, 3),
        "raw_over_floor": round(raw / floor, 3),
        "floor_bytes_an_event": round(floor, 3),
        "raw_20k_row_segment": round(small_raw, 3),
        "wire_bytes_an_event": round(wire, 3),
        "replace_us_an_event": round(replace_us, 3),
        "replaced_bytes_an_event": round(replaced, 3),
    }
    broken = [
        name
        for name, over in {
            "segments are too small to judge": least < LEAST_ROWS,
            f"raw > {RAW_BUDGET} B/event": raw > RAW_BUDGET,
            f"raw > {FLOOR_RATIO_BUDGET}x the floor": raw > FLOOR_RATIO_BUDGET * floor,
            f"wire > {WIRE_BUDGET} B/event": wire > WIRE_BUDGET,
            f"replace > {REPLACE_BUDGET_US} us/event": replace_us > REPLACE_BUDGET_US,
        }.items()
        if over
    ]
    print(f"columns of a segment, B/event: {columns}")
    return report("raw_bytes", round(raw, 3), "B/event", RAW_BUDGET, failed=broken, **result)


if __name__ == "__main__":
    sys.exit(main())
