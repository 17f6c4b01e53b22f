"""The recorder segment of this process: where it lies, and who removes what dead processes left."""

import os
import time

from fleetscope.native import _recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX, SUFFIX = "fleetscope-", ".ring"
STALE_S = 3600.0
"""Age at which a dead process's segment is removed by whoever starts next; an agent does so long before."""


def directory() -> str:
    return os.environ.get("FLEETSCOPE_AGENT__SHM_DIR") or "/dev/shm"  # noqa: S108 - names carry pid and start


def make() -> str:
    """Makes it, a file; where there can be none (no such folder, full, read-only) memory without a name, which goes
    with the last process that has it open. "" when neither can be had: windows and programs work without."""
    return _first(_recorder.open)


def renew(*, attached: bool) -> str:
    """Another one, for ticks of another clock. The old one stays for an agent that is `attached` to it."""
    return _first(lambda folder: _recorder.renew(folder, not attached))


def _first(make: "Callable[[str | None], str]") -> str:
    for folder in (directory(), None):
        try:
            return make(folder)
        except (OSError, ValueError):
            continue
    return ""


def alive(pid: int, start_ticks: int) -> bool:
    """The process that made a segment still runs (and its pid was not given to another)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return len(fields) > 19 and fields[19] == str(start_ticks)


def owner(name: str, suffix: str) -> tuple[int, int] | None:
    """(pid, start ticks) of the process whose file `fleetscope-<pid>-<start ticks>[.<number>]<suffix>` is; None: no
    such name. Later segments of a process have a number."""
    pid, _, ticks = name.removeprefix(PREFIX).removesuffix(suffix).partition("-")
    ticks, _, number = ticks.partition(".")
    if number and not number.isdecimal():
        return None
    if name.startswith(PREFIX) and name.endswith(suffix) and pid.isdecimal() and ticks.isdecimal():
        return int(pid), int(ticks)
    return None


def remove_programs(path: str) -> None:
    """Removes what the PJRT shim left beside a segment: `<path>.hlo/<load id>.pb`. Not through a link: in a folder of
    everybody's it may lead to files of this user's."""
    try:
        folder = os.open(path + ".hlo", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for name in os.listdir(folder):
            os.unlink(name, dir_fd=folder)
        os.rmdir(path + ".hlo")
    except OSError:
        return
    finally:
        os.close(folder)


def sweep(folder: str) -> int:
    """Removes segments of processes dead for an hour; how many."""
    removed = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        process = owner(name, SUFFIX)
        if process is None:
            continue
        path = os.path.join(folder, name)
        try:
            if time.time() - os.stat(path).st_mtime > STALE_S and not alive(*process):
                os.unlink(path)
                removed += 1
                remove_programs(path)
        except OSError:
            continue
    return removed
