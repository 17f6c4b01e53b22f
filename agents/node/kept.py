"""Windows and programs that wait to be decoded, on disk, so that an agent killed over them decodes them later.

One file each, as it came through the socket: `<pid>-<start ticks>-<number>.frame`. It goes when what it became is in
the spool. Bounded by what the decoder lets wait. No fsync, as in the spool: after a power loss every source is new.
They are as the process sent them: where names are redacted, they lie beside the recorder's segments, in memory.
"""

import contextlib
import errno
import itertools
import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from fleetscope.agents.profiler import protocol

log = logging.getLogger(__name__)

HEADROOM_BYTES = 16 << 20
"""Left to the spool, which is on the same disk: a window that takes the last of it makes the spool drop batches."""

Key = tuple[int, int]
"""(pid, start ticks)"""

Frame = tuple[Path, Key, protocol.Window | protocol.Program, bytes]


class KeptFrames:
    """`errors` counts, by errno, those the disk did not take: they are decoded all the same, but would not survive a
    kill."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.errors: Counter[int] = Counter()
        numbers = [int(path.stem.rsplit("-", 1)[-1]) for path in self._paths()]
        self._next = itertools.count(max(numbers, default=0) + 1)

    def _paths(self) -> list[Path]:
        found = []
        for path in self._folder.glob("*-*-*.frame") if self._folder.is_dir() else ():
            if all(part.isdecimal() for part in path.stem.split("-")):
                found.append(path)
        return sorted(found, key=lambda path: int(path.stem.rsplit("-", 1)[-1]))

    def keep(self, key: Key, message: protocol.Window | protocol.Program, body: bytes) -> Path | None:
        """Its file; None if the disk would not take it."""
        path = self._folder / f"{key[0]}-{key[1]}-{next(self._next):010d}.frame"
        partial = self._folder / f".{path.name}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            room = os.statvfs(self._folder)
            if room.f_bavail * room.f_frsize < len(body) + HEADROOM_BYTES:
                raise OSError(errno.ENOSPC, "too little room")
            with partial.open("wb") as file:
                file.write(protocol.encode(message, body))
                file.write(body)
            partial.replace(path)
        except (OSError, protocol.FrameError) as error:
            number = getattr(error, "errno", 0) or 0
            self.errors[number] += 1
            if self.errors[number] == 1:
                log.warning("a window is not kept until it is decoded: %s", error)
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            return None
        return path

    def load(self) -> Iterator[Frame]:
        """What an earlier life left, oldest first. A file that is no frame is removed: it was never whole."""
        for partial in self._folder.glob(".*.frame") if self._folder.is_dir() else ():
            forget(partial)
        for path in self._paths():
            pid, started, _ = path.stem.split("-")
            try:
                frames = list(protocol.Reader().feed(path.read_bytes()))
            except (OSError, protocol.FrameError) as error:
                log.warning("%s: %s", path, error)
                frames = []
            if len(frames) == 1 and isinstance(frames[0][0], protocol.Window | protocol.Program):
                yield path, (int(pid), int(started)), frames[0][0], frames[0][1]
            else:
                forget(path)

    def forget_all(self, key: Key) -> None:
        """Of a process whose account is closed."""
        for path in self._paths():
            if path.name.startswith(f"{key[0]}-{key[1]}-"):
                forget(path)


def forget(path: Path | None) -> None:
    """The file is not needed any more, or never was."""
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)
