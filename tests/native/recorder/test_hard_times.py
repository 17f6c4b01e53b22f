"""What a process may do to a recorder that runs: signals, thousands of threads, every kind of child."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import Segment

pytestmark = pytest.mark.fault


def test_a_signal_ten_thousand_times_a_second(segment: Segment) -> None:
    """Its handler records too, in the middle of whatever the thread does."""
    site, inside = recorder.site("work"), recorder.site("handler")
    handled = 0

    def handler(*_: object) -> None:
        nonlocal handled
        with inside:
            handled += 1

    before = signal.signal(signal.SIGPROF, handler)
    signal.setitimer(signal.ITIMER_PROF, 1e-4, 1e-4)
    try:
        passes = 0
        while handled < 50:
            with site:
                passes += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    got, names = segment.drain(), segment.names()
    assert len(got) + got.lost == passes + handled == segment.state().events
    assert {names[n] for n in got.name} == {"work", "handler"}
    assert segment.open_now() == []
    assert (got.dur >= 0).all()


def test_ten_thousand_short_threads(segment: Segment) -> None:
    site = recorder.site("short")

    def work() -> None:
        with site:
            pass

    for _ in range(500):
        pool = [threading.Thread(target=work) for _ in range(20)]
        for thread in pool:
            thread.start()
        for thread in pool:
            thread.join()
    got, state = segment.drain(), segment.state()
    assert len(got) + got.lost + state.no_ring == 10_000
    assert state.no_ring == 0  # twenty at a time fit into 64 rings, however many there were before
    assert os.stat(segment.path).st_blocks * 512 <= 19 << 20


TLS = """
static __thread char block[SIZE] __attribute__((tls_model("initial-exec")));
char* touch(void) { block[0] = 1; return block; }
"""


@pytest.fixture(scope="module")
def static_tls(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Libraries whose thread-local variables must lie in the block that every thread has from its start."""
    folder = tmp_path_factory.mktemp("tls")
    (folder / "tls.c").write_text(TLS)

    def build(size: int, name: str = "") -> Path:
        made = folder / f"tls{size}{name}.so"
        words = [os.environ.get("CC") or "gcc", "-shared", "-fPIC", f"-DSIZE={size}", folder / "tls.c", "-o", made]
        subprocess.run(words, check=True)
        return made

    return build


LATE = """
import ctypes, sys, threading
ctypes.CDLL(sys.argv[2]).touch()
full = False
for path in sys.argv[3:]:
    try:
        ctypes.CDLL(path).touch()
    except OSError as error:
        assert "static TLS" in str(error), error
        full = True
from fleetscope.agents import profiler
with profiler.annotate("main"):
    pass
print(full, "absent" if "absent" in profiler.annotate.__module__ else "recorder")
if "absent" in profiler.annotate.__module__:
    raise SystemExit
from fleetscope.native import _recorder as r
from fleetscope.native.recorder import Segment
segment = Segment(r.open(sys.argv[1]))
r.record(True)
def work():
    with r.site("thread"):
        pass
for _ in range(3):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(len(segment.drain()))
r.close(True)
"""


def test_loaded_late_beside_large_static_tls(static_tls: Callable[..., Path], tmp_path: Path) -> None:
    """A megabyte of a library that was there from the start, and what glibc keeps for late ones all but taken. The
    recorder needs 8 bytes of that; where there are none left, the program goes on without it."""
    large, some = static_tls(1 << 20), static_tls(512)
    blocks = [static_tls(64, f"-{number}") for number in range(64)]
    environment = {**os.environ, "LD_PRELOAD": str(large), "FLEETSCOPE_DISABLED": "1"}

    def said(*paths: Path) -> list[str]:
        words = [sys.executable, "-c", LATE, str(tmp_path), str(large), *map(str, paths)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert said(some) == ["False", "recorder", "3"]
    full, face, *events = said(*blocks)
    assert full == "True"
    assert (face, events) in [("recorder", ["3"]), ("absent", [])]


def test_a_program_that_is_executed_inherits_nothing(segment: Segment) -> None:
    code = "import os; print([os.path.realpath(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd')])"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, close_fds=False, capture_output=True, text=True, check=True, timeout=60)
    assert segment.path not in done.stdout


CHILDREN = """
import multiprocessing, os, sys
from fleetscope.native import _recorder as r

def child(folder, said):
    before = r.recording()
    with r.site("child"):
        pass
    r.on_first_use(None)
    path = r.open(folder)
    r.record(True)
    with r.site("child"):
        pass
    from fleetscope.native.recorder import Segment
    got, names = Segment(path).drain(), Segment(path).names()
    said.put((before, os.getpid() == Segment(path).info.pid, [names[n] for n in got.name]))

if __name__ == "__main__":
    from fleetscope.native.recorder import Segment
    context = multiprocessing.get_context(sys.argv[1])
    said = context.SimpleQueue()
    r.on_first_use(None)
    segment = Segment(r.open(sys.argv[2]))
    r.record(True)
    with r.site("parent"):
        process = context.Process(target=child, args=(sys.argv[2], said))
        process.start()
        print(said.get())
        process.join(60)
    got, names = segment.drain(), segment.names()
    print(process.exitcode, [names[n] for n in got.name])
    r.close(True)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_kind_register_anew(tmp_path: Path, method: str) -> None:
    (tmp_path / "children.py").write_text(CHILDREN)
    words = [sys.executable, str(tmp_path / "children.py"), method, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == ["(False, True, ['child'])", "0 ['parent']"], done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the call is x86-64's")
def test_a_raw_clone_records_nothing(segment: Segment) -> None:
    """No handler of pthread_atfork runs: the gate's page is wiped by the kernel."""
    site = recorder.site("cloned")
    libc = ctypes.PyDLL(None)  # holds the GIL, as the child then does too
    child = libc.syscall(56, signal.SIGCHLD, 0, 0, 0, 0)  # SYS_clone of x86-64
    if child == 0:
        with site:
            pass
        os._exit(3 if recorder.recording() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(segment.drain()) == 0
