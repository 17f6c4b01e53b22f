"""Named points at which a test may stop, kill or fail a process. Nothing happens unless the environment says so.

`FLEETSCOPE_FAULTS="manifest.before_put=kill@3,segment.written=enospc"`: at the third passage of the first point the
process sends itself SIGKILL, at the first passage of the second an OSError ENOSPC is raised. Actions: kill, enospc,
eio, stop (SIGSTOP). Pipelines and sinks share this module, so one variable reaches both.
"""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ENVIRONMENT = "FLEETSCOPE_FAULTS"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _no_space() -> None:
    raise OSError(errno.ENOSPC, "no space left on device (injected)")


def _io_error() -> None:
    raise OSError(errno.EIO, "input/output error (injected)")


_ACTIONS: dict[str, Callable[[], None]] = {"kill": _kill, "stop": _stop, "enospc": _no_space, "eio": _io_error}


def _parse(text: str) -> dict[str, tuple[Callable[[], None], int]]:
    armed: dict[str, tuple[Callable[[], None], int]] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        point, _, rest = part.partition("=")
        action, _, nth = rest.partition("@")
        if action not in _ACTIONS:
            raise ValueError(f"{ENVIRONMENT}: {part!r}: action must be one of {', '.join(sorted(_ACTIONS))}")
        armed[point] = (_ACTIONS[action], int(nth or 1))
    return armed


_armed = _parse(os.environ.get(ENVIRONMENT, ""))


def fault_point(name: str) -> None:
    """A place where a crash is interesting. Costs one look into an empty dict when nothing is armed."""
    if not _armed:
        return
    found = _armed.get(name)
    if found is None:
        return
    act, passages = found
    if passages > 1:
        _armed[name] = (act, passages - 1)
        return
    del _armed[name]
    act()


@contextmanager
def armed(name: str, act: Callable[[], None], passage: int = 1) -> Iterator[None]:
    """Run `act` at the `passage`-th passage of `name` in this process, once."""
    _armed[name] = (act, passage)
    try:
        yield
    finally:
        _armed.pop(name, None)
