"""What an op costs, by (program, op): tables tailed from fleetscope.programs, as far as the epoch's plan says.

A table that is not there yet lowers `flops_known_ns` of the windows it misses; nothing is guessed, and the join at
query time finds the table later.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fleetscope.pipelines.header import ACCEPTED_VERSIONS
from fleetscope.pipelines.symbolize.cost import ops_table
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.wire_pb2 import ProgramChunk
from fleetscope.transport.errors import Permanent
from fleetscope.transport.log import Log

logger = logging.getLogger(__name__)

UNKNOWN = -1

OPS_LIMIT = 1 << 20
"""Ordinals of one program; the largest seen has ~60 000 instructions."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one occurrence of each op of a program, by ordinal; -1 unknown. `dtype` is that of the costliest op."""

    flops: Int64s
    model_flops: Int64s
    bytes_hbm: Int64s
    dtype: str = ""

    @property
    def total(self) -> int:
        """Of the ops whose FLOPs are known."""
        return int(self.flops[self.flops > 0].sum())


def _costs(ops: pa.Table) -> Costs:
    """From OPS rows of one program."""
    ordinals = ops.column("op").to_numpy()
    size = int(ordinals.max(initial=-1)) + 1
    found: list[Int64s] = []
    for name in ("flops", "model_flops", "bytes_hbm"):
        values = np.full(size, UNKNOWN, np.int64)
        values[ordinals] = ops.column(name).fill_null(UNKNOWN).to_numpy()
        found.append(values)
    flops = found[0]
    dtype = str(ops.column("dtype")[int(np.argmax(flops[ordinals]))].as_py()) if size else ""
    return Costs(found[0], found[1], found[2], dtype)


@dataclass(slots=True)
class OpTables:
    """Programs this process knows. One for each (log, topic) and process; not thread-safe."""

    log: Log
    topic: str
    _positions: dict[int, int] = field(default_factory=dict)
    _pending: dict[int, dict[int, ProgramChunk]] = field(default_factory=dict)
    _costs: dict[int, Costs] = field(default_factory=dict)

    def refresh(self, ends: Mapping[int, int]) -> None:
        """Read what was appended up to these end offsets. Ops of chunks that cannot be read stay unknown."""
        for partition, end in ends.items():
            start = self._positions.get(partition, 0)
            if end <= start:
                continue
            try:
                start = max(start, self.log.start_offsets(self.topic).get(partition, 0))
                for message in self.log.read(self.topic, partition, start, end):
                    if message.unreadable is None and not message.tombstone:
                        self._take(message.value, message.offset)
            except Permanent as error:
                logger.warning("op tables of %s/%d: %s", self.topic, partition, error)
            self._positions[partition] = end

    def _take(self, value: bytes, offset: int) -> None:
        try:
            chunk = ProgramChunk.FromString(value)
        except DecodeError:
            logger.warning("%s@%d is no ProgramChunk", self.topic, offset)
            return
        if chunk.version not in ACCEPTED_VERSIONS or not 0 < chunk.chunks <= 4096 or chunk.chunk >= chunk.chunks:
            logger.warning(
                "%s@%d: chunk %d of %d, version %d", self.topic, offset, chunk.chunk, chunk.chunks, chunk.version
            )
            return
        parts = self._pending.setdefault(chunk.program, {})
        parts[chunk.chunk] = chunk
        if len(parts) < chunk.chunks:
            return
        del self._pending[chunk.program]
        try:
            self._costs[chunk.program] = costs_of([parts[index] for index in sorted(parts)])
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            logger.warning("%s@%d: op table of program %d: %s", self.topic, offset, chunk.program, error)

    @property
    def known(self) -> bool:
        """Whether any program is."""
        return bool(self._costs)

    def get(self, program: int) -> Costs | None:
        return self._costs.get(program)


def costs_of(chunks: list[ProgramChunk]) -> Costs:
    """Costs of a program from all its chunks. ValueError if they are not PROGRAM_OPS rows."""
    tables = []
    for chunk in chunks:
        with pa.ipc.open_stream(chunk.ops) as stream:
            tables.append(stream.read_all())
    table = pa.concat_tables(tables)
    if not table.schema.equals(PROGRAM_OPS, check_metadata=False):
        raise ValueError("columns are not those of PROGRAM_OPS")
    ordinals = table.column("op").to_numpy()
    if len(ordinals) and not 0 <= ordinals.min() <= ordinals.max() < OPS_LIMIT:
        raise ValueError(f"ordinals in [{ordinals.min()}, {ordinals.max()}]")
    return _costs(ops_table(table, chunks[0].program))


def row_costs(tables: OpTables, program: Int64s, op: NDArray[np.int32]) -> Costs | None:
    """Costs of each row, -1 unknown; None if no row's program is known.

    Rows of one line run through a program in stretches, so each stretch is one lookup.
    """
    rows = len(program)
    if not rows or not tables.known:
        return None
    flops, model, moved = (np.full(rows, UNKNOWN, np.int64) for _ in range(3))
    heads = np.concatenate(([0], np.flatnonzero(program[1:] != program[:-1]) + 1, [rows]))
    found = False
    for first, last in zip(heads[:-1].tolist(), heads[1:].tolist(), strict=True):
        costs = tables.get(int(program[first]))
        if costs is None or not len(costs.flops):
            continue
        found = True
        ordinals = op[first:last]
        inside = (ordinals >= 0) & (ordinals < len(costs.flops))
        index = np.where(inside, ordinals, 0)
        for into, values in ((flops, costs.flops), (model, costs.model_flops), (moved, costs.bytes_hbm)):
            into[first:last] = np.where(inside, values[index], UNKNOWN)
    return Costs(flops, model, moved) if found else None


_shared: dict[tuple[int, str], OpTables] = {}


def shared_op_tables(log: Log, topic: str) -> OpTables:
    """One per process: tables are tens of MB in a large fleet and stages are made anew each epoch."""
    return _shared.setdefault((id(log), topic), OpTables(log, topic))
