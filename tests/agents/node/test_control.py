"""What an agent makes of the control topic, and that processes hear of it unasked."""

import random
import socket
import threading
import time
from pathlib import Path

import pytest

from fleetscope.agents.node.control import Controls, report, report_key
from fleetscope.agents.node.server import SocketServer
from fleetscope.agents.profiler import protocol
from fleetscope.agents.profiler.protocol import Config, Cost, Hello, Schedule, Stretch
from fleetscope.schema import wire_pb2 as wire
from fleetscope.transport.log import Message

from .conftest import MakeAgent, eventually, shipped

HELLO = Hello(1, 5, 1, "boot", "job", "a1", 0, 2, "", "", "", "", "cpu", "", 0)


def message(control: wire.Control | bytes) -> Message:
    value = control if isinstance(control, bytes) else control.SerializeToString()
    return Message("fleetscope.control", 0, 0, b"k", value, (), 0)


def cadence(number: int, *stretches: tuple[int, int, int, int], run: str = "job", attempt: str = "a1") -> wire.Control:
    parts = [wire.Cadence.Stretch(from_step=a, until_step=b, k=k, strata=strata) for a, b, k, strata in stretches]
    return wire.Control(cadence=wire.Cadence(run=run, attempt=attempt, number=number, stretches=parts))


@pytest.mark.unit
def test_the_newest_number_counts_in_any_order() -> None:
    told = [cadence(n, (0, 64 * n, 64, 1)) for n in range(1, 6)]
    random.Random(1).shuffle(told)
    controls = Controls()
    for control in told:
        controls.take(message(control))
    assert controls.schedule(HELLO) == Schedule("a1", 5, (Stretch(0, 320, 64, 1),))
    assert controls.schedule(HELLO._replace(attempt="a2")) is None


@pytest.mark.unit
@pytest.mark.parametrize(
    "control",
    [
        b"\xff\xfe no message",
        cadence(9, (0, 64, 63, 1)),
        cadence(9, (0, 64, 0, 1)),
        cadence(9, (0, 64, 64, 3)),
        cadence(9, (64, 64, 64, 1)),
        cadence(9, (-64, 64, 64, 1)),
        cadence(9, (0, 64, 64, 1), (0, 64, 1, 1)),
        cadence(9, *[(64 * n, 64 * n + 64, 64, 1) for n in range(300)]),
    ],
)
def test_what_cannot_be_a_schedule_is_counted_and_the_last_stays(control: wire.Control | bytes) -> None:
    controls = Controls()
    assert controls.take(message(cadence(1, (0, 64, 64, 8))))
    assert not controls.take(message(control))
    assert controls.refused == 1
    assert controls.schedule(HELLO) == Schedule("a1", 1, (Stretch(0, 64, 64, 8),))
    assert not controls.take(message(wire.Control()))  # of a newer coordinator: not ours to judge


def switched(reason: str, issued_ns: int, off: bool = True) -> wire.Control:
    return wire.Control(windows=wire.WindowSwitch(run="job", attempt="", off=off, reason=reason, issued_ns=issued_ns))


@pytest.mark.fault
def test_a_switch_made_where_the_clock_ran_ahead_can_be_taken_back() -> None:
    """Found: `windows on` was ignored until the clock of whoever said `off` was reached."""
    controls = Controls()
    assert controls.take(message(switched("operator", 10**18 + 3600 * 10**9)))
    assert not controls.take(message(switched("operator", 10**18 + 3600 * 10**9)))  # read again: no news
    assert controls.schedule(HELLO) == Schedule("a1", 0, (), "operator")
    assert controls.take(message(switched("", 10**18, off=False)))
    assert controls.schedule(HELLO) == Schedule("a1", 0, (), "")


@pytest.mark.fault
def test_news_that_cannot_be_said_close_one_connection_and_not_the_server(tmp_path: Path) -> None:
    """Found: a switch with a reason too long for a frame ended the thread that serves the socket."""
    controls = Controls()
    controls.take(message(switched("x" * (1 << 20), 1)))
    assert len(protocol.encode(controls.schedule(HELLO) or Config())) < 2000
    server = SocketServer(tmp_path / "a.sock", lambda *_: (Config(),), lambda _: None)
    server.start()

    def greeted() -> socket.socket:
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(60)
        peer.connect(str(tmp_path / "a.sock"))
        peer.sendall(protocol.encode(HELLO))
        assert peer.recv(65536)
        return peer

    def defect(_: Hello) -> Schedule:
        raise KeyError("a defect")

    try:
        for news in (lambda _: Schedule("a", 0, (), "x" * (1 << 20)), defect):
            with greeted() as peer:
                server.post(news)
                assert peer.recv(1) == b""
        greeted().close()
    finally:
        server.stop()


@pytest.mark.unit
def test_connected_processes_are_told_at_once(tmp_path: Path) -> None:
    controls = Controls()
    server = SocketServer(tmp_path / "a.sock", lambda *_: (Config(),), lambda _: None)
    server.start()
    peers = {}
    try:
        for attempt in ("a1", "a2"):
            peers[attempt] = socket.socket(socket.AF_UNIX)
            peers[attempt].settimeout(60)
            peers[attempt].connect(str(tmp_path / "a.sock"))
            peers[attempt].sendall(protocol.encode(HELLO._replace(attempt=attempt)))
            assert next(protocol.Reader().feed(peers[attempt].recv(65536)))[0] == Config()
        controls.take(message(cadence(1, (0, 640, 64, 1))))
        begin = time.monotonic()
        server.post(controls.schedule)
        (said, _) = next(protocol.Reader().feed(peers["a1"].recv(65536)))
        assert said == Schedule("a1", 1, (Stretch(0, 640, 64, 1),))
        assert time.monotonic() - begin < 2
        peers["a2"].settimeout(0.2)
        with pytest.raises(TimeoutError):
            peers["a2"].recv(1)
        # Many posts from many threads: none is lost, none blocks.
        threads = [
            threading.Thread(target=lambda: [server.post(controls.schedule) for _ in range(50)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        reader, heard = protocol.Reader(), 0
        while heard < 200:
            heard += len(list(reader.feed(peers["a1"].recv(65536))))
        assert heard == 200
    finally:
        for peer in peers.values():
            peer.close()
        server.stop()


@pytest.mark.unit
def test_a_report_says_what_the_process_said() -> None:
    cost = Cost(
        windows=3, start_ns=10, stop_ns=20, breaker="crash", stall_ns=-5, stalls=2, step=-1, steps=0, schedule=7
    )
    source = wire.Source(run="job", attempt="a1", rank=4)
    said = report(source, HELLO, cost, 99)
    assert (said.source, said.world_size, said.at_ns, said.step) == (source, 2, 99, -1)
    assert (said.windows, said.cost_ns, said.stall_ns, said.stalls) == (3, 30, 0, 2)
    assert (said.breaker, said.schedule) == ("crash", 7)
    assert report_key(source) == b"job/a1/4"


@pytest.mark.unit
def test_reports_reach_their_topic(make_agent: MakeAgent, spawn: object, tmp_path: Path) -> None:
    make_agent()
    child = spawn()  # type: ignore[operator]
    child.do("connect()")
    child.do("send(protocol.Cost(windows=2, step=41, steps=42, period_ns=1000))")
    eventually(
        lambda: "fleetscope.reports" in topics(tmp_path) and len(shipped(tmp_path / "s", "fleetscope.reports")) == 1
    )
    (value,) = shipped(tmp_path / "s", "fleetscope.reports")
    said = wire.RankReport.FromString(value)
    assert (said.source.run, said.source.pid, said.step, said.windows) == ("run", child.pid, 41, 2)


def topics(folder: Path) -> set[str]:
    root = folder / "s" / "log" / "topics"
    return {path.name for path in root.iterdir()} if root.is_dir() else set()
