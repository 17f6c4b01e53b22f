"""Which runs wait for their input: from steps, from windows of runs without steps, and not where devices were busy."""

from collections.abc import Callable
from typing import Any

import pytest

from fleetscope.analysis.scope import Scope
from fleetscope.analysis.waiting import InputWait, input_waits
from fleetscope.schema.vocabulary import Kind, StepFlag
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit

T0 = 1_796_000_000 * 10**9
MS = 10**6


def process(number: int, run: str) -> dict[str, Any]:
    return {"process": number, "host": 1, "run": number, "attempt": number, "run_name": run, "attempt_name": f"{run}-1"}


def steps(run: int, count: int, wait_ms: float, **more: int) -> list[dict[str, Any]]:
    one = {"run": run, "attempt": run, "process": run, "host": 1, "dur_ns": 60 * MS, "data_wait_ns": int(wait_ms * MS)}
    return [{**one, "step": n, "t_ns": T0 + n * 60 * MS, **more} for n in range(count)]


def test_runs_with_steps(lake_of: Callable[..., Snapshot]) -> None:
    lake = lake_of(
        hosts=[{"host": 1, "name": "h"}],
        processes=[process(1, "starved"), process(2, "fed"), process(3, "hidden"), process(4, "short")],
        step=[
            *steps(1, 10, 30),
            *steps(1, 1, 6000, flags=int(StepFlag.FIRST), t_ns=T0 - MS),
            *steps(2, 10, 3),
            # The loader takes half of the step, but the devices, seen throughout, are idle a tenth of it.
            *steps(3, 10, 30, watched_ns=60 * MS, idle_ns=6 * MS),
            *steps(4, 7, 30),
        ],
    )
    found = input_waits(lake, Scope())
    assert found == [
        InputWait("starved", 10, 300 * MS, 600 * MS),
        InputWait("hidden", 10, 60 * MS, 600 * MS),
        InputWait("fed", 10, 30 * MS, 600 * MS),
    ]
    assert [one.bound for one in found] == [True, False, False]
    assert found[0].sentence() == "starved: input-bound, waits for input 50% of the time, 30.0 of 60.0 ms a step"
    assert [one.run for one in input_waits(lake, Scope(run="fed"))] == ["fed"]


def test_runs_without_steps(lake_of: Callable[..., Snapshot]) -> None:
    """Whole windows alone: the first and the last of a process hold less than 10 s of it."""
    windows = [
        {"t_ns": T0 + n * 10**10, "host": 1, "process": 1, "kind": int(kind), "sum_ns": ns, "weight": 1, "count": 1}
        for n in range(4)
        for kind, ns in ((Kind.DATA_WAIT, 10**9 if n in (0, 3) else 4 * 10**9), (Kind.HOST, 10**9))
    ]
    lake = lake_of(hosts=[{"host": 1, "name": "h"}], processes=[process(1, "plain")], op_10s=windows)
    (found,) = input_waits(lake, Scope())
    assert found == InputWait("plain", 0, 8 * 10**9, 20 * 10**9)
    assert found.sentence() == "plain: input-bound, waits for input 40% of the time"


def test_an_empty_lake(lake_of: Callable[..., Snapshot]) -> None:
    assert input_waits(lake_of(hosts=[{"host": 1, "name": "h"}]), Scope()) == []
