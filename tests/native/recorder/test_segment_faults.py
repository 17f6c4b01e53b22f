"""Segments that are damaged, full, forked over or read by a second reader."""

import fcntl
import os
import resource
import shutil
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.native import _recorder as recorder
from fleetscope.native.recorder import Segment


def run(code: str, *args: str, **kwargs: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args], capture_output=True, text=True, timeout=60, **kwargs
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


WRITE = """
import sys
from fleetscope.native import _recorder as recorder
path = recorder.open(sys.argv[1])
recorder.record(True)
for number in range(int(sys.argv[2])):
    recorder.counter("n", number)
print(path)
"""


@pytest.mark.fault
def test_a_child_records_nothing_until_it_has_a_segment_of_its_own(tmp_path: Path) -> None:
    code = """
    import os, sys
    from fleetscope.native import _recorder as recorder
    from fleetscope.native.recorder import Segment
    path = recorder.open(sys.argv[1])
    recorder.record(True)
    region = recorder.annotate("around")
    with region:
        pid = os.fork()
        if pid == 0:
            recorder.counter("n", 2)
            with recorder.annotate("child"):
                assert not recorder.recording()
        else:
            recorder.counter("n", 1)
            assert os.waitpid(pid, 0)[1] == 0
    if pid == 0:
        own = recorder.open(sys.argv[1])
        assert own != path and str(os.getpid()) in own
        recorder.record(True)
        recorder.counter("n", 3)
        assert Segment(own).drain().arg.tolist() == [3]
        assert Segment(own).info.pid == os.getpid()
        os._exit(0)
    got = Segment(path).drain()
    names = Segment(path).names()
    assert [names[i] for i in got.name] == ["n", "around"], names
    assert got.arg.tolist()[0] == 1
    """
    run(code, str(tmp_path))


@pytest.mark.fault
def test_a_child_of_a_raw_clone_finds_the_gate_closed(tmp_path: Path) -> None:
    """SYS_fork by number: neither CPython's nor libc's fork handlers run."""
    code = """
    import ctypes, os, sys
    from fleetscope.native import _recorder as recorder
    from fleetscope.native.recorder import Segment
    path = recorder.open(sys.argv[1])
    recorder.record(True)
    libc = ctypes.CDLL(None)
    SYS_fork = 57 if os.uname().machine == "x86_64" else None
    if SYS_fork is None:
        raise SystemExit(0)
    pid = libc.syscall(SYS_fork)
    if pid == 0:
        recorder.counter("n", 2)
        os._exit(1 if recorder.recording() else 0)
    assert os.waitpid(pid, 0)[1] == 0
    recorder.counter("n", 1)
    assert Segment(path).drain().arg.tolist() == [1]
    """
    run(code, str(tmp_path))


@pytest.mark.fault
def test_fork_while_another_thread_records(tmp_path: Path) -> None:
    code = """
    import os, sys, threading
    from fleetscope.native import _recorder as recorder
    from fleetscope.native.recorder import Segment
    path = recorder.open(sys.argv[1])
    recorder.record(True)
    done, sent = False, 0
    def work():
        global sent
        while not done:
            recorder.counter("n", sent)
            sent += 1
    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            for _ in range(100):
                recorder.counter("n", -1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    done = True
    thread.join()
    got = Segment(path).drain(1 << 20)
    assert len(got) + got.lost == sent == got.arg[-1] + 1
    assert (got.arg >= 0).all()
    """
    run(code, str(tmp_path))


@pytest.mark.fault
def test_no_room_for_the_file_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the full tmpfs: both refuse to make the file longer."""
    code = """
    import sys
    from fleetscope.native import _recorder as recorder
    try:
        recorder.open(sys.argv[1])
    except OSError:
        print("refused")
    recorder.counter("n", 1)
    with recorder.annotate("a"):
        pass
    """
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # noqa: E731
    assert run(code, str(tmp_path), preexec_fn=limit) == "refused"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault
def test_no_room_for_a_ring_is_counted_and_kills_nobody(tmp_path: Path) -> None:
    """A tmpfs of 2 MB holds the tables and the first ring (1.6 MB), and one more: a store to a page that it cannot give
    would be a SIGBUS."""
    code = """
    import sys, threading
    from fleetscope.native import _recorder as recorder
    from fleetscope.native.recorder import Segment
    path = recorder.open(sys.argv[1])
    recorder.record(True)
    for number in range(40_000):
        recorder.counter("n", 1)
    go = threading.Event()
    def work():
        for _ in range(9_000):
            recorder.counter("n", 2)
        go.wait()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    segment = Segment(path)
    while segment.state().events + segment.state().no_ring < 40_000 + 3 * 9_000:
        pass
    go.set()
    got = segment.drain(1 << 20)
    print(len(got) + got.lost, segment.state().no_ring)
    """
    inside = ["unshare", "--mount", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True).returncode:
        if os.environ.get("FLEETSCOPE_REQUIRE_ALL") == "1":
            pytest.fail("unshare --mount is missing")
        pytest.skip("unshare --mount is missing: a full tmpfs needs a mount of its own")
    script = 'mount -t tmpfs -o size=2m tmpfs "$2" && exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        [*inside, "sh", "-c", script, sys.executable, textwrap.dedent(code), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(40_000 + 9_000), str(2 * 9_000)]


@pytest.mark.fault
@pytest.mark.parametrize("folder", ["/proc/nowhere", "/dev/null/x"])
def test_a_folder_that_is_none_is_an_error(folder: str) -> None:
    with pytest.raises(OSError, match=folder):
        recorder.open(folder)


@pytest.mark.unit
def test_a_second_reader_goes_on_where_the_first_committed(tmp_path: Path) -> None:
    path = run(WRITE, str(tmp_path), "100")
    first = Segment(path)
    assert len(first.drain()) == 100
    kept = first.cursor
    assert len(Segment(path).drain()) == 100  # nothing was committed
    assert first.commit() is True
    assert len(Segment(path).drain()) == 0
    assert len(Segment(path, kept).drain()) == 0
    with pytest.raises(ValueError, match="cursor"):
        Segment(path, b"short")


@pytest.mark.fault
def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path: Path) -> None:
    path = run(WRITE, str(tmp_path), "100")
    segment = Segment(path)
    for size in (4096, 0):
        os.truncate(path, size)
        for read in (segment.drain, segment.names, segment.state):
            with pytest.raises(ValueError, match="shrank"):
                read()
        with pytest.raises(ValueError, match="too short"):
            Segment(path)


@pytest.mark.fault
def test_memory_without_a_name_is_sealed_and_outlives_a_kill(tmp_path: Path) -> None:
    """Handed over as an agent gets it; whoever holds the descriptor has what the process left."""
    code = """
    import os, signal, socket, sys
    from fleetscope.native import _recorder as recorder
    path = recorder.open(None)
    recorder.record(True)
    for number in range(100):
        recorder.counter("n", number)
    for cut in (lambda fd: os.ftruncate(fd, 4096), lambda fd: os.ftruncate(fd, 1 << 30)):
        try:
            cut(recorder.descriptor())
        except PermissionError:
            pass
        else:
            raise SystemExit(1)
    region = recorder.annotate("hangs")
    region.__enter__()
    peer = socket.socket(fileno=int(sys.argv[1]))
    socket.send_fds(peer, [path.encode()], [recorder.descriptor()])
    signal.pause()
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        words = [sys.executable, "-c", textwrap.dedent(code), str(theirs.fileno())]
        with subprocess.Popen(words, pass_fds=[theirs.fileno()], cwd=tmp_path) as process:
            path, (descriptor,), _, _ = socket.recv_fds(ours, 512, 1)
            segment = Segment(path.decode(), None, descriptor)
            os.close(descriptor)
            assert path.startswith(f"memfd:fleetscope-{process.pid}-".encode())
            assert segment.held
            assert segment.info.pid == process.pid
            assert segment.info.pid_namespace == os.stat("/proc/self/ns/pid").st_ino
            process.kill()
    assert not segment.held
    assert segment.drain().arg.tolist() == list(range(100))
    assert [segment.names()[region.name] for region in segment.open_now()] == ["hangs"]
    assert segment.commit() is True
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault
def test_a_named_segment_is_held_while_its_process_lives(tmp_path: Path) -> None:
    code = "import sys; from fleetscope.native import _recorder as r; print(r.open(sys.argv[1]), flush=True); input()"
    words = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        segment = Segment(process.stdout.readline().strip())
        assert segment.held
        process.kill()
        process.wait()
        assert not segment.held


@pytest.mark.fault
def test_descriptors_that_are_no_sealed_memory_are_refused(tmp_path: Path) -> None:
    data = Path(run(WRITE, str(tmp_path), "1")).read_bytes()
    (tmp_path / "disk").write_bytes(data)
    read, write = os.pipe()
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    garbage = os.memfd_create("garbage", os.MFD_ALLOW_SEALING)
    disk = os.open(tmp_path / "disk", os.O_RDWR)
    os.write(unsealed, data)
    os.write(garbage, bytes(1 << 20))
    fcntl.fcntl(garbage, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    try:
        for descriptor, why in ((read, "no shared memory"), (unsealed, "not sealed"), (garbage, "magic")):
            with pytest.raises(ValueError, match=why):
                Segment("x", None, descriptor)
        if "tmpfs" not in _filesystem(tmp_path):
            with pytest.raises(ValueError, match="no shared memory"):
                Segment("x", None, disk)
    finally:
        for descriptor in (read, write, unsealed, garbage, disk):
            os.close(descriptor)


def _filesystem(path: Path) -> str:
    return subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True).stdout


@pytest.mark.unit
def test_another_clock_is_another_segment_and_steps_go_on(tmp_path: Path) -> None:
    """The kernel's word is a file of ours here; what it says decides, as it does from the system's own."""
    source = tmp_path / "current_clocksource"
    source.write_text("hpet\n")
    code = """
    import sys
    from fleetscope.native import _recorder as r
    from fleetscope.native.recorder import Segment
    kind = r.host_counter()[0]
    before = r.clocks(kind)
    assert r.clock_change(True, kind, before) == ""
    first = Segment(r.open(sys.argv[1]))
    r.record(True)
    for number in range(3):
        with r.step(number):
            pass
    region = r.annotate("open over it")
    region.__enter__()
    r.clock_source(sys.argv[2])
    assert r.clock_change(False, kind, before) == ""
    assert r.clock_change(True, kind, before) == ("another source" if kind == "tsc" else "")
    assert r.host_counter() == ("monotonic_raw", 1, 1)
    second = Segment(r.renew(sys.argv[1], False))
    r.record(True)
    region.__exit__(None, None, None)
    with r.step(3):
        pass
    assert (first.state().closed, second.state().closed, first.state().abandoned) == (True, False, 1)
    assert (first.info.clock, second.info.clock) == (kind, "monotonic_raw")
    assert first.path.removesuffix(".ring") + ".2.ring" == second.path
    assert (first.drain().arg.tolist(), second.drain().arg.tolist()) == ([0, 1, 2], [3])
    assert r.steps()[2] == 4
    assert second.open_now() == first.open_now() == []
    r.renew(sys.argv[1], True)
    assert r.renew(sys.argv[1], True) != second.path  # its name is free again, and would say nothing new
    """
    run(code, str(tmp_path), str(source))


@pytest.mark.unit
def test_a_counter_that_steps_or_leaps_is_told() -> None:
    """A TSC counts what CLOCK_MONOTONIC_RAW does: 1 ms and a thousandth apart is a leap."""
    name, num, den = recorder.host_counter()
    ns = den / num

    def since(passed_ms: float, counted_ms: float) -> str:
        raw, counter, realtime, after = recorder.clocks(name)
        before = (
            int(raw - passed_ms * 1e6),
            int(counter - counted_ms * 1e6 * ns),
            realtime,
            int(after - passed_ms * 1e6),
        )
        return recorder.clock_change(False, name, before)

    assert since(1000, 1000) == ""
    assert since(1000, 1001.5) == ""
    assert since(1000, -10) == "stepped back"
    assert since(-10, 1000) == "stepped back"
    assert since(1000, 1100) == "leapt"
    assert since(3_600_000, 3_590_000) == "leapt"
    assert recorder.clock_change(False, "another", recorder.clocks(name)) == "another source"


@pytest.mark.fault
def test_files_that_are_no_segment(tmp_path: Path) -> None:
    path = tmp_path / "x.ring"
    with pytest.raises(ValueError, match="cannot be opened"):
        Segment(str(path))
    path.write_bytes(bytes(1 << 20))
    with pytest.raises(ValueError, match="magic"):
        Segment(str(path))
    with pytest.raises(ValueError, match="no regular file"):
        Segment(str(tmp_path))
    link = tmp_path / "link.ring"
    link.symlink_to(run(WRITE, str(tmp_path), "1"))
    with pytest.raises(ValueError, match="cannot be opened"):
        Segment(str(link))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return Path(run(WRITE, str(tmp_path_factory.mktemp("ring")), "500")).read_bytes()


@pytest.mark.property
@settings(max_examples=60)
@given(
    changes=st.lists(
        st.tuples(
            st.one_of(
                st.integers(0, 260),  # header
                st.integers(8192, 8192 + 256),  # first slots
                st.integers(81920, 81920 + 64),  # names
                st.integers(606208, 606208 + 500 * 32),  # records
            ),
            st.binary(min_size=1, max_size=16),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_bytes_make_the_reader_fall_over(
    written: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]]
) -> None:
    data = bytearray(written)
    for at, new in changes:
        data[at : at + len(new)] = new
    path = tmp_path_factory.mktemp("bad") / "x.ring"
    path.write_bytes(data)
    try:
        segment = Segment(str(path))
        got = segment.drain(1 << 20)
        segment.names()
        segment.threads()
        segment.state()
    except ValueError:
        return
    assert len(got) == len(got.start) == len(got.kind) <= 32_768
    assert (got.arg_row < max(len(got), 1)).all()
    assert not got.start.flags.writeable
