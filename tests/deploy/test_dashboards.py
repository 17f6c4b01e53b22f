"""The dashboards as shipped: what they ask for exists, in its unit and with its labels, and Grafana's types take it."""

import copy
import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser as promql
import pytest
import yaml
from PIL import Image

from fleetscope.schema.metrics import metric_of_sample, metrics

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
TYPES = Path(__file__).with_name("dashboards.ts")
RUNBOOKS = ROOT / "docs" / "runbooks"
OF_ALERTS = {"alertname", "alertstate", "severity", "area", "run", "host"}
"""Of the series Prometheus makes of alerts."""
RATES = ("rate", "increase", "deriv")
PER_SECOND = {"eps", "cps", "mps", "pps", "recps", "none"}
UNITS = {
    "ratio": {"percentunit"}, "s/s": {"percentunit"}, "s": {"s"}, "byte": {"bytes"}, "byte/s": {"Bps"}, "W": {"watt"},
    "J": {"joule"}, "J/s": {"watt"}, "Cel": {"celsius"}, "Hz": {"hertz"}, "": {"none"}, "/s": PER_SECOND,
}  # fmt: skip
"""Unit of a metric -> what Grafana calls it."""


def _records() -> dict[str, str]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "fleetscope.rules.yml").read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


RECORDS = _records()


@pytest.fixture(scope="module")
def asked(grafana: Callable[[str], ModuleType]) -> ModuleType:
    return grafana("asked")


@pytest.fixture(scope="module")
def queries(asked: ModuleType) -> list[Any]:
    return [query for uid, board in asked.boards().items() for query in asked.queries(uid, board)]


def _parsed(asked: ModuleType, query: Any) -> Any:
    """With values for the variables that are words to a parser."""
    return promql.parse(asked.filled(query.expr, dict.fromkeys(_used(query.expr), "x")))


def _used(text: str) -> set[str]:
    return set(re.findall(r"\$(\w+)", text)) - {"__rate_interval"}


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for part in ("expr", "lhs", "rhs", "vector_selector", "param"):
        inner = getattr(node, part, None)
        if inner is not None and not isinstance(inner, float | str):
            yield from _nodes(inner)
    for inner in getattr(node, "args", None) or []:
        yield from _nodes(inner)


def _selectors(node: Any) -> list[Any]:
    return [inner for inner in _nodes(node) if isinstance(inner, promql.VectorSelector)]


def _labels_of(name: str) -> set[str]:
    """Of a series, recorded ones by their expressions."""
    if name == "ALERTS":
        return OF_ALERTS
    if name in RECORDS:
        return _labels(promql.parse(RECORDS[name]))
    known = metric_of_sample(name)
    assert known is not None, name
    return {*known.labels, "instance"} | ({"le"} if known.name != name else set())


def _labels(node: Any) -> set[str]:
    """That the series of an expression have."""
    match node:
        case promql.VectorSelector():
            return _labels_of(node.name)
        case promql.MatrixSelector():
            return _labels_of(node.vector_selector.name)
        case promql.AggregateExpr():
            inner = _labels(node.expr)
            if str(node.op) in ("topk", "bottomk"):
                return inner
            by = set(node.modifier.labels) if node.modifier else set()
            assert by <= inner, (by, inner)
            return by
        case promql.BinaryExpr():
            left, right = _labels(node.lhs), _labels(node.rhs)
            card = str(node.modifier.card) if node.modifier else ""
            added = set(node.modifier.group_labels or ()) if node.modifier and "To" in card else set()
            if card.endswith("OneToMany"):
                return right | added
            if str(node.op) == "or":
                return left | right
            return left | added if left else right
        case promql.Call():
            found = set().union(*map(_labels, node.args), set())
            return (
                found | {node.args[1].val}
                if node.func.name == "label_replace"
                else found - ({"le"} if node.func.name == "histogram_quantile" else set())
            )
        case promql.ParenExpr() | promql.UnaryExpr():
            return _labels(node.expr)
    return set()


def _unit(node: Any) -> str:
    """A key of UNITS: what an expression counts in, from the units of metrics.json and the names of recorded series."""
    match node:
        case promql.VectorSelector() if node.name in RECORDS:
            whole, _, kind = node.name.rpartition(":")
            stem = {"seconds": "s", "joules": "J", "watts": "W"}.get(whole.rpartition("_")[2], "")
            return {"ratio": "ratio", "rate": "/s", "count": "", "info": ""}.get(kind, stem)
        case promql.VectorSelector():
            if node.name == "ALERTS":
                return ""
            known = metric_of_sample(node.name)
            assert known is not None
            if known.unit == "1":  # of shares and of flags
                return "ratio" if known.name.endswith("_ratio") else ""
            return known.unit
        case promql.MatrixSelector():
            return _unit(node.vector_selector)
        case promql.AggregateExpr():
            return "" if str(node.op) in ("count", "group") else _unit(node.expr)
        case promql.Call():
            name = node.func.name
            if name in ("time", "timestamp"):
                return "s"
            inner = _unit(node.args[-1]) if name != "label_replace" else _unit(node.args[0])
            if name == "histogram_quantile":
                return "s"
            if name in ("rate", "deriv"):
                return f"{inner}/s"
            return inner
        case promql.BinaryExpr():
            left, right = _unit(node.lhs), _unit(node.rhs)
            if str(node.op) in ("==", "!=", ">", "<", ">=", "<="):
                return "" if node.modifier is not None and node.modifier.return_bool else left
            if str(node.op) == "/":
                both = left.endswith("/s") and right == "/s"
                return "ratio" if left == right else left.removesuffix("/s") if both else left
            if str(node.op) in ("+", "-") and "number" not in (left, right):
                assert left == right, node
            return left if left != "number" else right
        case promql.ParenExpr() | promql.UnaryExpr():
            return _unit(node.expr)
    return "number"


@pytest.mark.unit
def test_every_series_and_label_that_is_asked_for_exists(asked: ModuleType, queries: list[Any]) -> None:
    for query in queries:
        tree = _parsed(asked, query)
        for selector in _selectors(tree):
            matched = {matcher.name for matcher in selector.matchers.matchers}
            assert matched <= _labels_of(selector.name), (query.name, selector.name)
        made = _labels(tree)
        legend = set(re.findall(r"{{(\w+)}}", query.legend))
        assert legend <= made, (query.name, made)
        one = {m.name for s in _selectors(tree) for m in s.matchers.matchers if m.op == promql.MatchOp.Equal}
        if query.panel["type"] == "timeseries":
            assert made - one <= legend, f"{query.name}: lines that differ in {made - one - legend} have one name"


@pytest.mark.unit
def test_rates_are_of_counters_and_over_four_scrapes(asked: ModuleType, queries: list[Any]) -> None:
    for query in queries:
        for node in _nodes(_parsed(asked, query)):
            if isinstance(node, promql.Call) and node.func.name in RATES:
                (selector,) = node.args
                known = metric_of_sample(selector.vector_selector.name)
                assert known is not None
                assert (known.type == "gauge") is (node.func.name == "deriv"), query.name
                assert selector.range.total_seconds() >= 60, query.name
            if isinstance(node, promql.VectorSelector) and node.name in metrics():
                summed = metrics()[node.name].type == "counter"
                assert not summed or "[" in query.expr or query.expr.startswith("count("), query.name


@pytest.mark.unit
def test_a_panel_says_what_it_shows_in_the_unit_of_its_series(asked: ModuleType, queries: list[Any]) -> None:
    for query in queries:
        assert query.title, query.board
        assert query.panel["description"].endswith("."), query.name
        assert query.unit in UNITS[_unit(_parsed(asked, query))], (query.name, query.unit)


@pytest.mark.unit
def test_columns_of_a_table_have_the_same_rows(asked: ModuleType, queries: list[Any]) -> None:
    """Grafana makes one row of what has the same labels, and the name of a series is one: it has to be summed away."""
    rows: dict[tuple[str, str], set[str]] = {}
    for query in queries:
        if query.panel["type"] == "table":
            tree = _parsed(asked, query)
            assert isinstance(tree, promql.AggregateExpr), query.name
            assert rows.setdefault((query.board, query.title), _labels(tree)) == _labels(tree), query.name
    assert len(rows) > 4


@pytest.mark.unit
def test_variables_are_labels_and_all_that_are_used_are_there(asked: ModuleType) -> None:
    for uid, board in asked.boards().items():
        assert board["uid"] == uid
        known: set[str] = set()
        for name, (selector, label, _) in asked.variables(board).items():
            assert _used(selector) <= known, "only those before it"
            (found,) = _selectors(promql.parse(asked.filled(selector, dict.fromkeys(known, "x"))))
            assert {label, *(matcher.name for matcher in found.matchers.matchers)} <= _labels_of(found.name)
            known.add(name)
        used = set().union(*(_used(query.expr) for query in asked.queries(uid, board)))
        assert used == known, uid
        assert board["templating"]["list"][0]["type"] == "datasource"


@pytest.mark.unit
def test_panels_fill_the_grid_and_cover_nothing(asked: ModuleType) -> None:
    for uid, board in asked.boards().items():
        places = [panel["gridPos"] for panel in board["panels"]]
        for a, b in itertools.combinations(places, 2):
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
            assert apart or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (uid, a, b)
        wide = {y: sum(place["w"] for place in places if place["y"] == y) for y in {place["y"] for place in places}}
        assert set(wide.values()) == {24}, uid
        assert [panel["id"] for panel in board["panels"]] == list(range(1, len(places) + 1))


@pytest.mark.unit
def test_links_lead_to_dashboards(asked: ModuleType) -> None:
    boards = asked.boards()
    for uid, name in re.findall(r'"url": "/d/([\w-]+)[^"]*&var-(\w+)=', json.dumps(boards)):
        assert name in asked.variables(boards[uid])
    page = (ROOT / "docs" / "dashboards.md").read_text()
    anchors = {line[3:].replace(" ", "-") for line in page.splitlines() if line.startswith("## ")}
    assert len(anchors) == len(boards)
    for runbook in RUNBOOKS.glob("*.md"):
        linked = re.findall(r"\]\(\.\./dashboards\.md#([\w-]+)\)", runbook.read_text())
        assert linked, runbook
        assert set(linked) <= anchors, runbook
    for picture in re.findall(r"\]\((dashboards/[\w-]+\.png)\)", page):
        assert (ROOT / "docs" / picture).stat().st_size < 60_000


Given = list[tuple[str, str]]
SEEN: dict[tuple[str, str], tuple[Given, dict[str, Any]]] = {
    ("fleetscope-host", "Faults in an hour"): (
        [('fleetscope_chip_faults_total{host="x",device="d",sku="s",vendor_code="79"}', "0x30 3x30")],
        {'{device="d", vendor_code="79"}': 3},
    ),
    ("fleetscope-host", "Quarantined chips"): (
        [('fleetscope_chip_quarantined{host="x",device="d",sku="s",reason="stuck"}', "1x60")],
        {'{device="d", reason="stuck"}': 1},
    ),
    ("fleetscope-clocks", "Proved within"): (
        [(f'fleetscope_clock_host_bound_seconds{{host="{n}",instance="{i}"}}', f"{b}x60")
         for n, b in (("x", 3), ("y", 5)) for i in "ab"],
        {"{{host}}": {'{host="x"}': 3, '{host="y"}': 5}, "half": {"{}": 4}},
    ),
    ("fleetscope-clocks", "Hosts by quality"): (
        [(f'fleetscope_clock_host_quality{{host="{n}",quality="{q}",instance="{i}"}}', "1x60")
         for n, q in (("x", "guaranteed"), ("y", "guaranteed"), ("z", "host-only")) for i in "ab"],
        {'{quality="guaranteed"}': 2, '{quality="host-only"}': 1},
    ),
    ("fleetscope-clocks", "Asymmetry of paths"): (
        [(f'fleetscope_clock_asymmetry_seconds{{host="x",peer="{n}"}}', f"{2 - n}x60") for n in range(4)],
        {f'{{host="x", peer="{n}"}}': abs(2 - n) for n in range(4)},
    ),
    ("fleetscope-clocks", "Steps"): (
        [('fleetscope_clock_steps_total{host="x",instance="a"}', "0x30 2x30"),
         ('fleetscope_clock_steps_total{host="x",instance="b"}', "0x30 2x30")],
        {'{host="x"}': 2},
    ),
    ("fleetscope-clocks", "Latency of maps"): ([("fleetscope_clock_map_latency_seconds", "4x60")], {"{}": 4}),
    ("fleetscope-clocks", "Fleet time minus UTC"): (
        [("fleetscope_clock_utc_offset_seconds", "-5x60"), ("fleetscope_clock_utc_bound_seconds", "3x60")],
        {"offset": {"{}": -5}, "within": {"{}": 3}},
    ),
    ("fleetscope-clocks", "Probes refused"): (
        [('fleetscope_agent_probes_refused_total{host="x",reason="replayed"}', "0+15x60"),
         ('fleetscope_agent_probes_refused_total{host="y",reason="replayed"}', "0+15x60")],
        {'{reason="replayed"}': 2},
    ),
    ("fleetscope-pipeline", "Utilization withheld"): (
        [('fleetscope_utilization_unknown_total{run="r",reason="flops"}', "0+30x60"),
         ('fleetscope_utilization_unknown_total{run="q",reason="flops"}', "0+15x60")],
        {'{reason="flops"}': 3},
    ),
    ("fleetscope-pipeline", "Series over budget"): (
        [('fleetscope_exporter_series_over_budget{run="r",instance="a"}', "7x60"),
         ('fleetscope_exporter_series_over_budget{run="r",instance="b"}', "7x60")],
        {'{run="r"}': 7},
    ),
    ("fleetscope-pipeline", "OTLP receiver takes nothing"): (
        [('fleetscope_exporter_otlp_failing_seconds{instance="e"}', "0+15x60"),
         ('fleetscope_agent_otlp_failing_seconds{host="x"}', "0+15x60")],
        {"{}": 900},
    ),
    ("fleetscope-pipeline", "Points pushed by OTLP"): (
        [('fleetscope_exporter_otlp_points_total{outcome="accepted",instance="e"}', "0+30x60"),
         ('fleetscope_agent_otlp_points_total{host="x",outcome="accepted"}', "0+30x60")],
        {'{outcome="accepted"}': 2},
    ),
    ("fleetscope-agents", "Events dropped"): (
        [('fleetscope_agent_dropped_events_total{host="x",reason="spool_full"}', "0+30x60"),
         ('fleetscope_agent_dropped_events_total{host="x",reason="sentinel_value"}', "0+600x60")],
        {'{reason="spool_full"}': 2},
    ),
    ("fleetscope-agents", "Decisions of the governor"): (
        [('fleetscope_profiler_governor_decisions_total'
          '{host="x",run="r",rank="0",pid="1",lever="regions",reason="recorder"}', "0x30 2x30")],
        {'{lever="regions", reason="recorder"}': 2},
    ),
    ("fleetscope-agents", "Reads refused or failed"): (
        [('fleetscope_agent_read_errors_total{host="x",collector="nvidia",reason="hung"}', "0+15x60")],
        {'{collector="nvidia", reason="hung"}': 1},
    ),
}  # fmt: skip
"""Panels the simulation does not fill -> series every 15 s, and what queries (by legend) make of them in 15 min."""


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_panels_that_no_simulation_fills_show_their_series(
    require: Callable[[str], Path], asked: ModuleType, queries: list[Any], tmp_path: Path
) -> None:
    """By promtool. Everything else is asked of a live Prometheus (tests/e2e/test_alerts.py)."""
    assert set(SEEN) == set(asked.NOT_SIMULATED)
    tests = []
    for query in queries:
        if (query.board, query.title) in SEEN:
            given, every = SEEN[query.board, query.title]
            wanted = every.get(query.legend, every)
            if query.panel["type"] == "stat":
                wanted = {"{}": sum(wanted.values())}
            expr = asked.filled(query.expr, dict.fromkeys(_used(query.expr), ""))
            tests.append({
                "interval": "15s",
                "input_series": [{"series": series, "values": values} for series, values in given],
                "promql_expr_test": [{
                    "expr": expr.replace('=".*"', '=~".*"'),
                    "eval_time": "15m",
                    "exp_samples": [{"labels": labels, "value": value} for labels, value in wanted.items()],
                }],
            })  # fmt: skip
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"tests": tests}))
    command = [require("promtool"), "test", "rules", "panels.yml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.unit
@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.1234, "percentunit", "12.3 %"), (98.44, "celsius", "98.4 °C"), (0.0005, "s", "500 us"), (120, "s", "120 s"),
        (1.75e9, "hertz", "1.75 GHz"), (0, "watt", "0 W"), (2.5, "eps", "2.5/s"), (8, "none", "8"),
    ],
)  # fmt: skip
def test_pictures_write_values_as_a_person_would(
    value: float, unit: str, text: str, asked: ModuleType, grafana: Callable[[str], ModuleType]
) -> None:
    assert grafana("pictures").text_of(value, unit) == text


@pytest.mark.unit
def test_a_picture_shows_the_answers(asked: ModuleType, grafana: Callable[[str], ModuleType], tmp_path: Path) -> None:
    """Lines where series are; where there are none, the words alone."""
    pictures, (uid, board) = grafana("pictures"), next(iter(asked.boards().items()))
    values = [(at, str(at % 7)) for at in range(1000, 1060) if at not in range(1020, 1040)]
    colored = []
    for found in ([], [{"metric": {"host": "a"}, "values": values}]):
        answers = {(query.panel["id"], query.ref): found for query in asked.queries(uid, board)}
        shown = pictures.Shown(since_s=1000, now_s=1050, until_s=1060, caption="made up")
        pictures.draw(uid, board, answers, shown, tmp_path / "picture.png")
        image = Image.open(tmp_path / "picture.png")
        assert image.width == pictures.WIDTH_IN * pictures.DPI
        assert image.height > image.width / 3
        colored.append(sum(count for count, (r, g, b) in image.convert("RGB").getcolors(1 << 20) if b - r > 60))
    assert colored[0] < 100 < colored[1]


def _spoiled(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One mistake each."""
    stat, lines = (next(i for i, p in enumerate(board["panels"]) if p["type"] == t) for t in ("stat", "timeseries"))
    for path, value in (
        (("panels", stat, "options", "colorMode"), "valu"),
        (("panels", stat, "hight"), 4),
        (("panels", stat, "targets", 0, "exprr"), "up"),
        (("panels", lines, "fieldConfig", "defaults", "custom", "lineWidth"), "1"),
        (("panels", lines, "fieldConfig", "defaults", "thresholds", "mode"), "relative"),
        (("panels", lines, "type"), "graph"),
        (("templating", "list", 1, "refresh"), "always"),
    ):
        wrong = copy.deepcopy(board)
        *way, last = path
        place: Any = wrong
        for step in way:
            place = place[step]
        place[last] = value
        yield wrong


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_grafanas_types_take_the_dashboards(require: Callable[[str], Path], asked: ModuleType, tmp_path: Path) -> None:
    """And would not take one with a mistake."""
    tsc = require("tsc")
    (tmp_path / "node_modules").symlink_to(tsc.parents[3])
    boards = asked.boards()
    (tmp_path / "types.ts").write_text(TYPES.read_text())
    wrong = {f"wrong{number}": board for number, board in enumerate(_spoiled(boards["fleetscope-clocks"]))}
    for name, board in {**boards, **wrong}.items():
        text = f"import type {{ Shipped }} from './types';\nexport const board: Shipped = {json.dumps(board)};\n"
        (tmp_path / f"{name}.ts").write_text(text)
    flags = "--noEmit --strict --module nodenext --target es2022 --skipLibCheck --pretty false".split()
    command = [tsc, *flags, *sorted(path.name for path in tmp_path.glob("*.ts"))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90)
    found = set(re.findall(r"^([\w-]+)\.ts\(", done.stdout, re.MULTILINE))
    assert found == set(wrong), done.stdout + done.stderr
