"""metrics.json as data: the only place a metric is named. Code asks here for a name, so a name cannot drift."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

MAX_LABELS = 15


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `source`: pipeline (through fleetscope.metrics), agent, worker, coordinator or exporter."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    since: str
    source: str


@cache
def metrics() -> dict[str, Metric]:
    """name -> Metric for every entry of metrics.json."""
    entries = json.loads((files("fleetscope.schema") / "metrics.json").read_text())["metrics"]
    return {entry["name"]: Metric(**{**entry, "labels": tuple(entry["labels"])}) for entry in entries}


def metric(name: str) -> Metric:
    """The entry called `name`; KeyError names it."""
    return metrics()[name]
