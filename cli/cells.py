"""A value as a person reads it: the column's name tells the unit (schema.tables, analysis), the cell shows it.

Prefixes are decimal: 1 MB is 1 000 000 B, as on disks, networks and in XProf.
"""

import datetime as dt
import json
from collections.abc import Callable, Mapping
from typing import Any

INSTANT_NS = 10**17
"""Nanoseconds from here on (three years) are a time of day since 1970, not a duration."""

PREFIXES = ("", "k", "M", "G", "T", "P", "E")

COUNTS = frozenset(
    """count rows events files produced appended stored duplicate dead_lettered dropped lost open_gap in_flight
    executions ops displaced steps windows sources""".split()
)
"""Columns whose integers are grouped by thousands. Others may be ids, which are copied and pasted."""


def cell(name: str, value: Any) -> str:
    """Text of a value of the column `name`; "-" for none."""
    if value is None or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S.%f}"[:-3]
    if isinstance(value, Mapping):
        return ", ".join(f"{printable(str(key))} {cell('count', item)}" for key, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_item(item) for item in value) or "-"
    return printable(value.hex() if isinstance(value, bytes) else str(value))


def _item(value: Any) -> str:
    if isinstance(value, Mapping) and set(value) == {"first", "last"}:
        return f"{value['first']}..{value['last']}"
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def _number(name: str, value: float) -> str:
    for suffix, shown in _UNITS.items():
        if name.endswith(suffix):
            return shown(value)
    if name in COUNTS and isinstance(value, int):
        return f"{value:,}"
    return str(value) if isinstance(value, int) else f"{value:.4g}"


def heading(name: str) -> str:
    """A column's name without its unit, which stands in the cells."""
    for suffix in (*_UNITS, "_at"):
        if name.endswith(suffix) and name != suffix.removeprefix("_"):
            return (name.removesuffix(suffix) if suffix in _DROPPED else name).replace("_", " ")
    return name.replace("_", " ")


def ratio(value: float) -> str:
    """86.5 %, 0.004 %."""
    percent = 100 * value
    if abs(percent) >= 0.05 or percent == 0:
        return f"{percent:.1f} %"
    return f"{percent:.1g} %" if abs(percent) >= 1e-4 else "~0 %"


def nanoseconds(value: float) -> str:
    """A duration, or from INSTANT_NS on a time."""
    return instant(int(value)) if value >= INSTANT_NS else duration(value)


def instant(ns: int) -> str:
    """2026-11-30 10:00:00.123 (UTC) of ns since 1970; a time no calendar holds is given as the number."""
    try:
        second = dt.datetime.fromtimestamp(ns // 10**9, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return str(ns)
    return f"{second:%Y-%m-%d %H:%M:%S}.{ns % 10**9 // 10**6:03d}"


def duration(ns: float) -> str:
    """2 h 05 min, 1.5 s, 20.1 ms, 3.2 us, 12 ns."""
    minutes = round(abs(ns) / 60e9)
    if minutes >= 10:
        text = f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
        return f"-{text}" if ns < 0 else text
    for unit, size in (("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)):
        if abs(ns) >= size:
            return f"{ns / size:.4g} {unit}"
    return f"{ns:.4g} ns"


def scaled(value: float, unit: str) -> str:
    """A number with a k, M, G, ... prefix."""
    for prefix in PREFIXES[:-1]:
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}".strip()
        value /= 1000
    return f"{value:.3g} {PREFIXES[-1]}{unit}"


def printable(text: str) -> str:
    """Control characters and lone surrogates as escapes, so that a name cannot move the cursor or break a line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


_UNITS: dict[str, Callable[[float], str]] = {
    "_ns": nanoseconds,
    "_ratio": ratio,
    "bytes_per_s": lambda value: scaled(value, "B/s"),
    "flops_per_s": lambda value: scaled(value, "FLOP/s"),
    "peak_flops": lambda value: scaled(value, "FLOP/s"),
    "bytes_per_row": lambda value: f"{value:.3g} B",
    "_bytes": lambda value: scaled(value, "B"),
    "bytes_hbm": lambda value: scaled(value, "B"),
    "bytes_accessed": lambda value: scaled(value, "B"),
    "flops": lambda value: scaled(value, "FLOP"),
    "_watts": lambda value: f"{value:.4g} W",
    "_celsius": lambda value: f"{value:.3g} C",
    "_hertz": lambda value: scaled(value, "Hz"),
    "_ppm": lambda value: f"{value:.3g} ppm",
}
"""Suffix of a column's name -> how its numbers are shown; the first that fits."""

_DROPPED = frozenset({"_ns", "_ratio", "_bytes", "_watts", "_celsius", "_hertz", "_ppm"})
"""Suffixes that say only the unit."""
