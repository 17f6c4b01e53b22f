"""What switches device windows off in a process: slow stops, and a death of this rank inside an earlier window.

A process cannot tell of its own death. So it leaves a file beside the recorder segments while a window is open,
`fleetscope-<pid>-<start ticks>.window`; the next life of the rank that finds one whose owner is gone knows.
"""

import json
import os
import stat
import time
from typing import NamedTuple

from fleetscope.agents.profiler import segment

SLOW_STOP_NS = 1_000_000_000
SLOW_STOPS_ON_CPU = 3
"""A stop slower than 1 s switches windows off; on CPU three in a row: there it shares the cores with training."""

CRASHES_ON_CPU = 3
"""One death inside a window switches windows off on an accelerator; on CPU, where nothing of a driver is touched,
three: a preempted job dies somewhere, and now and then that is in a window."""

MEMORY_S = 86_400.0
"""How long a death counts against the same platform, driver and jaxlib."""

WINDOW, CRASH = ".window", ".crash"


class Life(NamedTuple):
    """Whose windows they are, and on what: a mark counts only where all but the process agree."""

    run: str
    rank: int
    platform: str
    driver: str
    jaxlib: str


class Breaker:
    """`why` is "" while windows may open. Not for several threads."""

    def __init__(self) -> None:
        self.why = ""
        self._slow = 0
        self._life: Life | None = None
        self._mark = ""

    def look_back(self, life: Life, folder: str, pid: int, start_ticks: int) -> None:
        """Once a life, before its first window: how earlier ones of this rank ended."""
        if life == self._life:
            return
        self._life = life
        self._mark = os.path.join(folder, f"{segment.PREFIX}{pid}-{start_ticks}{WINDOW}")
        if crashes(life, folder) >= (CRASHES_ON_CPU if life.platform == "cpu" else 1):
            self.why = "crash"

    def opening(self) -> None:
        """A window is about to open. Without room for the mark it opens unmarked."""
        if self._life is None:
            return
        try:
            # In a folder of everybody's: what stands there under the name already, a link or a pipe, is not ours.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.closed()
            with open(os.open(self._mark, flags, 0o644), "w", encoding="utf-8") as file:
                json.dump(self._life, file)
        except OSError:
            return

    def closed(self) -> None:
        """The window is over, however it ended."""
        try:
            os.unlink(self._mark)
        except OSError:
            return

    def stopped(self, stop_ns: int) -> None:
        """A stop took so long."""
        self._slow = self._slow + 1 if stop_ns > SLOW_STOP_NS else 0
        on_cpu = self._life is None or self._life.platform == "cpu"
        if self._slow >= (SLOW_STOPS_ON_CPU if on_cpu else 1):
            self.why = "slow_stop"


def crashes(life: Life, folder: str) -> int:
    """Deaths of this rank inside a window within a day. A mark found for the first time is kept under another name;
    marks older than a day are removed, whosever they are."""
    count = 0
    try:
        names = os.listdir(folder)
    except OSError:
        return 0
    for name in names:
        suffix = CRASH if name.endswith(CRASH) else WINDOW
        process = segment.owner(name, suffix)
        if process is None:
            continue
        path = os.path.join(folder, name)
        try:
            if segment.alive(*process):
                continue
            if time.time() - os.stat(path).st_mtime > MEMORY_S:
                os.unlink(path)
                continue
            same = _read(path) == list(life)
            if same and suffix == WINDOW:
                os.replace(path, path.removesuffix(WINDOW) + CRASH)
        except (OSError, ValueError, RecursionError):
            continue
        count += same
    return count


def _read(path: str) -> object:
    """What a mark says. Raises OSError, ValueError for what this user did not write: a pipe would be waited at for
    ever, and another user's word must not switch windows off."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise ValueError("no mark of this user")
        return json.loads(file.read(65536))
