"""Whether a process lives: told by what this agent's kernel says of it, never by a pid of another namespace."""

import os
import select
import socket
from contextlib import suppress

from fleetscope.agents.node.facts import start_ticks

_SO_PEERPIDFD = getattr(socket, "SO_PEERPIDFD", 77)
"""Linux 6.5; Python names it from 3.14 on."""


class Life:
    """Of one process, which started at `started` (clock ticks after boot, the same in every pid namespace)."""

    def __init__(self, started: int) -> None:
        self.pid = 0
        """In this agent's own pid namespace; 0: not visible in it, or not met yet."""
        self._started = started
        self._pidfd = -1
        self._feigned = False

    def remember(self, pid: int) -> None:
        """What an earlier agent in this same namespace knew: a later process of that pid has another start."""
        self.pid = pid

    def meet(self, peer: socket.socket, pid: int) -> None:
        """It says hello at `peer`, the kernel calls it `pid` (0: it is not visible from here). Whom the kernel shows to
        be another process than it says counts for as long as it stays connected."""
        if pid and start_ticks(pid) == self._started:
            self.pid = pid
        elif pid or self.pid:
            self._feigned = True
            return
        self._feigned = False
        if self._pidfd < 0:
            with suppress(OSError):  # the kernel is older
                self._pidfd = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)

    def lives(self) -> bool | None:
        """None: it cannot be told from here. A process that was not waited for has ended all the same."""
        if self._pidfd >= 0:
            ended = select.poll()
            ended.register(self._pidfd, select.POLLIN)
            return not ended.poll(0)
        if self.pid:
            return start_ticks(self.pid) == self._started
        return False if self._feigned else None

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
