"""What is shipped in deploy/: every alert can be acted on, every name exists, and promtool and amtool take it all."""

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import duckdb
import promql_parser
import pytest
import typer
import yaml

from fleetscope.cli.main import app
from fleetscope.schema.metrics import metrics
from fleetscope.schema.tables import TABLES

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.example.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"
NAMED = ("run", "host", "device", "rank", "chain")
"""Labels a person needs to know where to look: a summary names all that its alert has."""


def _rules(file: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((RULES / file).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDS, ALERTS = _rules("fleetscope.rules.yml"), _rules("fleetscope.alerts.yml")


def _cases() -> dict[str, list[list[dict[str, Any]]]]:
    """Alert -> what each of its unit tests expects."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for test in yaml.safe_load((RULES / "fleetscope.alerts.test.yml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            found.setdefault(case["alertname"], []).append(case["exp_alerts"])
    return found


CASES = _cases()
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))


def _parts(node: object) -> Iterator[object]:
    """Every node of a parsed expression."""
    yield node
    for part in ("expr", "lhs", "rhs", "vector_selector", "vs", "param"):
        inner = getattr(node, part, None)
        if inner is not None and inner is not node:
            yield from _parts(inner)
    for inner in getattr(node, "args", None) or []:
        yield from _parts(inner)


@pytest.mark.unit
def test_every_name_is_in_metrics_json_or_recorded_before_it_is_read() -> None:
    known = set(metrics())
    for rule in RECORDS + ALERTS:
        names = {
            str(n.name)
            for n in _parts(promql_parser.parse(rule["expr"]))
            if isinstance(n, promql_parser.VectorSelector)
        }
        assert names, rule
        assert names <= known, rule
        known.add(rule.get("record", ""))


@pytest.mark.unit
def test_rates_are_of_counters_and_no_rate_is_shorter_than_two_scrapes() -> None:
    for rule in RECORDS + ALERTS:
        for node in _parts(promql_parser.parse(rule["expr"])):
            if isinstance(node, promql_parser.Call) and node.func.name in ("rate", "increase"):
                (selector,) = node.args
                assert metrics()[selector.vector_selector.name].type == "counter", rule
                assert selector.range.total_seconds() >= 60, rule


@pytest.mark.unit
def test_no_rule_asks_what_hour_or_day_it_is() -> None:
    """grafana 82988, 73912 (RT-9): week against week, an hour apart where the clocks change."""
    for rule in RECORDS + ALERTS:
        called = {
            node.func.name for node in _parts(promql_parser.parse(rule["expr"])) if isinstance(node, promql_parser.Call)
        }
        assert not called & {"hour", "minute", "month", "year", "day_of_week", "day_of_month", "day_of_year"}, rule


@pytest.mark.unit
def test_alerts_divide_the_reasons_of_throttling_among_them() -> None:
    """By list: a reason nobody alerts on is one nobody hears of. `sync` waits for other chips: no fault of this."""
    named = [
        reason
        for alert in ALERTS
        for reasons in set(re.findall(r'device:fleetscope_throttled:ratio\{reason=~?"([a-z_|]+)"\}', alert["expr"]))
        for reason in reasons.split("|")
    ]
    assert sorted([*named, "sync"]) == sorted(metrics()["fleetscope_chip_throttled"].values["reason"])


@pytest.mark.unit
@each_alert
def test_an_alert_says_how_bad_it_is_and_where(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["labels"]["area"]
    fired = [item for expected in CASES[alert["alert"]] for item in expected]
    assert fired, "no unit test in which it fires"
    for item in fired:
        summary = item["exp_annotations"]["summary"]
        for label in NAMED:
            if label in item["exp_labels"]:
                assert f"$labels.{label}" in alert["annotations"]["summary"]
                assert str(item["exp_labels"][label]) in summary


@pytest.mark.unit
@each_alert
def test_an_alert_has_a_unit_test_in_which_it_does_not_fire(alert: dict[str, Any]) -> None:
    assert [] in CASES[alert["alert"]]


@pytest.mark.unit
@each_alert
def test_an_alert_has_a_runbook_whose_commands_exist(alert: dict[str, Any]) -> None:
    page = RUNBOOKS / f"{alert['alert']}.md"
    assert alert["annotations"]["runbook_url"] == page.relative_to(ROOT).as_posix()
    text = page.read_text()
    assert text.startswith(f"# {alert['alert']}\n")
    commands = re.findall(r"^    (fleetscope .+)$", text, re.MULTILINE)
    assert commands
    for command in commands:
        _parse(shlex.split(command)[1:])
    for name in re.findall(r"\b(?:\w+:)?fleetscope_[\w:]+", text):
        assert name in metrics() or name in {rule.get("record") for rule in RECORDS}, name
    for target in re.findall(r"\]\((\w+\.md)\)", text):
        assert (RUNBOOKS / target).exists()


def _parse(words: list[str]) -> None:
    """As the command line would take them, without doing it. Raises click's errors; SQL is bound to the schemas."""
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group):
        found = command.commands.get(words[0])
        assert found is not None, words
        command, words = found, words[1:]
    context = command.make_context("fleetscope", list(words))
    if "sql" in context.params:
        with duckdb.connect() as empty:
            for name, spec in TABLES.items():
                empty.register(name, spec.schema.empty_table())
            empty.sql(context.params["sql"])


@pytest.mark.unit
def test_no_runbook_is_of_an_alert_that_is_not() -> None:
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == {alert["alert"] for alert in ALERTS}


@pytest.mark.unit
def test_lag_silences_what_is_said_of_utilization() -> None:
    """Whatever alert reads counters of runs and devices as shares must be of the area that lag inhibits."""
    (rule, *_) = yaml.safe_load(ALERTMANAGER.read_text())["inhibit_rules"]
    assert rule["source_matchers"] == ['alertname=~"FleetscopePipelineLag|FleetscopeExporterSilent"']
    assert rule["target_matchers"] == ['area="utilization"']
    assert "equal" not in rule
    inhibited = {alert["alert"] for alert in ALERTS if alert["labels"]["area"] == "utilization"}
    assert inhibited == {"FleetscopeMfuBelowOwnMedian", "FleetscopeStraggler"}


@pytest.mark.e2e
@pytest.mark.timeout(120)
def test_promtool_and_amtool_pass_what_is_shipped(require: Callable[[str], Path]) -> None:
    promtool, amtool = require("promtool"), require("amtool")
    rules, alerts = "fleetscope.rules.yml", "fleetscope.alerts.yml"
    for args in (
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", rules, alerts],
        [promtool, "check", "config", "prometheus.example.yml"],
        [promtool, "test", "rules", "fleetscope.rules.test.yml", "fleetscope.alerts.test.yml"],
        [amtool, "check-config", ALERTMANAGER],
    ):
        done = subprocess.run(args, cwd=RULES, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stdout + done.stderr
