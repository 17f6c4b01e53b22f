"""Pictures of the dashboards, drawn with matplotlib from what Prometheus answered to their queries, without Grafana.

`make pictures` has tests/e2e/test_alerts.py draw them at its end, into docs/dashboards.
"""

import io
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from asked import Asked, queries
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

matplotlib.use("agg")

Series = Mapping[str, Any]
"""As the HTTP API has it: `metric` (labels) and `values` [(unix s, text)]."""

WIDTH_IN, ROW_IN, DPI, COLUMNS = 11.0, 0.165, 72, 24
COLORS = 64
"""Of the palette: the shades of letters are enough, and the file is a third."""
ROWS, WORD, LEGEND = 6, 28, 0.22
"""Rows of a table; letters of a name, from its end; thousands of letters in a legend as wide as the picture."""
GAP_S = 2.5
"""Between points a second apart: the series was not there."""
PREFIXED = {"s": "s", "hertz": "Hz", "watt": "W", "joule": "J", "Bps": "B/s", "bytes": "B"}
PER_SECOND = ("eps", "cps", "mps", "pps", "recps")
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))


@dataclass(frozen=True, slots=True)
class Shown:
    """What is drawn: lines from `since_s` to `until_s`, numbers and tables as they stood at `now_s` (unix seconds)."""

    since_s: float
    now_s: float
    until_s: float
    caption: str


def text_of(value: float, unit: str) -> str:
    """A value as a person would write it."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "celsius":
        return f"{value:.3g} °C"
    if unit not in PREFIXED or value == 0:
        return f"{value:.4g}{' ' + PREFIXED[unit] if unit in PREFIXED else '/s' if unit in PER_SECOND else ''}"
    scale, prefix = next(((s, p) for s, p in PREFIXES if abs(value) >= s), PREFIXES[-1])
    if unit == "s" and scale > 1:
        scale, prefix = 1, ""
    return f"{value / scale:.3g} {prefix}{PREFIXED[unit]}"


def draw(
    uid: str, board: Mapping[str, Any], answers: Mapping[tuple[int, str], Sequence[Series]], shown: Shown, file: Path
) -> None:
    """`answers`: by the panel's id and the query's letter. Writes a PNG."""
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"]) + 2
    figure = pyplot.figure(figsize=(WIDTH_IN, height * ROW_IN), dpi=DPI)
    figure.text(0.01, 1 - 1.2 / height, f"{board['title']} - {shown.caption}", fontsize=7, color="0.3")
    asked: dict[int, list[Asked]] = {}
    for query in queries(uid, board):
        asked.setdefault(query.panel["id"], []).append(query)
    for panel in board["panels"]:
        place = panel["gridPos"]
        top = 1 - (place["y"] + 2) / height
        if panel["type"] == "row":
            figure.text(0.01, top - 0.7 / height, panel["title"], fontsize=9, weight="bold")
            continue
        left, tall = place["x"] / COLUMNS, place["h"] / height
        figure.text(left + 0.01, top - 0.8 / height, panel["title"], fontsize=7, weight="bold")
        box = (left + 0.05, top - tall + 2.4 / height, place["w"] / COLUMNS - 0.06, tall - 3.5 / height)
        parts = [(query, answers[panel["id"], query.ref]) for query in asked[panel["id"]]]
        if panel["type"] == "timeseries":
            _lines(figure, box, height, panel, parts, shown)
        else:
            words = _cells(parts, shown.now_s) if panel["type"] == "table" else [[_number(parts, shown.now_s)]]
            _words(figure, left + 0.01, top - 1.9 / height, place["w"] / COLUMNS - 0.02, height, words)
    _save(figure, file)


def _lines(
    figure: Figure, box: tuple[float, float, float, float], height: int, panel: Mapping[str, Any],
    parts: Sequence[tuple[Asked, Sequence[Series]]], shown: Shown,
) -> None:  # fmt: skip
    axes: Axes = figure.add_axes(box)
    defaults = panel["fieldConfig"]["defaults"]
    drawn = [(_legend(query.legend, series), _points(series, shown)) for query, found in parts for series in found]
    if defaults["custom"].get("stacking", {}).get("mode") == "normal":
        at = sorted({x for _, points in drawn for x, _ in points})
        filled = [[dict(points).get(x, 0.0) for x in at] for _, points in drawn]
        axes.stackplot(at, filled, labels=[name for name, _ in drawn], alpha=0.6)
    else:
        for name, points in drawn:
            axes.plot(*zip(*_with_gaps(points), strict=True), linewidth=0.8, label=name)
    if defaults["custom"].get("thresholdsStyle", {}).get("mode") == "dashed":
        bound = next(step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None)
        if axes.get_ylim()[0] <= bound <= 1.5 * axes.get_ylim()[1]:
            axes.axhline(bound, color="red", linewidth=0.6, linestyle="--")
    axes.axvline(shown.now_s - shown.since_s, color="0.6", linewidth=0.5)
    axes.set_xlim(0, shown.until_s - shown.since_s)
    low, high = axes.get_ylim()
    blank = all(value == 0 for _, points in drawn for _, value in points)
    axes.set_ylim(defaults.get("min", low), 1 if blank else high)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(3))
    axes.yaxis.set_major_formatter(lambda value, _: text_of(value, defaults.get("unit", "none")))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} s")
    axes.tick_params(labelsize=5.5, length=1.5, pad=1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    shown_names = _that_fit(names, box[2])
    figure.legend(
        handles[: len(shown_names)], shown_names, loc="upper left", fontsize=5.5, frameon=False, ncols=len(names) or 1,
        bbox_to_anchor=(box[0] - 0.045, box[1] - 0.75 / height), handlelength=0.8, columnspacing=0.8, borderpad=0,
        handletextpad=0.4,
    )  # fmt: skip


def _that_fit(names: Sequence[str], wide: float) -> list[str]:
    """As many names as there is room for in that part of the picture's width, and how many more there are."""
    fit = list(names)
    while len(fit) > 1 and sum(len(name) + 4 for name in fit) > wide * LEGEND * 1000:
        fit.pop()
    if len(fit) < len(names):
        fit[-1] += f"  and {len(names) - len(fit)} more"
    return fit


def _with_gaps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Broken where the series was not there, as Grafana draws it."""
    out = list(points[:1])
    for before, point in itertools.pairwise(points):
        out += [(before[0], math.nan), point] if point[0] - before[0] > GAP_S else [point]
    return out


def _points(series: Series, shown: Shown) -> list[tuple[float, float]]:
    return [(float(at) - shown.since_s, float(value)) for at, value in series["values"]]


def _legend(legend: str, series: Series) -> str:
    """A zero that stands in has no labels, and then no name."""
    return re.sub(r"{{(\w+)}}", lambda label: series["metric"].get(label[1], ""), legend).strip()[-WORD:] or "-"


def _at(series: Series, now_s: float) -> float | None:
    """The value then; None where the series was not there."""
    found = [float(value) for at, value in series["values"] if now_s - 5 < float(at) <= now_s]
    return found[-1] if found else None


def _number(parts: Sequence[tuple[Asked, Sequence[Series]]], now_s: float) -> str:
    ((query, found),) = parts
    values = [value for series in found if (value := _at(series, now_s)) is not None]
    return text_of(values[0], query.unit) if values else "no data"


def _cells(parts: Sequence[tuple[Asked, Sequence[Series]]], now_s: float) -> list[list[str]]:
    """The table, its head first: rows of all queries with the same labels are one."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for query, found in parts:
        for series in found:
            value = _at(series, now_s)
            if value is not None:
                labels = tuple(sorted(series["metric"].items()))
                rows.setdefault(labels, {})[query.legend] = text_of(value, query.unit)
    names = sorted({label for labels in rows for label, value in labels if value})
    columns = [query.legend for query, _ in parts]
    cells = [[dict(labels).get(n, "")[-WORD:] for n in names] + [row.get(c, "") for c in columns]
             for labels, row in sorted(rows.items())]  # fmt: skip
    return [[*names, *columns], *cells[:ROWS]] if cells else [["none"]]


def _words(figure: Figure, left: float, top: float, wide: float, height: int, cells: list[list[str]]) -> None:
    size = 15 if len(cells) == 1 and len(cells[0]) == 1 and cells != [["none"]] else 6
    widths = [max(map(len, column)) + 2 for column in zip(*cells, strict=True)]
    for line, words in enumerate(cells):
        for column, word in enumerate(words):
            at = left + wide * sum(widths[:column]) / max(sum(widths), 1)
            weight = "bold" if line == 0 and len(cells) > 1 else "normal"
            figure.text(at, top - line * 0.85 / height, word, fontsize=size, va="top", weight=weight)


def _save(figure: Figure, file: Path) -> None:
    held = io.BytesIO()
    figure.savefig(held, format="png")
    pyplot.close(figure)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(held).convert("RGB").quantize(COLORS).save(file, optimize=True)
