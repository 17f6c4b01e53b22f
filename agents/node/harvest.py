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
    try:
        with os.scandir(folder_of(segment)) as entries:
            names = [entry.name for entry in islice(entries, LOOKED_AT)]
    except OSError:
        return
    for name in names:
        named = _FILE.fullmatch(name)
        if named is None or int(named[1]) in known:
            continue
        path = str(folder_of(segment) / name)
        body = _read(path)
        if body is None:
            discard(path)
            continue
        found += 1
        yield Harvested(int(named[1]), path), body
        if found >= FILES_A_ROUND:
            return


def _read(path: str) -> bytes | None:
    try:
        # Not through a link, and not waiting for the writer of a pipe.
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(opened, "rb") as file:
        about = os.fstat(opened)
        if not stat.S_ISREG(about.st_mode) or about.st_size > HLO_BYTES:
            return None
        try:
            return file.read(HLO_BYTES)
        except OSError:
            return None


def discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def remove_folder(segment: str | Path) -> None:
    """The process is gone: nobody else will take what is left."""
    folder = folder_of(segment)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, 1 << 16)]
    except OSError:
        return
    for name in names:
        discard(str(folder / name))
    with contextlib.suppress(OSError):
        folder.rmdir()
