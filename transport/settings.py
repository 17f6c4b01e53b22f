"""Settings from a URL's query and keyword arguments, for both back ends."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

from fleetscope.transport.errors import BadLogUrl

Setting = str | int | float | bool

_T = TypeVar("_T")


def settings_from(kind: type[_T], url: str, given: Mapping[str, Setting]) -> _T:
    """An instance of the settings dataclass `kind`; its field types are str, int, float and bool.

    Keyword arguments win over the query. BadLogUrl for an unknown setting (naming the nearest) or an unusable value.
    """
    known = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Setting] = {**dict(parse_qsl(urlsplit(url).query, keep_blank_values=True)), **given}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.0)
            raise BadLogUrl(f"log URL: unknown setting {name!r}, did you mean {near[0]!r}?")
    return kind(**{name: _convert(name, known[name], value) for name, value in values.items()})


def _convert(name: str, wanted: str, value: Setting) -> Setting:
    try:
        if wanted == "bool":
            return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
        number: Callable[[Setting], Setting] = {"str": str, "int": int, "float": float}[wanted]
        return number(value)
    except (ValueError, KeyError):
        raise BadLogUrl(f"log URL: the value of setting {name} is no {wanted}") from None
