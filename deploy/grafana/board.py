"""What a dashboard is here: rows of panels of three kinds, and its JSON by grafana-foundation-sdk.

A panel asks for steps of 15 s at least (the scrape interval of deploy/prometheus), so that Grafana's $__rate_interval
is a minute, as in the recording rules. Whatever several exporters may tell twice is aggregated.
"""

import json
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as commons
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef("prometheus", "${datasource}")
SCRAPE = "15s"
FIRING = 'ALERTS{alertname=~"Fleetscope.+",alertstate="firing"}'
TAG = "fleetscope"
COLUMNS = 24
CELLS = 200
"""Rows of a table, at the most: a browser with 10 000 chips is no help."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of what it gives: `{{label}}` in a legend, plain words as a column."""

    legend: str
    expr: str
    unit: str = ""
    """Of a column, where the panel's does not fit."""


@dataclass(frozen=True, slots=True)
class Panel:
    """`kind`: lines, stack, stat or table. A table shows now: a row for each set of labels, a column a query, which
    aggregates: a series of its own name is in no other query's row."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"
    width: int = 8
    bound: float | None = None
    """Beyond it something is wrong: drawn in red."""
    below: bool = False
    """Less than the bound is wrong, not more."""
    maximum: float | None = None
    signed: bool = False
    """Values below zero mean something."""


@dataclass(frozen=True, slots=True)
class Variable:
    """`label` of the series of `of`, a selector that may name variables before it. One value, or any number."""

    name: str
    label: str
    of: str
    many: bool = True

    @property
    def query(self) -> str:
        return f"label_values({self.of}, {self.label})"


@dataclass(frozen=True, slots=True)
class Board:
    """`name`: of the file, and with "fleetscope-" before it the uid."""

    name: str
    title: str
    description: str
    variables: tuple[Variable, ...]
    rows: dict[str, tuple[Panel, ...]]

    @property
    def uid(self) -> str:
        return f"{TAG}-{self.name}"


def ratio(title: str, description: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Lines of shares 0..1."""
    return lines(title, description, "percentunit", *queries, **more)


def lines(title: str, description: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """`queries`: (legend, expression)."""
    return Panel(title, description, unit, tuple(Query(*query) for query in queries), **more)


def number(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    """One value, six to a row."""
    return Panel(title, description, unit, (Query(title, expr),), "stat", 4, **more)


def rows(title: str, description: str, *columns: Query, width: int = COLUMNS) -> Panel:
    return Panel(title, description, "none", columns, "table", width)


def to_json(board: Board) -> str:
    """The dashboard as Grafana saves it."""
    built = (
        dashboards.Dashboard(f"fleetscope / {board.title}").uid(board.uid).description(board.description)
        .tags([TAG]).readonly().tooltip(models.DashboardCursorSync.CROSSHAIR).time("now-1h", "now").refresh("30s")
        .timezone("browser").variables([_datasource(), *map(_variable, board.variables)])
        .link(
            dashboards.DashboardLink(TAG).type(models.DashboardLinkType.DASHBOARDS).icon("external link").tooltip("")
            .url("").tags([TAG]).as_dropdown(True).include_vars(True).keep_time(True)
        )
    )  # fmt: skip
    for title, panels in board.rows.items():
        built.with_row(dashboards.Row(title))
        for panel in panels:
            built.with_panel(_panel(panel))
    whole: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    for place, panel in enumerate(whole["panels"], 1):
        panel["id"] = place
        panel.get("options", {}).pop("footer", None)  # of tables of Grafana 11 alone
    for variable in whole["templating"]["list"]:
        for key in ("auto", "auto_min", "auto_count"):  # of variables that are intervals
            del variable[key]
    whole["annotations"] = {"list": [_alerts()]}
    return json.dumps(whole, indent=2) + "\n"


def _alerts() -> dict[str, Any]:
    """Not by the SDK: its AnnotationTarget is that of Grafana's own store, and has no expression."""
    return {
        "name": "alerts", "enable": True, "iconColor": "red", "datasource": SOURCE.to_json(),
        "target": {"refId": "alerts", "expr": FIRING},
    }  # fmt: skip


def _datasource() -> dashboards.DatasourceVariable:
    return dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus")


def _variable(variable: Variable) -> dashboards.QueryVariable:
    built = (
        dashboards.QueryVariable(variable.name).label(variable.name).datasource(SOURCE).query(variable.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(models.VariableSort.ALPHABETICAL_ASC)
    )  # fmt: skip
    if variable.many:
        everything = models.VariableOption(text="All", value="$__all", selected=True)
        built.multi(True).include_all(True).all_value(".*").current(everything)
    return built


def _panel(panel: Panel) -> Any:
    made: Any = {"stat": _stat, "table": _table}.get(panel.kind, _series)(panel)
    made.title(panel.title).description(panel.description).datasource(SOURCE).interval(SCRAPE).span(panel.width)
    made.unit(panel.unit)
    if panel.maximum is not None:
        made.max(panel.maximum)
    return made


def _thresholds(panel: Panel) -> dashboards.ThresholdsConfig:
    low, high = ("red", "green") if panel.below else ("green", "red")
    steps = [models.Threshold(None, low)]
    if panel.bound is not None:
        steps.append(models.Threshold(panel.bound, high))
    return dashboards.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _query(panel: Panel, place: int) -> prometheus.Dataquery:
    query = panel.queries[place]
    built = prometheus.Dataquery().expr(query.expr).ref_id(_ref(place)).datasource(SOURCE)
    if panel.kind == "table":
        return built.instant().format(PromQueryFormat.TABLE)
    return built.range().legend_format(query.legend)


def _ref(place: int) -> str:
    return "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[place]


def _series(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel().height(8).line_width(1).fill_opacity(8).show_points(common.VisibilityMode.NEVER)
        .thresholds(_thresholds(panel)).thresholds_style(_style(panel))
        .legend(
            commons.VizLegendOptions().display_mode(common.LegendDisplayMode.LIST).show_legend(True)
            .placement(common.LegendPlacement.BOTTOM).calcs([])
        )
        .tooltip(commons.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING))
    )  # fmt: skip
    if not panel.signed:
        built.min(0)
    if panel.kind == "stack":
        built.fill_opacity(40).stacking(commons.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    for place in range(len(panel.queries)):
        built.with_target(_query(panel, place))
    return built


def _style(panel: Panel) -> commons.GraphThresholdsStyleConfig:
    mode = common.GraphThresholdsStyleMode.OFF if panel.bound is None else common.GraphThresholdsStyleMode.DASHED
    return commons.GraphThresholdsStyleConfig().mode(mode)


def _stat(panel: Panel) -> stat.Panel:
    built = (
        stat.Panel().height(4).thresholds(_thresholds(panel)).graph_mode(common.BigValueGraphMode.AREA)
        .color_mode(common.BigValueColorMode.VALUE).justify_mode(common.BigValueJustifyMode.AUTO)
        .text_mode(common.BigValueTextMode.AUTO).orientation(common.VizOrientation.AUTO)
        .percent_change_color_mode(common.PercentChangeColorMode.STANDARD).show_percent_change(False).wide_layout(True)
        .reduce_options(commons.ReduceDataOptions().calcs(["lastNotNull"]).values(False))
    )  # fmt: skip
    return built.with_target(_query(panel, 0))


def _table(panel: Panel) -> table.Panel:
    """Rows of all queries with the same labels become one; columns have the names of their queries."""
    names = {f"Value #{_ref(place)}" if len(panel.queries) > 1 else "Value": query.legend
             for place, query in enumerate(panel.queries)}  # fmt: skip
    built = (
        table.Panel().height(8).no_value("none").show_header(True)
        .cell_height(common.TableCellHeight.SM)
        .with_transformation(models.DataTransformerConfig("merge", options={}))
        .with_transformation(models.DataTransformerConfig(
            "organize", options={"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
        ))
    )  # fmt: skip
    for place, query in enumerate(panel.queries):
        built.with_target(_query(panel, place))
        if query.unit:
            built.override_by_name(query.legend, [models.DynamicConfigValue("unit", query.unit)])
    for label, uid in (("run", "run"), ("host", "host")):
        url = f"/d/{TAG}-{uid}?${{__url_time_range}}&var-datasource=${{datasource}}&var-{label}=${{__value.text}}"
        built.override_by_name(
            label, [models.DynamicConfigValue("links", [{"title": f"the {uid} dashboard", "url": url}])]
        )
    return built
