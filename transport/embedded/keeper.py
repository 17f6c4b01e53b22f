"""The embedded log's one background thread: group fsync, and retention and compaction now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, Thread

# Once a minute is enough for retention: segments are rolled by size far less often.
_MAINTAIN_EVERY_S = 60.0


class Keeper:
    """Runs `sync` at most `sync_s` after the first unsynced append, at once after `sync_bytes`, and `maintain` each
    minute while there are appends. Sleeps without waking up while nothing is appended."""

    def __init__(self, sync: Callable[[], None], maintain: Callable[[], None], sync_s: float, sync_bytes: int) -> None:
        self._sync = sync
        self._maintain = maintain
        self._sync_s = sync_s
        self._sync_bytes = sync_bytes
        self._wake = Condition()
        self._unsynced_bytes = 0
        self._due = False
        self._stopping = False
        self._thread: Thread | None = None
        self.failure: Exception | None = None

    def appended(self, size_bytes: int, rolled: bool) -> None:
        """Something was written: retention may be due."""
        with self._wake:
            first = self._unsynced_bytes == 0
            self._unsynced_bytes += size_bytes
            self._due |= rolled
            if self._thread is None and not self._stopping:
                self._thread = Thread(target=self._run, name="fleetscope-log-keeper", daemon=True)
                self._thread.start()
            if first or self._unsynced_bytes >= self._sync_bytes:
                self._wake.notify()

    def stop(self) -> None:
        """End its thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        maintained_at = time.monotonic()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or self._unsynced_bytes > 0)
                self._wake.wait_for(
                    lambda: self._stopping or self._unsynced_bytes >= self._sync_bytes, timeout=self._sync_s
                )
                if self._stopping:
                    return
                self._unsynced_bytes = 0
                due, self._due = self._due, False
            try:
                self._sync()
                if due or time.monotonic() - maintained_at > _MAINTAIN_EVERY_S:
                    maintained_at = time.monotonic()
                    self._maintain()
            except Exception as error:  # kept for the next caller: a log that cannot sync must not go on silently
                self.failure = error
