"""Processes whose pids say nothing to the agent, as in every pod, over a `kill -9` of the agent: one source, each event
once, whether they live on or die meanwhile."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.node.facts import start_ticks
from fleetscope.agents.node.life import Life
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import SpanFlag

from .conftest import Child, batches, eventually
from .test_agent import announced, table
from .test_kept import _once, answers, start  # noqa: F401 - a fixture

_OWN = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def own() -> tuple[str, ...]:
    """Runs what follows in a pid namespace of its own, with its own /proc."""
    if not shutil.which(_OWN[0]) or subprocess.run([*_OWN, "true"], capture_output=True).returncode:
        if os.environ.get("FLEETSCOPE_REQUIRE_ALL") == "1":
            pytest.fail("unshare --pid is missing")
        pytest.skip("unshare --pid is missing")
    return _OWN


def _record(child: Child, events: int) -> None:
    child.do(f"[r.annotate('x').__enter__().__exit__(None, None, None) for _ in range({events})]")


def _rows(state: Path, pid: int) -> int:
    return sum(batch.rows for batch in _once(batches(state, pid)))


@pytest.mark.fault
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("agent_apart", [False, True], ids=["process_apart", "agent_apart"])
def test_a_process_of_another_pid_namespace_over_a_killed_agent(
    agent_apart: bool,
    dies: bool,
    own: tuple[str, ...],
    start: Any,  # noqa: F811
    spawn: Any,
    tmp_path: Path,
) -> None:
    inside = own if agent_apart else ()
    state = tmp_path / "s"
    doomed = start(inside=inside)
    child: Child = spawn(inside=() if agent_apart else own)
    pid = child.pid if agent_apart else 1
    child.do("connect()")
    _record(child, 100)
    eventually(lambda: _rows(state, pid) == 100)
    doomed.process.send_signal(signal.SIGKILL)
    doomed.process.wait(30)
    # Where that was `unshare`, the agent in it goes next.
    eventually(lambda: not answers(state / "agent.sock"))
    _record(child, 50)
    child.do("a = r.annotate('open'); a.__enter__()")
    if dies:
        child.kill()
    rounds = len(batches(state, 0))
    start(inside=inside, return_s=1.0 if dies else 60.0)
    if not dies:
        # It comes some rounds late, as it does when its next try is seconds away.
        eventually(lambda: len(batches(state, 0)) > rounds + 4)
        child.do("connect()")
        _record(child, 7)
        child.kill()
    eventually(lambda: not list((tmp_path / "shm").glob("*.ring")))
    eventually(lambda: any(event.event == "end" for event in announced(batches(state, pid), "run_event")))
    found = _once(batches(state, pid))
    recorded = 151 if dies else 158
    assert len({batch.source_id for batch in found}) == 1
    assert [batch.batch_number for batch in found] == list(range(len(found)))
    assert found[-1].produced == recorded, [batch.rows for batch in found]
    assert list(found[-1].dropped) == []
    rows = [row for batch in found if batch.rows for row in table(batch).to_pylist()]
    assert len(rows) == recorded
    unended = [row["program"] for row in rows if row["flags"] & SpanFlag.TRUNCATED]
    assert unended == [name_program("open")]


@pytest.mark.unit
def test_life_is_told_by_the_kernel_or_not_at_all(tmp_path: Path) -> None:
    code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.close(); input()"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "l"))
    listener.listen()
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "l")], stdin=subprocess.PIPE)
    peer, _ = listener.accept()
    started = start_ticks(child.pid)
    assert started is not None
    unseen, seen, liar, saved = (Life(started + odd) for odd in (0, 0, 1, 0))
    assert unseen.lives() is None
    unseen.meet(peer, 0)  # as from another namespace
    seen.meet(peer, child.pid)
    liar.meet(peer, child.pid)
    saved.remember(child.pid)
    assert [life.pid for life in (unseen, seen, liar, saved)] == [0, child.pid, 0, child.pid]
    before = [life.lives() for life in (unseen, seen, liar, saved)]
    child.kill()
    child.communicate()
    deadline = time.monotonic() + 20
    while seen.lives() and time.monotonic() < deadline:
        pass
    after = [life.lives() for life in (unseen, seen, liar, saved)]
    told = True if _has_pidfd(peer) else None  # before Linux 6.5 only its connection tells
    assert before == [told, True, False, True]
    assert after == [None if told is None else False, False, False, False]
    for life in (unseen, seen):
        life.close()
    peer.close()
    listener.close()


def _has_pidfd(peer: socket.socket) -> bool:
    try:
        os.close(peer.getsockopt(socket.SOL_SOCKET, 77))
    except OSError:
        return False
    return True
