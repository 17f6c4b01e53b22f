"""The dashboards and their page, from the modules beside this one.

    python deploy/grafana/generate.py deploy/grafana/dashboards docs/dashboards.md

`make docs` writes them, `make check` compares.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import clocks
import fleet
import host
import node_agents
import pipeline
import run
import throttling
from asked import NOT_SIMULATED
from board import TAG, Board, to_json

BOARDS: tuple[Board, ...] = tuple(
    module.BOARD for module in (fleet, run, host, throttling, clocks, pipeline, node_agents)
)

HEAD = """\
# Dashboards

Written from `deploy/grafana/*.py` by `make docs`, as the files in `deploy/grafana/dashboards` are: for Grafana 11.6 or
newer and a Prometheus with the rules of `deploy/prometheus` that scrapes every 15 s. The chart ships them as ConfigMaps
(`monitoring.dashboards.enabled`); elsewhere `deploy/grafana/provisioning.example.yml` has Grafana read that folder, or
import its files.

Series have no label of the cluster: one Prometheus a cluster is assumed, and `Prometheus` at the top of each dashboard
chooses among them. Alerts that fire are drawn into every graph. Lists are cut to the ten that matter.

What checks them: names against `schema/metrics.json` and the recording rules, variables and legends against labels,
units, PromQL, the JSON against the types of `@grafana/schema` (`make test ARGS=tests/deploy/test_dashboards.py`); and
every query is asked of a real Prometheus while a fleet is simulated (`make test ARGS=tests/e2e/test_alerts.py`).
No Grafana was at hand: **the pictures are drawn from the answers to those queries, not by Grafana** (`make pictures`).
"""


def page(boards: tuple[Board, ...]) -> str:
    """docs/dashboards.md"""
    return (
        HEAD
        + _not_simulated()
        + "".join(f"\n{line}\n" if line.startswith("#") else f"{line}\n" for b in boards for line in _board(b))
    )


def _not_simulated() -> str:
    told = "; ".join(f"*{title}* ({uid.removeprefix(TAG + '-')}: {why})" for (uid, title), why in NOT_SIMULATED.items())
    what = "Panels the simulation leaves empty or at zero, or its test does not wait for"
    return f"\n{what}; unit tests of promtool give them their series: {told}.\n"


def _board(board: Board) -> Iterator[str]:
    yield f"## {board.title}"
    yield board.description
    named = ", ".join(f"`{variable.name}`{'' if variable.many else ' (one)'}" for variable in board.variables)
    yield f"\nVariables: {named}.\n"
    yield f"![{board.title}: drawn from query results, not by Grafana](dashboards/{board.name}.png)\n"
    yield "| panel | shows |"
    yield "|---|---|"
    for title, panels in board.rows.items():
        yield f"| **{title}** | |"
        for panel in panels:
            yield f"| {panel.title} | {panel.description} |"


def main() -> None:
    folder, file = map(Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        (folder / f"{TAG}-{board.name}.json").write_text(to_json(board))
    file.write_text(page(BOARDS))


if __name__ == "__main__":
    main()
