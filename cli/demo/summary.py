"""The last screen of the demo: top ops of the real run, the throttled chip by name, the ledger."""

from pathlib import Path

import pyarrow as pa

from fleetscope.analysis.devices import device_table
from fleetscope.analysis.ledger import balance, ledger_table
from fleetscope.analysis.runs import run_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.top import top_ops
from fleetscope.cli.cells import cell
from fleetscope.cli.output import Format, show
from fleetscope.cli.queries import interval_notes, sentence, worth_showing
from fleetscope.sinks.lake.objects import open_store
from fleetscope.sinks.lake.read import Snapshot

TOP = 10
_OPS = ("op", "share_ratio", "category", "source", "count", "mean_ns", "low_ratio", "high_ratio")
_RUNS = ("run", "step_time_ns", "mfu_ratio", "compute_ratio", "busy_ratio", "hosts", "devices", "steps", "mfu_absent")


def _short(ops: pa.Table) -> pa.Table:
    """What fits a screen: the file's name instead of its path."""
    names = [None if path is None else path.rpartition("/")[2] for path in ops.column("source").to_pylist()]
    place = ops.schema.get_field_index("source")
    return ops.set_column(place, "source", pa.array(names, pa.string()))


def summarize(lake: Path, real_run: str) -> list[str]:
    """Print it; what a complete demo should have shown and did not."""
    if not lake.is_dir():
        return ["nothing was stored"]
    snapshot = Snapshot.open(open_store(lake))
    missing = []
    runs = run_table(snapshot, Scope())
    show(runs, Format.TABLE, "runs", columns=worth_showing(runs, _RUNS))
    ops = top_ops(snapshot, Scope(run=real_run), TOP)
    if ops.num_rows:
        title = f"device time of {real_run} by op"
        show(_short(ops), Format.TABLE, title, columns=worth_showing(ops, _OPS), notes=interval_notes(ops))
    else:
        missing.append(f"no op of {real_run} was seen in a device window")
    if ops.num_rows and not any(ops.column("source").to_pylist()):
        missing.append(f"no source line of {real_run} is known")
    throttled = [row for row in device_table(snapshot, Scope()).to_pylist() if (row["throttled_ratio"] or 0) > 0]
    for row in throttled:
        share = cell("x_ratio", row["throttled_ratio"])
        print(f"throttled: {row['host']} {row['device']} ({row['sku']}) of run {row['run']}, {share} of its samples")
    if not throttled:
        missing.append("no throttled chip was seen")
    sums = balance(ledger_table(snapshot, Scope()))
    print(f"ledger: {sentence(sums)}")
    if not sums.stored:
        missing.append("nothing was stored")
    return missing
