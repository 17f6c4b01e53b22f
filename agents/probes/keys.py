"""The keys that probes are signed with: a file of one or two lines of hex, read again when it changes.

The first line signs, both are accepted. So a fleet changes its key without a gap: the new one second on all hosts, then
first, then alone.
"""

import logging
import time
from pathlib import Path

from fleetscope.schema.errors import ConfigInvalid

log = logging.getLogger(__name__)

LEAST_BYTES, MOST_BYTES = 16, 64
KEYS = 2
LOOK_S = 5.0
MOST_FILE_BYTES = 4096


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Raises ConfigInvalid for a file that cannot be read or holds anything but one or two keys of 16 to 64 bytes."""
    try:
        with path.open("rb") as file:
            lines = [line.strip() for line in file.read(MOST_FILE_BYTES).decode().splitlines()]
        keys = tuple(bytes.fromhex(line) for line in lines if line and not line.startswith("#"))
    except (OSError, ValueError) as error:
        # Not the error of a line: it would put a part of a key into a log.
        why = error.strerror if isinstance(error, OSError) else "a line is no hex"
        raise ConfigInvalid(f"probes.key_file {path}: {why}") from None
    if not 1 <= len(keys) <= KEYS or not all(LEAST_BYTES <= len(key) <= MOST_BYTES for key in keys):
        raise ConfigInvalid(f"probes.key_file {path}: one or two lines of {LEAST_BYTES} to {MOST_BYTES} bytes in hex")
    return keys


class KeyFile:
    """The keys of a file. Raises ConfigInvalid at first; later a file that is wrong leaves the keys as they are."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark = self._stat()
        self.keys = read_keys(path)
        self._look_s = time.monotonic() + LOOK_S

    def _stat(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_ino, found.st_size)

    def look(self) -> None:
        """Every few seconds whether the file is another."""
        now_s = time.monotonic()
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        mark = self._stat()
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self.keys = read_keys(self._path)
            log.info("probes: keys were read anew, %d valid", len(self.keys))
        except ConfigInvalid as error:
            log.warning("%s: the keys stay as they were", error)
