"""A probe on the wire: one size for request and reply, so that no answer is longer than what asked for it.

Big-endian, 136 bytes: magic "FSPB", version, kind, stamps (16 bits), sender, receiver, session, cookie, sequence,
received, sent, before_sequence, before_sent, resets (32 bits), boot id (36 bytes), tag. docs/format/probes.md explains
them.
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAGIC, VERSION = b"FSPB", 1
_BODY = struct.Struct("!4sBBHqqQQQqqQqI36s")
TAG_BYTES = 16
SIZE = _BODY.size + TAG_BYTES
_PERSON = b"fleetscope-probe"


class Kind(IntEnum):
    """What a probe is. A greeting answers a request that does not know the responder's cookie: it has no times."""

    REQUEST = 1
    REPLY = 2
    GREETING = 3


class Stamp(IntFlag):
    """Which of an exchange's four times the kernel took; the others were taken by the agent."""

    SENT = 1 << 0
    RECEIVED = 1 << 1
    ANSWERED = 1 << 2
    RETURNED = 1 << 3


NONE = Stamp(0)
ALL_STAMPS = Stamp.SENT | Stamp.RECEIVED | Stamp.ANSWERED | Stamp.RETURNED


_KINDS = {int(kind): kind for kind in Kind}
_STAMPS = [Stamp(bits) for bits in range(16)]


@dataclass(slots=True)
class Packet:
    """The fields in the order of the wire.

    `session` is the requester's life and `cookie` the responder's, both random. `received` and `sent`: ns of the
    sender's MONOTONIC_RAW, whose epoch is its `boot` id and `resets`. `before_sent`: when the kernel sent the reply to
    request `before_sequence`, which that reply itself could not know.
    """

    kind: Kind
    stamps: Stamp = NONE
    sender: int = 0
    receiver: int = 0
    session: int = 0
    cookie: int = 0
    sequence: int = 0
    received: int = 0
    sent: int = 0
    before_sequence: int = 0
    before_sent: int = 0
    resets: int = 0
    boot: bytes = b""

    def encode(self, key: bytes) -> bytes:
        """Signed with `key`."""
        # Field by field: dataclasses.astuple copies deeply, at 20 us a packet.
        body = _BODY.pack(
            MAGIC, VERSION, self.kind, self.stamps, self.sender, self.receiver, self.session, self.cookie,
            self.sequence, self.received, self.sent, self.before_sequence, self.before_sent, self.resets, self.boot,
        )  # fmt: skip
        return body + _tag(body, key)


def _tag(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=TAG_BYTES, person=_PERSON).digest()


def well_formed(data: bytes) -> bool:
    """Of the size, magic, version and a kind that there is: what can be told before anything is computed."""
    return len(data) == SIZE and data[:5] == MAGIC + bytes((VERSION,)) and Kind.REQUEST <= data[5] <= Kind.GREETING


def decode(data: bytes, keys: Sequence[bytes]) -> Packet | None:
    """A well-formed probe that one of `keys` signed, else None."""
    body, tag = data[: _BODY.size], data[_BODY.size :]
    if not any(hmac.compare_digest(tag, _tag(body, key)) for key in keys):
        return None
    _, _, kind, stamps, *rest = _BODY.unpack(body)
    rest[-1] = rest[-1].rstrip(b"\0")
    return Packet(_KINDS[kind], _STAMPS[stamps & 15], *rest)
