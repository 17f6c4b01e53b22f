"""An agent killed over windows it had taken: each is decoded once in its next life, or counted as lost."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node.account import WindowAccount
from fleetscope.agents.node.kept import KeptFrames
from fleetscope.agents.profiler import protocol
from fleetscope.agents.profiler.protocol import Cost
from fleetscope.schema import wire_pb2 as wire

from .conftest import Child, batches, eventually

_AGENT = """
import os, signal, sys, threading
from pathlib import Path
from fleetscope.agents.node import NodeAgent, agent, registry, windows
from fleetscope.agents.node.process import Process
from fleetscope.schema.config import AgentConfig, Config
state, shm, point, passage = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
left = [passage]
def kill_at(where, name, after=False):
    known = getattr(where, name)
    def wrapped(*args, **more):
        if not after:
            strike()
        found = known(*args, **more)
        if after:
            strike()
        return found
    setattr(where, name, wrapped)
def strike():
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
POINTS = {
    "before_keep": (agent.KeptFrames, "keep", False), "after_keep": (agent.KeptFrames, "keep", True),
    "before_decode": (windows, "read_xspace", False), "before_put": (Process, "settle", False),
    "after_put": (Process, "settle", True), "before_forget": (windows, "forget", False),
}
if point in POINTS:
    kill_at(*POINTS[point])
if point == "hang":
    windows.read_xspace = lambda *a: threading.Event().wait()
registry.RETURN_S = float(sys.argv[5])
agent = NodeAgent(Config(state_dir=state, agent=AgentConfig(shm_dir=shm, host="h1", batch_s=0.2)), collectors=[])
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
agent.run(stop)
"""

POINTS = ("before_keep", "after_keep", "before_decode", "before_put", "after_put", "before_forget")
WINDOWS = 4


class Agent:
    def __init__(
        self,
        folder: Path,
        shm: Path,
        point: str = "none",
        passage: int = 2,
        inside: Sequence[str] = (),
        return_s: float = 60.0,
    ) -> None:
        self.state = folder / "s"
        words = [str(self.state), str(shm), point, str(passage), str(return_s)]
        self.process = subprocess.Popen([*inside, sys.executable, "-c", _AGENT, *words], stderr=subprocess.PIPE)
        eventually(lambda: answers(self.state / "agent.sock") or self.process.poll() is not None)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=30)


def answers(path: Path) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(path))
        except OSError:
            return False
    return True


@pytest.fixture
def capture(samples: Path) -> Path:
    """A small real XSpace: what its bytes become does not matter here, that it becomes the same each time does."""
    return min((samples / "xplane").rglob("*.pb"), key=lambda path: path.stat().st_size)


@pytest.fixture
def start(tmp_path: Path, shm: Path) -> Iterator[Callable[..., Agent]]:
    made: list[Agent] = []

    def make(point: str = "none", passage: int = 2, **how: Any) -> Agent:
        made.append(Agent(tmp_path, shm, point, passage, **how))
        return made[-1]

    yield make
    for agent in made:
        agent.process.kill()
        agent.stop()


_PREPARE = (
    "def send_window(number, path):\n"
    "    now = protocol.Clocks(time.monotonic_ns(), time.time_ns(), time.monotonic_ns())\n"
    "    body = open(path, 'rb').read()\n"
    "    send(protocol.Window(window_id=number, length_ns=10**9, opened=now, closed=now, step=-1, open_delay_ns=0,"
    " executions=-1, longest_ns=0, start_ns=0, stop_ns=0, capped=False), body)"
)


def _ready(child: Child) -> None:
    child.do(f"exec({_PREPARE!r})")
    child.do("connect()")


def _lost(found: list[wire.Batch]) -> dict[str, int]:
    return {item.reason: item.events for item in found[-1].dropped} if found else {}


def _windows(found: list[wire.Batch]) -> list[int]:
    """Ids of the windows that were decoded, each once for all its devices."""
    return [batch.window.id for batch in found if batch.HasField("window")]


@pytest.mark.fault
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point_each_window_is_decoded_once_or_counted(
    point: str, start: Any, spawn: Any, capture: Path, tmp_path: Path
) -> None:
    doomed = start(point)
    child: Child = spawn()
    _ready(child)
    child.do(f"send_window(1, {str(capture)!r})")
    child.do(f"send_window(2, {str(capture)!r})")
    assert doomed.process.wait(60) == -signal.SIGKILL
    second = start()
    child.do("connect()")
    child.do(f"[send_window(number, {str(capture)!r}) for number in (3, {WINDOWS})]")
    child.do("r.annotate('x').__enter__().__exit__(None, None, None)")
    _settle(second, child, tmp_path)
    found = _once(batches(tmp_path / "s", child.pid))
    rows = [batch.rows for batch in found if batch.HasField("window")]
    each = len(_windows(found)) / len(set(_windows(found)))
    lost = _lost(found)
    # before it was kept, only its number tells that it existed
    expected = {"window_abandoned": 1} if point == "before_keep" else {}
    assert lost == expected
    assert len(set(_windows(found))) == WINDOWS - sum(lost.values())
    assert each == int(each), "a window's devices came in parts"
    assert len(set(map(tuple, _by_window(found).values()))) == 1, rows
    assert [b.batch_number for b in found] == list(range(len(found)))
    assert list((tmp_path / "s" / "spool" / "windows").glob("*.frame")) == []


def _once(found: list[wire.Batch]) -> list[wire.Batch]:
    """An agent killed after it sent and before its spool knew sends again, the same bytes: the worker takes one."""
    each: dict[int, wire.Batch] = {}
    for batch in found:
        assert each.setdefault(batch.batch_number, batch) == batch
    return list(each.values())


def _by_window(found: list[wire.Batch]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for batch in found:
        if batch.HasField("window"):
            rows.setdefault(batch.window.id, []).append(batch.rows)
    return rows


def _settle(agent: Agent, child: Child, tmp_path: Path) -> None:
    """Until the agent has nothing left of the child, which ends."""
    frames = tmp_path / "s" / "spool" / "windows"
    eventually(lambda: not list(frames.glob("*.frame")))
    child.kill()
    # A process that has ended loses its ring.
    eventually(lambda: not list((tmp_path / "shm").glob("*.ring")))
    agent.stop()


@pytest.mark.fault
def test_windows_of_a_process_that_died_with_the_agent_are_decoded_by_the_next(
    start: Any, spawn: Any, capture: Path, tmp_path: Path
) -> None:
    doomed = start("hang")
    child: Child = spawn()
    _ready(child)
    child.do(f"[send_window(number, {str(capture)!r}) for number in (1, 2, 3)]")
    frames = tmp_path / "s" / "spool" / "windows"
    eventually(lambda: len(list(frames.glob("*.frame"))) == 3)
    child.kill()
    doomed.process.kill()
    doomed.process.wait()
    _settle(start(), child, tmp_path)
    found = batches(tmp_path / "s", child.pid)
    assert len(set(_windows(found))) == 3
    assert _lost(found) == {}


@pytest.mark.fault
def test_windows_that_never_came_are_counted_by_what_the_process_says(
    start: Any, spawn: Any, capture: Path, tmp_path: Path
) -> None:
    agent = start()
    child: Child = spawn()
    _ready(child)
    child.do(f"send_window(1, {str(capture)!r})")
    # two could not be sent, one was lost behind a send that went well, one was stopped at exit and has no number
    child.do("send(protocol.Cost(windows=6, dropped={'not_sent': 2, 'stopped': 1}))")
    child.do(f"send_window(4, {str(capture)!r})")
    frames = tmp_path / "s" / "spool" / "windows"
    eventually(lambda: frames.is_dir() and not list(frames.glob("*.frame")))
    _settle(agent, child, tmp_path)
    assert _lost(batches(tmp_path / "s", child.pid)) == {"socket_backpressure": 2, "window_abandoned": 1}


@pytest.mark.fault
def test_what_nobody_knows_any_more_is_counted_for_the_host(start: Any, tmp_path: Path) -> None:
    kept = KeptFrames(tmp_path / "s" / "spool" / "windows")
    now = protocol.Clocks(1, 2, 3)
    window = protocol.Window(1, 1, now, now, -1, 0, -1, 0, 0, 0, False)
    assert kept.keep((2_000_000, 5), window, b"x" * 100) is not None
    agent = start()
    eventually(lambda: bool(_lost(batches(tmp_path / "s", 0))))
    agent.stop()
    assert _lost(batches(tmp_path / "s", 0)) == {"window_abandoned": 1}


@pytest.mark.unit
def test_torn_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    kept = KeptFrames(tmp_path)
    now = protocol.Clocks(1, 2, 3)
    windows = [protocol.Window(number, 1, now, now, -1, 0, -1, 0, 0, 0, False) for number in (1, 2, 3)]
    paths = [kept.keep((7, 8), window, b"abc") for window in windows]
    assert paths[1] is not None
    paths[1].write_bytes(paths[1].read_bytes()[:-1])
    (tmp_path / "notes.frame").write_text("mine")
    (tmp_path / ".7-8-9.frame").write_bytes(b"half")
    again = KeptFrames(tmp_path)
    assert [(key, message.window_id, body) for _, key, message, body in again.load()] == [  # type: ignore[union-attr]
        ((7, 8), 1, b"abc"), ((7, 8), 3, b"abc"),
    ]  # fmt: skip
    fourth = again.keep((7, 8), windows[0], b"")
    assert fourth is not None
    assert fourth.name == "7-8-0000000004.frame"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "7-8-0000000001.frame", "7-8-0000000003.frame", "7-8-0000000004.frame", "notes.frame",
    ]  # fmt: skip
    again.forget_all((7, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.frame"]


@pytest.mark.fault
def test_a_disk_that_takes_nothing_costs_only_the_survival(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = KeptFrames(tmp_path / "file" / "windows")
    now = protocol.Clocks(1, 2, 3)
    assert kept.keep((1, 2), protocol.Window(1, 1, now, now, -1, 0, -1, 0, 0, 0, False), b"x") is None
    assert kept.errors.total() == 1


@pytest.mark.unit
def test_an_account_by_hand() -> None:
    account = WindowAccount(following=1)
    assert account.settle(1) == {}
    assert account.settle(3) == {"window_abandoned": 1}
    account.note(Cost(windows=9, dropped={"not_sent": 2, "stopped": 1}))
    assert account.settle(6) == {"socket_backpressure": 2}
    restored = WindowAccount.from_json(json.loads(json.dumps(account.to_json())))
    assert restored.settled(6)
    assert not restored.settled(7)
    restored.note(Cost(windows=9, dropped={"not_sent": 2, "stopped": 1}))
    assert restored.close() == {"window_abandoned": 2}
    assert restored.close() == {}
    assert WindowAccount().close() == {}
    late = WindowAccount()
    assert late.settle(40) == {}
    for odd in (None, 3, {"following": "x"}, {"following": 3, "counted": None}):
        assert WindowAccount.from_json(odd) == WindowAccount()
