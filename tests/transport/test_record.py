"""The record codec against docs/format/embedded-log.md, read here by other means."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.transport.embedded.record import (
    HEADER_BYTES,
    decode_body,
    decode_header,
    decode_headers,
    encode_headers,
    encode_record,
)

HEADERS = st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=40)), max_size=5).map(tuple)


def crc32c_by_hand(data: bytes, start: int = 0) -> int:
    """Castagnoli CRC bit by bit (RFC 3720 appendix B.4: reflected polynomial 0x82F63B78)."""
    crc = start ^ 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def encoded(**parts: object) -> bytes:
    given = {"offset": 7, "timestamp_ms": 1_700_000_000_123, "key": b"host", "headers": b"", "value": b"x", "salt": 99}
    return b"".join(encode_record(**{**given, **parts}))


@pytest.mark.unit
def test_crc_by_hand_is_crc32c() -> None:
    assert crc32c_by_hand(b"123456789") == 0xE3069283


@pytest.mark.golden
def test_the_bytes_are_those_of_the_format_page() -> None:
    headers = b"\x01\x00a\x02\x00\x00\x00hv"
    raw = encoded(key=b"host", headers=encode_headers((("a", b"hv"),)), value=b"value")
    assert raw[0:4] == b"FSR1"
    assert struct.unpack_from("<I", raw, 4)[0] == crc32c_by_hand(raw[8:44], 99)
    assert struct.unpack_from("<I", raw, 8)[0] == crc32c_by_hand(b"host" + headers + b"value")
    assert struct.unpack_from("<HH", raw, 12) == (0, 0)
    assert struct.unpack_from("<Qq", raw, 16) == (7, 1_700_000_000_123)
    assert struct.unpack_from("<III", raw, 32) == (4, len(headers), 5)
    assert raw[44:] == b"host" + headers + b"value"
    assert HEADER_BYTES == 44


@pytest.mark.unit
def test_a_tombstone_is_not_an_empty_value() -> None:
    empty = decode_header(encoded(value=b""), 0, 99)
    tombstone = decode_header(encoded(value=None), 0, 99)
    assert empty is not None
    assert tombstone is not None
    assert (empty.attributes, tombstone.attributes) == (0, 1)


@pytest.mark.property
@given(
    offset=st.integers(0, 2**63 - 1),
    timestamp_ms=st.integers(-(2**63), 2**63 - 1),
    key=st.binary(max_size=100),
    headers=HEADERS,
    value=st.one_of(st.none(), st.binary(max_size=300)),
    salt=st.integers(0, 2**32 - 1),
    before=st.binary(max_size=20),
)
def test_what_goes_in_comes_out(offset, timestamp_ms, key, headers, value, salt, before) -> None:
    raw = before + b"".join(encode_record(offset, timestamp_ms, key, encode_headers(headers), value, salt))
    header = decode_header(raw, len(before), salt)
    assert header is not None
    assert (header.offset, header.timestamp_ms) == (offset, timestamp_ms)
    assert header.size_bytes == len(raw) - len(before)
    body = memoryview(raw)[len(before) + HEADER_BYTES :]
    assert decode_body(header, body) == (key, headers, value or b"")


@pytest.mark.property
@given(st.integers(0, 52 * 8 - 1))
def test_no_flipped_bit_passes(bit: int) -> None:
    raw = bytearray(encoded(value=b"val!"))
    assert len(raw) == 52
    raw[bit // 8] ^= 1 << bit % 8
    header = decode_header(bytes(raw), 0, 99)
    if bit // 8 < HEADER_BYTES:
        assert header is None
    else:
        assert header is not None
        assert decode_body(header, memoryview(raw)[HEADER_BYTES:]) is None


@pytest.mark.unit
def test_a_record_of_another_segment_is_none() -> None:
    assert decode_header(encoded(), 0, 98) is None


@pytest.mark.property
@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_list_or_a_value_error(blob: bytes) -> None:
    try:
        headers = decode_headers(blob)
    except ValueError:
        return
    assert encode_headers(headers) == blob


@pytest.mark.unit
def test_header_names_have_a_limit() -> None:
    with pytest.raises(ValueError, match="65536"):
        encode_headers((("n" * 65536, b""),))
