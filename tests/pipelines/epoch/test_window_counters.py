"""What a window row (a sample) adds to the counters Prometheus divides."""

import pyarrow as pa
import pytest

from fleetscope.pipelines.counters import DEVICE_COUNTERS, add_devices, add_steps, records
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.tables import DEVICE_10S, STEP
from fleetscope.schema.vocabulary import StepFlag

FRESH = {"event_ns": 1, "devices": {}, "events": [0] * 5, "unknown": {}}
"""Counters of a run, as an earlier version carried them, but for its steps."""


@pytest.mark.unit
@pytest.mark.parametrize(("weight", "factor"), [(0, 1.6), (1, 1.0)])
def test_shares_and_mfu_of_windows_are_estimates(weight: int, factor: float) -> None:
    """Seen busy 1 of 2 ms, estimated 0.8 of the time: time by class and FLOPs grow by 1.6, what is divided by
    does not."""
    seen = {"busy_ns": 10**6, "observed_ns": 2 * 10**6, "compute_ns": 700_000, "collective_ns": 200_000}
    seen |= {"copy_ns": 100_000, "flops": 90_000, "model_flops": 60_000, "peak_flop": 400_000, "op_ns": 10**6}
    seen |= {"flops_known_ns": 990_000}
    row = dict.fromkeys(DEVICE_10S.names, 0) | seen | {"process": 2, "device": 3, "weight": weight}
    row |= {"windows": 10, "duty_q30": 10 * int(0.8 * 2**30)}
    state = PartitionState()
    assert add_devices(state, pa.Table.from_pylist([row], DEVICE_10S), {2: "train"}) == {"train"}
    found = state.counters["train"]["devices"]["3"]
    scaled = ("busy_ns", "compute_ns", "collective_ns", "copy_ns", "flops", "model_flops")
    expected = [seen.get(column, 0) * (factor if column in scaled else 1) for _, column, _ in DEVICE_COUNTERS]
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.unit
def test_time_in_which_executions_alone_were_seen_is_neither_busy_nor_observed() -> None:
    seen = {"watched_ns": 1000, "occupancy_ns": 700, "queue_ns": 40, "executions": 3, "idle_input_ns": 200}
    row = dict.fromkeys(DEVICE_10S.names, 0) | seen | {"process": 2, "device": 3, "weight": 1}
    window = dict.fromkeys(DEVICE_10S.names, 0) | {"process": 2, "device": 3, "observed_ns": 9, "idle_input_ns": 9}
    found_late = dict.fromkeys(DEVICE_10S.names, 0) | {"process": 2, "device": 3, "weight": 1}
    found_late |= {"idle_input_ns": 50, "idle_unknown_ns": -50}
    state = PartitionState()
    add_devices(state, pa.Table.from_pylist([row, window | {"executions": 1}, found_late], DEVICE_10S), {2: "train"})
    columns = [column for _, column, _ in DEVICE_COUNTERS]
    told = dict(zip(columns, state.counters["train"]["devices"]["3"], strict=True))
    assert (told["watched_ns"], told["occupancy_ns"], told["queue_ns"]) == (1000, 700, 40)
    assert (told["idle_input_watched"], told["executions_watched"]) == (250, 3)
    assert (told["busy_ns"], told["observed_ns"]) == (0, 9)


@pytest.mark.unit
def test_clock_bounds_are_added_where_there_is_one() -> None:
    """3 and 5 us: the mean is 4. -1 is an error nothing bounds, and a correction without events (0) has none."""
    rows = [
        dict.fromkeys(DEVICE_10S.names, 0)
        | {"process": 2, "device": 3, "weight": 1, "err_ns": err, "unsynced": unsynced}
        for err, unsynced in ((3000, 0), (5000, 2), (-1, 7), (0, 0))
    ]
    state = PartitionState()
    add_devices(state, pa.Table.from_pylist(rows, DEVICE_10S), {2: "train"})
    told = dict(zip([metric for metric, _, _ in DEVICE_COUNTERS], state.counters["train"]["devices"]["3"], strict=True))
    assert told["fleetscope_device_clock_error_seconds_total"] == 8000
    assert told["fleetscope_device_clock_parts_total"] == 2
    assert told["fleetscope_device_unsynced_events_total"] == 9


@pytest.mark.unit
def test_steps_that_were_told_late_are_counted_and_no_part_of_the_step_time() -> None:
    """Three steps of 100 ns, one of them evaluation; 450 and 10 ns told late, and one that was written before."""
    late = int(StepFlag.MISTIMED)
    empty: dict[str, object] = dict.fromkeys(STEP.names, 0) | {"process": 2, "source": "inferred"}
    told = [(100, 0), (100, 0), (100, int(StepFlag.EVAL)), (450, late), (10, late | int(StepFlag.EVAL)), (0, late)]
    rows = [empty | {"t_ns": at, "dur_ns": dur, "flags": flags} for at, (dur, flags) in enumerate(told)]
    state = PartitionState(counters={"train": {**FRESH, "steps": [1000, 2]}})
    assert add_steps(state, pa.Table.from_pylist(rows, STEP), {2: "train"}) == {"train"}
    (run, _) = records(0, 1, 1, [state])
    found = {sample.name: sample.int_value if sample.is_int else sample.value for sample in run.samples}
    assert found["fleetscope_run_step_seconds_total"] == pytest.approx(1300e-9)
    assert (found["fleetscope_run_steps_total"], found["fleetscope_run_mistimed_steps_total"]) == (5, 3)
