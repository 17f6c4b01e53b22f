"""Reads of a counter between two reads of the host's clock: how wide, and where in between."""

from dataclasses import dataclass

import numpy as np

from clocklab.oscillator import Int64s


@dataclass(frozen=True, slots=True)
class Widths:
    """`base_ns` and a tail of scale `tail_ns`; one in 1 / `slow` reads takes `slow_ns` more, exponentially."""

    base_ns: int = 1_200
    tail_ns: int = 800
    tail: str = "exponential"
    slow: float = 0.02
    slow_ns: int = 200_000

    def draw(self, rng: np.random.Generator, count: int) -> Int64s:
        if self.tail == "exponential":
            more = rng.exponential(1.0, count)
        elif self.tail == "lognormal":
            more = rng.lognormal(-0.5, 1.0, count)
        elif self.tail == "pareto":
            more = rng.pareto(1.2, count)
        else:
            raise ValueError(self.tail)
        slow = np.where(rng.random(count) < self.slow, rng.exponential(self.slow_ns, count), 0.0)
        # A read of more than a minute is none: Pareto tails of 1.2 have no variance.
        wide = np.minimum(self.base_ns + more * self.tail_ns + slow, 6e10)
        return wide.astype(np.int64)

    def around(self, rng: np.random.Generator, true_ns: Int64s) -> tuple[Int64s, Int64s]:
        """(before, after): the reads of the host's clock around a read at each true time, which lies anywhere in it."""
        width = self.draw(rng, len(true_ns))
        before = true_ns - (rng.random(len(true_ns)) * width).astype(np.int64)
        return before, before + width
