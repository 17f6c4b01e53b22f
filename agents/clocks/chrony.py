"""What chronyd says of its tracking, by its own monitoring protocol (candm.h, version 6). Nothing is waited for.

A request is as long as the reply, as chronyd demands. It answers over UDP on loopback by default, and over its unix
socket whoever may open that.
"""

import os
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VERSION, REQUEST, REPLY, TRACKING, TRACKING_REPLY = 6, 1, 2, 33, 5
PORT = 323
SOCKET = Path("/run/chrony/chronyd.sock")
_HEAD = struct.Struct("!BBBBHHIII")
_REPLY = struct.Struct("!BBBBHHHHHHIII")
_BODY = struct.Struct("!I16sHHHHIII9i")
"""ref_id, address, its family, padding, stratum, leap, ref time (high, low, ns), nine floats."""
SIZE = _REPLY.size + _BODY.size
PATIENCE = 4
"""Looks without an answer: a second each."""
_IPV4, _IPV6, _UNSYNCED = 1, 2, 3
_COEFFICIENT_BITS = 25


@dataclass(frozen=True, slots=True)
class Tracking:
    """Of `tracking`, in ns. `reference`: the source's address, or its name in the reference id; `leap` 3: not
    synchronized."""

    reference: str
    stratum: int
    leap: int
    last_offset_ns: int
    root_delay_ns: int
    root_dispersion_ns: int

    @property
    def synchronized(self) -> bool:
        return self.leap != _UNSYNCED and self.stratum > 0


def as_float(word: int) -> float:
    """candm.h's Float: seven bits of signed exponent, 25 of signed coefficient without a hidden bit, 2^(e - 25) c."""
    word &= 0xFFFFFFFF
    exponent, coefficient = word >> _COEFFICIENT_BITS, word & (1 << _COEFFICIENT_BITS) - 1
    exponent -= 128 * (exponent >= 64)
    coefficient -= (1 << _COEFFICIENT_BITS) * (coefficient >= 1 << _COEFFICIENT_BITS - 1)
    return float(coefficient * 2.0 ** (exponent - _COEFFICIENT_BITS))


def request(sequence: int) -> bytes:
    return _HEAD.pack(VERSION, REQUEST, 0, 0, TRACKING, 0, sequence, 0, 0).ljust(SIZE, b"\0")


def parse(data: bytes, sequence: int) -> Tracking:
    """Raises ValueError for anything but the answer to that request."""
    if len(data) < SIZE:
        raise ValueError("its answer is short")
    version, kind, _, _, command, reply, status, _, _, _, echoed, _, _ = _REPLY.unpack_from(data)
    if (version, kind, command, echoed) != (VERSION, REPLY, TRACKING, sequence):
        raise ValueError("its answer is to something else")
    if status or reply != TRACKING_REPLY:
        raise ValueError(f"it answers with status {status}")
    ref_id, address, family, _, stratum, leap, _, _, _, *floats = _BODY.unpack_from(data, _REPLY.size)
    seconds = [as_float(word) for word in floats]
    return Tracking(
        reference=_reference(ref_id, address, family),
        stratum=stratum,
        leap=leap,
        last_offset_ns=round(seconds[1] * 1e9),
        root_delay_ns=round(seconds[6] * 1e9),
        root_dispersion_ns=round(seconds[7] * 1e9),
    )


def _reference(ref_id: int, address: bytes, family: int) -> str:
    if family == _IPV4:
        return socket.inet_ntop(socket.AF_INET, address[:4])
    if family == _IPV6:
        return socket.inet_ntop(socket.AF_INET6, address)
    text = ref_id.to_bytes(4).rstrip(b"\0")
    return text.decode("ascii") if text.isalnum() else f"{ref_id:08x}"


class Chrony:
    """Asks, and looks for the answer from the next time on: `look` returns at once."""

    def __init__(self, port: int = PORT, path: Path = SOCKET) -> None:
        self._port, self._path = port, path
        self._socket: socket.socket | None = None
        self._own: str | None = None
        self._sequence = 0
        """Of the request under way; 0: none."""
        self._patience = PATIENCE

    def look(self) -> Tracking | None:
        """The answer to the last request, None before the first; asks again. Raises OSError or ValueError: nobody
        answers, or not as chronyd does."""
        try:
            opened = self._socket or self._open()
            answer = self._answer(opened)
            if answer is not None or not self._sequence:
                self._sequence, self._patience = random.getrandbits(32) | 1, PATIENCE
                opened.send(request(self._sequence))
        except (OSError, ValueError):
            self.close()
            raise
        return answer

    def _answer(self, opened: socket.socket) -> Tracking | None:
        if not self._sequence:
            return None
        try:
            data = opened.recv(4096)
        except BlockingIOError:
            self._patience -= 1
            if not self._patience:
                raise ValueError("nobody answers") from None
            return None
        return parse(data, self._sequence)

    def _open(self) -> socket.socket:
        if os.access(self._path, os.R_OK | os.W_OK):
            own = self._path.parent / f"fleetscope.{os.getpid()}.sock"
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                opened.setblocking(False)
                own.unlink(missing_ok=True)
                opened.bind(str(own))
                self._own = str(own)
                own.chmod(0o666)  # chronyd has given up root and answers to this
                opened.connect(str(self._path))
                self._socket = opened
                return opened
            except OSError:
                opened.close()
                self._unlink()
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        opened.setblocking(False)
        opened.connect(("127.0.0.1", self._port))
        self._socket = opened
        return opened

    def _unlink(self) -> None:
        if self._own is not None:
            with suppress(OSError):
                os.unlink(self._own)
            self._own = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._unlink()
        self._sequence = 0
