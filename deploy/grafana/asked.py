"""What the generated dashboards ask of Prometheus: every query, with values for their variables."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARDS = Path(__file__).resolve().parent / "dashboards"
RATE_INTERVAL = "1m"
"""What Grafana makes of $__rate_interval where panels ask for steps of 15 s: four times that."""
ZERO = " or on () vector(0)"
"""Stands in for series that are not there as long as nothing happened. Without `on ()` it would stay beside them."""

NOT_SIMULATED = {
    ("fleetscope-host", "Faults in an hour"): "no simulated chip has a fault",
    ("fleetscope-host", "Quarantined chips"): "no simulated chip tells what cannot be",
    ("fleetscope-clocks", "Steps"): "no simulated counter steps",
    **{
        ("fleetscope-clocks", title): "the fleet's clock takes a minute, which the test does not wait for"
        for title in (
            "Proved within",
            "Hosts by quality",
            "Asymmetry of paths",
            "Latency of maps",
            "Fleet time minus UTC",
        )
    },
    ("fleetscope-clocks", "Probes refused"): "nobody sends what has to be refused",
    ("fleetscope-pipeline", "Utilization withheld"): "FLOPs of the simulated program are known",
    ("fleetscope-pipeline", "Series over budget"): "four hosts are within any budget",
    ("fleetscope-pipeline", "OTLP receiver takes nothing"): "nothing is pushed",
    ("fleetscope-pipeline", "Points pushed by OTLP"): "nothing is pushed",
    ("fleetscope-agents", "Events dropped"): "agents that keep up drop nothing",
    ("fleetscope-agents", "Decisions of the governor"): "what is recorded stays within its budget",
    ("fleetscope-agents", "Reads refused or failed"): "the sources answer",
}
"""Panels the end-to-end test does not ask for, and why; their series are in tests/deploy."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a panel. `legend`: of a table, the name of its column."""

    board: str
    panel: dict[str, Any]
    ref: str
    legend: str
    expr: str

    @property
    def title(self) -> str:
        return str(self.panel["title"])

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.board}: {self.title}: {self.legend}"

    @property
    def unit(self) -> str:
        """Grafana's id of it: of the column, else of the panel."""
        config = self.panel["fieldConfig"]
        for override in config["overrides"]:
            if override["matcher"]["options"] == self.legend:
                return str(override["properties"][0]["value"])
        return str(config["defaults"].get("unit", "none"))


def boards() -> dict[str, dict[str, Any]]:
    """Dashboards by uid."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def panels(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Without rows."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(uid: str, board: Mapping[str, Any]) -> Iterator[Asked]:
    for panel in panels(board):
        columns = _columns(panel)
        for target in panel["targets"]:
            legend = columns.get(target["refId"], target.get("legendFormat", ""))
            yield Asked(uid, panel, target["refId"], legend, target["expr"])


def _columns(panel: Mapping[str, Any]) -> dict[str, str]:
    """ref -> name of the column, of a table."""
    if panel["type"] != "table":
        return {}
    renamed = next(t["options"]["renameByName"] for t in panel["transformations"] if t["id"] == "organize")
    return {key.removeprefix("Value").removeprefix(" #") or "A": name for key, name in renamed.items()}


def variables(board: Mapping[str, Any]) -> dict[str, tuple[str, str, bool]]:
    """name -> (selector, label, whether it may be all), of those that are asked of Prometheus; in their order."""
    found = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert asked, variable["query"]
            found[variable["name"]] = (asked[1], asked[2], variable["includeAll"])
    return found


def filled(expr: str, values: Mapping[str, str]) -> str:
    """`expr` as Grafana sends it. `values`: of variables, "" stands for all."""
    expr = expr.replace("$__rate_interval", RATE_INTERVAL)
    return re.sub(r"\$(\w+)", lambda name: values[name[1]] or ".*", expr)
