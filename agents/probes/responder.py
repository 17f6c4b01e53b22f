"""Answers to requests of known peers. A pure state machine: bytes and times in, bytes and reasons out.

A replayed request is not answered with times, whatever life it was captured in: requests carry the responder's random
cookie, which is another in each life, and within a life a window of sequence numbers for each session of each peer.
"""

import secrets
from dataclasses import dataclass, field

from fleetscope.agents.probes.packet import NONE, Kind, Packet, Stamp
from fleetscope.agents.probes.roster import Peer

WINDOW = 64
"""Requests may overtake each other by so many."""
SESSIONS = 8
"""Lives of one peer remembered. One more makes a new cookie, so that no forgotten one can be replayed."""


@dataclass(slots=True)
class Window:
    """Sequence numbers seen of one session: the highest, and a bit for each of the WINDOW below it."""

    highest: int = 0
    bits: int = 0

    def fresh(self, sequence: int) -> bool:
        """True once for each number that is not too old."""
        ahead = sequence - self.highest
        if ahead > 0:
            self.bits = (self.bits << ahead | 1) & (1 << WINDOW) - 1 if ahead < WINDOW else 1
            self.highest = sequence
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self.bits & bit:
            return False
        self.bits |= bit
        return True


@dataclass(slots=True)
class _Known:
    sessions: dict[int, Window] = field(default_factory=dict)
    answered: tuple[int, int] = (0, 0)
    """(sequence, kernel's time of sending) of an earlier reply."""


@dataclass(frozen=True, slots=True)
class Me:
    """What a host says of itself in every packet."""

    id: int
    boot: bytes
    resets: int = 0


class Responder:
    """One life of a responder."""

    def __init__(self) -> None:
        self.cookie = secrets.randbits(63) | 1
        self._peers: dict[int, _Known] = {}

    def keep(self, ids: frozenset[int]) -> None:
        """Forget all other peers; with them goes the cookie, for the sake of those who come back."""
        gone = [peer for peer in self._peers if peer not in ids]
        if gone:
            self._renew()
        for peer in gone:
            del self._peers[peer]

    def _renew(self) -> None:
        self.cookie = secrets.randbits(63) | 1
        for known in self._peers.values():
            known.sessions.clear()

    def answer(self, request: Packet, peer: Peer, me: Me, received: int, by_kernel: bool) -> Packet | str:
        """The reply, without the time at which it is sent; or why there is none.

        `received`: MONOTONIC_RAW ns, not earlier than the request arrived.
        """
        if request.kind is not Kind.REQUEST:
            return "unexpected"
        if request.sender != peer.id or request.receiver != me.id or not request.session:
            return "misdirected"
        answer = Packet(
            Kind.GREETING,
            sender=me.id,
            receiver=peer.id,
            session=request.session,
            cookie=self.cookie,
            sequence=request.sequence,
            resets=me.resets,
            boot=me.boot,
        )
        if request.cookie != self.cookie:
            return answer
        known = self._peers.setdefault(peer.id, _Known())
        window = known.sessions.get(request.session)
        if window is None:
            if len(known.sessions) >= SESSIONS:
                self._renew()
                answer.cookie = self.cookie
                return answer
            window = known.sessions[request.session] = Window()
        if not window.fresh(request.sequence):
            return "replayed"
        before, known.answered = known.answered, (0, 0)
        answer.kind, answer.stamps = Kind.REPLY, Stamp.RECEIVED if by_kernel else NONE
        answer.received = received
        answer.before_sequence, answer.before_sent = before
        return answer

    def sent(self, peer: int, sequence: int, at: int) -> None:
        """The kernel sent the reply to a request at `at` (MONOTONIC_RAW ns, not later than it left)."""
        known = self._peers.get(peer)
        if known is not None:
            known.answered = (sequence, at)
