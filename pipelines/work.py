"""Chunks of batches -> segments on disk and Parts: decode, align, store, roll up. Keeps nothing between epochs."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.align.spans import place_ticks
from fleetscope.pipelines.combine import merge_parts
from fleetscope.pipelines.dead import DEFECTS, dead_letter, unprocessable
from fleetscope.pipelines.decode import Bounds, read_rows, sample_faults, span_faults
from fleetscope.pipelines.durations import op_durations
from fleetscope.pipelines.elements import CHUNK_BYTES, CHUNK_ROWS, BatchMeta, Chunk, Part
from fleetscope.pipelines.flops import shared_op_tables
from fleetscope.pipelines.frequency import clock_rows
from fleetscope.pipelines.plan import Plan
from fleetscope.pipelines.rollup import Rolled, roll_up
from fleetscope.pipelines.rows import sample_table
from fleetscope.pipelines.segments import Segments
from fleetscope.schema.errors import FleetscopeError, LedgerBroken
from fleetscope.schema.payloads import WIRE_SAMPLES, WIRE_SPANS
from fleetscope.schema.tables import DEAD_LETTER, OP_10S
from fleetscope.schema.vocabulary import BatchFlag
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.transport.log import Log

MERGE_PARTS = 16
"""Parts put together before they are merged: merging each time would sort the same rows again and again."""


@dataclass(slots=True)
class ChunkWorker:
    """Works through the chunks of one bundle. `work` for each, then `finish` once."""

    plan: Plan
    store: ObjectStore
    log: Log
    _segments: Segments = field(init=False)
    _parts: list[Part] = field(default_factory=list)
    _fates: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _dead: list[dict[str, Any]] = field(default_factory=list)
    _waiting: dict[bool, list[Chunk]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._segments = Segments(self.plan, self.store)

    def work(self, chunk: Chunk) -> None:
        """Decode, place, write and roll up; what cannot be decoded becomes a dead letter and the rest goes on.

        Small chunks wait for others of their kind: partitions bring theirs apart, and a kernel costs the same ~50 us
        for a chunk of one batch as for one of many (50 ns an event at 60 k events a partition).
        """
        if not chunk.batches:
            return
        waiting = self._waiting.setdefault(chunk.batches[0].samples, [])
        waiting.append(chunk)
        if sum(one.rows for one in waiting) >= CHUNK_ROWS or sum(one.size_bytes for one in waiting) >= CHUNK_BYTES:
            self._work_off(chunk.batches[0].samples)

    def _work_off(self, samples: bool) -> None:
        waiting = self._waiting.pop(samples)
        batches = [batch for chunk in waiting for batch in chunk.batches]
        payloads = [payload for chunk in waiting for payload in chunk.payloads]
        self._work_through(self._decode(batches, payloads))

    def _work_through(self, decoded: "_Decoded") -> None:
        batches = decoded.batches
        if not batches:
            return
        try:
            if batches[0].samples:
                self._samples(decoded)
            else:
                self._spans(decoded)
        except DEFECTS as error:
            if len(batches) > 1:
                for half in decoded.halves():
                    self._work_through(half)
                return
            self._refuse(batches[0], unprocessable(error))
            return
        for batch in batches:
            fate = self._fates.setdefault((batch.partition, batch.source), [0, 0, 0])
            fate[0] += batch.rows

    def _decode(self, batches: list[BatchMeta], payloads: list[bytes]) -> "_Decoded":
        samples = batches[0].samples
        schema = WIRE_SAMPLES if samples else WIRE_SPANS
        good: list[tuple[BatchMeta, pa.Table]] = []
        for batch, payload in zip(batches, payloads, strict=True):
            try:
                good.append((batch, read_rows(payload, schema, batch.rows)))
            except FleetscopeError as error:
                self._refuse(batch, error)
        decoded = _Decoded.of(good, schema)
        filled = [index for index, batch in enumerate(decoded.batches) if batch.rows]
        if not filled:
            return decoded
        rows = np.array([decoded.batches[index].rows for index in filled], np.int64)
        bounds = [_bounds(decoded.batches[index]) for index in filled]
        columns = decoded.columns
        faults = (
            sample_faults(columns["tick"], rows, bounds)
            if samples
            else span_faults(columns["start"], columns["dur"], columns["line"], rows, bounds, columns["kind"])
        )
        bad = {filled[index]: fault for index, fault in faults}
        if not bad:
            return decoded
        for index, fault in bad.items():
            self._refuse(good[index][0], fault)
        return _Decoded.of([item for index, item in enumerate(good) if index not in bad], schema)

    def _refuse(self, batch: BatchMeta, error: FleetscopeError) -> None:
        plan = self.plan
        found = self.log.read(plan.topic, batch.partition, batch.offset, batch.offset + 1, topic_id=plan.topic_id)
        value = b"".join(message.value for message in found)
        place = (plan.topic, batch.partition, batch.offset)
        self._dead.append(dead_letter(plan.now_ns, place, error, value, source=batch.source, rows=batch.rows))
        fate = self._fates.setdefault((batch.partition, batch.source), [0, 0, 0])
        fate[1] += batch.rows
        fate[2] += 1

    def _spans(self, decoded: "_Decoded") -> None:
        ops = shared_op_tables(self.log, self.plan.programs_topic)
        ops.refresh(self.plan.programs)
        rolled = roll_up(decoded.batches, decoded.columns, decoded.table.column("args"), ops, self.plan.now_ns)
        self._keep(rolled)

    def _keep(self, rolled: Rolled) -> None:
        for name, table in rolled.raw.items():
            self._segments.add(name, table)
        self._parts.append(Part(rolled.partial))
        if len(self._parts) >= MERGE_PARTS:
            self._parts = [merge_parts(self._parts)]

    def _samples(self, decoded: "_Decoded") -> None:
        batches, ticks = decoded.batches, decoded.columns["tick"]
        offsets = np.concatenate(([0], np.cumsum([batch.rows for batch in batches])))
        t_ns, maps, _ = place_ticks(offsets, ticks, [batch.placement for batch in batches])
        self._segments.add("samples", sample_table(batches, decoded.table, offsets, t_ns, maps))
        clocks = clock_rows(batches, decoded.table, offsets, t_ns)
        if clocks.num_rows:
            self._parts.append(Part({"clocks": clocks}))

    def discard(self) -> None:
        """Delete the files written so far: the epoch fails."""
        self._segments.discard()

    def finish(self) -> Part:
        """Write what is left. LedgerBroken if the rows in files are not the rows decoded."""
        for samples in list(self._waiting):
            self._work_off(samples)
        merged = merge_parts(self._parts)
        tables = dict(merged.tables)
        # One row per op and process: with many processes it is a tenth of the raw rows, and nobody downstream looks
        # at it, so it is written here (shuffled, it cost a quarter of the epoch). Another bundle's rows are deltas.
        op_10s = tables.pop("op_10s", OP_10S.empty_table())
        self._segments.add("op_10s", op_10s)
        told = op_durations(op_10s)
        if told.num_rows:
            tables["op_durations"] = told
        refs = self._segments.close()
        stored = sum(fate[0] for fate in self._fates.values())
        written = sum(ref.rows for ref in refs if ref.table in ("spans", "samples"))
        if stored != written:
            raise LedgerBroken(f"{stored} events decoded, {written} rows in segments")
        if self._dead:
            tables["dead_letter"] = pa.Table.from_pylist(self._dead, schema=DEAD_LETTER)
        fates = [[partition, source, *fate] for (partition, source), fate in self._fates.items()]
        return Part(tables, {**merged.facts, "fate": fates, "segment": [asdict(ref) for ref in refs]})


def _bounds(batch: BatchMeta) -> Bounds:
    info = batch.info
    return Bounds(
        info.tick_from,
        info.tick_to,
        info.period_num,
        info.period_den,
        whole=bool(info.device),
        cut=bool(batch.flags & BatchFlag.FORCED_CUT),
    )


@dataclass(frozen=True, slots=True)
class _Decoded:
    """Batches of one kind and their rows, one after another in one chunk; `columns`: the integers among them."""

    batches: list[BatchMeta]
    table: pa.Table
    columns: dict[str, NDArray[Any]]

    @classmethod
    def of(cls, items: list[tuple[BatchMeta, pa.Table]], schema: pa.Schema) -> "_Decoded":
        tables = [table for _, table in items]
        return cls._over([batch for batch, _ in items], pa.concat_tables(tables) if tables else schema.empty_table())

    @classmethod
    def _over(cls, batches: list[BatchMeta], table: pa.Table) -> "_Decoded":
        table = table.combine_chunks()
        columns = {
            name: column.to_numpy()
            for name, column in zip(table.column_names, table.columns, strict=True)
            if pa.types.is_integer(column.type) and not column.null_count
        }
        return cls(batches, table, columns)

    def halves(self) -> tuple["_Decoded", "_Decoded"]:
        middle = len(self.batches) // 2
        rows = sum(batch.rows for batch in self.batches[:middle])
        return (
            self._over(self.batches[:middle], self.table.slice(0, rows)),
            self._over(self.batches[middle:], self.table.slice(rows)),
        )
