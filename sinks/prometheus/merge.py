"""Records of one scrape -> families: what is added up, what is folded, what is not known.

Devices come in blocks (a label set once, then a column a metric) and stay in arrays: 80 000 of them have two million
series.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from fleetscope.schema.metrics import Metric, metrics
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.prometheus.shard import Shard
from fleetscope.transport.families import Column, Durations, Family, Labels, Members

LAG = "fleetscope_pipeline_lag_seconds"
KEPT = ("run", "outcome", "reason", "chain")
"""Labels that a series beyond the budget keeps."""

Int64s = NDArray[np.int64]
Values = NDArray[np.float64]


class Runs:
    """Members of runs, kept from scrape to scrape: the budget of a run goes to who came first."""

    def __init__(self, budget: int, shard: Shard) -> None:
        self.budget, self.shard = budget, shard
        self._members: dict[tuple[str, tuple[str, ...]], Members] = {}

    def members(self, run: str, label_names: tuple[str, ...]) -> Members:
        """Of a run, for metrics of these labels."""
        found = self._members.get((run, label_names))
        if found is None:
            folded = tuple(run if name == "run" else self.shard.other for name in label_names)
            found = self._members[run, label_names] = Members(label_names, folded, self.budget)
        return found

    def keep(self, runs: set[str]) -> None:
        """Forget those of other runs."""
        for key in [key for key in self._members if key[0] not in runs]:
            del self._members[key]


@dataclass(slots=True)
class _Columns:
    """Sums of some metrics over their members; `present`: which of them any record has."""

    members: Members
    present: NDArray[np.bool_]
    values: dict[str, Values] = field(default_factory=dict)

    def add(self, name: str, places: Int64s, values: Values) -> None:
        """`places` are distinct, or all that are not are 0."""
        total = self.values.get(name)
        if total is None or len(total) < len(self.members.rows):
            grown = np.zeros(len(self.members.rows))
            if total is not None:
                grown[: len(total)] = total
            total = self.values[name] = grown
        np.add.at(total, places, values)

    def seen(self, places: Int64s) -> None:
        if len(self.present) < len(self.members.rows):
            self.present = np.concatenate((self.present, np.zeros(len(self.members.rows) - len(self.present), bool)))
        self.present[places] = True


class Merged:
    """One scrape's sums over records."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known = metrics()
        self.unknown = 0
        """Samples metrics.json does not know, or with other labels: a newer worker, or a damaged record."""
        self.folded: dict[str, int] = {}
        """run -> samples beyond the budget."""
        self._samples: dict[str, dict[Labels, float]] = {}
        self._histograms: dict[str, dict[Labels, Durations]] = {}
        self._columns: dict[tuple[str, tuple[str, ...]], _Columns] = {}
        self._budget: dict[tuple[str, str], set[Labels]] = {}

    def add(self, run: str, record: MetricsRecord, lag_s: float) -> None:
        """`lag_s`: now minus the newest event. As it was at the commit it would stand still with the pipeline, and
        nobody would be told."""
        for sample in record.samples:
            metric = self._known.get(sample.name)
            if metric is None or set(sample.labels) != set(metric.labels):
                self.unknown += 1
                continue
            told = {name: sample.labels[name] for name in metric.labels}
            if not self._runs.shard.has(told.get("host")):
                continue
            labels = self._within_budget(run, metric, tuple(told.values()))
            if metric.type == "histogram":
                self._add_histogram(metric, labels, sample.durations)
                continue
            value = float(sample.int_value) if sample.is_int else sample.value
            if sample.name == LAG:
                value = lag_s
            series = self._samples.setdefault(sample.name, {})
            series[labels] = series.get(labels, 0.0) + value if metric.type == "counter" else value
        for block in record.blocks:
            self._add_block(run, block)

    def _add_histogram(self, metric: Metric, labels: Labels, told: MetricsRecord.Durations) -> None:
        if told.schema != metric.native or len(told.bucket) != len(told.count):
            self.unknown += 1
            return
        found = self._histograms.setdefault(metric.name, {})
        whole = found.setdefault(labels, Durations(told.schema))
        whole.add(told.bucket, told.count, told.zero, told.sum_ns * 1e-9)

    def _within_budget(self, run: str, metric: Metric, labels: Labels) -> Labels:
        seen = self._budget.setdefault((metric.name, run), set())
        if labels in seen or len(seen) < self._runs.budget:
            seen.add(labels)
            return labels
        self.folded[run] = self.folded.get(run, 0) + 1
        pairs = zip(metric.labels, labels, strict=True)
        return tuple(value if name in KEPT else self._runs.shard.other for name, value in pairs)

    def _add_block(self, run: str, block: MetricsRecord.Block) -> None:
        names = tuple(block.label_names)
        texts = list(block.labels)
        rows, odd = divmod(len(texts), len(names)) if names else (0, 1)
        if odd or "run" in names or len(set(names)) < len(names):
            self.unknown += len(block.columns)
            return
        by_name = {name: texts[at :: len(names)] for at, name in enumerate(names)} | {"run": [run] * rows}
        mine = list(map(self._runs.shard.has, by_name.get("host", [None] * rows)))
        places: dict[tuple[str, ...], Int64s] = {}
        for column in block.columns:
            metric = self._known.get(column.name)
            fits = metric is not None and metric.type == "counter" and set(metric.labels) == set(by_name)
            if metric is None or not fits or len(column.values) != rows:
                self.unknown += rows
                continue
            columns = self._of(run, metric.labels)
            if metric.labels not in places:
                sets = zip(*(by_name[name] for name in metric.labels), strict=True)
                found = np.fromiter(map(columns.members.place, compress(sets, mine)), np.int64)
                places[metric.labels] = found
                columns.seen(found)
            at = places[metric.labels]
            columns.add(metric.name, at, np.fromiter(compress(column.values, mine), np.float64, len(at)))
            folded = len(at) - int(np.count_nonzero(at))
            if folded:
                self.folded[run] = self.folded.get(run, 0) + folded

    def _of(self, run: str, label_names: tuple[str, ...]) -> _Columns:
        found = self._columns.get((run, label_names))
        if found is None:
            members = self._runs.members(run, label_names)
            found = self._columns[run, label_names] = _Columns(members, np.zeros(0, bool))
        return found

    def families(self) -> Iterator[Family]:
        columns: dict[str, list[Column]] = {}
        for group in self._columns.values():
            places = np.flatnonzero(group.present)
            for name, values in group.values.items():
                if len(places):
                    whole = np.pad(values, (0, len(group.present) - len(values)))
                    columns.setdefault(name, []).append(Column(group.members, places, whole[places]))
        for name in sorted(self._samples.keys() | self._histograms.keys() | columns.keys()):
            yield Family(
                self._known[name],
                self._samples.get(name, {}),
                tuple(columns.get(name, ())),
                self._histograms.get(name, {}),
            )
