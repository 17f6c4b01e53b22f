"""The unix socket training processes talk to (agents/profiler/protocol.py). One thread; it waits for no peer."""

import fcntl
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from fleetscope.agents.profiler.protocol import FrameError, Hello, Message, Reader, encode
from fleetscope.schema.errors import AgentRunning, ConfigInvalid

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 << 20
"""The largest HLO module seen in public is 60 MB; a peer that promises more is closed."""
MAX_CONNECTIONS = 256
BUFFERED_BYTES = 96 << 20
"""Of unfinished frames of all connections. Beyond it nothing is read: the peers' sends stall, and they count what they
drop themselves."""
MAX_A_PROCESS = 16
"""Connections of one process. One is enough; a process that leaks them must not take those of all others."""
SILENT_S = 10.0
"""A peer says hello at once; one that does not, or stops in the middle of what all others wait for, is closed."""
RECEIVE_BYTES = 256 << 10
DESCRIPTOR_SPACE = socket.CMSG_SPACE(4 * 253)
"""All that one message can bring (SCM_MAX_FD): what does not fit the kernel closes while we wait."""
SEND_LIMIT_BYTES = 64 << 10
"""Answers a peer has not read. We send a few hundred bytes a connection; a peer that reads nothing is closed."""


class Connection:
    """One peer. `pid` is what the kernel says (SO_PEERCRED), in this agent's own pid namespace."""

    def __init__(self, peer: socket.socket) -> None:
        self.socket = peer
        self.reader = Reader(max_body_bytes=MAX_BODY_BYTES)
        self.outgoing = bytearray()
        self.buffered = 0
        self.reading = True
        self.heard_s = time.monotonic()
        self.hello: Hello | None = None
        self.descriptor = -1
        """The newest that came, until somebody has looked at it; closed with the connection."""
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.pid, self.uid, _ = struct.unpack("3i", credentials)

    def receive(self) -> bytes:
        """What has come, b"" at the end. Descriptors beyond one are let go at once: nobody fills our table."""
        data, passed, _, _ = self.socket.recvmsg(RECEIVE_BYTES, DESCRIPTOR_SPACE, socket.MSG_CMSG_CLOEXEC)
        came = [
            descriptor
            for level, kind, value in passed
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            for (descriptor,) in struct.iter_unpack("i", value[: len(value) // 4 * 4])
        ]
        if came:
            before, self.descriptor = self.descriptor, came.pop()
            _let_go(*came, *([before] if before >= 0 else []))
        return data

    def forget_descriptor(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            _let_go(descriptor)


def _let_go(*descriptors: int) -> None:
    """Closes them, and waits for none: the last close of what a peer sent, be it unread in a socket that is closed, may
    take as long as the peer likes (a socket that lingers over unsent data, a file of a filesystem of its own)."""

    def close() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    if not descriptors:
        return
    try:
        threading.Thread(target=close, name="fleetscope-close", daemon=True).start()
    except RuntimeError:  # no more threads
        close()


Handler = Callable[[Connection, Message, bytes], Sequence[Message]]


class SocketServer:
    """Accepts, reads frames, hands messages to `handle` (on the server's thread) and sends what it answers.

    AgentRunning (FS3101) if another agent listens at `path`. `closed` is called when a peer is gone. `admit`: what
    becomes of a message before anybody, `hello` of its connection too, has it.
    """

    def __init__(
        self,
        path: Path,
        handle: Handler,
        closed: Callable[[Connection], None],
        admit: Callable[[Message], Message] = lambda message: message,
    ) -> None:
        self.path = path
        self._admit = admit
        self._handle = handle
        self._closed = closed
        self._lock = _take_lock(path)
        self.counts: Counter[str] = Counter()
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(path)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._connections: set[Connection] = set()
        self._paused = False
        self._stop = threading.Event()
        self._posts: deque[Callable[[Hello], Message | None]] = deque()
        self._thread = threading.Thread(target=self._run, name="fleetscope-socket", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        os.write(self._wake_write, b"x")
        if self._thread.is_alive():
            self._thread.join(5)
        for connection in list(self._connections):
            self._close(connection)
        self._selector.close()
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for fd in (self._wake_read, self._wake_write, self._lock):
            os.close(fd)

    def post(self, message_for: Callable[[Hello], Message | None]) -> None:
        """Says something unasked to every peer that `message_for` has a message for. From any thread, at once; what
        calls it is called on the server's thread."""
        self._posts.append(message_for)
        try:
            os.write(self._wake_write, b"p")
        except BlockingIOError:
            return  # it will wake anyhow

    def _deliver(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return
        while self._posts:
            message_for = self._posts.popleft()
            for connection in list(self._connections):
                if connection.hello is None:
                    continue
                try:
                    message = message_for(connection.hello)
                    if message is not None:
                        connection.outgoing += encode(message)
                        self._flush(connection)
                except (OSError, FrameError) as error:
                    log.debug("connection of process %d: %s", connection.pid, error)
                    self._close(connection)
                except Exception:  # news for one must not end the service of all others
                    log.exception("news for process %d", connection.pid)
                    self.counts["failed"] += 1
                    self._close(connection)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._expire()
            for key, events in self._selector.select(1.0 if self._connections else 5.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake_read:
                    self._deliver()
                elif isinstance(key.data, Connection):
                    self._serve(key.data, events)

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            # Out of descriptors, the listener stays readable: without a pause this would be a busy loop.
            log.warning("accept: %s", error)
            self._stop.wait(0.1)
            return
        peer.setblocking(False)
        connection = Connection(peer)
        own = sum(other.pid == connection.pid for other in self._connections) if connection.pid else 0
        if len(self._connections) >= MAX_CONNECTIONS or own >= MAX_A_PROCESS:
            self.counts["refused"] += 1
            _let_go(peer.detach())
            return
        self._connections.add(connection)
        self.counts["accepted"] += 1
        self._selector.register(peer, selectors.EVENT_READ, connection)

    def _expire(self) -> None:
        """Close whoever keeps others waiting and says nothing."""
        limit_s = time.monotonic() - SILENT_S
        largest = self._largest() if self._paused else None
        for connection in list(self._connections):
            kept_out = connection.hello is None and connection.reading
            if connection.heard_s < limit_s and (kept_out or connection is largest):
                self.counts["silent"] += 1
                log.warning("connection of process %d closed: it says nothing", connection.pid)
                self._close(connection)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ and not self._receive(connection):
                self._close(connection)
        except FrameError as error:
            self.counts["garbage"] += 1
            log.warning("connection of process %d closed: %s", connection.pid, error)
            self._close(connection)
        except OSError as error:
            log.debug("connection of process %d: %s", connection.pid, error)
            self._close(connection)
        except Exception:  # one peer's message must not end the service of all others
            log.exception("message of process %d", connection.pid)
            self.counts["failed"] += 1
            self._close(connection)

    def _receive(self, connection: Connection) -> bool:
        try:
            data = connection.receive()
        except BlockingIOError:
            return True
        if not data:
            return False
        connection.heard_s = time.monotonic()
        connection.buffered += len(data)
        for message, body in connection.reader.feed(data):
            connection.buffered = 0
            self.counts["messages"] += 1
            if message is None:
                continue
            message = self._admit(message)
            if isinstance(message, Hello):
                said = connection.hello
                if said is not None and (said.pid, said.start_ticks) != (message.pid, message.start_ticks):
                    # Whoever it was before would count as connected, and so as alive, for ever.
                    raise FrameError("a second process on one connection")
                connection.hello = message
            for answer in self._handle(connection, message, body):
                connection.outgoing += encode(answer)
        self._flush(connection)
        self._regulate()
        return True

    def _regulate(self) -> None:
        """Above the bound only the connection with the most unfinished data is read, so that it finishes."""
        full = sum(connection.buffered for connection in self._connections) > BUFFERED_BYTES
        if not full and not self._paused:
            return
        self.counts["paused"] += full and not self._paused
        self._paused = full
        largest = self._largest()
        for connection in self._connections:
            connection.reading = not full or connection is largest
            self._watch(connection)

    def _largest(self) -> Connection | None:
        return max(self._connections, key=lambda connection: connection.buffered, default=None)

    def _watch(self, connection: Connection) -> None:
        events = selectors.EVENT_READ if connection.reading else 0
        events |= selectors.EVENT_WRITE if connection.outgoing else 0
        registered = connection.socket in self._selector.get_map()
        if registered and events:
            self._selector.modify(connection.socket, events, connection)
        elif registered:
            self._selector.unregister(connection.socket)
        elif events:
            self._selector.register(connection.socket, events, connection)

    def _flush(self, connection: Connection) -> None:
        while connection.outgoing:
            try:
                sent = connection.socket.send(connection.outgoing)
            except BlockingIOError:
                break
            except (BrokenPipeError, ConnectionResetError):
                # It has left. What it said before is still to be read: its last windows, and that it ended.
                connection.outgoing.clear()
                break
            del connection.outgoing[:sent]
        if len(connection.outgoing) > SEND_LIMIT_BYTES:
            raise FrameError(f"{len(connection.outgoing)} bytes of answers were not read")
        self._watch(connection)

    def _close(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        if connection.socket in self._selector.get_map():
            self._selector.unregister(connection.socket)
        _let_go(connection.socket.detach())
        connection.forget_descriptor()
        self._closed(connection)
        self._connections.discard(connection)
        self._regulate()

    @property
    def connections(self) -> int:
        return len(self._connections)


def _take_lock(path: Path) -> int:
    """A lock beside the socket, held as long as we live: a socket file alone does not tell whether anybody listens."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "another process"
        os.close(fd)
        raise AgentRunning(f"socket {path} belongs to {holder}: one agent a host") from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"pid {os.getpid()}\n".encode(), 0)
    return fd


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Before anybody can connect: the mode of a socket file is what the umask leaves at bind.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise ConfigInvalid(f"agent.socket {path}: {error}") from error
    finally:
        os.umask(before)
    listener.listen(64)
    listener.setblocking(False)
    return listener
