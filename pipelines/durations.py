"""How long steps and ops took, as histograms of a run: carried and published beside its counters, in the buckets of
schema.exponential, which are those of the lake (docs/design/0023-histograms-and-otlp.md).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.pipelines.grouping import added, combined, compact, ranks
from fleetscope.pipelines.histogram import ZERO_BUCKET, bucket_index
from fleetscope.schema.exponential import native_bucket
from fleetscope.schema.metrics import Metric, metric
from fleetscope.schema.vocabulary import DEVICE_WORK, Kind
from fleetscope.schema.wire_pb2 import MetricsRecord

Int64s = NDArray[np.int64]

STEP = metric("fleetscope_run_step_duration_seconds")
OP = metric("fleetscope_run_op_duration_seconds")
KINDS = sorted(DEVICE_WORK - {Kind.CONTAINER})
"""A container's instants belong to what runs inside it (analysis.scope.WORK_KINDS)."""
LONGEST_NS = (1 << 53) - 1
"""bucket_index knows no longer ones: 104 days."""

OP_DURATIONS = pa.schema([(name, pa.int64()) for name in ("process", "kind", "weight", "bucket", "count", "sum_ns")])
"""Ops of a process by bucket; `sum_ns` is of all buckets of a (process, kind, weight), and stands in one of its
rows."""


def schema_of(of: Metric) -> int:
    """Its `native` schema; a metric without one is no native histogram."""
    if of.native is None:
        raise ValueError(f"{of.name} has no native buckets")
    return of.native


def op_durations(op_10s: pa.Table) -> pa.Table:
    """OP_DURATIONS of OP_10S rows."""
    taken = np.isin(op_10s.column("kind").to_numpy(), KINDS) & (op_10s.column("count").to_numpy() > 0)
    if not taken.any():
        return OP_DURATIONS.empty_table()
    rows = op_10s.select(["process", "kind", "weight", "sum_ns", "hist_index", "hist_count"]).filter(pa.array(taken))
    keys = [rows.column(name).to_numpy().astype(np.int64) for name in ("process", "kind", "weight")]
    group, distinct = compact(*combined([ranks(key) for key in keys]))
    index, count = (pa.concat_arrays(rows.column(name).chunks) for name in ("hist_index", "hist_count"))
    found = index.flatten().to_numpy().astype(np.int64)
    bucket = np.where(found == ZERO_BUCKET, ZERO_BUCKET, native_bucket(found, schema_of(OP)))
    owner = np.repeat(group, np.diff(index.offsets.to_numpy()))
    low = int(bucket[found != ZERO_BUCKET].min(initial=0)) - 1
    width = int(bucket.max(initial=0)) - low + 1
    cell, cells = compact(owner * width + np.maximum(bucket - low, 0), len(distinct) * width)
    of_cell, at = np.divmod(cells, width)
    example = np.empty(len(distinct), np.int64)
    example[group] = np.arange(len(group))
    columns = {name: key[example][of_cell] for name, key in zip(("process", "kind", "weight"), keys, strict=True)}
    columns["bucket"] = np.where(at == 0, ZERO_BUCKET, at + low)
    columns["count"] = added(cell, count.flatten().to_numpy(), len(cells))
    sums = added(group, rows.column("sum_ns").to_numpy(), len(distinct))
    first = np.concatenate(([True], of_cell[1:] != of_cell[:-1]))
    columns["sum_ns"] = np.where(first, sums[of_cell], 0)
    return pa.table(columns, schema=OP_DURATIONS)


def add_ops(rows: pa.Table, run_of: Mapping[int, dict[str, Any]]) -> None:
    """Add an epoch's OP_DURATIONS to their runs. `run_of`: process -> counters of its run.

    Added up by run first: a run has few buckets, and a row for each in each of its processes."""
    processes, place = np.unique(rows.column("process").to_numpy(), return_inverse=True)
    runs = [run_of.get(process) for process in processes.tolist()]
    by_identity = {id(run): run for run in runs if run is not None}
    numbers = {identity: number for number, identity in enumerate(by_identity)}
    owner = np.array([numbers.get(id(run), -1) for run in runs], np.int64)[place]
    taken = np.flatnonzero(owner >= 0)
    if not len(taken):
        return
    kind, weight, bucket, count, sum_ns = (
        rows.column(name).to_numpy()[taken] for name in ("kind", "weight", "bucket", "count", "sum_ns")
    )
    keys = (owner[taken], kind, (weight > 0).astype(np.int64), bucket)
    cell, cells = compact(*combined([ranks(key) for key in keys]))
    example = np.empty(len(cells), np.int64)
    example[cell] = np.arange(len(taken))
    columns = (*(key[example] for key in keys), added(cell, count, len(cells)), added(cell, sum_ns, len(cells)))
    found = list(by_identity.values())
    for run_number, kind_number, weighted, at, spans, total_ns in zip(*(c.tolist() for c in columns), strict=True):
        key = f"{Kind(kind_number).name.lower()} {'all' if weighted else 'windows'}"
        _add(found[run_number], key, total_ns, {at: spans})


def add_steps(run: dict[str, Any], dur_ns: Int64s) -> None:
    """Add step rows: those above 0 are steps, the others take time back from steps that were told before."""
    whole = np.minimum(dur_ns[dur_ns > 0], LONGEST_NS)
    bucket, count = np.unique(native_bucket(bucket_index(whole).astype(np.int64), schema_of(STEP)), return_counts=True)
    _add(run, "step", int(dur_ns.sum()), dict(zip(bucket.tolist(), count.tolist(), strict=True)))


def _add(run: dict[str, Any], key: str, sum_ns: int, found: Mapping[int, int]) -> None:
    """Carried as JSON: key -> [sum_ns, {bucket: count}], a bucket as text."""
    carried = run.setdefault("durations", {}).setdefault(key, [0, {}])
    carried[0] += sum_ns
    for bucket, count in found.items():
        carried[1][str(bucket)] = carried[1].get(str(bucket), 0) + count


def samples(record: MetricsRecord, run: str, parts: Iterable[Mapping[str, Any]]) -> None:
    """Histograms of a run: `parts` are its counters in each partition."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, (sum_ns, found) in part.get("durations", {}).items():
            _add(whole, key, sum_ns, found)
    for key, (sum_ns, found) in sorted(whole.get("durations", {}).items()):
        of, labels = (STEP, {}) if key == "step" else (OP, dict(zip(("kind", "seen"), key.split(), strict=True)))
        told = record.samples.add(name=of.name, labels={"run": run, **labels}).durations
        told.schema, told.sum_ns = schema_of(of), sum_ns
        for bucket, count in sorted((int(bucket), count) for bucket, count in found.items()):
            if bucket == ZERO_BUCKET:
                told.zero = count
            else:
                told.bucket.append(bucket)
                told.count.append(count)
