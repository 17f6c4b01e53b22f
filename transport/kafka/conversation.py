"""One connection to one broker, a request at a time, within a deadline: the tool of the preflight.

kafka-python's clients retry whatever goes wrong until their time is over and keep the reason to themselves; this one
never does. Its messages are theirs.
"""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType
from typing import Any, Self

from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.parser import KafkaProtocol

_RECEIVE_BYTES = 65536


class Conversation:
    """Raises what the socket raises: TimeoutError at the deadline, ConnectionError when the broker hangs up,
    ssl.SSLError; and kafka-python's KafkaProtocolError for bytes that are no answer of Kafka's."""

    def __init__(self, host: str, port: int, deadline: float, client_id: str) -> None:
        """Connects; `deadline` is monotonic time."""
        self.host, self.port = host, port
        self.deadline = deadline
        self._protocol = KafkaProtocol(client_id=client_id, receive_message_max_bytes=16 << 20)
        self._versions: dict[int, int] = {}
        self._socket: socket.socket = socket.create_connection((host, port), timeout=self._left_s())

    @property
    def place(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"

    def encrypt(self, context: ssl.SSLContext) -> ssl.SSLSocket:
        """The TLS handshake."""
        self._socket.settimeout(self._left_s())
        encrypted = context.wrap_socket(self._socket, server_hostname=self.host.rstrip("."))
        self._socket = encrypted
        return encrypted

    def listen(self, timeout_s: float) -> None:
        """Hear what the broker says unasked: in TLS 1.3 that it refuses our certificate, after the handshake."""
        self._socket.settimeout(min(timeout_s, self._left_s()))
        self._socket.recv(1)

    def greet(self) -> None:
        """Ask for the versions of requests, as any client does first."""
        answer = self.ask(ApiVersionsRequest(version=0))
        self._versions = {each.api_key: each.max_version for each in answer.api_keys}

    def ask(self, request: Any) -> Any:
        """The answer, in the newest version both know unless the request has one."""
        if request.API_VERSION is None:
            request.API_VERSION = min(request.max_version, self._versions.get(request.API_KEY, 0))
        self._protocol.send_request(request)
        self._socket.settimeout(self._left_s())
        self._socket.sendall(self._protocol.send_bytes())
        while True:
            self._socket.settimeout(self._left_s())
            received = self._socket.recv(_RECEIVE_BYTES)
            if not received:
                raise ConnectionResetError(f"{self.place} hung up")
            for _, answer in self._protocol.receive_bytes(received):
                return answer

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _left_s(self) -> float:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s
