"""How a segment reaches the agent, who counts as alive across namespaces, and what becomes of it with its clock."""

import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.agents.clocks import HostClocks, HostReading
from fleetscope.agents.node import NodeAgent, life, process, registry
from fleetscope.agents.profiler import protocol
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import SpanFlag

from .conftest import Child, MakeAgent, batches, eventually
from .test_hostile import connect, greet, hello

pytestmark = pytest.mark.fault

NAMELESS = "hello = hello._replace(segment=r.renew(None, True)); r.record(True)"
SPANS = "[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range({})]"
ANCHOR_COUNTER = 160 + 8
"""Of the header: four int64, the second is the counter (native/recorder/layout.h)."""


def rows_of(state: Path, pid: int) -> list[dict[str, Any]]:
    found = [batch for batch in batches(state, pid) if batch.rows]
    return [
        {**row, "clock": batch.clock.clock, "resets": batch.clock.resets}
        for batch in found
        for row in pa.ipc.open_stream(batch.payload).read_all().to_pylist()
    ]


def uses(descriptor: int) -> int:
    """Descriptors of this process, the agent's too, of that file."""
    known = os.fstat(descriptor)
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.path.samestat(os.stat(f"/proc/self/fd/{name}"), known)
    return found


def test_memory_without_a_name_is_read_to_its_end_after_a_kill(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path, shm: Path
) -> None:
    agent = make_agent()
    child = spawn()
    child.do(NAMELESS)
    assert list(shm.iterdir()) == []
    child.do("connect()")
    child.do(SPANS.format(100))
    child.do("r.annotate('hangs').__enter__()")
    child.kill()
    agent.tick()
    agent.close()
    rows = rows_of(tmp_path / "s", child.pid)
    assert [bool(row["flags"] & SpanFlag.TRUNCATED) for row in rows] == [False] * 100 + [True]
    assert batches(tmp_path / "s", child.pid)[-1].produced == 101


def test_an_agent_that_restarts_is_handed_the_memory_again(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path
) -> None:
    first = make_agent()
    child = spawn()
    child.do(NAMELESS)
    child.do("connect()")
    child.do(SPANS.format(100))
    first.tick()
    first.close()
    child.do(SPANS.format(50))
    second = make_agent()
    second.tick()  # nothing leads to it yet
    child.do("connect()")
    child.do(SPANS.format(7))
    second.tick()
    child.kill()
    second.tick()
    second.close()
    found = batches(tmp_path / "s", child.pid)
    assert [b.rows for b in found if b.rows] == [100, 57]
    assert found[-1].produced == 157
    assert not found[-1].dropped


def test_what_is_no_segment_is_refused_by_number_and_no_descriptor_stays(
    make_agent: MakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent()
    read, write = os.pipe()
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, 1 << 20)
    with connect(agent) as peer:
        for descriptor in (read, unsealed):
            message = hello(segment=f"{protocol.NAMELESS}x{descriptor}")
            frame = protocol.encode(message)
            # As many as a message takes: the kernel, or the agent, closes them.
            socket.send_fds(peer, [frame[:3]], [descriptor] * 200)
            socket.send_fds(peer, [frame[3:]], [descriptor])
            assert peer.recv(65536)
        eventually(lambda: agent.registry.segments_refused == 2)
        eventually(lambda: (uses(read), uses(unsealed)) == (2, 1))  # those of this test
    said = [record.getMessage() for record in caplog.records if "FS3103" in record.getMessage()]
    assert len(said) == 2
    assert all(f"process {os.getpid()}" in line for line in said)
    assert ("no shared memory" in said[0], "not sealed" in said[1]) == (True, True)
    for descriptor in (read, write, unsealed):
        os.close(descriptor)


def lingering(far: list[socket.socket]) -> socket.socket:
    """Its last close waits two minutes for data that nobody reads, or for the end of `far`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far.append(listener.accept()[0])
    near.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(1 << 16))
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 120))
    return near


@pytest.mark.parametrize(
    "messages",
    [
        (protocol.encode(hello(segment=f"{protocol.NAMELESS}x")),),
        (b"1", b"2", b"3"),
        (b"\xff" * 8, b"unread when that was refused"),
    ],
    ids=["offered", "surplus", "unread"],
)
def test_what_takes_long_to_close_keeps_nobody_waiting(make_agent: MakeAgent, messages: tuple[bytes, ...]) -> None:
    agent = make_agent()
    far: list[socket.socket] = []
    try:
        with connect(agent) as first, connect(agent) as peer, agent.registry.lock:
            first.sendall(protocol.encode(hello()))
            eventually(lambda: agent.server.counts["messages"] == 1)  # it waits for us: ours is not the last close
            for message in messages:
                with lingering(far) as near:
                    # More than one, as there is room for beside them in the smallest buffer.
                    socket.send_fds(peer, [message], [near.fileno()] * 3)
        with connect(agent) as other:
            greet(other)  # or its patience of a minute ends
    finally:
        for end in far:
            end.close()


def test_pids_of_another_namespace_do_not_make_a_living_process_dead(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared /dev/shm, a pid that means nothing here: the lock that the process holds on its segment tells."""
    monkeypatch.setattr(registry, "start_ticks", lambda pid: None)
    meet = life.Life.meet
    monkeypatch.setattr(life.Life, "meet", lambda self, peer, pid: meet(self, peer, 0))
    monkeypatch.setattr(life, "_SO_PEERPIDFD", -1)  # an older kernel
    monkeypatch.setattr(registry, "RETURN_S", 0.0)
    monkeypatch.setattr(process, "pid_namespace", lambda: 1)
    stranger, known = spawn(), spawn(1)
    agent = make_agent()
    known.do("connect()")
    known.do("peer.close()")
    stranger.do("0")  # it has begun
    rings = sorted(shm.glob("*.ring"))
    assert len(rings) == 2
    for child in (stranger, known):
        child.do(SPANS.format(5))

    def look_for_orphans() -> None:
        for ring in rings:
            os.utime(ring, (time.time() - 300, time.time() - 300))
        agent.registry.adopt_orphans()

    look_for_orphans()
    eventually(lambda: agent.server.connections == 0)
    agent.tick()
    assert [path.exists() for path in rings] == [True, True]
    assert agent.registry.finished == 0
    stranger.kill()
    known.kill()
    look_for_orphans()
    agent.tick()
    agent.close()
    assert agent.registry.finished == 2
    assert [path.exists() for path in rings] == [False, False]
    assert [len(rows_of(tmp_path / "s", child.pid)) for child in (stranger, known)] == [5, 5]


TRAIN = """
import sys, time
from fleetscope.agents import profiler
from fleetscope.agents.profiler import loop
from fleetscope.agents.profiler.lifecycle import _process
from fleetscope.native import _recorder
loop.CLOCK_S = loop.PATIENCE_S = 0.05
_recorder.clock_source(sys.argv[1])
profiler.start(early=True)
number, left = 0, 50
while left:
    with profiler.step(number), profiler.annotate("work"):
        time.sleep(0.001)
    number += 1
    said = _process.loop._said
    left -= said is not None and said.segment.endswith(".2.ring")  # the agent has been told
with profiler.annotate("after"):
    pass
profiler.stop()
"""


def test_the_kernel_stops_to_trust_the_counter(make_agent: MakeAgent, tmp_path: Path, shm: Path) -> None:
    """Named point: what the kernel says it keeps time by. The process goes on in another segment, in ticks of another
    clock; nothing is lost, nothing has a negative duration, and both clocks tell one time."""
    if recorder.host_counter()[0] != "tsc":
        pytest.fail("this host's kernel does not keep time by the TSC: the change cannot be made")
    source = tmp_path / "current_clocksource"
    source.write_text("tsc\n")
    agent = make_agent()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("FLEETSCOPE_")},
        "FLEETSCOPE_AGENT_SOCKET": str(tmp_path / "s" / "agent.sock"),
        "FLEETSCOPE_AGENT__SHM_DIR": str(shm),
    }
    words = [sys.executable, "-c", TRAIN, str(source)]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE) as training:
        eventually(lambda: any(p.connected for p in agent.registry), 60)
        agent.tick()
        began = agent.clocks.last
        source.write_text("hpet\n")
        eventually(lambda: training.poll() is not None or not agent.tick(), 60)
        assert training.wait(60) == 0
    eventually(lambda: agent.tick() > 0 and list(shm.iterdir()) == [])
    ended = agent.clocks.last
    agent.close()
    found = batches(tmp_path / "s", training.pid)
    rows = rows_of(tmp_path / "s", training.pid)
    clocks = [row["clock"] for row in rows]
    switch = clocks.index("monotonic_raw")
    assert set(clocks[:switch]) == {"tsc"}
    assert set(clocks[switch:]) == {"monotonic_raw"}
    assert all(row["dur"] >= 0 for row in rows)
    names = {a.name.program: a.name.name for b in found for a in b.announcements if a.WhichOneof("info") == "name"}
    assert {"clock change: another source", "after"} <= {names[row["program"]] for row in rows[switch:]}
    # The one step that was open over the change is given up.
    steps = [row["step"] for row in rows if names[row["program"]] == "step"]
    assert steps == sorted(set(steps))
    assert len(set(range(steps[-1] + 1)) - set(steps)) <= 1
    assert not found[-1].dropped
    _, num, den = recorder.host_counter()
    last_raw_ns = began.raw_before_ns + (rows[switch - 1]["start"] - began.counter) * num // den
    assert last_raw_ns <= rows[switch]["start"] <= ended.raw_after_ns
    assert rows[switch]["start"] - last_raw_ns < 20 * 10**9


class Restored:
    """The host's clocks, and a counter that `back` ticks were taken from: a VM that was restored."""

    def __init__(self) -> None:
        self.back = self.told = 0

    def epoch(self) -> wire.ClockEpoch:
        name, num, den = recorder.host_counter()
        return wire.ClockEpoch(clock=name, period_num=num, period_den=den, width_bits=64)

    def read(self, clock: str) -> HostReading:
        before, counter, realtime, after = recorder.read_clocks(clock)
        return HostReading(before, counter - (self.back if clock == self.epoch().clock else 0), realtime, after)

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        return recorder.read_clock(clock_id)

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        told, self.told = self.told, self.back
        return "stepped back" if self.back != told else ""


def test_a_restored_machine_whose_counter_is_smaller(
    make_agent: MakeAgent, spawn: Callable[..., Child], tmp_path: Path, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process goes on in a second segment, whose anchor says that it is of the new epoch. What it stamped with the
    small counter before it noticed has no time any more, and is counted."""
    host = Restored()
    monkeypatch.setattr("fleetscope.agents.node.agent.HostClocks", lambda kept: HostClocks(host, kept))
    agent: NodeAgent = make_agent()
    child = spawn()
    child.do("connect()")
    child.do(SPANS.format(10))
    agent.tick()
    child.do(SPANS.format(20))
    (ring,) = shm.glob("*.ring")
    _, num, den = recorder.host_counter()
    hour = 3600 * 10**9 * den // num
    host.back = hour
    agent.tick()
    assert (agent.clocks.counter.resets, agent.clocks.changes) == (1, ["stepped back"])
    # Three of the twenty are from after the restore: smaller by as much as the counter.
    with open(ring, "r+b") as file:
        for record in range(27, 30):
            at = 606208 + record * 32
            (start,) = struct.unpack("<Q", os.pread(file.fileno(), 8, at))
            os.pwrite(file.fileno(), struct.pack("<Q", start - hour), at)
    child.do(f"segment = r.renew({str(shm)!r}, False); r.record(True); hello = hello._replace(segment=segment)")
    second = shm / f"{ring.stem}.2.ring"
    with open(second, "r+b") as file:
        (counter,) = struct.unpack("<q", os.pread(file.fileno(), 8, ANCHOR_COUNTER))
        os.pwrite(file.fileno(), struct.pack("<q", counter - hour), ANCHOR_COUNTER)
    child.do("send(hello)")
    child.do(SPANS.format(5))
    eventually(lambda: agent.tick() > 0 and not ring.exists())
    child.kill()
    eventually(lambda: agent.tick() > 0 and not second.exists())  # its connection may outlive it for a round
    agent.close()
    rows = rows_of(tmp_path / "s", child.pid)
    assert [row["resets"] for row in rows] == [0] * 27 + [1] * 5
    assert all(row["dur"] >= 0 for row in rows)
    last = batches(tmp_path / "s", child.pid)[-1]
    assert {entry.reason: entry.events for entry in last.dropped} == {"invalid_row": 3}
    assert last.produced == 35
    assert agent.failed_rounds == agent.registry.failed == 0
