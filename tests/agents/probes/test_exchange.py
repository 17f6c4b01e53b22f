"""Requester and responder over a network that a test makes: what is measured encloses the truth, whatever is lost,
repeated, overtaken or replayed."""

import heapq
import random
from dataclasses import dataclass, field, replace

import pytest

from fleetscope.agents.probes.packet import ALL_STAMPS, SIZE, Kind, Packet, Stamp, decode, well_formed
from fleetscope.agents.probes.requester import Exchange, Requester
from fleetscope.agents.probes.responder import Me, Responder, Window
from fleetscope.agents.probes.roster import Peer

KEY = bytes(range(32))
A, B = Peer(11, "a", ("127.0.0.1", 1)), Peer(22, "b", ("127.0.0.1", 2))
ME_A, ME_B = Me(11, b"boot-a"), Me(22, b"boot-b")
MS = 1_000_000


@dataclass
class Wire:
    """Two hosts. True time is a's clock; b's runs `ppm` faster and is `offset` ahead at 0."""

    seed: int
    offset: int = 123_456_789
    ppm: float = 0.0
    loss: float = 0.0
    twice: float = 0.0
    there_us: float = 30.0
    back_us: float = 30.0
    requester: Requester = field(default_factory=lambda: Requester(500 * MS))
    responder: Responder = field(default_factory=Responder)
    exchanges: list[Exchange] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    replies: list[Packet] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[int, int, str, Packet]] = []
        self._count = 0

    def b(self, true: int) -> int:
        return true + self.offset + int(true * self.ppm / 1e6)

    def _after(self, true: int, what: str, packet: Packet, mean_us: float) -> None:
        if self._random.random() < self.loss:
            return
        for _ in range(1 + (self._random.random() < self.twice)):
            tail = self._random.expovariate(1 / 10_000) + (self._random.random() < 0.05) * 5 * MS
            self._count += 1
            heapq.heappush(self._events, (true + int(mean_us * 1000 + tail), self._count, what, packet))

    def run(self, probes: int) -> None:
        for turn in range(probes):
            true = turn * 500 * MS + 1
            self._until(true)
            self.exchanges += self.requester.overdue(true)
            packet = self.requester.ask(B, ME_A, true)
            self.requester.departed(packet.sequence, true, True)
            self._after(true, "request", packet, self.there_us)
        self._until((probes + 10) * 500 * MS)
        self.exchanges += self.requester.overdue((probes + 10) * 500 * MS)

    def _until(self, end: int) -> None:
        while self._events and self._events[0][0] <= end:
            true, _, what, packet = heapq.heappop(self._events)
            if what == "request":
                answer = self.responder.answer(packet, A, ME_B, self.b(true), True)
                if isinstance(answer, str):
                    self.refused.append(answer)
                    continue
                # Its own stamp is 20 us early, as a busy host's is; the kernel's is right.
                answer = replace(answer, sent=self.b(true)) if answer.kind is Kind.REPLY else answer
                left = true + 20_000
                if answer.kind is Kind.REPLY:
                    self.responder.sent(A.id, answer.sequence, self.b(left))
                self._after(left, "reply", answer, self.back_us)
            else:
                self.replies.append(packet)
                got = self.requester.take(packet, B, ME_A, true, True)
                if isinstance(got, str):
                    self.refused.append(got)
                else:
                    self.exchanges += got


@pytest.mark.property
@pytest.mark.parametrize("loss", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("asymmetry_us", [0.0, 100.0])
def test_every_exchange_bounds_the_true_offset(loss: float, asymmetry_us: float) -> None:
    wire = Wire(seed=7, ppm=40.0, loss=loss, twice=0.2, there_us=30.0 + asymmetry_us)
    wire.run(400)
    assert len(wire.exchanges) > 400 * (1 - loss) ** 2 * 0.8
    for one in wire.exchanges:
        # Each bound holds at its own moment: the upper when the request was sent, the lower when the reply came.
        assert one.received - one.sent >= wire.b(one.sent) - one.sent
        assert one.answered - one.returned <= wire.b(one.returned) - one.returned
        assert one.boot == "boot-b"
    tightest = min(wire.exchanges, key=lambda e: (e.returned - e.sent) - (e.answered - e.received))
    half = ((tightest.returned - tightest.sent) - (tightest.answered - tightest.received)) / 2
    middle = (tightest.received - tightest.sent + tightest.answered - tightest.returned) / 2
    assert abs(middle - (wire.b(tightest.sent) - tightest.sent)) <= half + 5
    kernel = [one for one in wire.exchanges if one.stamps == ALL_STAMPS]
    assert len(kernel) > len(wire.exchanges) * 0.5
    if loss:
        assert wire.requester.lost > 0
    assert {"replayed", "unasked"} & set(wire.refused)  # the repeated ones


@pytest.mark.unit
def test_the_kernels_time_of_a_reply_comes_with_the_next_one_and_the_peers_own_where_that_is_lost() -> None:
    wire = Wire(seed=1)
    wire.run(3)
    first, last = wire.exchanges[0], wire.exchanges[-1]
    assert first.stamps == ALL_STAMPS
    assert last.stamps == ALL_STAMPS & ~Stamp.ANSWERED
    assert first.answered - first.received == 20_000
    assert last.answered == last.received


@pytest.mark.unit
def test_the_first_request_learns_the_cookie_and_is_no_exchange() -> None:
    wire = Wire(seed=1)
    wire.run(2)
    assert [packet.kind for packet in wire.replies] == [Kind.GREETING, Kind.REPLY]
    assert wire.replies[0].received == wire.replies[0].sent == 0
    assert len(wire.exchanges) == 1


@pytest.mark.fault
def test_a_request_of_an_earlier_life_of_the_responder_is_not_answered_with_times() -> None:
    requester, before = Requester(MS), Responder()
    greeting = before.answer(requester.ask(B, ME_A, 1), A, ME_B, 5, True)
    assert isinstance(greeting, Packet)
    requester.take(greeting, B, ME_A, 9, True)
    captured = requester.ask(B, ME_A, 10)
    reply = before.answer(captured, A, ME_B, 15, True)
    assert isinstance(reply, Packet)
    assert reply.kind is Kind.REPLY
    assert before.answer(captured, A, ME_B, 15, True) == "replayed"
    again = Responder().answer(captured, A, ME_B, 15, True)
    assert isinstance(again, Packet)
    assert again.kind is Kind.GREETING


@pytest.mark.fault
def test_sessions_that_were_forgotten_cannot_be_replayed() -> None:
    responder, captured = Responder(), []
    for _ in range(12):
        requester = Requester(MS)
        for _ in range(3):
            answer = responder.answer(request := requester.ask(B, ME_A, 1), A, ME_B, 5, True)
            assert isinstance(answer, Packet)
            requester.take(answer, B, ME_A, 9, True)
            if answer.kind is Kind.REPLY:
                captured.append(request)
    assert len(captured) > 12
    for request in captured:
        answer = responder.answer(request, A, ME_B, 5, True)
        assert answer == "replayed" or (isinstance(answer, Packet) and answer.kind is Kind.GREETING)


@pytest.mark.property
def test_a_window_takes_each_number_once_in_any_order() -> None:
    order = random.Random(3)
    numbers = [n + order.randrange(-20, 21) for n in range(100, 1100)]
    window, taken = Window(), []
    for number in numbers:
        if window.fresh(number):
            taken.append(number)
    assert len(taken) == len(set(taken)) == len(set(numbers))
    assert not window.fresh(window.highest - 64)
    assert not window.fresh(window.highest)


@pytest.mark.fault
def test_replies_of_other_peers_lives_and_times_are_refused() -> None:
    requester, responder = Requester(MS), Responder()
    greeting = responder.answer(requester.ask(B, ME_A, 1), A, ME_B, 5, True)
    assert isinstance(greeting, Packet)
    requester.take(greeting, B, ME_A, 9, True)
    reply = responder.answer(requester.ask(B, ME_A, 10), A, ME_B, 15, True)
    assert isinstance(reply, Packet)
    for odd, why in (
        (replace(reply, sender=33), "misdirected"),
        (replace(reply, receiver=33), "misdirected"),
        (replace(reply, session=reply.session ^ 1), "misdirected"),
        (replace(reply, sequence=reply.sequence + 9), "unasked"),
        (replace(reply, kind=Kind.REQUEST), "unexpected"),
    ):
        assert requester.take(odd, B, ME_A, 20, True) == why
    # A time that cannot be would have the whole record of this host refused.
    impossible = (
        {"received": -1}, {"sent": 1 << 62}, {"received": 16, "sent": 15}, {"boot": b""}, {"boot": b"\xff"},
    )  # fmt: skip
    for odd_times in impossible:
        request = requester.ask(B, ME_A, 10)
        reply = responder.answer(request, A, ME_B, 15, True)
        assert isinstance(reply, Packet)
        assert requester.take(replace(reply, **{"sent": 15, **odd_times}), B, ME_A, 20, True) == "impossible"
        assert requester.take(replace(reply, sent=15), B, ME_A, 20, True) == "unasked"
    requester.ask(B, ME_A, 1 << 50)
    assert list(requester.overdue(1 << 40)) == []


@pytest.mark.unit
def test_a_peer_that_stays_silent_is_asked_less_often_until_it_answers() -> None:
    requester = Requester(MS)
    sent = 0
    for turn in range(308):
        if requester.due(B):
            requester.ask(B, ME_A, turn * MS)
            sent += 1
    assert sent == 8 + 10
    request = requester.ask(B, ME_A, 309 * MS)
    answer = Responder().answer(request, A, ME_B, 5, True)
    assert isinstance(answer, Packet)
    requester.take(answer, B, ME_A, 310 * MS, True)
    assert all(requester.due(B) for _ in range(8))


@pytest.mark.fault
def test_no_changed_bit_and_no_other_key_is_believed_and_nothing_is_longer_than_a_request() -> None:
    packet = Packet(Kind.REPLY, ALL_STAMPS, 1, -2, 3, 4, 5, 6, 7, 8, 9, 10, b"boot")
    data = packet.encode(KEY)
    assert len(data) == SIZE == len(Packet(Kind.REQUEST).encode(KEY))
    assert decode(data, (KEY,)) == packet
    assert decode(data, (bytes(32), KEY)) == packet
    assert decode(data, (bytes(32),)) is None
    for bit in range(8 * SIZE):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert not well_formed(bytes(changed)) or decode(bytes(changed), (KEY,)) is None
    for length in (0, 1, SIZE - 1, SIZE + 1):
        assert not well_formed((data * 2)[:length])
