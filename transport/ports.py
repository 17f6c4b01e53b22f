"""TCP ports for servers we start ourselves: the development broker, the demo, tests."""

import os
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def free_port(host: str = "127.0.0.1") -> int:
    """A TCP port of `host` that nobody has right now, below those the kernel gives to connecting sockets.

    One of those can be taken by any connection between this answer and its use, and clients of a server that is gone
    knock at its port long after: both end up at whoever got the number next. Chosen at random, so that processes which
    ask at the same time hardly ever get the same; the kernel chooses where its range leaves nothing below.
    """
    below = _connecting_from()
    for _ in range(100 if below > _FIRST + 1000 else 0):
        port = _FIRST + int.from_bytes(os.urandom(4), "big") % (below - _FIRST)
        if _bindable(host, port):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _connecting_from() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _bindable(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
