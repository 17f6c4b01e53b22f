"""HLO that the PJRT shim leaves beside a segment, `<segment>.hlo/<load id>.pb`: taken, bounded, removed."""

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

HLO_BYTES = 64 << 20
FILES_A_ROUND = 16
LOOKED_AT = 1024
"""Entries of the folder looked at in a round: a process may put into it what it likes."""

_FILE = re.compile(r"([1-9]\d{0,17})\.pb")


class Harvested(NamedTuple):
    """One program's HLO, waiting to be read. The bytes travel beside it."""

    load: int
    path: str


def folder_of(segment: str | Path) -> Path:
    return Path(f"{segment}.hlo")


def waiting(segment: str, known: set[int]) -> Iterator[tuple[Harvested, bytes]]:
    """Files that are whole and not in `known` (load ids). What is no plain file, or too large, is removed."""
    found = 0
    with _opened(folder_of(segment)) as folder:
        for name in _names(folder, LOOKED_AT):
            named = _FILE.fullmatch(name)
            if named is None or int(named[1]) in known:
                continue
            body = _read(name, folder)
            if body is None:
                _unlink(name, folder)
                continue
            found += 1
            yield Harvested(int(named[1]), str(folder_of(segment) / name)), body
            if found >= FILES_A_ROUND:
                return


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int | None]:
    """The folder itself; None where there is none. Not through a link: a process, in a container perhaps, would have
    the agent read and remove files that are not its own."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def _names(folder: int | None, most: int) -> list[str]:
    if folder is None:
        return []
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in islice(entries, most)]
    except OSError:
        return []


def _unlink(name: str, folder: int | None) -> None:
    if folder is not None:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)


def _read(name: str, folder: int | None) -> bytes | None:
    try:
        # Not through a link, and not waiting for the writer of a pipe.
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return None
    try:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_size > HLO_BYTES:
            return None
        with open(opened, "rb", closefd=False) as file:
            return file.read(HLO_BYTES)
    except OSError:
        return None
    finally:
        os.close(opened)


def discard(path: str) -> None:
    with _opened(Path(path).parent) as folder:
        _unlink(Path(path).name, folder)


def remove_folder(segment: str | Path) -> None:
    """The process is gone: nobody else will take what is left."""
    with _opened(folder_of(segment)) as folder:
        for name in _names(folder, 1 << 16):
            _unlink(name, folder)
    with contextlib.suppress(OSError):
        folder_of(segment).rmdir()
