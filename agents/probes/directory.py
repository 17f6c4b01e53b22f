"""Where hosts are probed: each says so on a compacted topic, signed with the key of the probes, and all read it.

So no coordinator is needed to find peers, and who may write to the log but has no key cannot send a fleet's probes to
an address of their choice.
"""

import hashlib
import hmac
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from fleetscope.agents.probes.roster import MOST, Peer, Roster, parse_address
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.identity import host_id
from fleetscope.transport.log import Message

TOLD_EVERY_S = 1800.0
FORGOTTEN_S = 3 * TOLD_EVERY_S
"""A host that was not heard of for so long is gone."""
HOSTS_AN_ADDRESS = 16
"""Agents behind one IP address, at ports of their own."""
_TAG_BYTES = 16
_PERSON = b"fleetscope-peers"
_TEXT = 256


def _tag(said: wire.ProbeAddress, key: bytes) -> bytes:
    parts = (said.cluster, said.host, said.address, said.group, str(said.at_ns))
    body = b"".join(len(part).to_bytes(4) + part for part in (text.encode() for text in parts))
    return hashlib.blake2b(body, key=key, digest_size=_TAG_BYTES, person=_PERSON).digest()


def signed(said: wire.ProbeAddress, key: bytes) -> wire.ProbeAddress:
    """The same with its tag."""
    made = wire.ProbeAddress()
    made.CopyFrom(said)
    made.tag = _tag(said, key)
    return made


class Directory:
    """What the topic said of one cluster. Safe from any thread."""

    def __init__(self, cluster: str, keys: Callable[[], Sequence[bytes]]) -> None:
        self._cluster = cluster
        self._keys = keys
        self._lock = threading.Lock()
        self._heard: dict[str, tuple[Peer, float, int]] = {}
        self.refused: Counter[str] = Counter()

    def take(self, message: Message) -> bool:
        """True if it changed something. What is not believed is counted in `refused`."""
        if message.unreadable is not None:
            return False
        if message.tombstone:
            with self._lock:
                return self._heard.pop((message.key or b"").decode("utf-8", "replace"), None) is not None
        try:
            said = wire.ProbeAddress.FromString(message.value)
        except DecodeError:
            return self._refuse("malformed")
        if said.cluster != self._cluster:
            return False
        if not any(hmac.compare_digest(said.tag, _tag(said, key)) for key in self._keys()):
            return self._refuse("unauthenticated")
        try:
            address = parse_address(said.address)
        except ConfigInvalid:
            return self._refuse("malformed")
        if not said.host or max(len(said.host), len(said.group)) > _TEXT or not address[1]:
            return self._refuse("malformed")
        peer = Peer(host_id(said.cluster, said.host), said.host, address, said.group)
        with self._lock:
            before = self._heard.pop(said.host, None)
            if before is not None and said.at_ns < before[2] and before[0].address != address:
                self._heard[said.host] = before
                return self._refuse("older")
            self._heard[said.host] = (peer, time.monotonic(), said.at_ns)
            if len(self._heard) > MOST:
                del self._heard[next(iter(self._heard))]
            return before is None or before[0] != peer

    def _refuse(self, why: str) -> bool:
        self.refused[why] += 1
        return False

    def roster(self, known: Sequence[Peer] = ()) -> Roster:
        """Those of the configuration and those heard of lately."""
        latest_s = time.monotonic() - FORGOTTEN_S
        with self._lock:
            heard = [peer for peer, at_s, _ in self._heard.values() if at_s >= latest_s]
        count: Counter[str] = Counter()
        taken = list(known)
        for peer in heard:
            count[peer.address[0]] += 1
            if count[peer.address[0]] <= HOSTS_AN_ADDRESS:
                taken.append(peer)
        return Roster(taken)
