"""How large a serialized module is, counted along the wire format before anything is built from it.

Parsed, an instruction takes about 1 kB: a module of 10^6 of them would take the agent's memory many times over.
"""

from collections.abc import Iterator

from fleetscope.schema.errors import HloTooLarge

INSTRUCTIONS_LIMIT = 1 << 17
"""The largest module seen has ~60 000. The pass takes ~15 us an instruction, so 2 s."""
BYTES_LIMIT = 256 << 20


def check_size(data: bytes) -> None:
    """Raises HloTooLarge. Bytes that are no message count as far as they go: the parser refuses them."""
    if len(data) > BYTES_LIMIT:
        raise HloTooLarge(f"a module of {len(data)} bytes, more than {BYTES_LIMIT}")
    count = 0
    # HloProto holds the module as field 1; a module's own field 1 is its name, and no field 3 is in that.
    for start, end in (*_fields(data, 0, len(data), 3), *_nested(data)):
        for _ in _fields(data, start, end, 2):
            count += 1
            if count > INSTRUCTIONS_LIMIT:
                raise HloTooLarge(f"a module of more than {INSTRUCTIONS_LIMIT} instructions ({len(data)} bytes)")


def _nested(data: bytes) -> Iterator[tuple[int, int]]:
    for start, end in _fields(data, 0, len(data), 1):
        yield from _fields(data, start, end, 3)


def _fields(data: bytes, at: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """(begin, end) of each length-delimited field `wanted` between two bytes."""
    try:
        while at < end:
            tag = data[at]
            if tag >= 0x80:
                tag, at = varint(data, at)
            else:
                at += 1
            kind = tag & 7
            if kind == 2:
                size = data[at]
                if size >= 0x80:
                    size, at = varint(data, at)
                else:
                    at += 1
                if tag >> 3 == wanted and at + size <= end:
                    yield at, at + size
                at += size
            elif kind == 0:
                _, at = varint(data, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                return
    except IndexError:
        return


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends), of ten bytes at most. IndexError where the data end before it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80 or shift > 63:
            return value, at
