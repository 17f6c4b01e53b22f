"""The pipeline's work as a script: encoded batches -> raw Parquet, merged rollups. No Beam, no admission, no ledger, no
manifest.

It calls the same kernels and writes all columns with the lake's encoding, so what the pipeline costs beyond it is
the price of being a pipeline. `Times` tells where an event's nanoseconds go.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.pipelines.align.segment import Placement
from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo, Block, block_of
from fleetscope.pipelines.busy import device_rollup
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.pipelines.windows import slots_of
from fleetscope.schema import identity
from fleetscope.schema.payloads import WIRE_SPANS
from fleetscope.schema.tables import SPANS
from fleetscope.schema.wire_pb2 import Batch
from fleetscope.sinks.lake.encode import ROW_GROUP_ROWS, to_stored, writer

CHUNK_ROWS = 256 << 10
ONE_THREAD = pa.ipc.IpcReadOptions(use_threads=False)


@dataclass
class Times:
    """CPU seconds by part, of this process."""

    spent: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.spent[part] += time.process_time() - began


def run(values: list[bytes], clocks: dict[str, ClockState], folder: Path, times: Times) -> int:
    """Events written. `clocks` are kept from call to call, as the state of a worker is."""
    with times.of("header"):
        batches = [Batch.FromString(value) for value in values]
    with times.of("clocks"):
        placements = []
        for batch in batches:
            state = clocks.setdefault(batch.source.host, ClockState())
            state.take(batch.source, batch.snapshots)
        for batch in batches:
            state = clocks[batch.source.host]
            ranges = (batch.tick_from, batch.tick_to, batch.sent_ns, identity.device_id(batch.device.key))
            placements.append(state.place(batch.source, batch.clock, *ranges))
    spans: list[pa.Table] = []
    ops: list[pa.Table] = []
    devices: list[pa.Table] = []
    first = 0
    while first < len(batches):
        last, rows = first, 0
        while last < len(batches) and rows < CHUNK_ROWS:
            rows += batches[last].rows
            last += 1
        _chunk(batches[first:last], placements[first:last], times, spans, ops, devices)
        first = last
    with times.of("merge"):
        merged = {"op_10s": merge("op_10s", ops), "device_10s": merge("device_10s", devices)}
    written = pa.concat_tables(spans)
    with times.of("parquet"):
        for name, table in (("spans", written), *merged.items()):
            path = folder / f"{name}-{len(list(folder.iterdir()))}.parquet"
            with path.open("wb") as sink, writer(name, sink, "compact") as parquet:
                parquet.write_table(to_stored(name, table), row_group_size=ROW_GROUP_ROWS)
    return int(written.num_rows)


def _chunk(
    batches: list[Batch],
    placements: list[Placement],
    times: Times,
    spans: list[pa.Table],
    ops: list[pa.Table],
    devices: list[pa.Table],
) -> None:
    with times.of("decode"):
        whole = pa.concat_tables(
            [pa.ipc.open_stream(batch.payload, options=ONE_THREAD).read_all() for batch in batches]
        ).combine_chunks()
        columns = {name: whole.column(name).to_numpy() for name in WIRE_SPANS.names if name != "args"}
        infos = [_info(batch) for batch in batches]
        block = block_of(infos, placements, [batch.rows for batch in batches], columns)
    with times.of("align"):
        placed = place_rows(block)
    with times.of("nest"):
        nested = nest(block, placed.dur_ns)
    with times.of("busy"):
        slots = slots_of(block)
        devices.append(device_rollup(block, placed, nested, slots))
    with times.of("moments"):
        ops.append(op_rollup(block, placed, nested, slots))
    with times.of("columns"):
        made = {
            "t_ns": placed.t_ns,
            "t_sub": placed.t_sub,
            "dur_ns": placed.dur_ns,
            "dur_sub": placed.dur_sub,
            "child_ns": nested.child_ns,
            "map": placed.map,
            "host": _over(block, "host"),
            "process": _over(block, "process"),
            "device": _over(block, "device"),
            "depth": nested.depth,
            "flags": placed.flags,
            "capture": _over(block, "window"),
            "seq": _sequence(batches, block),
        }
        arrays = [pa.array(made.get(name, columns.get(name))) for name in SPANS.names]
        spans.append(pa.Table.from_arrays(arrays, schema=SPANS))


def _info(batch: Batch) -> BatchInfo:
    return BatchInfo(
        identity.host_id(batch.source.cluster, batch.source.host),
        identity.process_id(batch.source),
        identity.device_id(batch.device.key),
        batch.tick_from,
        batch.tick_to,
        batch.clock.period_num,
        batch.clock.period_den,
    )


def _over(block: Block, name: str) -> NDArray[np.int64]:
    return block.over_rows(block.of_batches(name))


def _sequence(batches: list[Batch], block: Block) -> NDArray[np.int64]:
    first = np.array([batch.first_event for batch in batches], np.int64)
    return np.arange(block.rows) + block.over_rows(first - block.offsets[:-1])
