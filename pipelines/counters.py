"""Cumulative counters of runs and devices: carried in the manifest, published after it, so no record runs ahead.

Numerators and denominators are added from the same rows in event time, so a ratio of their rates is right even when the
pipeline stalls and catches up (DESIGN 3.7).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fleetscope.pipelines import durations
from fleetscope.pipelines.dtypes import (
    FLOPS,
    IDEAL_NS,
    MODEL,
    MODEL_IDEAL_NS,
    SUMS,
    WATCHED_IDEAL_NS,
    WATCHED_MODEL_IDEAL_NS,
)
from fleetscope.pipelines.frequency import AT_CLOCK
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.metrics import metric
from fleetscope.schema.vocabulary import StepFlag
from fleetscope.schema.wire_pb2 import MetricsRecord
from fleetscope.sinks.lake.generation import Generation

NO_RUN = "none"
"""Label of processes outside any run; "" is the key of the pipeline's own record."""

OUTCOMES = ("stored", "dead_letter", "duplicate", "lost", "dropped")

_SECONDS = 1e-9

DEVICE_COUNTERS: tuple[tuple[str, str, float], ...] = (
    ("fleetscope_device_busy_seconds_total", "busy_ns", _SECONDS),
    ("fleetscope_device_observed_seconds_total", "observed_ns", _SECONDS),
    ("fleetscope_device_compute_seconds_total", "compute_ns", _SECONDS),
    ("fleetscope_device_collective_seconds_total", "collective_ns", _SECONDS),
    ("fleetscope_device_copy_seconds_total", "copy_ns", _SECONDS),
    ("fleetscope_device_flops_total", "flops", 1.0),
    ("fleetscope_device_model_flops_total", "model_flops", 1.0),
    ("fleetscope_device_peak_flops_total", "peak_flop", 1.0),
    ("fleetscope_device_flops_known_seconds_total", "flops_known_ns", _SECONDS),
    ("fleetscope_device_op_seconds_total", "op_ns", _SECONDS),
    ("fleetscope_device_clock_peak_flops_total", "peak_flop_clock", 1.0),
    ("fleetscope_device_clocked_peak_flops_total", "peak_flop_clocked", 1.0),
    ("fleetscope_device_watched_seconds_total", "watched_ns", _SECONDS),
    ("fleetscope_device_occupied_seconds_total", "occupancy_ns", _SECONDS),
    ("fleetscope_device_input_wait_seconds_total", "idle_input_watched", _SECONDS),
    ("fleetscope_device_queue_seconds_total", "queue_ns", _SECONDS),
    ("fleetscope_device_executions_total", "executions_watched", 1.0),
    ("fleetscope_device_unsynced_events_total", "unsynced", 1.0),
    ("fleetscope_device_clock_error_seconds_total", "bounded_err_ns", _SECONDS),
    ("fleetscope_device_clock_parts_total", "bounded", 1.0),
    ("fleetscope_device_execution_seconds_total", "watched_ran_ns", _SECONDS),
    ("fleetscope_device_execution_known_seconds_total", "watched_known_ns", _SECONDS),
    ("fleetscope_device_watched_flops_total", "watched_flops", 1.0),
    ("fleetscope_device_watched_model_flops_total", "watched_model_flops", 1.0),
    ("fleetscope_device_watched_peak_flops_total", "watched_peak_flop", 1.0),
    ("fleetscope_device_watched_clock_peak_flops_total", "watched_peak_flop_clock", 1.0),
    ("fleetscope_device_watched_clocked_peak_flops_total", "watched_peak_flop_clocked", 1.0),
)
"""Metric, column of device_10s it adds up, factor to base units. Carried as integers (nothing is lost by rounding), and
by position (new ones come last)."""

DTYPE_COUNTERS: tuple[tuple[str, int, float], ...] = (
    ("fleetscope_run_dtype_flops_total", FLOPS, 1.0),
    ("fleetscope_run_dtype_model_flops_total", MODEL, 1.0),
    ("fleetscope_run_dtype_ideal_seconds_total", IDEAL_NS, _SECONDS),
    ("fleetscope_run_dtype_model_ideal_seconds_total", MODEL_IDEAL_NS, _SECONDS),
    ("fleetscope_run_dtype_watched_ideal_seconds_total", WATCHED_IDEAL_NS, _SECONDS),
    ("fleetscope_run_dtype_watched_model_ideal_seconds_total", WATCHED_MODEL_IDEAL_NS, _SECONDS),
)
"""Metric, sum of pipelines.dtypes it shows, factor to base units."""

COVERAGE_PERCENT = 95
DEVICES_A_RECORD = 256
DEVICE_PARTS = 64
"""A device's samples take ~2 kB, a message 8 MiB: beyond 4 000 devices the counters of the run were not published."""

FORGET_NS = 86_400_000_000_000


def run_of(state: PartitionState, name: str) -> dict[str, Any]:
    """Carried counters of a run, begun where there are none."""
    fresh: dict[str, Any] = {
        "event_ns": 0,
        "devices": {},
        "events": [0] * len(OUTCOMES),
        "steps": [0, 0, 0],
        "unknown": {},
    }
    counters: dict[str, Any] = state.counters.setdefault(name or NO_RUN, fresh)
    return counters


def runs_of(state: PartitionState, run_names: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """process -> carried counters of its run."""
    return {process: run_of(state, name) for process, name in run_names.items()}


def add_events(state: PartitionState) -> set[str]:
    """Add what became of the events of sources that changed; the names of their runs."""
    changed = set()
    for record in state.sources.values():
        if not record.changed:
            continue
        totals = [
            record.stored,
            record.dead,
            record.duplicate,
            record.numbers.lost_events,
            sum(record.dropped.values()),
        ]
        events = run_of(state, record.run)["events"]
        for index, total in enumerate(totals):
            events[index] += total - record.counted[index]
        record.counted = totals
        changed.add(record.run or NO_RUN)
    return changed


def add_devices(state: PartitionState, device_10s: pa.Table, run_names: Mapping[int, str]) -> set[str]:
    """Add an epoch's device_10s rows (of this partition's processes) to their runs.

    A window row (weight 0) is a sample: its busy time counts as the estimated share of what was looked at, its classes
    and FLOPs, which were seen in the same spans, in proportion.
    """
    changed = set()
    for row in device_10s.to_pylist():
        name = run_names.get(row["process"], "") or NO_RUN
        run = run_of(state, name)
        # The nominal peak of where the clock is known: the clock's own ratio wants both over the same time.
        for peak, clocked in AT_CLOCK.items():
            row[f"{clocked}ed"] = row[peak] if row[clocked] else 0
        # Of idle time only input waits are exported: they come first among causes, so what is found later never takes
        # from them, and a counter must not fall. Windows have no share in what is divided by watched time.
        row["idle_input_watched"] = row["idle_input_ns"] if row["weight"] else 0
        # A worst bound cannot be added to others, but a mean of them can be told. -1: nothing bounds it; 0: no event.
        row["bounded"] = int(row["err_ns"] > 0)
        row["bounded_err_ns"] = max(0, row["err_ns"])
        row["executions_watched"] = row["executions"] if row["watched_ns"] else 0
        values = [row[column] for _, column, _ in DEVICE_COUNTERS]
        if row["weight"] == 0 and row["windows"] and values[0]:
            estimate = row["duty_q30"] * row["observed_ns"] // row["windows"] >> 30
            values = [
                estimate if i == 0 else v * estimate // values[0] if 2 <= i <= 6 else v for i, v in enumerate(values)
            ]
        device = run["devices"].setdefault(str(row["device"]), [0] * len(values))
        device += [0] * (len(values) - len(device))  # carried by a version with fewer counters
        for index, value in enumerate(values):
            device[index] += value
        reason = _withheld(row)
        if reason:
            run["unknown"][reason] = run["unknown"].get(reason, 0) + 1
        changed.add(name)
    return changed


def _withheld(row: Mapping[str, int]) -> str:
    for known, whole in (("flops_known_ns", "op_ns"), ("watched_known_ns", "watched_ran_ns")):
        if row[known] * 100 < row[whole] * COVERAGE_PERCENT:
            return "flops_unknown"
    for seen, peak in (("observed_ns", "peak_flop"), ("watched_ns", "watched_peak_flop")):
        if row[seen] and not row[peak]:
            return "peak_unknown"
    return ""


def add_steps(state: PartitionState, steps: pa.Table, run_names: Mapping[int, str]) -> set[str]:
    """Add an epoch's step rows: a row that is the step itself counts one, a correction only its time. Mistimed steps
    are counted apart: one that is too long and the too short ones behind it end in the same drain of the agent."""
    changed = set()
    processes = steps.column("process").to_numpy()
    dur_ns = steps.column("dur_ns").to_numpy()
    mistimed = steps.column("flags").to_numpy() & np.uint32(StepFlag.MISTIMED) != 0
    for process in np.unique(processes):
        mine = dur_ns[(processes == process) & ~mistimed]
        name = run_names.get(int(process), "") or NO_RUN
        run = run_of(state, name)
        durations.add_steps(run, mine)
        sums = run["steps"]
        sums += [0] * (3 - len(sums))  # carried by a version that knew none
        sums[0] += int(mine.sum())
        sums[1] += int(np.count_nonzero(mine > 0))
        sums[2] += int(np.count_nonzero(mistimed[processes == process]))
        changed.add(name)
    return changed


def note_time(state: PartitionState, newest_ns: Mapping[str, int], now_ns: int) -> None:
    """Newest event time of each run, and forget runs whose last event is a day old."""
    for name, event_ns in newest_ns.items():
        run = run_of(state, name)
        run["event_ns"] = max(run["event_ns"], event_ns)
    for name in [name for name, run in state.counters.items() if now_ns - run["event_ns"] > FORGET_NS]:
        if not any((record.run or NO_RUN) == name for record in state.sources.values()):
            del state.counters[name]


def records(
    chain: int,
    number: int,
    now_ns: int,
    states: Iterable[PartitionState],
    only: set[str] | None = None,
    generation: Generation | None = None,
    committed: Mapping[int, int] | None = None,
) -> list[MetricsRecord]:
    """Records of runs (those in `only`, or all), and behind them the pipeline's own with run "", which names the chains
    of its generation: an exporter that has it of each of them has all. `committed`: partition -> next offset to read.

    A run of many devices has them in records of their own, by a hash of the device, so that each stays in its part.
    """
    era = generation.number if generation is not None else 1
    states = list(states)
    found = []
    newest_ns = 0
    names = sorted({name for state in states for name in state.counters})
    for name in names:
        parts = [(state, state.counters[name]) for state in states if name in state.counters]
        event_ns = max(run["event_ns"] for _, run in parts)
        newest_ns = max(newest_ns, event_ns)
        if only is not None and name not in only:
            continue
        about: dict[str, Any] = {
            "chain": chain,
            "generation": era,
            "epoch": number,
            "now_ns": now_ns,
            "event_ns": event_ns,
            "run": name,
        }
        record = MetricsRecord(**about)
        _run_samples(record, name, [run for _, run in parts])
        found.append(record)
        split = sum(len(run["devices"]) for _, run in parts) > DEVICES_A_RECORD
        divided: dict[int, list[tuple[Mapping[str, Any], list[int]]]] = {}
        for state, run in parts:
            for device, values in run["devices"].items():
                part = 1 + int(device) % DEVICE_PARTS if split else 0
                known = state.devices.get(int(device), {"key": device, "sku": "", "host": ""})
                divided.setdefault(part, []).append((known, values))
        for part, devices in divided.items():
            if part:
                found.append(MetricsRecord(**about, part=part))
            _device_block(found[-1] if part else record, devices)
    own = MetricsRecord(chain=chain, generation=era, epoch=number, now_ns=now_ns, event_ns=newest_ns)
    own.chains.extend(sorted(generation.chains) if generation is not None else [])
    for partition, offset in sorted((committed or {}).items()):
        own.committed.add(partition=partition, offset=offset)
    if newest_ns:
        _sample(own, "fleetscope_pipeline_lag_seconds", {"chain": str(chain)}, max(0, now_ns - newest_ns), _SECONDS)
    _sample(own, "fleetscope_pipeline_epoch", {"chain": str(chain)}, number, 1.0)
    return [*found, own]


def key_of(record: MetricsRecord) -> bytes:
    """Of the compacted topic. A run may be called anything, so the part stands before it. Generations do not replace
    each other's records: an exporter needs those of the old one until the new one is complete."""
    part = f".{record.part}" if record.part else ""
    generation = f"{record.generation}:" if record.generation > 1 else ""
    return f"{generation}{record.chain}{part}/{record.run}".encode()


def _device_block(record: MetricsRecord, told: Iterable[tuple[Mapping[str, Any], list[int]]]) -> None:
    """`told`: (host, key and SKU, values) of each device."""
    block = record.blocks.add(label_names=("host", "device", "sku"))
    values = []
    for known, found in told:
        block.labels.extend((known["host"], known["key"], known["sku"]))
        values.append(found + [0] * (len(DEVICE_COUNTERS) - len(found)))  # carried by a version with fewer counters
    for (name, _, factor), column in zip(DEVICE_COUNTERS, zip(*values, strict=True), strict=True):
        block.columns.add(name=metric(name).name, values=[value * factor for value in column])


def _run_samples(record: MetricsRecord, name: str, runs: list[Mapping[str, Any]]) -> None:
    labels = {"run": name}
    found = [[*run["steps"], 0][:3] for run in runs]
    step_ns, steps, mistimed = (sum(sums[index] for sums in found) for index in range(3))
    if steps or mistimed:
        _sample(record, "fleetscope_run_step_seconds_total", labels, step_ns, _SECONDS)
        _sample(record, "fleetscope_run_steps_total", labels, steps, 1.0)
        _sample(record, "fleetscope_run_mistimed_steps_total", labels, mistimed, 1.0)
    for index, outcome in enumerate(OUTCOMES):
        events = sum(run["events"][index] for run in runs)
        _sample(record, "fleetscope_events_total", {**labels, "outcome": outcome}, events, 1.0)
    for metric_name, index, factor in DTYPE_COUNTERS:
        for dtype in sorted({dtype for run in runs for dtype in run.get("dtypes", {})}):
            found = [[*run.get("dtypes", {}).get(dtype, ()), *[0] * SUMS] for run in runs]
            _sample(record, metric_name, {**labels, "dtype": dtype}, sum(sums[index] for sums in found), factor)
    durations.samples(record, name, runs)
    reasons = sorted({reason for run in runs for reason in run["unknown"]})
    for reason in reasons:
        count = sum(run["unknown"].get(reason, 0) for run in runs)
        _sample(record, "fleetscope_utilization_unknown_total", {**labels, "reason": reason}, count, 1.0)


def _sample(record: MetricsRecord, name: str, labels: Mapping[str, str], value: int, factor: float) -> None:
    _set_value(record.samples.add(name=metric(name).name, labels=labels), value, factor)


def _set_value(sample: MetricsRecord.Sample, value: int, factor: float) -> None:
    if factor == 1.0 and abs(value) < 1 << 62:
        sample.int_value, sample.is_int = value, True
    else:
        sample.value = value * factor
