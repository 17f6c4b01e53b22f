"""Op tables from fleetscope.programs -> rows of `ops` and `programs`, through the cost pass.

The dimension tables are keyed by fingerprint, so repeating a program is harmless; the offset read so far is an app
transaction of `programs`, only to spare a restarted coordinator the whole topic.
"""

import logging
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.symbolize.assembly import TRUST, Assembly, parse_chunk, program_ops
from fleetscope.pipelines.symbolize.cost import ProgramCost, cost_program
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.tables import PROGRAMS
from fleetscope.sinks.lake.fold import fold_rows, read_rows
from fleetscope.sinks.lake.tables import LakeTable
from fleetscope.transport.log import Log, Message, Tail

_log = logging.getLogger(__name__)

_Finished = dict[int, tuple[pa.Table, dict[str, Any]]]
"""Program -> its OPS rows, its PROGRAMS row."""


class Programs:
    """Follows the topic and keeps the two tables current. Not for several threads."""

    def __init__(self, log: Log, topic: str, ops: LakeTable, programs: LakeTable) -> None:
        self._log = log
        self._topic = topic
        self._ops = ops
        self._programs = programs
        self._tail: Tail | None = None
        self._app = ""
        self._assembly = Assembly()
        self.refused = 0

    def poll(self) -> int:
        """Take what is new; the number of programs written. Anything unreadable is logged, counted in `refused`, and
        passed."""
        tail = self._tail if self._tail is not None else self._begin()
        messages = tail.poll()
        finished: _Finished = {}
        for message in messages:
            try:
                self._take(message, finished)
            except FleetscopeError as error:
                self.refused += 1
                _log.warning("%s/%d@%d: %s", message.topic, message.partition, message.offset, error)
        if finished:
            self._write(finished, self._resume_offset(tail))
        return len(finished)

    def _begin(self) -> Tail:
        self._programs.refresh()
        self._app = f"fleetscope.programs-{self._log.topic(self._topic).topic_id}"
        for item in self._programs.live():
            rows = read_rows(self._programs.store, "programs", [item.path]).select(["program", "source"])
            for row in rows.to_pylist():
                self._assembly.trust[row["program"]] = TRUST.get(row["source"], 0)
        # the topic has one partition: its readers each want all of it
        offset = self._programs.transaction(self._app)
        first = self._log.start_offsets(self._topic).get(0, 0)
        self._tail = self._log.tail(self._topic, {0: max(offset, first)})
        return self._tail

    def _take(self, message: Message, finished: _Finished) -> None:
        if message.unreadable is not None:
            raise message.unreadable
        if message.tombstone:
            return
        chunk = parse_chunk(message.value)
        chunks = self._assembly.take(chunk, message.offset)
        if chunks is None:
            return
        seen_ns = message.timestamp_ms * 1_000_000
        rows = program_ops(chunks)
        ops, cost = cost_program(rows, chunk.program, seen_ns)
        about = _program_row(chunk.program, rows.num_rows, cost, chunk.module, chunk.source, seen_ns)
        self._assembly.believe(chunk)
        finished[chunk.program] = (ops, about)

    def _resume_offset(self, tail: Tail) -> int:
        reached, waiting = tail.positions().get(0, 0), self._assembly.first_offset
        return reached if waiting is None else min(reached, waiting)

    def _write(self, finished: _Finished, offset: int) -> None:
        fold_rows(self._ops, pa.concat_tables(ops for ops, _ in finished.values()), {})
        about = pa.Table.from_pylist([row for _, row in finished.values()], PROGRAMS)
        fold_rows(self._programs, about, {self._app: offset})

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _program_row(program: int, ops: int, cost: ProgramCost, module: str, source: str, seen_ns: int) -> dict[str, Any]:
    return {
        "program": program,
        "module": module,
        "ops": ops,
        "source": source,
        "flops": cost.flops,
        "model_flops": cost.model_flops,
        "flops_known": cost.flops is not None,
        "seen_ns": seen_ns,
        "flops_min": cost.flops_min,
        "flops_max": cost.flops_max,
        "transcendentals": cost.transcendentals,
        "wire_bytes": cost.wire_bytes,
        "unknown": ", ".join(cost.unknown),
    }
