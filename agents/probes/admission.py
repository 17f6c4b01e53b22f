"""How much of what arrives at the probe port is looked at: a flood costs the host no more than this."""

import time
from collections.abc import Callable

SOURCE = (8.0, 24.0)
"""Of one address, a second and at once: a peer at 2 Hz sends two requests and two replies."""
TOTAL = (100.0, 300.0)
"""Of all: six peers each way at 2 Hz send 24 a second."""


class Bucket:
    """Tokens that come back with time."""

    __slots__ = ("_burst", "_rate", "_since_s", "_tokens")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._since_s = burst, now_s

    def left(self, now_s: float) -> bool:
        """Whether there is a token."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now_s - self._since_s) * self._rate)
        self._since_s = now_s
        return self._tokens >= 1

    def take(self, now_s: float) -> bool:
        """One token, if there is one."""
        left = self.left(now_s)
        self._tokens -= left
        return left


class Admission:
    """A bucket for all and one for each known address. Unknown addresses have none of their own: they take from all,
    so that their number costs no memory."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        source: tuple[float, float] = SOURCE,
        total: tuple[float, float] = TOTAL,
    ) -> None:
        self._clock_s = clock_s
        self._source = source
        self._total = Bucket(*total, clock_s())
        self._sources: dict[tuple[str, int], Bucket] = {}

    @property
    def exhausted(self) -> bool:
        """Nothing at all is to be read now."""
        return not self._total.left(self._clock_s())

    def known(self, addresses: frozenset[tuple[str, int]]) -> None:
        """These and no others have a bucket."""
        now_s = self._clock_s()
        self._sources = {address: self._sources.get(address) or Bucket(*self._source, now_s) for address in addresses}

    def admit(self, source: tuple[str, int]) -> str:
        """Why a datagram of `source` is not looked at; "" if it is."""
        now_s = self._clock_s()
        if not self._total.take(now_s):
            return "flood"
        bucket = self._sources.get(source)
        if bucket is None:
            return "unknown_source"
        return "" if bucket.take(now_s) else "too_often"
