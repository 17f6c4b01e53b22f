"""One result table, three ways: a table for a person, JSON or CSV for a program. Data on stdout, all else on stderr.

Names come from the programs that were profiled: control characters are shown as escapes and markup is not obeyed.
"""

import csv
import datetime as dt
import decimal
import json
import math
import os
import shutil
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetscope.cli.cells import cell, heading
from fleetscope.cli.layout import Column, Laid, lay_out

if TYPE_CHECKING:
    import pyarrow as pa


class Format(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


Output = Annotated[Format, typer.Option("-o", "--output", help="table for people, json or csv for programs")]


def show(
    rows: "pa.Table", form: Format, title: str = "", *, columns: Sequence[str] = (), notes: Sequence[str] = ()
) -> None:
    """Print a result.

    `columns`: those of a person's table, the most important first; the rest is in json and csv only. Empty: all.
    Columns named *_ns are durations or times in ns (UTC since 1970): json and csv carry them unchanged.
    """
    rows = _readable(rows)
    if form is Format.JSON:
        json.dump(plain(rows), sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(rows.column_names)
        writer.writerows([_flat(value) for value in row.values()] for row in _dicts(rows))
    elif rows.num_rows == 0:
        print("\n".join(notes) or "nothing found", file=sys.stderr)
    else:
        laid = table_of(rows, columns, terminal_width())
        styled = _colours()
        for line in [*([_styled(title, "1", styled)] if title else []), _styled(laid.lines[0], "1", styled)]:
            print(line)
        for line in [*laid.lines[1:], *(_styled(note, "2", styled) for note in notes)]:
            print(line)
        if laid.left_out:
            sys.stdout.flush()
            print(f"left out: {', '.join(laid.left_out)} (a wider terminal, or -o json)", file=sys.stderr)


def plain(rows: "pa.Table") -> list[dict[str, Any]]:
    """Rows as JSON can carry them."""
    return [_plain(row) for row in _dicts(_readable(rows))]


def show_records(rows: "pa.Table", form: Format) -> None:
    """As `show`; a table too wide for the terminal is printed one field a line, so that nothing is cut."""
    width, rows = terminal_width(), _readable(rows)
    if form is not Format.TABLE or rows.num_rows == 0 or width is None or not table_of(rows, (), width).left_out:
        show(rows, form)
        return
    wide = max(len(name) for name in rows.column_names)
    for number, row in enumerate(_dicts(rows), 1):
        print(_styled(f"row {number}", "1", _colours()))
        for name, value in row.items():
            print(f"  {name:{wide}}  {cell(name, value)}")


def table_of(rows: "pa.Table", columns: Sequence[str] = (), width: int | None = None) -> Laid:
    """The lines of a table, with units in the cells."""
    import pyarrow as pa

    names = rows.column_names
    shown = [name for name in names if not columns or name in columns]
    ranks = {name: rank for rank, name in enumerate(columns)}
    data = {name: rows.column(name).to_pylist(maps_as_pydicts="strict") for name in shown}
    kinds = {name: rows.schema.field(name).type for name in shown}
    laid = [
        Column(
            heading(name),
            tuple(cell(name, value) for value in data[name]),
            pa.types.is_integer(kinds[name]) or pa.types.is_floating(kinds[name]) or pa.types.is_decimal(kinds[name]),
            ranks.get(name, 0),
        )
        for name in shown
    ]
    return lay_out(laid, width)


def terminal_width() -> int | None:
    """Cells of the terminal or $COLUMNS; None where the output goes elsewhere: then lines are as long as they are."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return None


def _readable(rows: "pa.Table") -> "pa.Table":
    """Columns under names of their own, times as text: Python's have no nanoseconds."""
    import pyarrow as pa

    names: list[str] = []
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        fresh = (f"{field.name}_{number}" if number else field.name for number in range(len(rows.schema)))
        names.append(next(name for name in fresh if name not in names))
        columns.append(column.cast(pa.string()) if _is_time(field.type) else column)
    return pa.Table.from_arrays(columns, names=names)


def _is_time(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    return bool(pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_date(kind))


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _styled(text: str, code: str, styled: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if styled else text


def _dicts(rows: "pa.Table") -> list[dict[str, Any]]:
    return rows.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """What JSON can carry: bytes as hex, times as ISO 8601, what is no number as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _flat(value: Any) -> Any:
    """What a CSV cell can carry: lists and maps as JSON, none as nothing."""
    value = _plain(value)
    return json.dumps(value) if isinstance(value, list | dict) else value
