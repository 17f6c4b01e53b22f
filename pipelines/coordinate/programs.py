"""Op tables from fleetscope.programs -> rows of `ops` and `programs`, through the cost pass.

The dimension tables are keyed by fingerprint, so repeating a program is harmless; the offset read so far is an app
transaction of `programs`, only to spare a restarted coordinator the whole topic.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from fleetscope.pipelines.symbolize.cost import ops_table, program_flops
from fleetscope.schema.errors import FleetscopeError, ProgramInvalid
from fleetscope.schema.tables import OPS, PROGRAM_OPS, PROGRAMS
from fleetscope.schema.vocabulary import WIRE_VERSION
from fleetscope.schema.wire_pb2 import ProgramChunk
from fleetscope.sinks.lake.fold import fold_rows, read_rows
from fleetscope.sinks.lake.tables import LakeTable
from fleetscope.transport.log import Log, Message, Tail

_log = logging.getLogger(__name__)

_TRUST = {"provisional": 0, "xplane_metadata": 1, "hlo": 2}
"""What a capture's metadata says never replaces what the HLO module says."""


@dataclass(slots=True)
class _Parts:
    first_offset: int
    chunks: dict[int, ProgramChunk] = field(default_factory=dict)


def parse_chunk(value: bytes) -> ProgramChunk:
    """Raises ProgramInvalid for anything that is not one chunk of this version or its predecessor."""
    try:
        chunk = ProgramChunk.FromString(value)
    except Exception as error:  # protobuf's DecodeError differs between its implementations
        raise ProgramInvalid(f"not a program chunk: {error}") from error
    if not WIRE_VERSION - 1 <= chunk.version <= WIRE_VERSION:
        raise ProgramInvalid(f"program chunk of version {chunk.version}")
    if not 0 <= chunk.chunk < chunk.chunks:
        raise ProgramInvalid(f"program {chunk.program:#x}: chunk {chunk.chunk} of {chunk.chunks}")
    return chunk


def program_ops(chunks: Iterable[ProgramChunk]) -> pa.Table:
    """PROGRAM_OPS rows of a program's chunks, in order. Raises ProgramInvalid."""
    parts = []
    for chunk in chunks:
        try:
            with pa.ipc.open_stream(chunk.ops) as reader:
                part = reader.read_all().cast(PROGRAM_OPS)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, ValueError) as error:
            raise ProgramInvalid(f"program {chunk.program:#x}, chunk {chunk.chunk}: {error}") from error
        if part.num_rows != chunk.rows:
            raise ProgramInvalid(f"program {chunk.program:#x}: {part.num_rows} rows where {chunk.rows} are announced")
        parts.append(part)
    return pa.concat_tables(parts)


class Programs:
    """Follows the topic and keeps the two tables current. Not for several threads."""

    def __init__(self, log: Log, topic: str, ops: LakeTable, programs: LakeTable) -> None:
        self._log = log
        self._topic = topic
        self._ops = ops
        self._programs = programs
        self._tail: Tail | None = None
        self._app = ""
        self._parts: dict[int, _Parts] = {}
        self._trust: dict[int, int] = {}
        self.refused = 0

    def poll(self) -> int:
        """Take what is new; the number of programs written. Anything unreadable is logged, counted in `refused`, and
        passed."""
        tail = self._tail if self._tail is not None else self._begin()
        messages = tail.poll()
        finished: dict[int, tuple[pa.Table, str, str, int]] = {}
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
                self._trust[row["program"]] = _TRUST.get(row["source"], 0)
        # the topic has one partition: its readers each want all of it
        offset = self._programs.transaction(self._app)
        first = self._log.start_offsets(self._topic).get(0, 0)
        self._tail = self._log.tail(self._topic, {0: max(offset, first)})
        return self._tail

    def _take(self, message: Message, finished: dict[int, tuple[pa.Table, str, str, int]]) -> None:
        if message.unreadable is not None:
            raise message.unreadable
        if message.tombstone:
            return
        chunk = parse_chunk(message.value)
        trust = _TRUST.get(chunk.source, 0)
        if trust < self._trust.get(chunk.program, -1):
            return
        parts = self._parts.setdefault(chunk.program, _Parts(message.offset))
        if parts.chunks and next(iter(parts.chunks.values())).chunks != chunk.chunks:
            # the program was sent again in other pieces; the old ones are of no use any more
            parts = self._parts[chunk.program] = _Parts(message.offset)
        parts.chunks[chunk.chunk] = chunk
        if len(parts.chunks) < chunk.chunks:
            return
        del self._parts[chunk.program]
        rows = program_ops(parts.chunks[number] for number in range(chunk.chunks))
        finished[chunk.program] = (rows, chunk.module, chunk.source, message.timestamp_ms * 1_000_000)
        self._trust[chunk.program] = trust

    def _resume_offset(self, tail: Tail) -> int:
        return min([tail.positions().get(0, 0), *(parts.first_offset for parts in self._parts.values())])

    def _write(self, finished: dict[int, tuple[pa.Table, str, str, int]], offset: int) -> None:
        ops, programs = [], []
        for program, (rows, module, source, seen_ns) in finished.items():
            ops.append(ops_table(rows, program, seen_ns))
            programs.append(_program_row(program, rows, ops[-1], module, source, seen_ns))
        fold_rows(self._ops, pa.concat_tables(ops), {})
        fold_rows(self._programs, pa.Table.from_pylist(programs, PROGRAMS), {self._app: offset})

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _program_row(
    program: int, rows: pa.Table, ops: pa.Table, module: str, source: str, seen_ns: int
) -> dict[str, object]:
    flops, model_flops = program_flops(rows)
    assert ops.schema.equals(OPS)
    return {
        "program": program,
        "module": module,
        "ops": rows.num_rows,
        "source": source,
        "flops": flops,
        "model_flops": model_flops,
        "flops_known": flops is not None,
        "seen_ns": seen_ns,
    }
