"""Messages of fleetscope.programs -> op tables: chunks gathered until a program has all of them, and checked.

Both readers of the topic use it, the worker for costs and the coordinator for the tables, so that they believe the
same. What is no table is a ProgramInvalid: a defect of one program must stop neither.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from fleetscope.pipelines.claims import check_claims
from fleetscope.schema.errors import PayloadMismatch, PayloadUnreadable, ProgramInvalid
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import WIRE_VERSION
from fleetscope.schema.wire_pb2 import ProgramChunk

CHUNKS_LIMIT = 4096
OPS_LIMIT = 1 << 17
"""Ordinals of one program; the largest seen has ~60 000 instructions. Agents refuse larger modules (FS3061)."""

PENDING_BYTES = 64 << 20
"""Of chunks whose program is not complete. Beyond, the program that waits longest is given up: one of 2^32 chunks would
wait for ever."""

ROW_BYTES = 1024
"""A row of PROGRAM_OPS without its text: twenty columns, and operands of a tuple by the hundred."""

TRUST = {"provisional": 0, "xplane_metadata": 1, "hlo": 2}
"""What a capture's metadata says never replaces what the HLO module says."""


def parse_chunk(value: bytes) -> ProgramChunk:
    """Raises ProgramInvalid for anything that is not one chunk of this version or its predecessor."""
    try:
        chunk = ProgramChunk.FromString(value)
    except Exception as error:  # protobuf's DecodeError differs between its implementations
        raise ProgramInvalid(f"not a program chunk: {error}") from error
    if not WIRE_VERSION - 1 <= chunk.version <= WIRE_VERSION:
        raise ProgramInvalid(f"program chunk of version {chunk.version}")
    if not 0 <= chunk.chunk < chunk.chunks <= CHUNKS_LIMIT:
        raise ProgramInvalid(f"program {chunk.program:#x}: chunk {chunk.chunk} of {chunk.chunks}")
    return chunk


def program_ops(chunks: Iterable[ProgramChunk]) -> pa.Table:
    """PROGRAM_OPS rows of a program's chunks, in order. Raises ProgramInvalid."""
    parts = []
    for chunk in chunks:
        try:
            check_claims(chunk.ops, chunk.rows, row_bytes=ROW_BYTES)
            with pa.ipc.open_stream(chunk.ops) as reader:
                part = reader.read_all().cast(PROGRAM_OPS)
            # Lists and texts are turned into Python objects: their offsets must lead somewhere.
            part.validate(full=True)
        except (PayloadMismatch, PayloadUnreadable, pa.ArrowException, OSError, ValueError) as error:
            raise ProgramInvalid(f"program {chunk.program:#x}, chunk {chunk.chunk}: {error}") from error
        parts.append(part)
        if sum(part.num_rows for part in parts) > OPS_LIMIT:
            raise ProgramInvalid(f"program {chunk.program:#x} has more than {OPS_LIMIT} ops")
    rows = pa.concat_tables(parts)
    missing = [name for name in PROGRAM_OPS.names if not PROGRAM_OPS.field(name).nullable and rows[name].null_count]
    if missing:
        raise ProgramInvalid(f"program {chunk.program:#x}: nulls in {', '.join(missing)}")
    ordinals = rows.column("op").to_numpy()
    if len(ordinals) and not 0 <= np.min(ordinals) <= np.max(ordinals) < OPS_LIMIT:
        raise ProgramInvalid(f"program {chunk.program:#x}: ordinals in [{np.min(ordinals)}, {np.max(ordinals)}]")
    return rows


@dataclass(slots=True)
class _Waiting:
    first_offset: int
    chunks: dict[int, ProgramChunk] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass(slots=True)
class Assembly:
    """Programs that are not complete, in the order they began; and how far each complete one is to be believed."""

    trust: dict[int, int] = field(default_factory=dict)
    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    _size_bytes: int = 0

    def take(self, chunk: ProgramChunk, offset: int) -> list[ProgramChunk] | None:
        """All chunks of its program, in order, when this was the last one missing and nothing better is known."""
        if TRUST.get(chunk.source, 0) < self.trust.get(chunk.program, -1):
            return None
        waiting = self._waiting.get(chunk.program)
        if waiting is not None and next(iter(waiting.chunks.values())).chunks != chunk.chunks:
            # The program was sent again in other pieces; the old ones are of no use any more.
            self._drop(chunk.program)
            waiting = None
        if waiting is None:
            waiting = self._waiting[chunk.program] = _Waiting(offset)
        known = waiting.chunks.get(chunk.chunk)
        added = len(chunk.ops) - (len(known.ops) if known is not None else 0)
        waiting.chunks[chunk.chunk] = chunk
        waiting.size_bytes += added
        self._size_bytes += added
        if len(waiting.chunks) == chunk.chunks:
            self._drop(chunk.program)
            return [waiting.chunks[number] for number in range(chunk.chunks)]
        while self._size_bytes > PENDING_BYTES:
            self._drop(next(iter(self._waiting)))
        return None

    def _drop(self, program: int) -> None:
        self._size_bytes -= self._waiting.pop(program).size_bytes

    def believe(self, chunk: ProgramChunk) -> None:
        """Its program turned out to be a table: less trusted ones are passed over from now on."""
        self.trust[chunk.program] = TRUST.get(chunk.source, 0)

    @property
    def first_offset(self) -> int | None:
        """Where the oldest chunk lies that still waits for others."""
        return min((waiting.first_offset for waiting in self._waiting.values()), default=None)
