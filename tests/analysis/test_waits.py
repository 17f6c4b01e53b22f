"""Occupancy, waits and confidence as `steps` shows them, on rows whose answer can be worked out on paper."""

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.analysis.devices import device_table
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.steps import rank_step_table, step_table
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
T0 = 1_796_000_000 * 10**9
MS = 10**6
PROCESS = {"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train", "attempt_name": "try-1", "pid": 77}
HOST = {"host": 1, "name": "h0"}

Lake = Callable[..., Snapshot]


def _step(rank: int, **given: Any) -> dict[str, Any]:
    row = {"t_ns": T0, "host": 1, "process": 2 + rank, "run": 9, "attempt": 8, "rank": rank, "step": 5}
    return {**row, "dur_ns": 100 * MS, "source": "declared", **given}


def test_a_step_shows_occupancy_idle_time_and_queueing_of_all_its_devices(lake_of: Lake) -> None:
    rows = [
        _step(0, watched_ns=200 * MS, occupancy_ns=150 * MS, idle_ns=50 * MS, queue_ns=60 * MS, executions=4, d2h_ns=9),
        _step(1, watched_ns=200 * MS, occupancy_ns=190 * MS, idle_ns=10 * MS, queue_ns=0, executions=2, d2h_ns=1),
    ]
    snapshot = lake_of(hosts=[HOST], processes=[PROCESS, {**PROCESS, "process": 3, "rank": 1}], step=rows)
    (row,) = step_table(snapshot, Scope()).to_pylist()
    assert (row["occupancy_ratio"], row["idle_ratio"]) == (340 / 400, 60 / 400)
    assert (row["queue_mean_ns"], row["d2h_ns"], row["confidence_ratio"]) == (10 * MS, 5, 1.0)
    ranks = {row["rank"]: row for row in rank_step_table(snapshot, Scope()).to_pylist()}
    assert (ranks[0]["occupancy_ratio"], ranks[0]["queue_mean_ns"]) == (0.75, 15 * MS)
    assert (ranks[1]["idle_ratio"], ranks[1]["queue_mean_ns"]) == (0.05, 0)


def test_an_inferred_step_says_how_sure_it_is_of_its_least_sure_rank(lake_of: Lake) -> None:
    rows = [_step(rank, source="inferred", confidence=sure) for rank, sure in ((0, 950), (1, 700))]
    snapshot = lake_of(hosts=[HOST], processes=[PROCESS], step=rows)
    (row,) = step_table(snapshot, Scope()).to_pylist()
    assert (row["source"], row["confidence_ratio"]) == ("inferred", 0.7)
    assert (row["occupancy_ratio"], row["idle_ratio"], row["queue_mean_ns"]) == (None, None, None), "no shim, no claim"


DEVICE = {"device": 3, "host": 1, "key": "h0/tpu/0/0", "local_name": "tpu:0"}
ROW = {"t_ns": T0, "host": 1, "process": 2, "device": 3}


def test_devices_show_occupancy_queueing_and_idle_time_by_cause(lake_of: Lake) -> None:
    """Of 10 s watched 6 s were occupied; the host waited 2.5 s of the 4 s for input and compiled 1 s."""
    second = 1000 * MS
    watched = {
        **ROW, "weight": 1, "watched_ns": 10 * second, "occupancy_ns": 6 * second, "executions": 12,
        "queue_ns": 3 * second, "idle_input_ns": 5 * second // 2, "idle_compile_ns": second,
        "idle_unknown_ns": second // 2, "run_ahead_max": 4,
    }  # fmt: skip
    more = {**watched, "t_ns": T0 + 10 * second, "run_ahead_max": 7}
    # a window saw 0.2 s, half of them busy: no part of the idle shares where executions are seen whole
    window = {
        **ROW, "weight": 0, "observed_ns": second // 5, "busy_ns": second // 10, "compute_ns": second // 10,
        "idle_unknown_ns": second // 10, "windows": 1, "executions": 1, "duty_q30": 1 << 29,
    }  # fmt: skip
    snapshot = lake_of(hosts=[HOST], processes=[PROCESS], devices=[DEVICE], device_10s=[watched, more, window])
    (row,) = device_table(snapshot, Scope()).to_pylist()
    assert (row["occupancy_ratio"], row["idle_ratio"], row["idle_input_ratio"]) == (0.6, 0.4, 0.25)
    assert (row["idle_compile_ratio"], row["idle_unknown_ratio"], row["idle_checkpoint_ratio"]) == (0.1, 0.05, 0)
    assert (row["queue_mean_ns"], row["run_ahead_max"], row["executions"]) == (second // 4, 7, 24)
    assert (row["busy_ratio"], row["seen"]) == (0.5, "windows")


def test_without_the_shim_idle_is_what_the_observed_ops_left(lake_of: Lake) -> None:
    seen = {
        **ROW, "weight": 1, "observed_ns": 100, "busy_ns": 70, "compute_ns": 40, "sparse_core_ns": 30,
        "idle_dispatch_ns": 20, "idle_unknown_ns": 10,
    }  # fmt: skip
    snapshot = lake_of(hosts=[HOST], processes=[PROCESS], devices=[DEVICE], device_10s=[seen])
    (row,) = device_table(snapshot, Scope()).to_pylist()
    assert (row["idle_ratio"], row["idle_dispatch_ratio"], row["sparse_core_ratio"]) == (0.3, 0.2, 0.3)
    assert (row["occupancy_ratio"], row["queue_mean_ns"], row["run_ahead_max"]) == (None, None, None)
