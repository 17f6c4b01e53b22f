"""The last screen of the demo: top ops of the real run, the throttled chip by name, the ledger."""

from pathlib import Path

import pyarrow as pa
from rich.console import Console

from fleetscope.analysis.devices import device_table
from fleetscope.analysis.ledger import balance, ledger_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.top import top_ops
from fleetscope.cli.output import cell, table_of
from fleetscope.sinks.lake.objects import open_store
from fleetscope.sinks.lake.read import Snapshot

TOP = 10


def _short(ops: pa.Table) -> pa.Table:
    """What fits a screen: the file's name instead of its path."""
    names = [None if path is None else path.rpartition("/")[2] for path in ops.column("source").to_pylist()]
    shown = ops.select(["op", "category", "share_ratio", "low_ratio", "high_ratio", "count"])
    return shown.append_column("source", pa.array(names, pa.string()))


def summarize(console: Console, lake: Path, real_run: str) -> list[str]:
    """Print it; what a complete demo should have shown and did not."""
    snapshot = Snapshot.open(open_store(lake))
    missing = []
    ops = top_ops(snapshot, Scope(run=real_run), TOP)
    if ops.num_rows:
        console.print(table_of(_short(ops), f"device time of {real_run} by op"))
    else:
        missing.append(f"no op of {real_run} was seen in a device window")
    throttled = [row for row in device_table(snapshot, Scope()).to_pylist() if (row["throttled_ratio"] or 0) > 0]
    for row in throttled:
        share = cell("x_ratio", row["throttled_ratio"])
        console.print(
            f"throttled: {row['host']} {row['device']} ({row['sku']}) of run {row['run']}, {share} of its samples"
        )
    if not throttled:
        missing.append("no throttled chip was seen")
    rows = ledger_table(snapshot, Scope())
    sums = balance(rows)
    console.print(
        f"ledger: {rows.num_rows} sources, {sums.produced:,} events produced, {sums.stored:,} stored, "
        f"{sums.dropped:,} dropped at the source, {sums.duplicate:,} duplicate, {sums.dead_lettered:,} dead letters, "
        f"{sums.lost:,} lost, {sums.open_gap:,} in open gaps"
    )
    if not sums.stored:
        missing.append("nothing was stored")
    return missing
