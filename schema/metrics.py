"""metrics.json as data: the only place a metric is named. Code asks here for a name, so a name cannot drift."""

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

MAX_LABELS = 15


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `source`: pipeline (through fleetscope.metrics), agent, worker, coordinator or exporter. `values`:
    all that a label can be, where that is a closed list. `native`: schema of a native histogram (schema.exponential).
    `octaves`: first, last and step of the powers of two, in seconds, that are its bounds where text is asked for.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    unit: str
    labels: tuple[str, ...]
    help: str
    since: str
    source: str
    values: dict[str, list[str]] = field(default_factory=dict, hash=False)
    native: int | None = None
    octaves: tuple[int, int, int] = (0, 0, 1)


@cache
def metrics() -> dict[str, Metric]:
    """name -> Metric for every entry of metrics.json."""
    entries = json.loads((files("fleetscope.schema") / "metrics.json").read_text())["metrics"]
    return {entry["name"]: Metric(**{**entry, **_tuples(entry)}) for entry in entries}


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(entry[key]) for key in ("labels", "octaves") if key in entry}


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
