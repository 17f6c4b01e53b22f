"""Text from outside (names, labels, commands) made safe for protobuf and Parquet without losing which text it was."""

import xxhash

TEXT_BYTES = 1024
"""Longest name that travels. One 1 MiB name an event would fill a spool; kernel and einsum names reach ~600 bytes."""

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), 0x7F)}


def clean_text(text: str | bytes, limit: int = TEXT_BYTES) -> str:
    """Valid UTF-8 of at most `limit` bytes: bad bytes and control characters as \\xNN; cut with a hash.

    Two long names that differ only beyond the cut therefore stay two names.
    """
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    head = raw[:limit].decode("utf-8", "backslashreplace" if len(raw) <= limit else "ignore")
    clean = head.translate(_CONTROL)
    data = clean.encode()
    if len(raw) <= limit and len(data) <= limit:
        return clean
    mark = f"...#{xxhash.xxh3_64_hexdigest(raw)}"
    return data[: limit - len(mark)].decode("utf-8", "ignore") + mark
