"""What a device window adds to the steps that meet it, measured by the steps themselves."""

from collections import deque
from typing import NamedTuple

KEPT = 32
TRIM = 8
"""One in eight is left out at either end: a checkpoint or an evaluation that fell into a window is not its cost."""


class Steps(NamedTuple):
    """_recorder.steps(), by name. Ticks of the host counter but for the fields in ns."""

    step: int
    begin: int
    begun: int
    period_ns: int
    longest_ns: int
    since_compile: int


class Stalls:
    """Time between the begin of the step a window opened in and the begin of the first after its stop, less as many
    steps of the pace before it. Signed: noise cancels in the mean. `tick_ns`: (numerator, denominator) of a tick."""

    def __init__(self, tick_ns: tuple[int, int]) -> None:
        self._tick_ns = tick_ns
        self._opened: Steps | None = None
        self._closed_at = -1
        self._kept: deque[int] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._kept)

    def forget(self) -> None:
        """From now on steps are others."""
        self._opened = None
        self._kept.clear()

    def opened(self, steps: Steps) -> None:
        self._opened, self._closed_at = steps, -1

    def closed(self, steps: Steps) -> None:
        """The session's stop has returned."""
        self._closed_at = steps.begun

    def look(self, steps: Steps) -> None:
        """Takes the measure when a step has begun since the stop. Called now and then."""
        opened = self._opened
        if opened is None or self._closed_at < 0 or steps.begun <= self._closed_at:
            return
        self._opened = None
        count = steps.begun - opened.begun
        if steps.since_compile < count or not opened.period_ns:
            return
        num, den = self._tick_ns
        self._kept.append((steps.begin - opened.begin) * num // den - count * opened.period_ns)

    @property
    def mean_ns(self) -> int:
        """Trimmed mean, never below 0."""
        if not self._kept:
            return 0
        values = sorted(self._kept)
        cut = len(values) // TRIM
        values = values[cut : len(values) - cut]
        return max(0, sum(values) // len(values))
