"""Dimension rows on their way: once when new, again every few minutes, so that a lost batch heals."""

from collections import OrderedDict
from dataclasses import dataclass

from fleetscope.schema import wire_pb2 as wire

RESEND_S = 300.0
BUDGET_BYTES = 128 << 10
"""Of announcements in one batch. 10 000 names at once would otherwise push a batch over the log's limit."""


@dataclass(slots=True)
class _Entry:
    message: wire.Announcement
    size_bytes: int
    sent_s: float | None = None


class Announcer:
    """What one source has to say about itself, its devices, lines, names and programs. Not thread-safe.

    Keeps at most `limit` entries and refuses more: a process that invents names for ever must not grow the agent, and
    the names it began with go on healing.
    """

    def __init__(self, resend_s: float = RESEND_S, limit: int = 100_000) -> None:
        self._resend_s = resend_s
        self._limit = limit
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self.refused = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, message: wire.Announcement) -> bool:
        """True if it is new and kept.

        A changed row (same key, other content) is a new entry; both are resent, the newest seen wins.
        """
        key = message.SerializeToString(deterministic=True)
        if key in self._entries:
            return False
        if len(self._entries) >= self._limit:
            self.refused += 1
            return False
        self._entries[key] = _Entry(message, len(key))
        self._entries.move_to_end(key, last=False)
        return True

    def withdraw(self, message: wire.Announcement) -> None:
        """Say it no more: another row of its key took its place."""
        self._entries.pop(message.SerializeToString(deterministic=True), None)

    def again(self, message: wire.Announcement) -> None:
        """Say it with the next batch, whenever it was said last."""
        self.withdraw(message)
        self.add(message)

    def due(self, now_s: float, budget_bytes: int = BUDGET_BYTES) -> list[wire.Announcement]:
        """What to send now (monotonic seconds): the never sent, then those older than `resend_s`, within the budget.

        Entries are kept in order of sending, so this looks only at what it sends and one more.
        """
        taken: list[tuple[bytes, _Entry]] = []
        for key, entry in self._entries.items():
            if entry.sent_s is not None and now_s - entry.sent_s < self._resend_s:
                break
            if taken and entry.size_bytes > budget_bytes:
                break
            budget_bytes -= entry.size_bytes
            taken.append((key, entry))
        for key, entry in taken:
            entry.sent_s = now_s
            self._entries.move_to_end(key)
        return [entry.message for _, entry in taken]
