"""Which device windows of a process are accounted for: decoded, or lost and counted.

A process numbers the windows it takes from 1, and sends them in order. So a number that is passed over is a window that
was lost on the way, and the newest settled number, kept in the spool with the rows of that window, says after a kill
which are still open. Losses are counted in windows: nobody knows the events of one that was never decoded.
"""

from dataclasses import dataclass

from fleetscope.agents.batches import clean_text
from fleetscope.agents.profiler.protocol import Cost

ABANDONED = "window_abandoned"
"""It reached the agent, or its socket, and was not decoded."""
UNDELIVERED = "socket_backpressure"
"""The process could not hand it over: the agent was stalled, or gone."""


MOST = 1 << 32
"""Windows one process can have taken: one a second for 136 years. More would only falsify sums of losses."""
REASONS = 64
BREAKER_CHARACTERS = 64
PROGRAMS, PROGRAM_CHARACTERS = 16, 128


def plausible(cost: Cost) -> Cost:
    """As a process may say it: no more reasons than there are, each a word, as is what switched its windows off."""

    def words(counts: dict[str, int]) -> dict[str, int]:
        return {clean_text(key, 64): value for key, value in [*counts.items()][:REASONS]}

    breaker = clean_text(cost.breaker, BREAKER_CHARACTERS)
    return cost._replace(
        skipped=words(cost.skipped),
        dropped=words(cost.dropped),
        breaker=breaker,
        ran=tuple(ran._replace(program=clean_text(ran.program, PROGRAM_CHARACTERS)) for ran in cost.ran[:PROGRAMS]),
        followed=cost.followed._replace(program=clean_text(cost.followed.program, PROGRAM_CHARACTERS)),
    )


@dataclass(slots=True)
class WindowAccount:
    """`following`: the number after the newest settled window, None before the first is known (an agent may begin in
    the middle of a process' life). `taken`: the highest number known to exist."""

    following: int | None = None
    undelivered: int = 0
    counted: int = 0
    taken: int = 0

    def settled(self, number: int) -> bool:
        """Whether the window was settled before, perhaps in an earlier life of the agent."""
        return self.following is not None and number < self.following

    def settle(self, number: int) -> dict[str, int]:
        """The window is accounted for; the losses before it, by reason."""
        number = min(number, MOST)
        before = number if self.following is None else self.following
        self.following = max(before, number + 1)
        self.exists(number)
        return self._reasons(number - before)

    def exists(self, number: int) -> None:
        """A window of this number was taken."""
        self.taken = max(self.taken, min(MOST, number))

    def note(self, cost: Cost) -> None:
        """What the process itself says: all it numbered, and what it could not send."""
        self.undelivered = max(self.undelivered, min(MOST, cost.dropped.get("not_sent", 0)))
        # `windows` counts those that were stopped at exit too; they got no number
        self.exists(cost.windows - cost.dropped.get("stopped", 0))

    def close(self) -> dict[str, int]:
        """The process is gone and nothing waits: what is still open is lost."""
        if self.following is None:
            return {}
        lost = self._reasons(self.taken + 1 - self.following)
        self.following = max(self.following, self.taken + 1)
        return lost

    def _reasons(self, windows: int) -> dict[str, int]:
        if windows <= 0:
            return {}
        undelivered = min(windows, max(0, self.undelivered - self.counted))
        self.counted += undelivered
        found = {UNDELIVERED: undelivered, ABANDONED: windows - undelivered}
        return {reason: count for reason, count in found.items() if count}

    def to_json(self) -> dict[str, int | None]:
        return {"following": self.following, "counted": self.counted}

    @classmethod
    def from_json(cls, kept: object) -> "WindowAccount":
        """As kept in a mark; of an older agent's mark, which has none, an account that begins with what comes."""
        if not isinstance(kept, dict):
            return cls()
        following, counted = kept.get("following"), kept.get("counted", 0)
        if not (following is None or isinstance(following, int)) or not isinstance(counted, int):
            return cls()
        return cls(following=following, counted=counted)
