"""The connection to the node agent. Used by the profiler's own thread alone, so it may wait, but never long."""

import _socket
import os
import sys
import time

from fleetscope.agents.profiler import protocol

RETRY_S = 0.5
RETRY_MAX_S = 10.0
STALLED_S = 2.0
"""A send that makes no progress for so long ends the connection: the agent is stopped or gone."""


class Link:
    """One connection at a time to the agent's socket. No call raises for what the agent does or is not."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._socket: _socket.socket | None = None
        self._reader = protocol.Reader(max_body_bytes=0)
        self._next_try = 0.0
        self._wait_s = RETRY_S

    @property
    def connected(self) -> bool:
        return self._socket is not None

    def connect(self) -> bool:
        """True when a new connection was made. Without an agent it costs one stat() every 0.5 to 10 s."""
        now = time.monotonic()
        if self._socket is not None or now < self._next_try:
            return False
        self._next_try = now + self._wait_s
        self._wait_s = min(self._wait_s * 2, RETRY_MAX_S)
        if not os.path.exists(self.path):
            return False
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.settimeout(STALLED_S)
        try:
            connection.connect(self.path)
        except OSError:
            connection.close()
            return False
        self._socket = connection
        self._reader = protocol.Reader(max_body_bytes=0)
        self._wait_s = RETRY_S
        return True

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def forget(self) -> None:
        """In a forked child: closes our descriptor without a word to the agent, which still talks to the parent."""
        self.close()

    def send(self, message: protocol.Message, body: bytes = b"", descriptor: int = -1) -> bool:
        """False when it did not arrive whole; the connection is closed then. `descriptor` goes with the first byte."""
        if self._socket is None:
            return False
        try:
            head = protocol.encode(message, body)
            if descriptor >= 0:
                passed = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))
                head = head[self._socket.sendmsg([head], [passed]) :]
            for part in (head, body):
                view = memoryview(part)
                while view:
                    view = view[self._socket.send(view) :]
        except (OSError, protocol.FrameError):
            self.close()
            return False
        return True

    def receive(self) -> list[protocol.Message]:
        """What the agent has said; empty when nothing."""
        messages: list[protocol.Message] = []
        if self._socket is None:
            return messages
        try:
            while True:
                self._socket.settimeout(0)
                try:
                    data = self._socket.recv(65536)
                finally:
                    self._socket.settimeout(STALLED_S)
                if not data:
                    self.close()
                    break
                messages += [message for message, _ in self._reader.feed(data) if message is not None]
        except BlockingIOError:
            pass
        except (OSError, protocol.FrameError):
            self.close()
        return messages
