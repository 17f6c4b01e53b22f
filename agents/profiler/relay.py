"""A relay in front of jax's profiler server, so that a capture of its clients meets no device window of ours.

jaxlib's server begins a session by itself when a client calls it, without a word to Python, and a session that meets
ours fails at once. So the real server gets a port of its own, reachable from this machine alone, and the port the user
asked for is this relay's: it stops our session before the first byte of a call goes on. Bytes pass as they are.

A call is known from the frame headers of HTTP/2 (RFC 9113, 4.1), not from bytes on the wire: a client that keeps its
connection open, and pings, holds nothing up. What is no HTTP/2 counts as one call for as long as it is connected.
"""

import _socket
import os
import select
import time
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any, NamedTuple

CHUNK_BYTES = 256 << 10
CONNECT_S = 1.0
STREAMS = 1024
"""Calls under way on one connection that are told apart: gRPC allows 100. A client that opens more for ever must not
grow the training process; its connection counts as one call until it ends."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET = 0, 1, 3
_END_STREAM = 1
_SO_BINDTODEVICE = 25  # <asm-generic/socket.h>; the socket module names it only where it was built with it


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int


class Frames:
    """Frame headers of one direction of a connection, whatever the cuts of its bytes."""

    def __init__(self, preface: bytes = b"") -> None:
        self._preface = preface
        self._head = b""
        self._skip = 0
        self.opaque = False
        """It does not begin as HTTP/2 does."""

    def feed(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        at = 0
        if self._preface:
            at = min(len(self._preface), len(data))
            self.opaque = self.opaque or data[:at] != self._preface[:at]
            self._preface = self._preface[at:]
        while at < len(data) and not self.opaque:
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            part = data[at : at + 9 - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) == 9:
                head, self._head = self._head, b""
                self._skip = int.from_bytes(head[:3], "big")
                frames.append(Frame(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF))
        return frames


class Calls:
    """The calls of one connection that are under way."""

    def __init__(self) -> None:
        self._up, self._down = Frames(_PREFACE), Frames()
        self._open: set[int] = set()

    @property
    def any(self) -> bool:
        return bool(self._open) or self._up.opaque

    def _begin(self, stream: int) -> None:
        self._open.add(stream)
        if len(self._open) > STREAMS:
            self._open.clear()
            self._up.opaque = True

    def from_client(self, data: bytes) -> None:
        for frame in self._up.feed(data):
            if frame.kind == _HEADERS:
                self._begin(frame.stream)
            elif frame.kind == _RESET:
                self._open.discard(frame.stream)

    def from_server(self, data: bytes) -> None:
        for frame in self._down.feed(data):
            ends = frame.kind in (_DATA, _HEADERS) and frame.flags & _END_STREAM
            if ends or frame.kind == _RESET:
                self._open.discard(frame.stream)


class _End:
    """One socket of a connection: what waits to be sent to it, and whether its peer has finished sending."""

    def __init__(self, sock: Any) -> None:
        self.socket = sock
        self.fd = sock.fileno()
        self.waiting = memoryview(b"")
        self.finished = False
        self.told = False
        self.watched = 0
        self.other: _End
        self.calls: Calls
        self.is_client = False


class Relay:
    """Listens where the user wanted the server. One thread; `begins(key)` returns when our session is over."""

    def __init__(self, listener: Any, port: int, begins: Callable[[int], None], ends: Callable[[int], None]) -> None:
        self._listener = listener
        self._port = port
        self._begins, self._ends = begins, ends
        self._poll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._by_fd: dict[int, _End] = {}
        self._closed = False
        self.calls = 0
        """Calls that went through, for tests."""
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._listening = listener.fileno()
        start_new_thread(self._run, ())

    def close(self) -> None:
        """Frees the port at once; connections end as they do when a server goes. Any thread; never waits."""
        if self._closed:
            return
        self._closed = True
        self._end()

    def _end(self) -> None:
        """The hang-up of the pipe is what wakes the thread: a byte might reach a file that got its number since."""
        self._listener.close()
        write, self._wake_write = self._wake_write, -1
        if write >= 0:
            os.close(write)

    def _let_go(self) -> None:
        """No thread polls any more."""
        self._end()
        self._poll.close()
        read, self._wake_read = self._wake_read, -1
        if read >= 0:
            os.close(read)

    def after_fork_in_child(self) -> None:
        """Lets go of everything without a word: connections and epoll are the same kernel objects as the parent's."""
        self._closed = True
        self._let_go()
        for end in self._by_fd.values():
            end.socket.close()
        self._by_fd = {}

    def _run(self) -> None:
        try:
            while not self._closed:
                for fd, _ in self._poll.poll():
                    if self._closed:
                        break
                    if fd == self._listening:
                        self._accept()
                    elif (end := self._by_fd.get(fd)) is not None:
                        self._serve(end)
        except Exception:
            # Nothing here may reach the user's program; their client sees a server that went away.
            self._closed = True
        finally:
            self._let_go()
            for end in list(self._by_fd.values()):
                self._drop(end)

    def _accept(self) -> None:
        try:
            fd, _ = self._listener._accept()
        except BlockingIOError:
            return
        except OSError:
            time.sleep(0.1)  # out of descriptors: the listener stays readable, this must not spin
            return
        client = _socket.socket(fileno=fd)
        server = connect(self._port)
        if server is None:
            client.close()
            return
        one, two = _End(client), _End(server)
        one.other, two.other = two, one
        one.is_client = True
        one.calls = two.calls = Calls()
        for end in (one, two):
            end.socket.settimeout(0)
            end.socket.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            self._by_fd[end.fd] = end
        self._watch(one)
        self._watch(two)

    def _serve(self, end: _End) -> None:
        try:
            self._send(end)
            if not end.other.waiting and not end.finished:
                self._receive(end)
            if end.finished and end.other.finished and not end.waiting and not end.other.waiting:
                self._drop(end)
                return
            self._watch(end)
            self._watch(end.other)
        except OSError:
            self._drop(end)

    def _receive(self, end: _End) -> None:
        try:
            data = end.socket.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        calls, busy = end.calls, end.calls.any
        if not data:
            end.finished = True
        elif end.is_client:
            calls.from_client(data)
        else:
            calls.from_server(data)
        if calls.any and not busy:
            self.calls += 1
            self._begins(id(calls))
        end.other.waiting = memoryview(data)
        try:
            self._send(end.other)
        finally:
            # Also where the client is gone before its answer: a call that never ends would keep windows off for good.
            if busy and not calls.any:
                self._ends(id(calls))

    def _send(self, end: _End) -> None:
        while end.waiting:
            try:
                end.waiting = end.waiting[end.socket.send(end.waiting) :]
            except BlockingIOError:
                return
        if end.other.finished and not end.told:
            end.told = True
            end.socket.shutdown(_socket.SHUT_WR)

    def _watch(self, end: _End) -> None:
        """Reads only what can be passed on: a client that does not read holds its server up, as without us."""
        wanted = 0 if end.finished or end.other.waiting else select.EPOLLIN
        wanted |= select.EPOLLOUT if end.waiting else 0
        if wanted == end.watched:
            return
        if not end.watched:
            self._poll.register(end.fd, wanted)
        elif not wanted:
            # Not modify(0): a hang-up is reported all the same, for ever.
            self._poll.unregister(end.fd)
        else:
            self._poll.modify(end.fd, wanted)
        end.watched = wanted

    def _drop(self, end: _End) -> None:
        for each in (end, end.other):
            self._by_fd.pop(each.fd, None)
            each.socket.close()  # leaves the epoll with its last descriptor
        if end.calls.any:
            self._ends(id(end.calls))


def connect(port: int) -> Any:
    """A connection to the real server; None when there is none."""
    for family, address in ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1")):
        try:
            sock = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            sock.settimeout(CONNECT_S)
            sock.connect((address, port))
        except OSError:
            sock.close()
            continue
        return sock
    return None


def listen(port: int) -> Any:
    """A listener as jaxlib's server makes it: every address, IPv6 and IPv4 at once, sharing its port (SO_REUSEPORT).

    None where that port cannot be had, or is left to the system: the caller then lets the real server try.
    """
    if not 0 < port < 65536:
        return None
    for family, address in ((_socket.AF_INET6, "::"), (_socket.AF_INET, "0.0.0.0")):
        try:
            sock = _socket.socket(family, _socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            if family == _socket.AF_INET6:
                sock.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEPORT, 1)
            sock.bind((address, port))
            sock.listen(128)
            sock.settimeout(0)
        except OSError:
            sock.close()
            continue
        return sock
    return None


def listeners() -> dict[int, int]:
    """Descriptor -> port of every TCP socket this process listens at."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            sock = _socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        try:
            if sock.family in (_socket.AF_INET, _socket.AF_INET6) and sock.getsockopt(
                _socket.SOL_SOCKET, _socket.SO_ACCEPTCONN
            ):
                found[int(name)] = sock.getsockname()[1]
        except OSError:
            continue
        finally:
            sock.close()
    return found


def keep_to_loopback(fd: int) -> bool:
    """The listener takes connections of this machine only, wherever it is bound: jaxlib binds every address, and what
    the user opened to others is the relay's port alone."""
    sock = _socket.socket(fileno=os.dup(fd))
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _SO_BINDTODEVICE, b"lo\0")
    except OSError:
        return False
    finally:
        sock.close()
    return True


def open_relay(
    port: int, start_server: Callable[[int], Any], begins: Callable[[int], None], ends: Callable[[int], None]
) -> tuple[Any, Relay] | None:
    """(the real server, the relay in front of it), or None: the caller starts the real one where the user wants it."""
    listener = listen(port)
    if listener is None:
        return None
    try:
        before = listeners()
        server = start_server(0)  # a free port, which it does not tell
        fresh = [fd for fd in listeners().items() if fd not in before.items()]
        if len(fresh) == 1 and keep_to_loopback(fresh[0][0]):
            return server, Relay(listener, fresh[0][1], begins, ends)
    except Exception:
        listener.close()
        return None
    listener.close()
    return None
