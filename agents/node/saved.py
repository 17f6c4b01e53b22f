"""Who the processes are, kept on disk: an agent that restarts knows a ring's owner without being told again."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fleetscope.agents.profiler import protocol

log = logging.getLogger(__name__)


class SavedHellos:
    """One file a process, `<pid>-<start ticks>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, hello: protocol.Hello) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = self._folder / f".{hello.pid}-{hello.start_ticks}"
            partial.write_bytes(protocol.encode(hello)[8:])
            os.replace(partial, self._path(hello.pid, hello.start_ticks))
        except OSError as error:
            log.warning("hello of process %d not kept: %s", hello.pid, error)

    def forget(self, pid: int, start_ticks: int) -> None:
        self._path(pid, start_ticks).unlink(missing_ok=True)

    def load(self, boot_id: str) -> Iterator[protocol.Hello]:
        """Those of this boot; others are removed: their rings went with the memory they were in."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                hello = protocol.decode(path.read_bytes())
            except (OSError, protocol.FrameError, json.JSONDecodeError) as error:
                log.warning("%s: %s", path, error)
                hello = None
            if isinstance(hello, protocol.Hello) and hello.boot_id == boot_id:
                yield hello
            else:
                path.unlink(missing_ok=True)

    def _path(self, pid: int, start_ticks: int) -> Path:
        return self._folder / f"{pid}-{start_ticks}.json"
