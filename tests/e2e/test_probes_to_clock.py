"""Real sockets, real kernel stamps, one real clock shown as three: the fleet's clock must find what was done to it."""

import time
from collections.abc import Callable

import numpy as np
import pytest

from fleetscope.agents.clocks import HostReading
from fleetscope.agents.probes import Me, Peer, ProbePort, Roster
from fleetscope.agents.probes.admission import Admission
from fleetscope.native import recorder
from fleetscope.pipelines.align.fleet import FleetClock, Settings
from fleetscope.pipelines.align.observed import Wall
from fleetscope.pipelines.align.polyline import Pieces

pytestmark = pytest.mark.e2e
KEY = bytes(range(32))
OFFSETS_NS = (0, 7_654_321_987, -86_400_000_000_000)
HOP_NS = 500_000_000


def shifted(offset_ns: int) -> Callable[[], HostReading]:
    """The clocks of a host whose MONOTONIC_RAW is ahead of ours by so much."""

    def read() -> HostReading:
        before, counter, realtime, after = recorder.read_clocks("monotonic_raw")
        return HostReading(before + offset_ns, counter + offset_ns, realtime, after + offset_ns)

    return read


def wrong_by(pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
    """(stated minus stated of the reference at the same moment in ns, whether what is proved says so) of each host."""
    raw = pieces.x0 + (pieces.x1 - pieces.x0) // 2
    at = pieces.node.tolist().index(pieces.reference)
    moment = int(raw[at]) - OFFSETS_NS[pieces.reference]
    stated = []
    for node, x0, y0, x1, y1 in zip(pieces.node, pieces.x0, pieces.y0, pieces.x1, pieces.y1, strict=True):
        dx = moment + OFFSETS_NS[node] - int(x0)
        stated.append(int(y0) + round(dx * int(y1 - y0) / int(x1 - x0)))
    away = np.array([one - stated[at] for one in stated])
    return away, (pieces.lo <= -away) & (-away <= pieces.hi)


def test_the_offsets_of_three_hosts_are_found_and_proved() -> None:
    ports = []
    for number, offset in enumerate(OFFSETS_NS):
        me = Me(number, f"boot-{number}".encode())
        ports.append(
            ProbePort(
                ("127.0.0.1", 0), lambda: (KEY,), lambda me=me: me, shifted(offset),
                lambda roster: list(roster.by_id.values()), 0.02, Admission(source=(1e4, 1e4), total=(1e4, 1e4)),
            )
        )  # fmt: skip
    everyone = [Peer(number, f"h{number}", ("127.0.0.1", port.address[1])) for number, port in enumerate(ports)]
    for number, port in enumerate(ports):
        port.know(Roster(peer for peer in everyone if peer.id != number))
        port.start()
    clock = FleetClock(Settings(hop_ns=HOP_NS))
    nodes = [clock.node(1_000 + number) for number in range(3)]
    assert nodes == [0, 1, 2]
    proved = 0
    deadline = time.monotonic() + 90
    try:
        while proved < 3:
            assert time.monotonic() < deadline, (proved, [dict(port.counts) for port in ports])
            time.sleep(HOP_NS / 1e9)
            for node, port in enumerate(ports):
                exchanges, _ = port.take()
                for one in exchanges:
                    clock.observed.take_exchanges(
                        node, one.peer.id, np.array([[one.sent, one.received, one.answered, one.returned]])
                    )
                reading = shifted(OFFSETS_NS[node])()
                clock.observed.take_wall(Wall(node, reading.raw_before_ns, reading.realtime_ns, 100, -1))
            newest = clock.first_number()
            assert newest is not None
            if clock.number is not None and newest - 1 <= clock.number:
                continue
            pieces = clock.solve(newest - 1).proved
            if len(pieces.node) == 3 and pieces.guaranteed.all():
                away, held = wrong_by(pieces)
                assert held.all(), (away, pieces.lo, pieces.hi)
                # A round trip on loopback is 50 us; a machine that is busy makes it milliseconds.
                assert np.abs(away).max() < 5_000_000
                proved += 1
    finally:
        for port in ports:
            port.stop()
