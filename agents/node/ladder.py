"""What a process may record, rung by rung, and what it would cost there. Pure: no clock, no process."""

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fleetscope.agents.node.meter import Rates

CAPS = tuple(1 << bits for bits in range(16, 4, -1))
"""Records a second of one site: 65 536 .. 32."""
NAMES = 63
"""Sites with a figure of their own, the most frequent; all others together have one (64 in native/recorder/thin.h)."""
NAME_CHARACTERS = 256
"""Of a name that is told to a process: longer ones are among the others."""
REST = 16
"""The others together may leave so many times a site's records."""
MOST_SHIFT = 20
OWN = 0.5
"""Halvings by which a site's weight must exceed what we thinned it by, to be one its user has thinned."""


class Rung(NamedTuple):
    cap: int
    """Records a second of one site; 0: any number."""
    level: int
    """Of sites, at most; 0: none records, steps alone."""


def ladder(level: int) -> tuple[Rung, ...]:
    """Sampling first, which keeps every statistic right; then sites of the higher levels, then all."""
    caps = [Rung(0, level), *(Rung(cap, level) for cap in CAPS)]
    return (*caps, *(Rung(CAPS[-1], below) for below in range(level - 1, -1, -1)))


@dataclass(frozen=True, slots=True)
class Thinning:
    """One in 2^shift passes leaves a record: by name, and of all names that are not among them."""

    names: dict[str, int]
    rest: int = 0

    def of(self, name: str) -> int:
        return self.names.get(name, self.rest)


EVERYTHING = Thinning({})


def _shift(rate: float, cap: float) -> int:
    return min(MOST_SHIFT, math.ceil(math.log2(rate / cap))) if rate > cap else 0


def thinning(passes: Mapping[str, float], cap: int) -> Thinning:
    """The least that leaves no site more than `cap` records a second, at these passes a second."""
    if not cap:
        return EVERYTHING
    named = heapq.nlargest(NAMES, (name for name in passes if len(name) <= NAME_CHARACTERS), key=passes.__getitem__)
    shifts = {name: _shift(passes[name], cap) for name in named}
    rest = _shift(sum(rate for name, rate in passes.items() if name not in shifts), REST * cap)
    return Thinning({name: shift for name, shift in shifts.items() if shift or rest}, rest)


def records(rates: Rates, now: Thinning, then: Thinning) -> float:
    """Records a second of what may be thinned, at these passes, if `then` held in place of `now`."""
    total = 0.0
    for name, passes in rates.passes.items():
        seen = math.log2(passes / rates.kept[name])
        own = seen if seen > now.of(name) + OWN else 0.0
        total += passes / 2 ** max(own, then.of(name))
    return total


class Shares(NamedTuple):
    """Of one core's time."""

    recorder: float
    drain: float


NOTHING = Shares(0.0, 0.0)


def predicted(rates: Rates, now: Thinning, then: Thinning, level: int) -> Shares:
    """What recording would cost; at level 0 of sites, what cannot be thinned alone."""
    kept = records(rates, now, then) if level else 0.0
    passes = sum(rates.passes.values()) if level else 0.0
    recorder = ((kept + rates.others) * rates.record_ps + max(0.0, passes - kept) * rates.pass_ps) / 1e12
    was = sum(rates.kept.values())
    return Shares(recorder, rates.drain + rates.drained * (kept / was - 1) if was else rates.drain)
