"""One record of a segment file: bytes <-> parts. Layout: docs/format/embedded-log.md.

Two checksums, because they answer different questions: the header's says whether the lengths may be trusted (so that a
damaged body costs exactly one record and the scan goes on), the body's whether the content may. The header's is seeded
with the segment's salt: log bytes carried *inside* a value are not taken for records when a scan looks for its footing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from fleetscope.transport.log import Headers

HEADER = struct.Struct("<IIIHHQqIII")
HEADER_BYTES = HEADER.size
MAGIC = 0x31525346
MAGIC_BYTES = b"FSR1"
TOMBSTONE = 1

_CRC_FROM = 8
_NAME = struct.Struct("<H")
_VALUE = struct.Struct("<I")

Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class RecordHeader:
    offset: int
    timestamp_ms: int
    attributes: int
    body_crc: int
    key_bytes: int
    headers_bytes: int
    value_bytes: int

    @property
    def size_bytes(self) -> int:
        """Of the whole record, header included."""
        return HEADER_BYTES + self.key_bytes + self.headers_bytes + self.value_bytes


def encode_headers(headers: Headers) -> bytes:
    """ValueError if a name is longer than 65 535 bytes."""
    parts: list[bytes] = []
    for name, value in headers:
        raw = name.encode()
        if len(raw) > 0xFFFF:
            raise ValueError(f"header name of {len(raw)} bytes")
        parts += (_NAME.pack(len(raw)), raw, _VALUE.pack(len(value)), value)
    return b"".join(parts)


def decode_headers(blob: Buffer) -> Headers:
    """ValueError if the bytes are no header list."""
    out: list[tuple[str, bytes]] = []
    at, end = 0, len(blob)
    while at < end:
        try:
            (name_bytes,) = _NAME.unpack_from(blob, at)
            name = bytes(blob[at + 2 : at + 2 + name_bytes]).decode()
            at += 2 + name_bytes
            (value_bytes,) = _VALUE.unpack_from(blob, at)
        except struct.error as error:
            raise ValueError("header list ends inside an entry") from error
        at += 4
        if at + value_bytes > end:
            raise ValueError("header list ends inside a value")
        out.append((name, bytes(blob[at : at + value_bytes])))
        at += value_bytes
    return tuple(out)


def encode_record(
    offset: int, timestamp_ms: int, key: bytes, headers: bytes, value: bytes | None, salt: int
) -> Sequence[bytes]:
    """The record as a list of buffers to be written one after the other (values are never copied)."""
    body = value or b""
    body_crc = crc32c(body, crc32c(headers, crc32c(key)))
    attributes = TOMBSTONE if value is None else 0
    fields = (body_crc, attributes, 0, offset, timestamp_ms, len(key), len(headers), len(body))
    unsigned = HEADER.pack(MAGIC, 0, *fields)
    header = HEADER.pack(MAGIC, crc32c(unsigned[_CRC_FROM:], salt), *fields)
    return [header, key, headers, body]


def decode_header(buffer: Buffer, at: int, salt: int) -> RecordHeader | None:
    """The header at `at`, or None if those bytes are none. The buffer must hold HEADER_BYTES from there."""
    magic, header_crc, body_crc, attributes, _, offset, timestamp_ms, key_bytes, headers_bytes, value_bytes = (
        HEADER.unpack_from(buffer, at)
    )
    if magic != MAGIC or crc32c(buffer[at + _CRC_FROM : at + HEADER_BYTES], salt) != header_crc:
        return None
    return RecordHeader(offset, timestamp_ms, attributes, body_crc, key_bytes, headers_bytes, value_bytes)


def decode_body(header: RecordHeader, body: memoryview) -> tuple[bytes, Headers, bytes] | None:
    """(key, headers, value), or None if the body is not the one that was written."""
    if crc32c(body) != header.body_crc:
        return None
    headers_at = header.key_bytes
    value_at = headers_at + header.headers_bytes
    try:
        headers = decode_headers(body[headers_at:value_at]) if header.headers_bytes else ()
    except ValueError:
        return None
    return bytes(body[:headers_at]), headers, bytes(body[value_at:])
