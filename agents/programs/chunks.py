"""A program's op table as messages of fleetscope.programs: chunks of at most 1 MiB, keyed by fingerprint and chunk."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from fleetscope.agents.programs.optable import Program
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import WIRE_VERSION
from fleetscope.schema.wire_pb2 import ProgramChunk

CHUNK_BYTES = 1 << 20
_ROWS = 8192
"""Rows tried first; halved until the chunk fits. 8 192 rows of a transformer compress to about 200 kB."""


def _encode(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PROGRAM_OPS, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())


def _pieces(rows: pa.Table, size: int) -> Iterator[tuple[pa.Table, bytes]]:
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        data = _encode(piece)
        if len(data) > CHUNK_BYTES and piece.num_rows > 1:
            yield from _pieces(piece, max(piece.num_rows // 2, 1))
        else:
            yield piece, data


def chunks(program: Program) -> list[tuple[bytes, ProgramChunk]]:
    """(key, chunk) pairs in order. A single row over 1 MiB still makes a chunk; the log's own limit judges it."""
    pieces = list(_pieces(program.ops, _ROWS))
    out = []
    first = 0
    for number, (rows, data) in enumerate(pieces):
        chunk = ProgramChunk(
            version=WIRE_VERSION, program=program.program, module=program.module, chunk=number, chunks=len(pieces),
            rows=rows.num_rows, first_op=first, source=program.source, ops=data,
        )  # fmt: skip
        out.append((chunk_key(program.program, number), chunk))
        first += rows.num_rows
    return out


def chunk_key(program: int, chunk: int) -> bytes:
    return f"{program & (1 << 64) - 1:016x}/{chunk}".encode()


def join_chunks(parts: Iterable[ProgramChunk]) -> pa.Table | None:
    """PROGRAM_OPS rows of one program from its chunks in any order; None while one is missing."""
    by_number = {part.chunk: part for part in parts}
    if not by_number:
        return None
    count = next(iter(by_number.values())).chunks
    if any(number not in by_number for number in range(count)):
        return None
    tables = [pa.ipc.open_stream(by_number[number].ops).read_all() for number in range(count)]
    return pa.concat_tables(tables)
