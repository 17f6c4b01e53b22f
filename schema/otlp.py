"""otlp.json as data: what a metric is called in OpenTelemetry's conventions. The only place of such a name.

A metric that is not there goes out under its own name, unit and labels: Prometheus' OTLP endpoint then makes the series
that a scrape has.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from fleetscope.schema.metrics import Metric, metric

HOST = "host.name"
"""Attribute of the label host, where the resource does not say it."""

_UCUM = {"byte": "By", "FLOP": "{FLOP}"}


@dataclass(frozen=True, slots=True)
class Told:
    """`attributes`: attribute -> its text, {label} for the value of one. `kind` updown: a sum that may fall."""

    name: str
    kind: Literal["counter", "updown", "gauge", "histogram"]
    unit: str
    description: str
    attributes: tuple[tuple[str, str], ...]

    def of(self, labels: dict[str, str]) -> dict[str, str]:
        """Attributes of a series; empty ones are left out."""
        return {name: value for name, text in self.attributes if (value := text.format_map(labels))}


@cache
def conventions() -> dict[str, Told]:
    """Metric -> what it is called by the conventions, for every entry of otlp.json."""
    entries = json.loads((files("fleetscope.schema") / "otlp.json").read_text())["metrics"]
    descriptions: dict[str, str] = {}
    found = {}
    for entry in entries:
        # Metrics that go by one name are one metric there, which has one description.
        description = descriptions.setdefault(entry["to"], metric(entry["name"]).help)
        attributes = tuple(entry["attributes"].items())
        found[entry["name"]] = Told(entry["to"], entry["kind"], entry["unit"], description, attributes)
    return found


def told(of: Metric) -> Told:
    """How a metric goes out, without its host."""
    known = conventions().get(of.name)
    if known is not None:
        return known
    # Prometheus calls a gauge of unit 1 a ratio, and renames what is none.
    unit = of.unit if of.unit != "1" or of.name.endswith("_ratio") else ""
    labels = tuple((label, f"{{{label}}}") for label in of.labels)
    return Told(of.name, of.type, _UCUM.get(unit, unit), of.help, labels)
