"""The probe port on loopback: real sockets, real kernel stamps, an offset put between two hosts, and attackers."""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from fleetscope.agents.clocks import HostReading
from fleetscope.agents.probes import ALL_STAMPS, Me, Peer, ProbePort, Roster
from fleetscope.agents.probes import port as port_module
from fleetscope.agents.probes.admission import SOURCE, TOTAL, Admission
from fleetscope.agents.probes.packet import SIZE, Kind, Packet
from fleetscope.agents.probes.stamps import carried_over
from fleetscope.native import recorder

KEY = bytes(range(32))
SECOND = 1_000_000_000


def shifted(offset_ns: int) -> Callable[[], HostReading]:
    """The clocks of a host whose MONOTONIC_RAW is ahead of ours."""

    def read() -> HostReading:
        before, counter, realtime, after = recorder.read_clocks("monotonic_raw")
        return HostReading(before + offset_ns, counter + offset_ns, realtime, after + offset_ns)

    return read


Make = Callable[..., ProbePort]


@pytest.fixture
def make() -> Iterator[Make]:
    """Ports that turn when a test says so."""
    made: list[ProbePort] = []

    def build(number: int, ip: str = "127.0.0.1", offset_ns: int = 0, keys: tuple[bytes, ...] = (KEY,)) -> ProbePort:
        me = Me(number, f"boot-{number}".encode())
        port = ProbePort(
            (ip, 0), lambda: keys, lambda: me, shifted(offset_ns), lambda r: list(r.by_id.values()), 0.01,
            Admission(source=(1e4, 1e4), total=(1e4, 1e4)),
        )  # fmt: skip
        made.append(port)
        return port

    yield build
    for port in made:
        port.stop()


def introduce(*ports: tuple[int, ProbePort, str]) -> None:
    peers = [Peer(number, f"h{number}", (ip, port.address[1])) for number, port, ip in ports]
    for number, port, _ in ports:
        port.know(Roster(peer for peer in peers if peer.id != number))


def until(done: Callable[[], bool], *ports: ProbePort) -> None:
    """Turns of all ports in turn, as their threads would make them."""
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, [(dict(port.counts), dict(port.refused)) for port in ports]
        for port in ports:
            port.turn()
        time.sleep(0.002)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("bind_a", "bind_b", "ip"),
    [("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("::1", "::1", "::1"), ("::", "127.0.0.1", "127.0.0.1")],
)
def test_the_offset_between_two_hosts_lies_in_every_exchange(make: Make, bind_a: str, bind_b: str, ip: str) -> None:
    offset = -7_654_321_987
    a, b = make(1, bind_a), make(2, bind_b, offset)
    introduce((1, a, ip), (2, b, ip))
    until(lambda: a.counts["exchanges"] >= 30 and b.counts["exchanges"] >= 30, a, b)
    exchanges, asked = a.take()
    back, _ = b.take()
    for one in exchanges:
        assert one.answered - one.returned <= offset <= one.received - one.sent
        assert (one.boot, one.peer.host) == ("boot-2", "h2")
    for one in back:
        assert one.answered - one.returned <= -offset <= one.received - one.sent
    assert asked["h2"] == a.counts["sent"]
    # This kernel stamps loopback; a kernel that does not would leave the agent's own times.
    kernel = sum(one.stamps == ALL_STAMPS for one in exchanges)
    assert kernel > 0 if a.kernel_stamps else kernel == 0
    assert set(a.refused) <= {"unasked"}  # a reply may be late on a machine that stands still


@pytest.mark.unit
def test_without_kernel_stamps_the_agents_own_times_bound_as_well(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetscope.agents.probes.port.ask_for_stamps", lambda port: False)
    a, b = make(1), make(2, offset_ns=5 * SECOND)
    introduce((1, a, "127.0.0.1"), (2, b, "127.0.0.1"))
    until(lambda: a.counts["exchanges"] >= 5, a, b)
    for one in a.take()[0]:
        assert not one.stamps
        assert one.answered - one.returned <= 5 * SECOND <= one.received - one.sent


class Attacker:
    """A socket of its own, and one that has the address of a peer."""

    def __init__(self, target: ProbePort, ip: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((ip, 0))
        self.socket.setblocking(False)
        self.target = target.address
        self.address = self.socket.getsockname()

    def send(self, data: bytes) -> None:
        self.socket.sendto(data, self.target)

    def answers(self) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.socket.recv(65536))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self.socket.close()


Attack = Callable[[ProbePort], Attacker]


@pytest.fixture
def attack() -> Iterator[Attack]:
    made: list[Attacker] = []

    def build(target: ProbePort) -> Attacker:
        made.append(Attacker(target))
        return made[-1]

    yield build
    for attacker in made:
        attacker.close()


@pytest.fixture
def victim(make: Make, attack: Attack) -> tuple[ProbePort, Attacker]:
    """A port, and a socket that has the address of its only peer (id 2) and maybe the key."""
    port = make(1)
    attacker = attack(port)
    port.know(Roster([Peer(2, "h2", attacker.address)]))
    port._next_s = float("inf")  # it asks nobody
    port.turn()
    return port, attacker


@pytest.mark.fault
def test_nothing_malformed_unknown_or_unsigned_is_answered_and_all_of_it_is_counted(
    victim: tuple[ProbePort, Attacker], attack: Attack
) -> None:
    port, attacker = victim
    stranger = attack(port)
    good = Packet(Kind.REQUEST, sender=2, receiver=1, session=7, sequence=1, boot=b"b").encode(KEY)
    stranger.send(good)
    for data in (b"", b"\0" * SIZE, good[:-1], good + b"\0", os.urandom(SIZE), os.urandom(1400)):
        attacker.send(data)
    attacker.send(good[:40] + bytes((good[40] ^ 1,)) + good[41:])
    attacker.send(Packet(Kind.REQUEST, sender=2, receiver=1, session=7, sequence=1).encode(bytes(32)))
    attacker.send(Packet(Kind.REQUEST, sender=3, receiver=1, session=7, sequence=1).encode(KEY))
    attacker.send(Packet(Kind.REQUEST, sender=2, receiver=9, session=7, sequence=1).encode(KEY))
    attacker.send(Packet(Kind.REPLY, sender=2, receiver=1, session=7, sequence=1).encode(KEY))
    until(lambda: sum(port.refused.values()) >= 12, port)
    assert dict(port.refused) == {"unknown_source": 1, "malformed": 6, "unauthenticated": 2, "misdirected": 3}
    assert attacker.answers() == stranger.answers() == []
    assert port.counts["answered"] == 0


@pytest.mark.fault
def test_a_fuzzed_port_answers_nothing_and_goes_on(victim: tuple[ProbePort, Attacker]) -> None:
    port, attacker = victim
    fake = {"s": 0.0}
    port._admission = Admission(lambda: fake["s"])
    port._admission.known(frozenset((attacker.address,)))
    rng = random.Random(5)
    good = Packet(Kind.REQUEST, sender=2, receiver=1, session=7, sequence=1, boot=b"b").encode(KEY)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.choice((len(data), rng.randrange(len(data))))
        if bytes(data[:cut]) != good:
            attacker.send(bytes(data[:cut]))
        fake["s"] += 1.0
        port.turn()
    assert set(port.refused) == {"malformed", "unauthenticated"}
    assert attacker.answers() == []
    attacker.send(good)
    fake["s"] += 1.0
    until(lambda: port.counts["answered"] == 1, port)
    assert [len(data) for data in attacker.answers()] == [SIZE]


@pytest.mark.fault
def test_a_captured_request_is_not_answered_again(victim: tuple[ProbePort, Attacker], attack: Attack) -> None:
    port, attacker = victim
    request = Packet(
        Kind.REQUEST, sender=2, receiver=1, session=7, cookie=port._responder.cookie, sequence=1, boot=b"b"
    )
    for _ in range(4):
        attacker.send(request.encode(KEY))
    until(lambda: port.refused["replayed"] == 3, port)
    assert port.counts["answered"] == 1
    # From elsewhere it is not even looked at: what spoofs an address gets no answer, nor does the address.
    stranger = attack(port)
    stranger.send(request.encode(KEY))
    until(lambda: port.refused["unknown_source"] == 1, port)
    assert stranger.answers() == []


@pytest.mark.fault
def test_a_flood_is_bounded_whoever_it_comes_from(victim: tuple[ProbePort, Attacker], attack: Attack) -> None:
    port, attacker = victim
    fake = {"s": 0.0}
    port._admission = Admission(lambda: fake["s"])
    port._admission.known(frozenset((attacker.address,)))
    for sequence in range(1, 101):
        request = Packet(
            Kind.REQUEST, sender=2, receiver=1, session=7, cookie=port._responder.cookie, sequence=sequence
        )
        attacker.send(request.encode(KEY))
    until(lambda: port.counts["answered"] + port.refused["too_often"] == 100, port)
    assert port.counts["answered"] == SOURCE[1]
    assert sum(map(len, attacker.answers())) <= SOURCE[1] * SIZE
    stranger = attack(port)
    for _ in range(2 * int(TOTAL[1])):
        stranger.send(b"x" * SIZE)
        port.turn()
    # What is beyond stays with the kernel: nothing is read, verified or counted.
    assert port.refused["unknown_source"] == TOTAL[1] - 100
    assert port._admission.exhausted
    fake["s"] += 60.0
    until(lambda: port.refused["unknown_source"] > TOTAL[1], port)


@pytest.mark.fault
def test_a_key_is_changed_while_probes_go_on(make: Make) -> None:
    a, b = make(1, keys=(KEY,)), make(2, keys=(KEY,))
    introduce((1, a, "127.0.0.1"), (2, b, "127.0.0.1"))
    new = bytes(reversed(KEY))
    for keys_a, keys_b in (((KEY,), (KEY, new)), ((KEY, new), (new, KEY)), ((new, KEY), (new,)), ((new,), (new,))):
        a._keys, b._keys = (lambda k=keys_a: k), (lambda k=keys_b: k)
        before = a.counts["exchanges"] + 5
        until(lambda least=before: a.counts["exchanges"] >= least, a, b)
    assert not a.refused["unauthenticated"] + b.refused["unauthenticated"]


@pytest.mark.unit
def test_a_stamp_is_carried_over_between_brackets_and_never_across_a_step() -> None:
    ahead = 1_800_000_000 * SECOND
    before = HostReading(1000, 1000, ahead + 1020, 1060)
    after = HostReading(51_000, 51_000, ahead + 51_030, 51_060)
    found = carried_over(ahead + 31_000, before, after)
    assert found is not None
    assert found.low <= 31_000 <= found.high
    assert found.high - found.low < 150
    for odd in (ahead + 500_000, ahead - 500_000, 31_000):
        assert carried_over(odd, before, after) is None
    stepped = HostReading(51_000, 51_000, ahead + 51_030 + 64 * SECOND, 51_060)
    assert carried_over(ahead + 31_000, before, stepped) is None
    assert carried_over(ahead + 31_000 + 64 * SECOND, before, stepped) is None
    back = HostReading(51_000, 51_000, ahead + 51_030 - 2_000_000, 51_060)
    assert carried_over(ahead + 31_000, before, back) is None


@pytest.mark.fault
def test_exchanges_that_nobody_takes_and_probes_that_cannot_leave_are_told(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_module, "KEPT", 3)
    a, b = make(1), make(2)
    introduce((1, a, "127.0.0.1"), (2, b, "127.0.0.1"))
    until(lambda: a.counts["exchanges"] >= 5, a, b)
    assert len(a.take()[0]) == 3
    assert a.refused["overflow"] == a.counts["exchanges"] - 3
    # This socket is of IPv4: the address has no way out of it.
    a.know(Roster([Peer(2, "h2", ("2001:db8::1", 9))]))
    until(lambda: a.refused["send_failed"] > 0, a)
