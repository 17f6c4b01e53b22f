"""Which rows a query looks at: --run --host --from --to --last."""

import datetime as dt
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fleetscope.analysis.scope import Scope


Run = Annotated[str | None, typer.Option("--run", help="name of the run, or of one attempt")]
Host = Annotated[str | None, typer.Option("--host", help="name of the host")]
From = Annotated[str | None, typer.Option("--from", help="begin: 2026-11-30T10:00, Unix seconds, or -15m")]
To = Annotated[str | None, typer.Option("--to", help="end, exclusive, as --from")]
Last = Annotated[str | None, typer.Option("--last", help="the last 30s, 15m, 6h, 2d; not with --from")]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS_NS = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}


def span_ns(text: str) -> int:
    """30s, 15m, 6h, 2d -> ns. Raises typer.BadParameter."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is no span such as 30s, 15m, 6h or 2d")
    return int(float(match[1]) * _UNITS_NS[match[2]])


def instant_ns(text: str, now_ns: int) -> int:
    """An ISO time (UTC when it names no zone), Unix seconds, or -15m before now -> ns."""
    if text.startswith("-"):
        return now_ns - span_ns(text[1:])
    try:
        return int(float(text) * 1e9)
    except ValueError:
        pass
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time such as 2026-11-30T10:00, 1796000000 or -15m") from None
    at = at if at.tzinfo else at.replace(tzinfo=dt.UTC)
    return int(at.timestamp()) * 10**9 + at.microsecond * 1000


def scope_of(run: str | None, host: str | None, from_: str | None, to: str | None, last: str | None) -> "Scope":
    """The options as a Scope."""
    from fleetscope.analysis.scope import Scope

    if from_ and last:
        raise typer.BadParameter("--last and --from say the same thing twice")
    now_ns = time.time_ns()
    begin = now_ns - span_ns(last) if last else instant_ns(from_, now_ns) if from_ else None
    end = instant_ns(to, now_ns) if to else None
    if begin is not None and end is not None and begin >= end:
        raise typer.BadParameter("--from is not before --to")
    return Scope(run=run, host=host, from_ns=begin, to_ns=end)
