"""Who the processes are, kept on disk: an agent that restarts knows a ring's owner without being told again."""

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from fleetscope.agents.profiler import protocol

log = logging.getLogger(__name__)

_SEEN = "seen"


class SavedHellos:
    """One file a process, `<pid>-<start ticks>.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, hello: protocol.Hello, pid: int = 0, namespace: int = 0) -> None:
        """`pid`: as the agent sees it from its pid namespace, whose inode is `namespace`; 0: not visible there."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial = self._folder / f".{hello.pid}-{hello.start_ticks}"
            fields = {**json.loads(protocol.encode(hello)[8:]), _SEEN: [pid, namespace]}
            partial.write_text(json.dumps(fields, separators=(",", ":")))
            os.replace(partial, self._path(hello.pid, hello.start_ticks))
        except OSError as error:
            log.warning("hello of process %d not kept: %s", hello.pid, error)

    def forget(self, pid: int, start_ticks: int) -> None:
        self._path(pid, start_ticks).unlink(missing_ok=True)

    def load(self, boot_id: str, namespace: int = 0) -> Iterator[tuple[protocol.Hello, int]]:
        """Those of this boot with the pid that was seen from this same namespace, else 0. Others are removed: their
        rings went with the memory they were in."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                saved = path.read_bytes()
                hello, seen = protocol.decode(saved), json.loads(saved).get(_SEEN)
            except (OSError, protocol.FrameError, json.JSONDecodeError) as error:
                log.warning("%s: %s", path, error)
                hello, seen = None, None
            if isinstance(hello, protocol.Hello) and hello.boot_id == boot_id:
                # A namespace that is gone took with it all that was seen from it: its inode may be another's now, but
                # what began there is younger.
                known = isinstance(seen, list) and len(seen) == 2 and namespace and seen[1] == namespace
                yield hello, seen[0] if known and isinstance(seen[0], int) else 0
            else:
                path.unlink(missing_ok=True)

    def _path(self, pid: int, start_ticks: int) -> Path:
        return self._folder / f"{pid}-{start_ticks}.json"
