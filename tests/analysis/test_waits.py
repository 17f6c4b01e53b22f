"""Occupancy, waits and confidence as `steps` shows them, on rows whose answer can be worked out on paper."""

from collections.abc import Callable
from typing import Any

import pytest

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
