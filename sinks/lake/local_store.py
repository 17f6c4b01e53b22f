"""The lake in a local folder. What a call returned is on disk: file, name and every new folder on the way are
fsynced."""

import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs

from fleetscope.schema.errors import FleetscopeError, LakeFull, LakeUnavailable, ObjectMissing
from fleetscope.sinks.lake.faults import fault_point
from fleetscope.sinks.lake.objects import Write

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNFINISHED = ".writing-"
"""Prefix of temporary names: never listed, swept when old."""


def _translate(error: OSError, key: str) -> FleetscopeError:
    # pyarrow raises OSError with errno in its text only ("[errno 28]")
    code = error.errno
    if code is None and any(f"[errno {number}]" in str(error) for number in _FULL):
        code = errno.ENOSPC
    if code in _FULL:
        return LakeFull(f"{key}: {error}")
    if code == errno.ENOENT:
        return ObjectMissing(f"{key}: not in the lake")
    return LakeUnavailable(f"{key}: {error}")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalFolder:
    """ObjectStore in a folder of a file system with hard links."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._known: set[Path] = set()
        self._lock = threading.Lock()
        self._make(self._root)

    @property
    def url(self) -> str:
        return str(self._root)

    @property
    def is_local(self) -> bool:
        return True

    @property
    def options(self) -> dict[str, str] | None:
        return None

    def location(self, key: str) -> str:
        return f"{self._root}/{key}"

    def location_url(self, key: str) -> str:
        return f"{self._root}/{key}"

    def filesystem(self) -> Any:
        return pa.fs.LocalFileSystem()

    def _make(self, folder: Path) -> None:
        # a durable file in a folder whose own name is lost is lost: fsync the parent of every folder made
        with self._lock:
            if folder in self._known and folder.is_dir():
                return
            missing = []
            path = folder
            while not path.is_dir():
                missing.append(path)
                path = path.parent
            for path in reversed(missing):
                path.mkdir(exist_ok=True)
                _fsync(path.parent)
            self._known.add(folder)

    @contextlib.contextmanager
    def _writing(self, key: str) -> Iterator[tuple[Path, Path]]:
        """(temporary, final) path; the temporary is removed at the end whatever happened."""
        final = self._root / key
        temporary = final.parent / f"{UNFINISHED}{os.getpid()}-{uuid.uuid4().hex[:12]}"
        try:
            self._make(final.parent)
            yield temporary, final
        except OSError as error:
            raise _translate(error, key) from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            fault_point("object.written")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._writing(key) as (temporary, final):
            self._write(temporary, data)
            fault_point("object.before_link")
            try:
                os.link(temporary, final)
            except FileExistsError:
                return False
            fault_point("object.linked")
            _fsync(final.parent)
            return True

    def put(self, key: str, data: bytes) -> None:
        with self._writing(key) as (temporary, final):
            self._write(temporary, data)
            os.replace(temporary, final)
            _fsync(final.parent)

    def add_file(self, key: str, write: Write) -> int | None:
        with self._writing(key) as (temporary, final):
            with pa.OSFile(str(temporary), "wb") as file:
                write(file)
                fault_point("file.written")
            _fsync(temporary)
            size = temporary.stat().st_size
            try:
                os.link(temporary, final)
            except FileExistsError:
                return None
            _fsync(final.parent)
            return size

    def get(self, key: str) -> bytes:
        try:
            return (self._root / key).read_bytes()
        except OSError as error:
            raise _translate(error, key) from error

    def size(self, key: str) -> int | None:
        try:
            return (self._root / key).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _translate(error, key) from error

    def _walk(self, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
        folders = [prefix.strip("/")]
        while folders:
            folder = folders.pop()
            try:
                entries = os.scandir(self._root / folder)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _translate(error, folder) from error
            with entries:
                for entry in entries:
                    key = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(key)
                    else:
                        yield key, entry

    def keys(self, prefix: str, after: str = "") -> list[str]:
        return sorted(key for key, entry in self._walk(prefix) if key > after and not entry.name.startswith("."))

    def folders(self, prefix: str) -> list[str]:
        try:
            with os.scandir(self._root / prefix) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _translate(error, prefix) from error

    def modified(self, prefix: str) -> Mapping[str, float]:
        found = {}
        for key, entry in self._walk(prefix):
            with contextlib.suppress(FileNotFoundError):
                found[key] = entry.stat(follow_symlinks=False).st_mtime
        return found

    def delete(self, key: str) -> None:
        try:
            (self._root / key).unlink(missing_ok=True)
        except OSError as error:
            raise _translate(error, key) from error
