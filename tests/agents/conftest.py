"""XSpaces written field by field."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest


def _varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


class PlaneWriter:
    """An XPlane from dicts; field numbers of tsl/profiler/protobuf/xplane.proto."""

    def __init__(self, name: str) -> None:
        self._out = _field(2, name)
        self._stats: dict[str, int] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}

    def _stat(self, name: str, value: int | str | bytes) -> bytes:
        id_ = self._stats.setdefault(name, len(self._stats) + 1)
        kind = 4 if isinstance(value, int) else 5 if isinstance(value, str) else 6
        return _field(1, id_) + _field(kind, value)

    def stats(self, **stats: int | str | bytes) -> "PlaneWriter":
        for name, value in stats.items():
            self._out += _field(6, self._stat(name, value))
        return self

    def kind(self, name: str, id_: int | None = None, display: str = "", **stats: int | str | bytes) -> int:
        """Id of an event metadata; `Hlo_Proto` stands for the stat "Hlo Proto"."""
        key = (name, display, *sorted(stats.items()))
        if key not in self._kinds:
            self._kinds[key] = len(self._kinds) + 1 if id_ is None else id_
            value = _field(2, name) + (_field(4, display) if display else b"")
            for stat, held in stats.items():
                value += _field(5, self._stat(stat.replace("Hlo_Proto", "Hlo Proto"), held))
            self._out += _field(4, _field(1, self._kinds[key]) + _field(2, value))
        return self._kinds[key]

    def line(
        self, name: str, events: Sequence[Mapping[str, Any]], id_: int = 0, timestamp_ns: int = 0
    ) -> "PlaneWriter":
        """Events have `name` (or `kind`), `at`, `dur` in ps; every other key is a stat of the event."""
        out = _field(1, id_) + _field(2, name) + _field(3, timestamp_ns)
        for event in events:
            kind = event["kind"] if "kind" in event else self.kind(event["name"])
            data = _field(1, kind) + _field(2, event.get("at", 0)) + _field(3, event.get("dur", 0))
            for stat, value in event.items():
                if stat not in ("name", "kind", "at", "dur"):
                    data += _field(4, self._stat(stat, value))
            out += _field(4, data)
        self._out += _field(3, out)
        return self

    def bytes(self) -> bytes:
        names = b"".join(_field(5, _field(1, id_) + _field(2, _field(2, name))) for name, id_ in self._stats.items())
        return self._out + names


@pytest.fixture(scope="session")
def plane() -> type[PlaneWriter]:
    return PlaneWriter


@pytest.fixture(scope="session")
def xspace_bytes() -> Callable[..., bytes]:
    """``xspace_bytes(plane, ..., start_ns=..., hostname=...)``: a serialised XSpace."""

    def write(
        *planes: PlaneWriter, start_ns: int | None = 10**18, stop_ns: int | None = None, hostname: str = ""
    ) -> bytes:
        every = list(planes)
        if start_ns is not None:
            times = {"profile_start_time": start_ns} | ({"profile_stop_time": stop_ns} if stop_ns else {})
            every.append(PlaneWriter("Task Environment").stats(**times))
        out = b"".join(_field(1, one.bytes()) for one in every)
        return out + (_field(4, hostname) if hostname else b"")

    return write
