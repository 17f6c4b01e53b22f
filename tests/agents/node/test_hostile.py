"""What peers may do to the socket and to their own segment: the agent goes on, and says what it refused."""

import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node import NodeAgent
from fleetscope.agents.node.facts import boot_id, start_ticks
from fleetscope.agents.node.server import MAX_BODY_BYTES
from fleetscope.agents.node.values import process_values
from fleetscope.agents.profiler import protocol
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import ProfilerConfig

from .conftest import Child, MakeAgent, batches, eventually

PREFIX = struct.Struct("<II")


def connect(agent: NodeAgent) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(60)  # a busy machine is slow, not wrong
    peer.connect(str(agent.server.path))
    return peer


def hello(**changes: Any) -> protocol.Hello:
    fields: dict[str, Any] = {
        "version": protocol.VERSION,
        "pid": os.getpid(),
        "start_ticks": start_ticks(os.getpid()),
        "boot_id": boot_id(),
        "run": "r",
        "attempt": "a",
        "rank": 0,
        "world_size": 1,
        "command": "c",
        "python": "",
        "jax": "",
        "jaxlib": "",
        "platform": "cpu",
        "segment": "",
        "started_ns": time.time_ns(),
    }
    return protocol.Hello(**{**fields, **changes})


def greet(peer: socket.socket, message: protocol.Hello | None = None) -> protocol.Config:
    peer.sendall(protocol.encode(message or hello()))
    reader = protocol.Reader()
    while True:
        for answer, _ in reader.feed(peer.recv(65536)):
            assert isinstance(answer, protocol.Config)
            return answer


def window(**changes: Any) -> protocol.Window:
    now = time.time_ns()
    raw = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    opened, closed = protocol.Clocks(raw, now, raw + 60), protocol.Clocks(raw + 10**8, now + 10**8, raw + 10**8 + 60)
    fields: dict[str, Any] = {
        "window_id": 1,
        "length_ns": 10**8,
        "opened": opened,
        "closed": closed,
        "step": 4,
        "open_delay_ns": 0,
        "executions": -1,
        "longest_ns": 0,
        "start_ns": 0,
        "stop_ns": 0,
        "capped": False,
    }
    return protocol.Window(**{**fields, **changes})


def closes(peer: socket.socket) -> bool:
    try:
        return peer.recv(65536) == b""
    except ConnectionResetError:
        return True


@pytest.mark.fault
@pytest.mark.parametrize(
    "garbage",
    [
        os.urandom(4096),
        PREFIX.pack(1 << 30, 0),
        PREFIX.pack(10, MAX_BODY_BYTES + 1),
        PREFIX.pack(4, 0) + b"{]\xff\xfe",
        PREFIX.pack(2, 0) + b"[]",
        PREFIX.pack(200_000, 0) + b"[" * 200_000,
        PREFIX.pack(34, 0) + b'{"type":"hello","pid":"not a pid"}',
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["random", "huge header", "huge body", "not json", "no object", "deep", "wrong types", "http"],
)
def test_garbage_closes_its_own_connection_and_nothing_else(make_agent: MakeAgent, garbage: bytes) -> None:
    agent = make_agent()
    with connect(agent) as good, connect(agent) as bad:
        assert greet(good).enabled
        bad.sendall(garbage)
        assert closes(bad)
        assert greet(good).enabled
    assert agent.server.counts["garbage"] == 1


@pytest.mark.fault
def test_unknown_types_and_messages_before_hello_are_ignored(make_agent: MakeAgent) -> None:
    agent = make_agent()
    with connect(agent) as peer:
        body = b"x" * 100
        peer.sendall(PREFIX.pack(16, 100) + b'{"type":"novel"}' + body)
        peer.sendall(protocol.encode(window(), b"abc") + b"abc")
        assert greet(peer).enabled
        assert len(agent.registry) == 1


@pytest.mark.unit
def test_a_process_is_told_what_the_configuration_says(make_agent: MakeAgent) -> None:
    agent = make_agent()
    wanted = {"window_s": 5.0, "window_max_bytes": 1 << 20, "steps_between_windows": 64, "allow": ["gpu/*/0.10.2"]}
    agent.config = agent.config.model_copy(update={"profiler": ProfilerConfig.model_validate(wanted)})
    with connect(agent) as peer:
        told = greet(peer)
    assert {name: getattr(told, name) for name in wanted} == {**wanted, "allow": ("gpu/*/0.10.2",)}
    with pytest.raises(ValueError, match="allow"):
        ProfilerConfig.model_validate({"allow": ["gpu 0.10.2"]})


@pytest.mark.fault
def test_another_protocol_version_is_told_to_stay_off(make_agent: MakeAgent) -> None:
    agent = make_agent()
    with connect(agent) as peer:
        assert not greet(peer, hello(version=protocol.VERSION + 1)).enabled
        assert len(agent.registry) == 0


@pytest.mark.fault
def test_a_peer_that_never_reads_is_closed(make_agent: MakeAgent) -> None:
    agent = make_agent()
    with connect(agent) as peer, connect(agent) as good:
        frames = protocol.encode(hello()) * 100_000
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            peer.sendall(frames)
        assert greet(good).enabled


@pytest.mark.fault
def test_a_slow_sender_costs_nothing(make_agent: MakeAgent) -> None:
    agent = make_agent()
    with connect(agent) as slow, connect(agent) as good:
        frame = protocol.encode(hello())
        before = time.process_time()
        for byte in frame[:50]:
            slow.sendall(bytes([byte]))
            time.sleep(0.005)
        assert greet(good).enabled
        slow.sendall(frame[50:])
        assert isinstance(next(iter(protocol.Reader().feed(slow.recv(65536))))[0], protocol.Config)
        assert time.process_time() - before < 1.0


@pytest.mark.fault
def test_silent_connections_do_not_keep_processes_out(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: 256 connections that say nothing, and no process was ever let in again."""
    monkeypatch.setattr("fleetscope.agents.node.server.SILENT_S", 0.5)
    monkeypatch.setattr("fleetscope.agents.node.server.MAX_CONNECTIONS", 8)
    agent = make_agent()
    idle = [connect(agent) for _ in range(8)]
    try:
        eventually(lambda: agent.server.counts["silent"] == 8)
        with connect(agent) as peer:
            assert greet(peer).enabled
    finally:
        for peer in idle:
            peer.close()


@pytest.mark.fault
def test_one_process_cannot_take_all_connections(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetscope.agents.node.server.MAX_A_PROCESS", 4)
    agent = make_agent()
    peers = [connect(agent) for _ in range(4)]
    try:
        for peer in peers:
            assert greet(peer).enabled
        with connect(agent) as fifth:
            assert closes(fifth)
        assert greet(peers[0]).enabled, "those it has are served"
        assert agent.server.counts["refused"] == 1
    finally:
        for peer in peers:
            peer.close()


@pytest.mark.fault
def test_a_frame_that_never_ends_does_not_stall_the_others_for_ever(
    make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound only the fullest connection is read. If it stops there, it is closed and the others go on."""
    monkeypatch.setattr("fleetscope.agents.node.server.BUFFERED_BYTES", 1 << 20)
    monkeypatch.setattr("fleetscope.agents.node.server.SILENT_S", 1.0)
    agent = make_agent()
    with connect(agent) as stuck, connect(agent) as good:
        assert greet(stuck).enabled
        assert greet(good).enabled
        frame = protocol.encode(window(), bytes(4 << 20))
        stuck.sendall(frame + bytes((2 << 20) - len(frame)))
        eventually(lambda: agent.server.counts["paused"] == 1)
        good.sendall(protocol.encode(hello()))
        assert closes(stuck)
        assert greet(good).enabled


@pytest.mark.fault
def test_undecodable_windows_and_programs_are_counted(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    with connect(agent) as peer:
        greet(peer)
        for number, body in enumerate((b"\xff" * 1000, b"\x0a\xff\xff\xff\xff\x0f")):
            peer.sendall(protocol.encode(window(window_id=number + 1), body) + body)
        program = protocol.Program(program_id=3, module="m\x00<b>", platform="cpu", at_ns=1, harvest_ns=1)
        peer.sendall(protocol.encode(program, b"no hlo") + b"no hlo")
        (process,) = agent.registry
        eventually(lambda: process.windows.total() == 3)
        assert process.windows == {"undecodable": 2, "program_undecodable": 1}
        agent.tick()
    agent.close()
    last = batches(tmp_path / "s", os.getpid())[-1]
    assert {d.reason: d.events for d in last.dropped} == {"window_undecodable": 2}


@pytest.mark.fault
def test_windows_beyond_the_queue_are_dropped_and_counted(make_agent: MakeAgent) -> None:
    agent = make_agent()
    agent.decoder._queue_bytes = 1000
    with connect(agent) as peer:
        with agent.registry.lock:
            # The lock keeps the decoder from finishing and the server from starting: both wait until all is sent.
            peer.sendall(protocol.encode(hello()))
            for number in range(5):
                peer.sendall(protocol.encode(window(window_id=number + 1), b"\xff" * 900) + b"\xff" * 900)
        eventually(lambda: len(agent.registry) == 1)
        (process,) = agent.registry
        # Still connected: the answer to a peer that is gone ends the reading of what it sent. What was dropped is
        # counted again, as abandoned, when a later one is done.
        eventually(lambda: process.windows["overflow"] + process.windows["undecodable"] == 5)
    assert process.windows["overflow"] >= 1


@pytest.mark.fault
def test_hostile_text_is_shipped_safe(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    child: Child = spawn()
    child.do("hello = hello._replace(run='r\\x00<script>', command='x' * 100_000, labels={'k\\n': 'v' * 5000})")
    child.do("connect()")
    child.do("names = ['n' * (1 << 20), 'nul\\0', '\\x1b[31mred', '<b>&', chr(0x1F600) * 900, '#' * 300]")
    child.do("[r.annotate(n, **{'k' * 300: 'v' * 9000}).__enter__().__exit__(None, None, None) for n in names]")
    child.do("r.annotate('\\udcff\\udcfe').__enter__().__exit__(None, None, None)")
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    names = [a.name.name for b in found for a in b.announcements if a.WhichOneof("info") == "name"]
    assert sum(b.rows for b in found) in (6, 7)  # a lone surrogate is no name at all for the recorder
    assert len(names) >= 6
    assert all(len(name.encode()) <= 1024 for name in names)
    assert not any(ord(char) < 0x20 for name in names for char in name)
    assert found[0].source.run == "r\\x00<script>"
    (process,) = [a.process for b in found for a in b.announcements if a.WhichOneof("info") == "process"]
    assert len(process.command) <= 1024


@pytest.mark.fault
def test_a_segment_that_is_none_or_shrinks_is_left_alone(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    agent = make_agent()
    (tmp_path / "garbage").write_bytes(os.urandom(10_000))
    (tmp_path / "precious").write_bytes(b"mine")
    with connect(agent) as peer:
        for path in ("garbage", "missing", "precious"):
            assert greet(peer, hello(segment=str(tmp_path / path))).enabled
        agent.tick()
    child: Child = spawn()
    child.do("connect()")
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(10)]")
    agent.tick()
    (ring,) = (tmp_path / "shm").glob("*.ring")
    os.truncate(ring, 100)
    agent.tick()
    agent.tick()
    assert (tmp_path / "precious").read_bytes() == b"mine"
    agent.close()
    assert sum(b.rows for b in batches(tmp_path / "s", child.pid)) == 10


@pytest.mark.fault
def test_a_process_cannot_have_another_ones_file_removed(make_agent: MakeAgent, tmp_path: Path) -> None:
    agent = make_agent()
    victim = tmp_path / "shm" / "fleetscope-1-1.ring"
    victim.write_bytes(b"another process' ring")
    with connect(agent) as peer:
        greet(peer, hello(pid=2_000_000, start_ticks=5, segment=str(victim)))
    eventually(lambda: agent.server.connections == 0)
    agent.tick()
    assert agent.registry.finished == 1
    assert victim.exists()


@pytest.mark.unit
def test_an_orphaned_ring_is_drained_and_removed(make_agent: MakeAgent, spawn: Any, tmp_path: Path) -> None:
    child: Child = spawn()
    child.do("[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range(10)]")
    child.kill()
    (ring,) = (tmp_path / "shm").glob("*.ring")
    os.utime(ring, (time.time() - 300, time.time() - 300))
    agent = make_agent()
    agent.tick()
    agent.tick()
    agent.close()
    found = batches(tmp_path / "s", child.pid)
    assert sum(b.rows for b in found) == 10
    assert not ring.exists()
    assert isinstance(found[0], wire.Batch)


@pytest.mark.fault
@pytest.mark.parametrize(
    "fields",
    [
        '"windows":' + "9" * 4000,
        '"stop_ns":9223372036854775808',
        '"step":1e400',
        '"skipped":{"late":' + "9" * 400 + "}",
        '"dropped":{"not_sent":Infinity}',
        '"windows":true',
    ],
)
def test_numbers_beyond_64_bits_are_garbage(make_agent: MakeAgent, fields: str) -> None:
    """Found: one such number in a cost took the series of all processes off the agent's page."""
    agent = make_agent()
    with connect(agent) as good, connect(agent) as bad:
        assert greet(good).enabled
        assert greet(bad).enabled
        header = ('{"type":"cost",' + fields + "}").encode()
        bad.sendall(PREFIX.pack(len(header), 0) + header)
        assert closes(bad)
        assert greet(good).enabled
    assert agent.server.counts["garbage"] == 1


@pytest.mark.fault
def test_a_cost_of_the_largest_numbers_falsifies_no_sum_and_no_page(make_agent: MakeAgent) -> None:
    agent = make_agent()
    most = (1 << 63) - 1
    cost = protocol.Cost(
        windows=most, stop_ns=most, start_ns=0, harvest_ns=most, thread_cpu_ns=most,
        skipped={f"{'x' * 500}{number}": most for number in range(400)}, dropped={"not_sent": most},
    )  # fmt: skip
    with connect(agent) as peer:
        greet(peer)
        peer.sendall(protocol.encode(window(), b"") + protocol.encode(cost) + protocol.encode(hello()))
        assert isinstance(next(iter(protocol.Reader().feed(peer.recv(65536))))[0], protocol.Config)
        (process,) = agent.registry
        series = [
            labels for name, labels, _ in process_values(agent.registry) if name == "fleetscope_profiler_windows_total"
        ]
        assert 0 < len(series) < 200
        process.account.settle(1)
        assert sum(process.account.close().values()) <= 1 << 32


@pytest.mark.fault
def test_a_second_process_on_one_connection_is_garbage(make_agent: MakeAgent) -> None:
    """Found: the first one counted as connected, and so as alive, for as long as the agent ran."""
    agent = make_agent()
    with connect(agent) as peer:
        greet(peer)
        peer.sendall(protocol.encode(hello(pid=1, start_ticks=77)))
        assert closes(peer)
    eventually(lambda: [process.connected for process in agent.registry] == [False])


@pytest.mark.fault
def test_windows_of_no_bytes_fill_no_queue(make_agent: MakeAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent()
    monkeypatch.setattr("fleetscope.agents.node.windows.WAITING_JOBS", 8)
    with connect(agent) as peer:
        greet(peer)
        (process,) = agent.registry
        with agent.registry.lock:  # the decoder cannot finish any
            offered = [agent.decoder.offer(process, window(window_id=n), b"") for n in range(1, 40)]
        assert not all(offered)
        assert sum(offered) <= 10


@pytest.mark.fault
def test_what_a_peer_said_before_it_left_is_read(make_agent: MakeAgent) -> None:
    """Found: an answer that could not be sent ended the reading, and the last windows of a short program were lost."""
    agent = make_agent()
    with connect(agent) as peer:
        with agent.registry.lock:
            peer.sendall(protocol.encode(hello()))
            # The server has read the hello alone, and waits.
            eventually(lambda: agent.server.counts["messages"] == 1)
            for number in range(3):
                peer.sendall(protocol.encode(window(window_id=number + 1), b"\xff" * 90) + b"\xff" * 90)
            peer.sendall(protocol.encode(protocol.End(5, 7)))
            peer.close()
        eventually(lambda: len(agent.registry) == 1 and agent.server.connections == 0)
        (process,) = agent.registry
        assert process.ended_at_ns == 5
        eventually(lambda: process.windows["undecodable"] == 3)


@pytest.mark.fault
def test_what_one_process_left_keeps_no_other_from_being_heard(make_agent: MakeAgent) -> None:
    """Found: a folder called `1.pb` where HLO was looked for ended every round of the agent, and leaked a file."""
    agent = make_agent()
    with connect(agent) as first, connect(agent) as second:
        greet(first, hello(pid=1, start_ticks=start_ticks(1)))
        greet(second)
        bad, good = list(agent.registry)

        def defect(*_: object) -> float:
            raise ValueError("whatever")

        bad.collect = defect  # type: ignore[method-assign]
        heard: list[int] = []
        good.collect = lambda *_: heard.append(1) or 0.0  # type: ignore[method-assign,func-returns-value]
        for _ in range(2):
            agent.tick()
        assert (len(heard), agent.registry.failed, agent.failed_rounds) == (2, 2, 0)
        assert agent._about()["failed_rounds"] == 2
