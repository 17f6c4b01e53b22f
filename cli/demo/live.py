"""What the demo shows while it runs: runs, hosts, step time, MFU, compute share, throttled chips, lag, events, loss."""

import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from fleetscope.cli.cells import cell
from fleetscope.cli.layout import Column, lay_out
from fleetscope.schema.errors import FleetscopeError

if TYPE_CHECKING:
    from rich.console import RenderableType

WINDOW_NS = 60 * 10**9
_COLUMNS = {
    "run": "run",
    "hosts": "hosts",
    "devices": "chips",
    "step_time_ns": "step time",
    "mfu_ratio": "MFU",
    "compute_ratio": "compute",
    "busy_ratio": "busy",
}


@dataclass(slots=True)
class View:
    """The newest numbers, over the last minute; `refresh` reads them where a person could too: the lake and /metrics.

    `windowed`: a device window of the real run has been seen.
    """

    lake: Path
    metrics_url: str
    real_run: str
    started_s: float
    runs: list[dict[str, Any]] = field(default_factory=list)
    throttled: dict[str, list[str]] = field(default_factory=dict)
    events: int = 0
    events_per_s: float = 0.0
    lag_s: float | None = None
    lost: int = 0
    windowed: bool = False
    _at: float = 0.0

    def refresh(self) -> None:
        """Read again; a lake or page that is not there yet leaves the old numbers."""
        with suppress(FleetscopeError, OSError):
            self._read()
        self.lag_s = _lag(self.metrics_url)

    def _read(self) -> None:
        # Here, and whether there is a lake yet or not: it takes a second while the others start.
        from fleetscope.analysis.devices import device_table
        from fleetscope.analysis.ledger import balance, ledger_table
        from fleetscope.analysis.runs import run_table
        from fleetscope.analysis.scope import Scope
        from fleetscope.sinks.lake.objects import open_store
        from fleetscope.sinks.lake.read import Snapshot

        if not self.lake.is_dir():
            return
        snapshot = Snapshot.open(open_store(self.lake))
        scope = Scope(from_ns=time.time_ns() - WINDOW_NS)
        self.runs = run_table(snapshot, scope).to_pylist()
        self.windowed |= any(row["run"] == self.real_run and row["windows"] for row in self.runs)
        self.throttled = {}
        for row in device_table(snapshot, scope).to_pylist():
            if (row["throttled_ratio"] or 0) > 0:
                self.throttled.setdefault(row["run"], []).append(f"{row['host']} {row['device']}")
        sums = balance(ledger_table(snapshot, Scope()))
        now = time.monotonic()
        if self._at and sums.stored >= self.events:
            self.events_per_s = (sums.stored - self.events) / (now - self._at)
        self.events, self._at = sums.stored, now
        self.lost = sums.lost + sums.dropped + sums.dead_lettered

    def render(self, width: int) -> "RenderableType":
        """The live table."""
        rows = [[cell(name, row[name]) for name in _COLUMNS] for row in self.runs]
        columns = [
            Column(heading, tuple(row[place] for row in rows), right=place > 0, rank=place)
            for place, heading in enumerate(_COLUMNS.values())
        ]
        chips = tuple(", ".join(self.throttled.get(row["run"], [])) or "-" for row in self.runs)
        columns.append(Column("throttled chips", chips, rank=2))
        text = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lay_out(columns, width).lines if rows else ()):
            text.append(line + "\n", style="bold" if number == 0 else "")
        return text.append(self.line(), style="dim")

    def line(self) -> str:
        """The numbers of the pipeline in one line, and what is still to come."""
        lag = "-" if self.lag_s is None else f"{self.lag_s:.1f} s"
        line = f"lag {lag}   events {self.events:,} ({self.events_per_s:,.0f}/s)   lost {self.lost:,}"
        return "   ".join([line, *self._coming()])

    def _coming(self) -> list[str]:
        if not self.events:
            return ["starting: the worker imports Beam, the training process jax"]
        if not any(row["run"] == self.real_run for row in self.runs):
            return [f"{self.real_run}: imports jax and compiles"]
        return [] if self.windowed else [f"{self.real_run}: its first device window follows"]

    def plain(self) -> str:
        """One line a refresh, for logs."""
        parts = []
        for row in self.runs:
            words = [f"{row['run']}:", f"{row['hosts']} hosts" if row["hosts"] != 1 else "1 host"]
            words += [f"{row['devices']} chip{'s' if row['devices'] != 1 else ''},"] if row["devices"] else []
            words += [
                f"{heading} {cell(name, row[name])},"
                for name, heading in list(_COLUMNS.items())[3:]
                if row[name] is not None
            ]
            words += [f"throttled {chip}," for chip in self.throttled.get(row["run"], [])]
            parts.append(" ".join(words).rstrip(",:"))
        return " | ".join([f"{time.monotonic() - self.started_s:3.0f} s  {self.line()}", *parts])


def _lag(url: str) -> float | None:
    """The largest lag of the pipeline's chains; None while the exporter does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            page = answer.read().decode()
    except OSError:
        return None
    lines = (line for line in page.splitlines() if line.startswith("fleetscope_pipeline_lag_seconds{"))
    return max((float(line.rpartition(" ")[2]) for line in lines), default=None)
