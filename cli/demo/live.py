"""What the demo shows while it runs: runs, hosts, step time, MFU, compute share, throttled chips, lag, events, loss."""

import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fleetscope.analysis.devices import device_table
from fleetscope.analysis.ledger import balance, ledger_table
from fleetscope.analysis.runs import run_table
from fleetscope.analysis.scope import Scope
from fleetscope.cli.output import cell
from fleetscope.schema.errors import FleetscopeError
from fleetscope.sinks.lake.objects import open_store
from fleetscope.sinks.lake.read import Snapshot

WINDOW_NS = 60 * 10**9
_COLUMNS = ("run", "hosts", "devices", "steps", "step_time_ns", "busy_ratio", "compute_ratio", "mfu_ratio")


@dataclass(slots=True)
class View:
    """The newest numbers; `refresh` reads them where a person could too: the lake and /metrics."""

    lake: Path
    metrics_url: str
    runs: list[dict[str, object]] = field(default_factory=list)
    throttled: dict[str, list[str]] = field(default_factory=dict)
    events: int = 0
    events_per_s: float = 0.0
    lag_s: float | None = None
    lost: int = 0
    _at: float = 0.0

    def refresh(self) -> None:
        """Read again; a lake or page that is not there yet leaves the old numbers."""
        try:
            snapshot = Snapshot.open(open_store(self.lake))
            scope = Scope(from_ns=time.time_ns() - WINDOW_NS)
            self.runs = run_table(snapshot, scope).to_pylist()
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
        except (FleetscopeError, OSError):
            pass
        self.lag_s = _lag(self.metrics_url)

    def render(self) -> Group:
        """The live table."""
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("run", "hosts", "chips", "steps", "step time", "busy", "compute", "MFU", "throttled chips"):
            table.add_column(name, justify="left" if name in ("run", "throttled chips") else "right")
        for row in self.runs:
            chips = ", ".join(self.throttled.get(str(row["run"]), [])) or "-"
            table.add_row(*(Text(cell(name, row[name])) for name in _COLUMNS), Text(chips))
        return Group(table, Text(self.line(), style="dim"))

    def line(self) -> str:
        """The numbers of the pipeline in one line."""
        lag = "-" if self.lag_s is None else f"{self.lag_s:.1f} s"
        return f"lag {lag}   events {self.events:,} ({self.events_per_s:,.0f}/s)   lost {self.lost}"

    def plain(self) -> str:
        """One line a refresh, for logs."""
        parts = [
            f"{row['run']}: step {cell('step_time_ns', row['step_time_ns'])}, "
            f"compute {cell('compute_ratio', row['compute_ratio'])}"
            for row in self.runs
            if row["step_time_ns"] is not None
        ]
        return " | ".join([self.line(), *parts])


def _lag(url: str) -> float | None:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            page = answer.read().decode()
    except OSError:
        return None
    values = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "fleetscope_pipeline_lag_seconds"
    ]
    return max(values, default=None)
