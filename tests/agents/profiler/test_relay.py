"""The relay before the profiler server: bytes as they are, our session over before a call goes on, the port freed."""

import contextlib
import os
import socket
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.profiler import relay
from fleetscope.agents.profiler.protocol import Cost, Window
from fleetscope.agents.profiler.relay import Calls, Frame, Frames, Relay

from .test_user_first import PREAMBLE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int = 0, stream: int = 1, body: bytes = b"") -> bytes:
    """RFC 9113, 4.1, written anew."""
    return bytes([0, len(body) >> 8, len(body) & 255, kind, flags]) + stream.to_bytes(4, "big") + body


@pytest.mark.property
@given(
    frames=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=40)), max_size=6
    ),
    cut=st.integers(1, 30),
)
def test_frames_are_found_in_any_pieces(frames: list[tuple[int, int, int, bytes]], cut: int) -> None:
    data = PREFACE + b"".join(frame(*item) for item in frames)
    reader = Frames(PREFACE)
    got = [item for at in range(0, len(data), cut) for item in reader.feed(data[at : at + cut])]
    assert got == [Frame(kind, flags, stream) for kind, flags, stream, _ in frames]
    assert not reader.opaque


@pytest.mark.unit
def test_a_call_lasts_from_its_headers_to_the_end_of_the_answer() -> None:
    calls = Calls()
    calls.from_client(PREFACE + frame(4, stream=0) + frame(6, stream=0, body=b"pingpong"))
    assert not calls.any  # settings and pings are no call
    calls.from_client(frame(1, 4, 1, b"headers") + frame(0, 1, 1, b"request, the end of the client's side"))
    calls.from_client(frame(1, 4, 3, b"a second call"))
    calls.from_server(frame(1, 4, 1, b"headers") + frame(0, 0, 1, b"answer"))
    assert calls.any
    calls.from_server(frame(1, 5, 1, b"trailers"))
    assert calls.any
    calls.from_client(frame(3, 0, 3, b"\0\0\0\x08"))  # cancelled
    assert not calls.any
    other = Calls()
    other.from_client(b"GET / HTTP/1.1\r\n")
    assert other.any


@pytest.mark.fault
def test_a_client_that_opens_calls_for_ever_grows_nothing() -> None:
    calls = Calls()
    calls.from_client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")

    def open_many() -> None:
        for stream in range(1, 100_001, 2):
            calls.from_client(headers(stream))

    assert held_by(open_many) < 1 << 20
    assert calls.any, "it counts as one call until it ends"


def headers(stream: int) -> bytes:
    """A HEADERS frame without a header block (RFC 9113, 4.1 and 6.2)."""
    return b"\0\0\0\x01\x04" + stream.to_bytes(4, "big")


def held_by(work: Callable[[], object]) -> int:
    """Bytes that are held after some work."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


class Upstream:
    """An echo server of one loopback port, and a relay in front of it."""

    def __init__(self, port: int) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.order: list[str] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        listener = relay.listen(port)
        assert listener is not None
        self.relay = Relay(listener, self._server.getsockname()[1], self._begins, self.ended.append)

    def _begins(self, key: int) -> None:
        time.sleep(0.05)
        self.order.append("session stopped")
        self.begun.append(key)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self._server.accept()
                threading.Thread(target=self._echo, args=(peer,), daemon=True).start()

    def _echo(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer:
            while data := peer.recv(1 << 16):
                self.order.append("server got bytes")
                peer.sendall(data)

    def close(self) -> None:
        self.relay.close()
        self._server.close()


@pytest.fixture
def upstream(free_port: Callable[[], int]) -> Iterator[tuple[Upstream, int]]:
    port = free_port()
    server = Upstream(port)
    yield server, port
    server.close()


def read_all(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := peer.recv(1 << 16)):
        data += part
    return data


@pytest.mark.unit
def test_bytes_pass_both_ways_and_ours_is_over_first(upstream: tuple[Upstream, int]) -> None:
    server, port = upstream
    data = os.urandom(8 << 20)
    for address in (("127.0.0.1", port), ("::1", port)):  # as jaxlib's own server: IPv6 and IPv4 at once
        with socket.create_connection(address, timeout=60) as peer:
            sender = threading.Thread(target=lambda peer=peer: (peer.sendall(data), peer.shutdown(socket.SHUT_WR)))
            sender.start()
            assert read_all(peer, len(data)) == data
            sender.join()
            assert peer.recv(1) == b""  # the end is passed on too
    assert server.order[0] == "session stopped"
    assert len(server.begun) == 2
    until = time.monotonic() + 60
    while len(server.ended) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.unit
def test_a_client_that_does_not_read_holds_up_itself_only(upstream: tuple[Upstream, int]) -> None:
    _, port = upstream
    with socket.create_connection(("127.0.0.1", port)) as slow, socket.create_connection(("127.0.0.1", port)) as quick:
        slow.settimeout(0.3)
        with pytest.raises(TimeoutError):
            slow.sendall(bytes(64 << 20))  # nothing of it is read back: buffers end somewhere
        quick.settimeout(60)
        quick.sendall(b"hello")
        assert read_all(quick, 5) == b"hello"


@pytest.mark.fault
def test_a_call_whose_client_left_before_its_answer_ends_all_the_same(free_port: Callable[[], int]) -> None:
    """Found: the answer's last frame could not be sent, its call was never ended, and no window opened any more."""
    ended: list[int] = []
    listener = relay.listen(free_port())
    assert listener is not None
    between = Relay(listener, 1, lambda _: None, ended.append)
    calls = Calls()
    calls.from_client(PREFACE + frame(1, 4, 1, b"call"))
    (upstream, server), (peer, client) = socket.socketpair(), socket.socketpair()
    with upstream, server, client:
        peer.close()
        answering, gone = relay._End(server), relay._End(client)
        answering.other, gone.other = gone, answering
        answering.calls = gone.calls = calls
        upstream.sendall(frame(0, 1, 1, b"the end of the answer"))
        with pytest.raises(BrokenPipeError):
            between._receive(answering)
    assert ended == [id(calls)]
    between.close()


@pytest.mark.fault
def test_a_relay_that_failed_closes_no_descriptor_of_others(free_port: Callable[[], int]) -> None:
    """Found: in a child of a process whose relay had ended, numbers were closed that belonged to others by then."""
    listener = relay.listen(free_port())
    assert listener is not None
    failed = Relay(listener, 1, lambda _: None, lambda _: None)
    fds = {failed._wake_read, failed._wake_write}
    failed.close()
    until = time.monotonic() + 60
    while failed._wake_read >= 0:
        assert time.monotonic() < until
        time.sleep(0.01)
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    assert fds <= set(others)
    failed.close()
    failed.after_fork_in_child()
    for other in others:
        os.close(other)  # OSError where it was closed already


@pytest.mark.fault
def test_500_connections_that_say_nothing_hold_up_nobody(upstream: tuple[Upstream, int]) -> None:
    server, port = upstream
    before = len(os.listdir("/proc/self/fd"))
    held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(500)]
    try:
        for peer in held[::2]:
            peer.sendall(b"PRI * HT")  # a preface that never ends
        with socket.create_connection(("127.0.0.1", port), timeout=60) as quick:
            quick.sendall(b"hello")
            assert read_all(quick, 5) == b"hello"
        assert len(server.begun) == 1  # none of the silent ones keeps windows off
    finally:
        for peer in held:
            peer.close()
    until = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > before + 20:
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.unit
def test_the_port_is_free_once_the_relay_is_closed(upstream: tuple[Upstream, int]) -> None:
    server, port = upstream
    peer = socket.create_connection(("127.0.0.1", port), timeout=60)
    server.relay.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    with contextlib.suppress(ConnectionResetError):
        assert peer.recv(1) == b""
    peer.close()
    with socket.create_server(("0.0.0.0", port)):
        pass


@pytest.mark.unit
def test_a_port_that_cannot_be_had_is_left_to_the_original() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        assert relay.listen(taken.getsockname()[1]) is None
    assert relay.listen(0) is None
    assert relay.listen(-1) is None
    assert relay.listen(70_000) is None


SERVED = (
    PREAMBLE
    + """
import socket, subprocess
from fleetscope.agents.profiler import relay
port = int(sys.argv[1])
until(lambda: windows().taken >= 1, 60)
server = jax.profiler.start_server(port)
taken = windows().taken
until(lambda: windows().taken > taken, 60)      # windows go on beside a server
real = [p for p in relay.listeners().values() if p != port]
assert len(real) == 1, relay.listeners()
for address in (("127.0.0.1", port), ("::1", port)):
    socket.create_connection(address, timeout=60).close()
client = '''
import sys
from xprof.convert import _pywrap_profiler_plugin as plugin
for number in range(4):
    plugin.trace("localhost:" + sys.argv[1], sys.argv[2] + "/" + str(number), "", True, 150, 3, {})
'''
command = [sys.executable, "-c", client, str(port), sys.argv[2]]
done = subprocess.run(command, capture_output=True, text=True, timeout=90)
assert done.returncode == 0, done.stderr
assert _process.arbiter._relays[0].calls >= 4
child = os.fork()
if child == 0:
    ok = not _process.arbiter._relays and port not in relay.listeners().values()
    os._exit(0 if ok else 3)
assert os.waitpid(child, 0)[1] == 0
socket.create_connection(("127.0.0.1", port), timeout=60).close()   # the parent's goes on
del server
jax.profiler.stop_server()
try:
    socket.create_connection(("127.0.0.1", port), timeout=60).close()
    raise AssertionError("still there")
except ConnectionRefusedError:
    pass
server = jax.profiler.start_server(port)                            # and can be had again
del server
jax.profiler.stop_server()
taken = windows().taken
until(lambda: windows().taken > taken, 60)
busy = False
thread.join()
profiler.stop()
print("ok")
"""
)


@pytest.mark.e2e
def test_captures_of_a_server_win_with_windows_going_on(
    agent: Callable[..., Any],
    python: Callable[..., subprocess.CompletedProcess[str]],
    free_port: Callable[[], int],
    tmp_path: Any,
) -> None:
    toy = agent(window_s=0.3, steps_between_windows=2)
    code = "import warnings\nwarnings.filterwarnings('ignore', message='os.fork')\n" + SERVED
    assert python(code, str(free_port()), str(tmp_path / "captures"), PYTHONWARNINGS="").stdout == "ok\n"
    captures = list((tmp_path / "captures").glob("*/plugins/profile/*/*.xplane.pb"))
    assert len(captures) == 4
    from jax.profiler import ProfileData

    for capture in captures:
        planes = ProfileData.from_serialized_xspace(capture.read_bytes()).planes
        assert any("hlo_op" in dict(event.stats) for p in planes for line in p.lines for event in line.events)
    assert toy.of(Window)
    cost = toy.of(Cost)[-1][0]
    assert cost.skipped.get("capture", 0) + cost.dropped.get("user_session", 0) > 0
    assert "server" not in cost.skipped
