"""Make kafka-python's clients so that a failure leaves nothing behind."""

from __future__ import annotations

import socket
from typing import Any

from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket

_DIRECT = "fleetscope-direct"


class _ClosingSocket(KafkaNetSocket):  # type: ignore[misc]
    """kafka-python 3.0.12 drops a socket that failed to connect without closing it: in an outage, one file descriptor
    a second until the cyclic collector comes by. A scheme for `proxy_url` is its hook for another kind of socket."""

    SCHEMES = (_DIRECT,)

    async def sock_connect(
        self, net: Any, sock: socket.socket, sockaddr: Any, timeout_at: float | None = None
    ) -> socket.socket:
        try:
            connected: socket.socket = await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
        return connected


def connect(kind: Any, config: dict[str, Any]) -> Any:
    """`kind(**config)`: a KafkaAdminClient, KafkaProducer or KafkaConsumer.

    When the first connection fails, their constructors raise and leave their I/O thread running: one more for every try
    of an agent that waits for its broker.
    """
    made: list[Any] = []

    def client(**parts: Any) -> Any:
        # Not to be set through the clients: 10 s and, failing, up to 30 s for a broker that accepts and says nothing.
        setup_ms = parts["bootstrap_timeout_ms"]
        limits = {"socket_connection_setup_timeout_ms": setup_ms, "socket_connection_setup_timeout_max_ms": setup_ms}
        made.append(KafkaNetClient(**parts, **limits))
        return made[-1]

    try:
        return kind(**config, proxy_url=f"{_DIRECT}://", kafka_client=client)
    except BaseException:
        for each in made:
            each.close()
            each._manager._net.stop(timeout_ms=1000)
        raise
