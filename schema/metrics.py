"""metrics.json as data: the only place a metric is named. Code asks here for a name, so a name cannot drift."""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

MAX_LABELS = 15


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `source`: pipeline (through fleetscope.metrics), agent, worker, coordinator or exporter. `values`:
    all that a label can be, where that is a closed list.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    since: str
    source: str
    values: dict[str, list[str]] = field(default_factory=dict, hash=False)


@cache
def metrics() -> dict[str, Metric]:
    """name -> Metric for every entry of metrics.json."""
    entries = json.loads((files("fleetscope.schema") / "metrics.json").read_text())["metrics"]
    return {entry["name"]: Metric(**{**entry, "labels": tuple(entry["labels"])}) for entry in entries}


def metric(name: str) -> Metric:
    """The entry called `name`; KeyError names it."""
    return metrics()[name]


_OF_HISTOGRAM = ("_bucket", "_count", "_sum")


@cache
def metric_of_sample(name: str) -> Metric | None:
    """The entry a series belongs to: its own, or the histogram it is a part of; None if there is none."""
    found = metrics().get(name)
    if found is not None:
        return found
    for end in _OF_HISTOGRAM:
        found = metrics().get(name.removesuffix(end))
        if name.endswith(end) and found is not None and found.type == "histogram":
            return found
    return None
