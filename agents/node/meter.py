"""What recording costs, by process: the process itself, and the agent for it. Counted where it arises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetscope.agents.profiler.protocol import Cost
from fleetscope.native.recorder import HOST, Drained

RECORD_PS = 30_000
"""Of a region, while the process has not said what it measured."""
LEAST_PS, MOST_PS = 1_000, 10_000_000
"""What a process may say: it is believed about itself, within reason."""
MOST_WINDOWS, MOST_STALL_NS = 1_000, 60_000_000_000
STALLS = 4
"""Stalls measured before their mean replaces opening and stopping, as in the process."""
PARTS = ("recorder", "windows", "drain", "decode")


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one process over one look of the governor: per second, or shares of one core's time."""

    passes: dict[str, float]
    """Of regions that may be thinned, by name: those that left no record too."""
    kept: dict[str, float]
    """Records of these."""
    others: float
    """Records that may not be thinned: steps, waits, checkpoints, compiles, counters, the shim's."""
    record_ps: int
    pass_ps: int
    recorder: float
    drain: float
    """The agent's CPU time in this process' rounds."""
    drained: float
    """Of that, what `kept` and their arguments took."""


def _added(total: NDArray[Any], counts: NDArray[Any]) -> NDArray[Any]:
    if len(total) < len(counts):
        total, counts = counts, total
    total[: len(counts)] += counts
    return total


class RoundCost:
    """What a record costs the agent, told apart from what a round costs without any: the slope of CPU time against
    records over the rounds of all processes, the newest 500 or so. By least squares.

    Divided by its records, a round of ten would make a process look guilty that annotates once a step.
    """

    FORGET = 0.998
    PRIOR = 4.0
    ROUND_NS, RECORD_NS = 500_000.0, 1_000.0
    """What stands for PRIOR rounds without records, and as many with 1 000."""

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0
        for records in (0, 1000):
            self._add(self.PRIOR, records, self.ROUND_NS + records * self.RECORD_NS)
        self._prior = (self._n, self._x, self._y, self._xx, self._xy)

    def _add(self, weight: float, records: int, ns: float) -> None:
        self._n += weight
        self._x += weight * records
        self._y += weight * ns
        self._xx += weight * records * records
        self._xy += weight * records * ns

    def add(self, records: int, ns: int) -> None:
        kept = self.FORGET
        sums = (self._n, self._x, self._y, self._xx, self._xy)
        # The prior is not forgotten: a process that never changes its rate tells nothing about the slope.
        self._n, self._x, self._y, self._xx, self._xy = (
            kept * now + (1 - kept) * prior for now, prior in zip(sums, self._prior, strict=True)
        )
        self._add(1.0, records, ns)

    @property
    def record_ns(self) -> float:
        return max(0.0, (self._n * self._xy - self._x * self._y) / (self._n * self._xx - self._x * self._x))


@dataclass(slots=True)
class Meter:
    """Guarded by the agent's lock. `ns` is cumulative, by part; the rest is since the last look."""

    ns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    round_records: int = 0
    """Of the round that is going on, arguments too."""
    windows: int = 0
    """Device windows the process has taken, as far as it has told."""
    record_ps: int = RECORD_PS
    pass_ps: int = RECORD_PS // 2
    _events: int = -1
    _cost: Cost | None = None
    _passes: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    _kept: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    _others: float = 0.0
    _arguments: float = 0.0
    _before: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def drained(self, drained: Drained, events: int, names: int) -> None:
        """A drain, and the events the process has committed so far. `names`: ids that can be."""
        committed = max(0, events - self._events) if self._events >= 0 else len(drained) + drained.lost
        self._events = events
        host = drained.kind == HOST
        ids = drained.name[host]
        ids = np.where((ids >= 0) & (ids < names), ids, 0)
        weight = drained.weight[host].astype(np.float64)
        # What was overwritten before it was seen was like the rest.
        unseen = 1 + drained.lost / len(drained) if len(drained) else 1.0
        if len(ids):
            self._kept = _added(self._kept, np.bincount(ids).astype(np.float64) * unseen)
            self._passes = _added(self._passes, np.bincount(ids, weights=weight) * unseen)
        self._others += (len(drained) - len(ids)) * unseen
        self._arguments += len(drained.arg_row)
        self.round_records += len(drained) + len(drained.arg_row)
        left_out = float(weight.sum() - len(ids)) * unseen
        self.ns["recorder"] += (committed * self.record_ps + left_out * self.pass_ps) / 1e3

    def said(self, cost: Cost) -> None:
        """What the process says of itself."""
        if cost.record_ps > 0:
            self.record_ps = min(max(cost.record_ps, LEAST_PS), MOST_PS)
            self.pass_ps = min(max(cost.pass_ps, 0), self.record_ps)
        before, self._cost = self._cost, cost
        if before is None or cost.windows <= before.windows:
            return
        taken = min(cost.windows - before.windows, MOST_WINDOWS)
        self.windows += taken
        if cost.stalls >= STALLS:
            self.ns["windows"] += taken * min(max(0, cost.stall_ns), MOST_STALL_NS)
        else:
            spent_ns = cost.start_ns + cost.stop_ns - before.start_ns - before.stop_ns
            self.ns["windows"] += min(max(0, spent_ns), taken * MOST_STALL_NS)

    def take(self, seconds: float, text: Callable[[int], str], record_ns: float) -> Rates:
        """What was counted since the last take, by second. `text`: of a name's id; ids of one text are added.
        `record_ns`: what a record costs the agent."""
        passes: dict[str, float] = {}
        kept: dict[str, float] = {}
        for name in np.flatnonzero(self._kept).tolist():
            said = text(name)
            passes[said] = passes.get(said, 0.0) + float(self._passes[name]) / seconds
            kept[said] = kept.get(said, 0.0) + float(self._kept[name]) / seconds
        share = {part: (self.ns[part] - self._before[part]) / 1e9 / seconds for part in PARTS}
        drained = min(share["drain"], (float(self._kept.sum()) + self._arguments) / seconds * record_ns / 1e9)
        rates = Rates(
            passes,
            kept,
            self._others / seconds,
            self.record_ps,
            self.pass_ps,
            share["recorder"],
            share["drain"],
            drained,
        )
        self._before = dict(self.ns)
        self._passes, self._kept, self._others, self._arguments = np.zeros(0), np.zeros(0), 0.0, 0.0
        return rates
