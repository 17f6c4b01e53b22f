"""What an op costs, by (program, op): tables tailed from fleetscope.programs, as far as the epoch's plan says.

A table that is not there yet lowers `flops_known_ns` of the windows it misses; nothing is guessed, and the join at
query time finds the table later.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.symbolize.assembly import Assembly, parse_chunk, program_ops
from fleetscope.pipelines.symbolize.cost import ProgramCost, cost_program
from fleetscope.schema.errors import ProgramInvalid
from fleetscope.schema.wire_pb2 import ProgramChunk
from fleetscope.transport.errors import Permanent
from fleetscope.transport.log import Log

logger = logging.getLogger(__name__)

UNKNOWN = -1

MOST_A_NS = 1 << 27
"""FLOPs a nanosecond: 1.3e17 FLOP/s, ten times the fastest chip. More was not done: the table is of another program, or
damaged. It keeps sums over a window within int64 too."""

DTYPE_NAMES = (
    "other", "bf16", "f16", "f32", "fp32", "f64", "f8e4m3fn", "f8e5m2", "f8e4m3", "f8e4m3fnuz", "f8e5m2fnuz",
    "f8e3m4", "f8e8m0fnu", "f4e2m1fn", "s8", "u8", "s4", "u4", "s32", "u32", "c64", "c128",
)  # fmt: skip
"""dtypes told apart; "fp32" are products of f32 at highest precision, "other" what nobody computes in for long."""
DTYPE_CODES = {name: code for code, name in enumerate(DTYPE_NAMES)}

OPS_KEPT = 8 << 20
"""Of all programs together, at 24 B each: a fleet that compiles all day would fill the memory otherwise."""

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Execution:
    """FLOPs of one execution of a program on one device.

    `known`: the count is exact, else both are 0; `least`: what it does in any case. `by_dtype`: (dtype, flops, model
    flops) of its entry ops, a loop by its costliest part, as in analysis.step_flops.
    """

    known: bool = False
    flops: int = 0
    model_flops: int = 0
    least: int = 0
    by_dtype: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one occurrence of each op of a program, by ordinal, or of each row; -1 unknown.

    `dtypes`: code of each op's dtype (`DTYPE_NAMES`); `dtype` is that of the costliest op.
    """

    flops: Int64s
    model_flops: Int64s
    bytes_hbm: Int64s
    dtypes: NDArray[np.uint8]
    dtype: str = ""
    execution: Execution = Execution()

    @property
    def total(self) -> int:
        """Of the ops whose FLOPs are known."""
        return int(self.flops[self.flops > 0].sum())

    @property
    def computes_in(self) -> list[str]:
        """dtypes of the ops that compute, or may."""
        return [DTYPE_NAMES[code] for code in np.unique(self.dtypes[self.flops != 0]).tolist()]


def _costs(ops: pa.Table, whole: ProgramCost) -> Costs:
    """From OPS rows of one program and what it costs as a whole."""
    ordinals = ops.column("op").to_numpy()
    size = int(ordinals.max(initial=-1)) + 1
    found: list[Int64s] = []
    for name in ("flops", "model_flops", "bytes_hbm"):
        values = np.full(size, UNKNOWN, np.int64)
        values[ordinals] = ops.column(name).fill_null(UNKNOWN).to_numpy()
        found.append(values)
    flops = found[0]
    dtype = str(ops.column("dtype")[int(np.argmax(flops[ordinals]))].as_py()) if size else ""
    dtypes = np.zeros(size, np.uint8)
    dtypes[ordinals] = [DTYPE_CODES.get(name, 0) for name in ops.column("dtype").to_pylist()]
    return Costs(found[0], found[1], found[2], dtypes, dtype, _execution(ops, whole))


def _execution(ops: pa.Table, whole: ProgramCost) -> Execution:
    if whole.flops is None or whole.model_flops is None:
        return Execution(least=whole.flops_min)
    sums: dict[str, list[int]] = {}
    entry = ops.filter(ops.column("entry")).select(["dtype", "flops", "model_flops"])
    for row in entry.to_pylist():
        if row["flops"]:
            found = sums.setdefault(row["dtype"], [0, 0])
            found[0] += row["flops"]
            found[1] += row["model_flops"] or 0
    by_dtype = tuple((dtype, flops, model) for dtype, (flops, model) in sums.items())
    return Execution(True, whole.flops, whole.model_flops, whole.flops, by_dtype)


@dataclass(slots=True)
class OpTables:
    """Programs this process knows. One for each (log, topic) and process; not thread-safe."""

    log: Log
    topic: str
    _positions: dict[int, int] = field(default_factory=dict)
    _assembly: Assembly = field(default_factory=Assembly)
    _costs: dict[int, Costs] = field(default_factory=dict)
    _ops: int = 0

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
            chunk = parse_chunk(value)
            chunks = self._assembly.take(chunk, offset)
            if chunks is None:
                return
            costs = costs_of(chunks)
        except ProgramInvalid as error:
            logger.warning("%s@%d: %s", self.topic, offset, error)
            return
        self._assembly.believe(chunk)
        self._forget(chunk.program)
        self._costs[chunk.program] = costs
        self._ops += len(costs.flops)
        while self._ops > OPS_KEPT and len(self._costs) > 1:
            self._forget(next(iter(self._costs)))

    def _forget(self, program: int) -> None:
        known = self._costs.pop(program, None)
        self._ops -= len(known.flops) if known is not None else 0

    @property
    def known(self) -> bool:
        """Whether any program is."""
        return bool(self._costs)

    def get(self, program: int) -> Costs | None:
        costs = self._costs.pop(program, None)
        if costs is not None:
            self._costs[program] = costs  # the one not asked for longest goes first
        return costs


def costs_of(chunks: list[ProgramChunk]) -> Costs:
    """Costs of a program from all its chunks, in order. ProgramInvalid if they are no op table."""
    return _costs(*cost_program(program_ops(chunks), chunks[0].program))


def row_costs(tables: OpTables, program: Int64s, op: NDArray[np.int32], dur_ns: Int64s) -> Costs | None:
    """Costs of each row, -1 unknown; None if no row's program is known. FLOPs no chip does in `dur_ns` are unknown.

    Rows of one line run through a program in stretches, so each stretch is one lookup.
    """
    rows = len(program)
    if not rows or not tables.known:
        return None
    flops, model, moved = (np.full(rows, UNKNOWN, np.int64) for _ in range(3))
    dtypes = np.zeros(rows, np.uint8)
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
        dtypes[first:last] = np.where(inside, costs.dtypes[index], 0)
    if not found:
        return None
    absurd = flops // MOST_A_NS > np.maximum(dur_ns, 0) + 1
    flops[absurd] = model[absurd] = UNKNOWN
    return Costs(flops, model, moved, dtypes)


_shared: dict[tuple[int, str], OpTables] = {}


def shared_op_tables(log: Log, topic: str) -> OpTables:
    """One per process: tables are tens of MB in a large fleet and stages are made anew each epoch."""
    return _shared.setdefault((id(log), topic), OpTables(log, topic))
