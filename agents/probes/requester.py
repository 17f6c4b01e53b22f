"""Requests to peers and what their replies make of them. A pure state machine, as the responder is.

An exchange is complete with the reply. What the peer's kernel says of the reply's sending comes with the next reply, so
an exchange waits for that as long as it may, and has the peer's own time of just before the sending otherwise.
"""

import secrets
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fleetscope.agents.probes.packet import NONE, Kind, Packet, Stamp
from fleetscope.agents.probes.responder import Me
from fleetscope.agents.probes.roster import Peer

LOST_NS = 2_000_000_000
"""A reply that took longer is not worth having: its bound is a second wide."""
KERNEL_WAIT_PERIODS = 2.5
PENDING = 4096
SILENT, SLOW = 8, 30
"""A peer that left so many requests without an answer is asked at every so-manieth turn only, until it answers."""
LIMIT = 1 << 62
"""Times on the wire beyond it are no times."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Four times in ns: sent and returned of this host's MONOTONIC_RAW, received and answered of the peer's.

    Rounded outward, whoever took them: `sent` and `answered` are not later, `received` and `returned` not earlier than
    it happened. So answered - returned <= offset of the peer <= received - sent, for any asymmetry of the path.
    """

    peer: Peer
    boot: str
    resets: int
    sent: int
    received: int
    answered: int
    returned: int
    stamps: Stamp


@dataclass(slots=True)
class _Asked:
    peer: Peer
    sent: int
    stamps: Stamp = NONE
    exchange: Exchange | None = None


class Requester:
    """One life of a requester."""

    def __init__(self, period_ns: int) -> None:
        self.session = secrets.randbits(63) | 1
        self._period_ns = period_ns
        self._sequence = 0
        self._asked: dict[int, _Asked] = {}
        self._cookies: dict[int, int] = {}
        self._silent: Counter[int] = Counter()
        """By peer: requests since its last answer."""
        self._turns: Counter[int] = Counter()
        self.lost = 0

    def keep(self, ids: frozenset[int]) -> None:
        """Forget what is known of all other peers."""
        for kept in (self._cookies, self._silent, self._turns):
            for peer in [peer for peer in kept if peer not in ids]:
                del kept[peer]

    def due(self, peer: Peer) -> bool:
        """Whether this turn's request is to be sent: a peer that does not answer is asked less often."""
        self._turns[peer.id] += 1
        return self._silent[peer.id] < SILENT or self._turns[peer.id] % SLOW == 0

    def ask(self, peer: Peer, me: Me, sent: int) -> Packet:
        """The request. `sent`: MONOTONIC_RAW ns now, before it is signed and sent."""
        self._sequence += 1
        if len(self._asked) >= PENDING:
            del self._asked[next(iter(self._asked))]
        self._asked[self._sequence] = _Asked(peer, sent)
        self._silent[peer.id] += 1
        return Packet(
            Kind.REQUEST,
            sender=me.id,
            receiver=peer.id,
            session=self.session,
            cookie=self._cookies.get(peer.id, 0),
            sequence=self._sequence,
            boot=me.boot,
            resets=me.resets,
        )

    def departed(self, sequence: int, at: int, by_kernel: bool) -> None:
        """A better time of a request's sending than that of `ask`: just before it, or the kernel's."""
        asked = self._asked.get(sequence)
        if asked is not None and asked.exchange is None:
            asked.sent = at
            asked.stamps = Stamp.SENT if by_kernel else NONE

    def take(self, reply: Packet, peer: Peer, me: Me, returned: int, by_kernel: bool) -> list[Exchange] | str:
        """Exchanges that a reply completes, or why it was of no use."""
        if reply.kind is Kind.REQUEST:
            return "unexpected"
        if reply.sender != peer.id or reply.receiver != me.id or reply.session != self.session:
            return "misdirected"
        asked = self._asked.get(reply.sequence)
        if asked is None or asked.peer.id != peer.id or asked.exchange is not None:
            return "unasked"
        self._silent[peer.id] = 0
        self._cookies[peer.id] = reply.cookie
        if reply.kind is Kind.GREETING:
            del self._asked[reply.sequence]
            return []
        times = (reply.received, reply.sent, reply.before_sent)
        try:
            boot = reply.boot.decode("ascii")
        except UnicodeDecodeError:
            boot = ""
        possible = all(0 <= time < LIMIT for time in times) and reply.received <= reply.sent
        if not boot or not possible or returned < asked.sent:
            del self._asked[reply.sequence]
            return "impossible"
        stamps = asked.stamps | (reply.stamps & Stamp.RECEIVED) | (Stamp.RETURNED if by_kernel else NONE)
        asked.exchange = Exchange(peer, boot, reply.resets, asked.sent, reply.received, reply.sent, returned, stamps)
        return self._told(reply)

    def _told(self, reply: Packet) -> list[Exchange]:
        """The earlier exchange whose reply's sending the peer's kernel knows by now."""
        before = self._asked.get(reply.before_sequence)
        if before is None or before.exchange is None or before.peer.id != reply.sender:
            return []
        found = before.exchange
        del self._asked[reply.before_sequence]
        same = (found.boot, found.resets) == (reply.boot.decode("ascii"), reply.resets)
        # Its own time was just before the kernel's; anything else is of another life.
        if not same or not found.answered <= reply.before_sent:
            return [found]
        return [replace(found, answered=reply.before_sent, stamps=found.stamps | Stamp.ANSWERED)]

    def overdue(self, now: int) -> Iterator[Exchange]:
        """Exchanges that waited long enough; requests without a reply are counted as lost."""
        wait = int(KERNEL_WAIT_PERIODS * self._period_ns)
        for sequence, asked in list(self._asked.items()):
            if asked.exchange is not None:
                if now - asked.exchange.returned > wait:
                    del self._asked[sequence]
                    yield asked.exchange
            elif now - asked.sent > LOST_NS:
                del self._asked[sequence]
                self.lost += 1
            elif now < asked.sent:
                del self._asked[sequence]  # the clock is another
