"""Whatever the agent does or is not, the program runs to its end, in its time, and hears nothing of it."""

import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.profiler.protocol import NAMELESS, Config, Cost, End, Hello, encode

pytestmark = pytest.mark.fault

# No jax: the connection, the segment and the thread are the same without it.
PROGRAM = """
import sys, time
from fleetscope.agents import profiler
profiler.start(early=True)
end = time.monotonic() + float(sys.argv[1])
number = 0
while time.monotonic() < end:
    with profiler.step(number), profiler.annotate("work"):
        time.sleep(0.001)
    number += 1
print(number)
"""


@pytest.fixture
def listener(tmp_path: Path) -> Any:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "agent.sock"))
    server.listen()
    yield server
    server.close()


def test_no_agent_and_the_segment_is_gone_at_the_end(
    python: Callable[..., subprocess.CompletedProcess[str]], shm: Path
) -> None:
    done = python(PROGRAM, "0.3")
    assert int(done.stdout) > 50
    assert done.stderr == ""
    assert list(shm.iterdir()) == []


def test_an_agent_that_answered_finds_the_segment_after_the_end(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[..., Any],
) -> None:
    toy = agent()
    count = int(python(PROGRAM, "1.2").stdout)
    (end,) = (message for message, _ in toy.wait_for(End))
    assert end.steps == count
    names, events = only_segment()
    assert names == ["work", "step"] * count
    assert events.arg[1::2].tolist() == list(range(count))


def test_a_process_that_ends_before_the_agent_answered_is_kept(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[..., Any],
) -> None:
    toy = agent(enabled=True)
    python("""
        from fleetscope.agents import profiler
        profiler.start(early=True)
        with profiler.annotate("short"):
            pass
    """)
    assert (len(toy.wait_for(Hello)), len(toy.wait_for(End))) == (1, 1)
    assert only_segment()[0] == ["short"]


def test_an_agent_that_comes_late_gets_what_the_ring_holds(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[..., Any],
) -> None:
    late: list[Any] = []
    timer = threading.Timer(1.0, lambda: late.append(agent()))
    timer.start()
    count = int(python(PROGRAM, "4").stdout)
    timer.join()
    (end,) = (message for message, _ in late[0].wait_for(End))
    assert end.steps == count
    assert only_segment()[0] == ["work", "step"] * count


def test_an_agent_that_disables_it(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]], only_segment: Callable[..., Any]
) -> None:
    toy = agent(enabled=False)
    count = int(python(PROGRAM, "1.5").stdout)
    toy.wait_for(End)
    # Recorded until it was told not to, which on a quick machine is before the first step.
    assert len(only_segment()[0]) < count


def test_an_agent_that_is_restarted_meets_the_same_process(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    first = agent()
    again: list[Any] = []

    def restart() -> None:
        first.wait_for(Hello)
        first.close()
        time.sleep(0.2)
        again.append(agent())

    thread = threading.Thread(target=restart)
    thread.start()
    count = int(python(PROGRAM, "4").stdout)
    thread.join()
    (end,) = (message for message, _ in again[0].wait_for(End))
    assert end.steps == count
    assert again[0].of(Hello)[0][0] == first.of(Hello)[0][0]
    first.close = lambda: None  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("<II", 3, 0) + b"{}x",
        struct.pack("<II", 40, 0) + b'{"type":"config","window_s":"often"}    ',
        encode(Config(enabled=True))[:-5],
        encode(End(1, 1)),
    ],
    ids=["closes", "http", "giant", "no-json", "wrong-type", "half", "unexpected"],
)
def test_an_agent_that_talks_nonsense(
    answer: bytes, listener: socket.socket, python: Callable[..., subprocess.CompletedProcess[str]], shm: Path
) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(answer)
            time.sleep(0.3 if answer else 0)

    thread = threading.Thread(target=serve)
    thread.start()
    done = python(PROGRAM, "0.8")
    thread.join()
    assert int(done.stdout) > 100
    assert done.stderr == ""
    assert list(shm.iterdir()) == []  # none of these is an agent that would drain it


def test_an_agent_that_reads_nothing_does_not_hold_the_end_up(
    listener: socket.socket, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    code = PROGRAM.replace("profiler.start(early=True)", """profiler.start(early=True)
from fleetscope.agents.profiler.lifecycle import _process
from fleetscope.agents.profiler.protocol import Program
for number in range(40):
    _process.harvest._waiting.append((Program(number, "m", "cpu", 0, 0), bytes(1 << 20)))
""")  # fmt: skip
    begin = time.monotonic()
    done = python(code, "0.5")
    assert int(done.stdout) > 50
    assert time.monotonic() - begin < 0.5 + 5  # 2 s until the send is given up, 2 s at most at the end


@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null"])
def test_a_segment_that_cannot_be_made(
    folder: str, agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    toy = agent()
    done = python(PROGRAM, "0.8", FLEETSCOPE_AGENT__SHM_DIR=folder)
    assert int(done.stdout) > 100
    assert done.stderr == ""
    (hello,) = (message for message, _ in toy.wait_for(Hello))
    assert hello.segment.startswith(NAMELESS)  # memory that the agent is handed
    assert toy.wait_for(End)


def test_a_killed_process_leaves_its_segment_and_no_end(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[..., Any],
) -> None:
    toy = agent()
    code = PROGRAM.replace("print(number)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    done = python(code, "1", check=False)
    assert done.returncode == -9
    assert toy.of(Hello)
    assert toy.of(End) == []
    names, events = only_segment()
    assert names == ["work", "step"] * (len(names) // 2)
    assert events.lost == 0


def test_segments_of_the_long_dead_are_swept(
    python: Callable[..., subprocess.CompletedProcess[str]], shm: Path
) -> None:
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    dead, young = shm / "fleetscope-1-999999999.ring", shm / "fleetscope-2-999999998.ring"
    alive, other = shm / f"fleetscope-{os.getpid()}-{stat[19]}.ring", shm / "somebody-else.ring"
    for path in (dead, young, alive, other):
        path.write_bytes(b"x")
    for path in (dead, alive, other):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    victim = shm.parent / "victim"
    victim.mkdir()
    (victim / "precious").touch()
    linked = Path(f"{dead}.hlo")  # in a folder of everybody's: what it leads to is not ours
    linked.symlink_to(victim)
    programs = shm / "fleetscope-3-999999997.ring"
    programs.touch()
    os.utime(programs, (time.time() - 7200, time.time() - 7200))
    Path(f"{programs}.hlo").mkdir()
    (Path(f"{programs}.hlo") / "1.pb").touch()
    python(PROGRAM, "0.3")
    assert set(shm.iterdir()) == {young, alive, other, linked}
    assert (victim / "precious").exists()


def test_disabled_by_a_variable(
    agent: Callable[..., Any], python: Callable[..., subprocess.CompletedProcess[str]], shm: Path
) -> None:
    toy = agent()
    assert int(python(PROGRAM, "0.3", FLEETSCOPE_DISABLED="1").stdout) > 50
    assert toy.messages == []
    assert list(shm.iterdir()) == []


def test_stop_and_start_again(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    only_segment: Callable[..., Any],
) -> None:
    """One process is one segment to the agent, however often it stops."""
    toy = agent()
    code = """
    import time
    from fleetscope.agents import profiler
    for round in range(3):
        assert profiler.start(early=True)
        assert profiler.start(early=True)
        for number in range(5):
            profiler.step(round * 5 + number)
        time.sleep(0.7)
        profiler.stop()
        profiler.stop()
        profiler.step(99)
    """
    python(code)
    assert [message.steps for message, _ in toy.wait_for(End, 3)] == [5, 10, 15]
    assert len(toy.of(Cost)) >= 3
    assert only_segment()[1].arg.tolist() == list(range(15))


def test_the_other_face_where_the_library_is_missing(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
    import sys
    sys.modules["fleetscope.native._recorder"] = None
    from fleetscope.agents import profiler
    assert profiler.start() is False
    with profiler.step(1, consumer=4), profiler.annotate("a", b=2):
        profiler.counter("c", 3)
        profiler.link(producer=profiler.new_flow())
    with profiler.site("e")(producer=(profiler.ContextType.BATCHER, 5)):
        profiler.site("e").instant(consumer=6)
    region = profiler.begin("f", consumer=7)
    region.link(producer=8)
    profiler.end(region)
    @profiler.annotate("d")
    def function():
        return 7
    assert function() == 7
    profiler.stop()
    """
    python(code)
