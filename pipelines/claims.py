"""What an Arrow IPC stream says of itself, read before anything is decompressed.

A buffer states its size before compression, and the library allocates what is stated: 51 kB of zeros made a worker take
16 GB, and the worker that went on from its manifest again. Layout: Arrow's format/Message.fbs and the IPC section of
its columnar format; FlatBuffers as their internals page has them.
"""

import struct
from collections.abc import Iterator

from fleetscope.schema.errors import PayloadMismatch, PayloadUnreadable

ROW_BYTES = 128
"""Columns of a row beside its text: WIRE_SPANS has 69, WIRE_SAMPLES 48, each buffer a bit a row of validity."""

TEXT_BYTES = 128 << 20
"""Text of one batch before compression."""

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY, _RECORDS = 1, 2, 3
_I32, _I64, _U16, _U32, _U8 = (struct.Struct(f"<{code}") for code in "iqHIB")


def check_claims(payload: bytes, rows: int, *, row_bytes: int = ROW_BYTES, text_bytes: int = TEXT_BYTES) -> None:
    """PayloadMismatch unless the stream holds one record batch of `rows` rows that says to fit in memory.

    PayloadUnreadable if it is no stream. The schema is not looked at.
    """
    if not payload:
        raise PayloadUnreadable(f"payload of 0 bytes for {rows} rows")
    try:
        claimed = list(_batches(payload))
    except (struct.error, ValueError) as error:
        raise PayloadUnreadable(f"payload of {len(payload)} bytes: no Arrow stream: {error}") from error
    if len(claimed) != 1 or claimed[0][0] != rows:
        found = ", ".join(str(count) for count, _ in claimed[:8]) or "none"
        raise PayloadMismatch(f"header says {rows} rows in one record batch, payload has {found}")
    (_, size), limit = claimed[0], rows * row_bytes + text_bytes
    if size > limit:
        raise PayloadMismatch(f"{rows} rows say to be {size} bytes before compression, at most {limit}")


def _batches(data: bytes) -> Iterator[tuple[int, int]]:
    """(rows, bytes before compression) of each record batch of a stream."""
    position = 0
    while position + 8 <= len(data):
        marker, length = _U32.unpack_from(data, position)[0], _I32.unpack_from(data, position + 4)[0]
        position += 8
        if marker != _CONTINUATION or not 0 <= length <= len(data) - position:
            raise ValueError(f"a message of {length} bytes at byte {position - 8}")
        if length == 0:
            return
        body = position + length
        message = _Table(data, position + _U32.unpack_from(data, position)[0])
        kind, size = message.scalar(1, _U8), message.scalar(3, _I64)
        if not 0 <= size <= len(data) - body:
            raise ValueError(f"a body of {size} bytes at byte {body}")
        if kind == _RECORDS:
            yield _record_batch(data, message.table(2), body)
        elif kind != _SCHEMA:
            raise ValueError("dictionaries" if kind == _DICTIONARY else f"a message of kind {kind}")
        position = body + size


def _record_batch(data: bytes, batch: "_Table", body: int) -> tuple[int, int]:
    rows, start, count = batch.scalar(0, _I64), *batch.vector(2)
    if count > 1024:
        raise ValueError(f"{count} buffers")
    places = struct.unpack_from(f"<{2 * count}q", data, start)
    compressed = batch.has(3)
    total = 0
    for offset, size in zip(places[::2], places[1::2], strict=True):
        if size <= 0:
            continue
        stated = _I64.unpack_from(data, body + offset)[0] if compressed and size >= 8 and offset >= 0 else -1
        if stated < -1:
            raise ValueError(f"a buffer of {stated} bytes before compression")
        total += size if stated == -1 else stated
    return rows, total


class _Table:
    """A FlatBuffers table: fields by number, absent ones read as 0."""

    __slots__ = ("_at", "_data", "_fields")

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        vtable = at - _I32.unpack_from(data, at)[0]
        if vtable < 0:
            raise ValueError(f"a table at byte {vtable}")
        size = _U16.unpack_from(data, vtable)[0]
        self._fields = struct.unpack_from(f"<{max(0, size - 4) // 2}H", data, vtable + 4)

    def has(self, field: int) -> bool:
        return field < len(self._fields) and self._fields[field] != 0

    def scalar(self, field: int, form: struct.Struct) -> int:
        return int(form.unpack_from(self._data, self._at + self._fields[field])[0]) if self.has(field) else 0

    def _target(self, field: int) -> int:
        if not self.has(field):
            raise ValueError(f"field {field} is missing")
        place: int = self._at + self._fields[field]
        ahead: int = _U32.unpack_from(self._data, place)[0]
        return place + ahead

    def table(self, field: int) -> "_Table":
        return _Table(self._data, self._target(field))

    def vector(self, field: int) -> tuple[int, int]:
        """(where its elements begin, how many there are)."""
        start = self._target(field)
        count: int = _U32.unpack_from(self._data, start)[0]
        return start + 4, count
