"""One result table, three ways: a table for a person, JSON or CSV for a program. Data on stdout, all else on stderr.

Names come from the programs that were profiled: control characters are shown as escapes and markup is not obeyed.
"""

import csv
import json
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Output = Annotated[Format, typer.Option("-o", "--output", help="table for people, json or csv for programs")]


def show(rows: pa.Table, form: Format, title: str = "", empty: str = "nothing found") -> None:
    """Print a result. Columns named *_ns are durations or times; json and csv carry them unchanged."""
    if form is Format.JSON:
        json.dump(rows.to_pylist(), sys.stdout, indent=1, default=_plain)
        sys.stdout.write("\n")
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout)
        writer.writerow(rows.column_names)
        writer.writerows([_plain(value) for value in row.values()] for row in rows.to_pylist())
    elif rows.num_rows == 0:
        print(empty, file=sys.stderr)
    else:
        # Rich guesses 80 columns for a pipe and would cut names.
        Console(width=None if sys.stdout.isatty() else 200).print(table_of(rows, title))


def table_of(rows: pa.Table, title: str = "") -> Table:
    """A rich table with units in the cells."""
    table = Table(title=title or None, title_justify="left", pad_edge=False, box=None, header_style="bold")
    for field in rows.schema:
        number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        table.add_column(_heading(field.name), justify="right" if number else "left", no_wrap=number)
    for row in rows.to_pylist():
        table.add_row(*(Text(cell(name, value)) for name, value in row.items()))
    return table


def _heading(name: str) -> str:
    for suffix in ("_ns", "_ratio", "_bytes"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def cell(name: str, value: Any) -> str:
    """A value as a person reads it; the column's name tells its unit."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return printable(value)
    if name.endswith("_ns") and isinstance(value, int):
        return duration(value)
    if name.endswith("_ratio"):
        return f"{100 * value:.1f} %"
    if name.endswith("_bytes"):
        return scaled(value, "B", 1024)
    if name.startswith("flops") or name.endswith("flops"):
        return scaled(value, "", 1000)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping | list | tuple):
        return printable(json.dumps(value, default=_plain))
    return printable(str(value))


def duration(ns: int) -> str:
    """1.50 s, 20.1 ms, 3.2 us, 12 ns."""
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns} ns"


def scaled(value: float, unit: str, base: int) -> str:
    """A number with a k, M, G, ... prefix."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if abs(value) < base:
            return f"{value:.3g} {prefix}{unit}".strip()
        value /= base
    return f"{value:.3g} E{unit}".strip()


def printable(text: str) -> str:
    """Control characters and lone surrogates as escapes, so that a name cannot move the cursor or break a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _plain(value: Any) -> Any:
    """What JSON and CSV can carry: bytes as hex, maps as dicts, surrogates replaced."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    return value
