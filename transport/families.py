"""Series of one moment, as an exporter has them before it is known who asks for them in which form."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetscope.schema.metrics import Metric

Labels = tuple[str, ...]
"""Label values in the order of the metric's labels."""


@dataclass(slots=True)
class Durations:
    """A histogram in buckets of schema.exponential: bucket -> count, those of 0 s apart."""

    schema: int
    counts: dict[int, int] = field(default_factory=dict)
    zero: int = 0
    sum_s: float = 0.0

    def add(self, buckets: Iterable[int], counts: Iterable[int], zero: int, sum_s: float) -> None:
        for bucket, count in zip(buckets, counts, strict=True):
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.zero += zero
        self.sum_s += sum_s

    @property
    def count(self) -> int:
        return self.zero + sum(self.counts.values())

    def by_octave(self, octaves: tuple[int, int, int]) -> list[tuple[float, int]]:
        """(bound in s, how many are not above it), the last without bound: what text can say of it. Powers of two are
        bounds of every schema."""
        first, last, step = octaves
        found = []
        for power in range(first, last + 1, step):
            upto = power << self.schema
            found.append((2.0**power, self.zero + sum(n for bucket, n in self.counts.items() if bucket <= upto)))
        return [*found, (float("inf"), self.count)]


class Members:
    """Label sets that many metrics have in common. They keep their place, so that what a page writes of one is made
    once; the first is of what is folded: a budget's overflow."""

    def __init__(self, label_names: Sequence[str], folded: Labels, budget: int) -> None:
        self.label_names = tuple(label_names)
        self.rows: list[Labels] = [folded]
        self._places = {folded: 0}
        self._budget = budget
        self._written: dict[str, list[Any]] = {}
        self._lock = threading.Lock()

    def place(self, labels: Labels) -> int:
        """0 for all that come when the budget is taken. A label set is never folded first and shown later: what is
        folded is a counter as well."""
        place = self._places.get(labels)
        if place is None:
            if len(self.rows) > self._budget:
                return 0
            place = self._places[labels] = len(self.rows)
            self.rows.append(labels)
        return place

    def written(self, form: str, write: Callable[[tuple[str, ...], Labels], Any]) -> list[Any]:
        """What `write` makes of (label names, labels) of each, by place. Two scrapes at once must not both add."""
        with self._lock:
            found = self._written.setdefault(form, [])
            found += [write(self.label_names, row) for row in self.rows[len(found) :]]
            return found


@dataclass(frozen=True, slots=True)
class Column:
    """One value for each of some members. `places` ascend."""

    members: Members
    places: NDArray[np.int64]
    values: NDArray[np.float64]

    def written(self, form: str, write: Callable[[tuple[str, ...], Labels], Any]) -> list[Any]:
        """What `write` makes of the label names and labels of each series here, in order."""
        found = self.members.written(form, write)
        return [found[place] for place in self.places.tolist()]


@dataclass(frozen=True, slots=True)
class Classic:
    """A histogram with bounds of its own. `counts`: how many are not above each bound, and last how many there are."""

    bounds: list[float]
    counts: list[int]
    sum_s: float


@dataclass(frozen=True, slots=True)
class Family:
    """All series of one metric: single ones, those of members, and histograms of either kind."""

    metric: Metric
    samples: dict[Labels, float] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    histograms: dict[Labels, Durations] = field(default_factory=dict)
    classic: dict[Labels, Classic] = field(default_factory=dict)

    def series(self) -> Iterator[tuple[Labels, float]]:
        """All but histograms."""
        yield from self.samples.items()
        for column in self.columns:
            rows = column.members.rows
            for place, value in zip(column.places.tolist(), column.values.tolist(), strict=True):
                yield rows[place], value
