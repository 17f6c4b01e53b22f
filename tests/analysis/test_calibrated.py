"""Windows and exact counts of executions together, on lakes of a few rows, and through the real kernels in short."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fleetscope.analysis.calibrate import Exact, duty, residual, share, time_per_execution_ns, total_ns
from fleetscope.analysis.devices import device_table
from fleetscope.analysis.estimate import FEWEST, TOO_FEW, UNOBSERVABLE, Estimate, student_t
from fleetscope.analysis.groups import group_table
from fleetscope.analysis.ops import op_table
from fleetscope.analysis.runs import run_table
from fleetscope.analysis.scope import Scope
from fleetscope.schema.tables import PROGRAM_TOTAL
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.read import Snapshot

pytestmark = pytest.mark.unit
EVERYTHING = Scope()
T0 = 1_796_000_000 * 10**9
Q30 = 1 << 30
SECOND = 10**9
ROW = {"t_ns": T0, "host": 1, "process": 2, "device": 3}


def _sums(name: str, left: list[int], right: list[int]) -> dict[str, int]:
    total = sum(a * b for a, b in zip(left, right, strict=True))
    return {f"{name}_hi": total >> 32, f"{name}_lo": total % 2**32}


def _row(duties: list[float], seconds: list[float], runs: list[int], count: int = 20) -> dict[str, int]:
    """A row of windows: share of each, and in each `runs` whole executions that weigh 1 / s and take so long in all."""
    share_q30 = [int(one * Q30) for one in duties]
    whole = [int(one * Q30) for one in seconds]
    rate = [one * 10**6 for one in runs]
    row = {"windows": len(duties), "count": count, "executions": sum(runs), "near_q30": 0}
    row |= {"duty_q30": sum(share_q30), "rate_uhz": sum(rate), "whole_q30": sum(whole)}
    row |= _sums("duty_sq", share_q30, share_q30) | _sums("rate_sq", rate, rate)
    return row | _sums("whole_sq", whole, whole) | _sums("whole_rate", whole, rate)


RUNS = [4, 3, 4, 5, 4, 3, 4, 5, 4, 4]
OP_S = [0.040, 0.031, 0.041, 0.049, 0.040, 0.029, 0.039, 0.051, 0.040, 0.040]
DUTY = [0.2, 0.3, 0.25, 0.35, 0.2, 0.3, 0.3, 0.25, 0.3, 0.25]
PROGRAM = _row([2 * one for one in DUTY], [2 * one for one in OP_S], RUNS, count=0)
OP = _row(DUTY, OP_S, RUNS)


def test_time_per_execution_is_the_ratio_and_its_interval_the_jackknife_s() -> None:
    """0.4 s in 40 executions: 10 ms each; leaving out one window at a time gives the spread."""
    found = time_per_execution_ns(OP, PROGRAM)
    assert found.value == pytest.approx(10e6, rel=1e-6)
    left_out = [(0.4 - one) / (40 - runs) for one, runs in zip(OP_S, RUNS, strict=True)]
    mean = sum(left_out) / 10
    half = student_t(9) * (0.9 * sum((one - mean) ** 2 for one in left_out)) ** 0.5
    assert found.high - found.value == pytest.approx(half * SECOND, rel=0.02)


def test_a_share_is_calibrated_where_executions_were_counted() -> None:
    """500 executions of 10 ms in 20 s: a quarter, with a far narrower interval than windows alone give."""
    exact = Exact(500, 12 * SECOND)
    found, calibrated = share(OP, 10, PROGRAM, exact, 20 * SECOND)
    assert (calibrated, found.value) == (True, pytest.approx(0.25, rel=1e-6))
    alone, not_calibrated = share(OP, 10, PROGRAM, None, 0)
    assert (not_calibrated, alone.value) == (False, pytest.approx(0.27, rel=1e-6))
    assert alone.high - alone.value > 5 * (found.high - found.value)
    assert residual(total_ns(PROGRAM, PROGRAM, exact), exact) == pytest.approx(1 - 10 / 12, rel=1e-6)


def test_too_few_whole_executions_do_not_calibrate() -> None:
    few = {**PROGRAM, "executions": FEWEST - 1}
    assert total_ns(OP, few, Exact(500, 0)).reason == TOO_FEW
    assert share(OP, 10, few, Exact(500, 0), SECOND)[1] is False
    assert share({**OP, "near_q30": OP["duty_q30"]}, 10, PROGRAM, Exact(500, 0), SECOND)[0].reason == UNOBSERVABLE


def test_the_duty_of_a_device_adds_its_programs_and_bounds_what_ran_seldom() -> None:
    """Program 6: 500 x 20 ms = 10 s of 12 s in flight. Program 9 was never met: 0.6 s in flight, so 0.5 s at the same
    density, between 0 and 0.6 s. Of 20 s: 0.525."""
    alone = Estimate(0.6, 0.3, 0.9, 10)
    exact = {6: Exact(500, 12 * SECOND), 9: Exact(2, 6 * SECOND // 10)}
    found, calibrated = duty(alone, {6: PROGRAM}, exact, 20 * SECOND)
    one = total_ns(PROGRAM, PROGRAM, exact[6])
    assert (calibrated, found.value) == (True, pytest.approx(0.525, rel=1e-6))
    assert found.low == pytest.approx(one.low / 20 / SECOND, rel=1e-6)
    assert found.high == pytest.approx((one.high / SECOND + 0.6) / 20, rel=1e-6)
    # Above 5 % of what is in flight, windows alone are the better answer.
    assert duty(alone, {6: PROGRAM}, {**exact, 9: Exact(2, SECOND)}, 20 * SECOND) == (alone, False)
    assert duty(alone, {6: PROGRAM}, exact, 0) == (alone, False)


def _lake(shim: bool) -> dict[str, list[dict[str, Any]]]:
    histogram = {"hist_index": [640], "hist_count": [20], "min_ns": 1_000_000, "max_ns": 1_010_000}
    op = {**ROW, "device": 0, "kind": Kind.COMPUTE, "program": 6, "weight": 0, "sum_ns": 20_000_000, **histogram}
    busy = _row([2 * one for one in DUTY], OP_S, RUNS)
    tables: dict[str, list[dict[str, Any]]] = {
        "hosts": [{"host": 1, "name": "h0"}],
        "processes": [{"process": 2, "host": 1, "run": 9, "attempt": 8, "run_name": "train", "pid": 77}],
        "devices": [{"device": 3, "host": 1, "key": "gpu-uuid", "local_name": "GPU:0"}],
        "device_10s": [
            {**ROW, "weight": 0, "windows": 10, "observed_ns": SECOND, "busy_ns": SECOND // 2,
             "compute_ns": SECOND // 4, **{name: busy[name] for name in ("duty_q30", "duty_sq_hi", "duty_sq_lo")}},
        ],
        "op_10s": [
            {**op, "op": 4, **OP}, {**op, "op": 5, **OP},
            {**ROW, "kind": Kind.MODULE, "program": 6, "op": PROGRAM_TOTAL, "weight": 0, **PROGRAM},
        ],
        "programs": [{"program": 6, "module": "jit_step"}],
        "ops": [{"program": 6, "op": 4, "name": "dot.4", "category": "convolution"},
                {"program": 6, "op": 5, "name": "dot.5", "category": "convolution"}],
    }  # fmt: skip
    if shim:
        # Its rows name the program by the label it was loaded under.
        tables["device_10s"].append(
            {**ROW, "weight": 1, "watched_ns": 20 * SECOND, "occupancy_ns": 12 * SECOND, "executions": 500}
        )
        tables["op_10s"].append(
            {**ROW, "kind": Kind.MODULE, "program": 777, "op": 0, "weight": 1, "count": 500, "sum_ns": 12 * SECOND,
             "hist_index": [640], "hist_count": [500]}
        )  # fmt: skip
        tables["program_loads"] = [{"process": 2, "program_id": 777, "program": 6}]
    return tables


def test_ops_and_devices_show_interval_windows_coverage_and_calibration(lake_of: Callable[..., Snapshot]) -> None:
    snapshot = lake_of(**_lake(shim=True))
    first, second = op_table(snapshot, EVERYTHING).to_pylist()
    for row in (first, second):
        assert (row["calibrated"], row["windows"], row["reason"]) == (True, 10, None)
        assert row["share_ratio"] == pytest.approx(0.25, rel=1e-6)
        assert 0.24 < row["low_ratio"] < 0.25 < row["high_ratio"] < 0.26
        assert row["coverage_ratio"] == pytest.approx(1 / 20)
        assert row["residual_ratio"] == pytest.approx(1 - 10 / 12, rel=1e-6)
    (device,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert (device["seen"], device["calibrated"], device["windows"], device["executions"]) == ("windows", True, 10, 500)
    assert device["busy_ratio"] == pytest.approx(0.5, rel=1e-6)
    assert device["compute_ratio"] == pytest.approx(0.25, rel=1e-6)
    assert 0.48 < device["busy_low_ratio"] < 0.5 < device["busy_high_ratio"] < 0.52
    assert (device["occupancy_ratio"], device["coverage_ratio"]) == (pytest.approx(0.6), pytest.approx(0.05))
    assert device["residual_ratio"] == pytest.approx(1 - 10 / 12, rel=1e-6)


def test_without_a_shim_the_same_rows_are_estimates_of_windows(lake_of: Callable[..., Snapshot]) -> None:
    snapshot = lake_of(**_lake(shim=False))
    row = op_table(snapshot, EVERYTHING).to_pylist()[0]
    spread = (sum((one - 0.27) ** 2 for one in DUTY) / 9 / 10) ** 0.5
    assert (row["calibrated"], row["share_ratio"]) == (False, pytest.approx(0.27, rel=1e-6))
    assert row["high_ratio"] == pytest.approx(0.27 + 2.262157 * spread, rel=1e-5)
    assert (row["residual_ratio"], row["coverage_ratio"]) == (None, pytest.approx(0.1))
    (device,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert (device["calibrated"], device["busy_ratio"]) == (False, pytest.approx(0.54, rel=1e-6))
    assert device["busy_low_ratio"] == pytest.approx(0.54 - 2 * 2.262157 * spread, rel=1e-5)
    assert device["occupancy_ratio"] is None


def test_categories_and_programs(lake_of: Callable[..., Snapshot]) -> None:
    snapshot = lake_of(**_lake(shim=True))
    (op, _) = op_table(snapshot, EVERYTHING).to_pylist()
    (category,) = group_table(snapshot, EVERYTHING, "category").to_pylist()
    assert (category["category"], category["ops"], category["calibrated"]) == ("convolution", 2, True)
    assert category["share_ratio"] == pytest.approx(0.5, rel=1e-6)
    assert category["high_ratio"] - 0.5 == pytest.approx(2 * (op["high_ratio"] - 0.25), rel=1e-3)
    (program,) = group_table(snapshot, EVERYTHING, "program").to_pylist()
    assert (program["module"], program["executions"], program["calibrated"]) == ("jit_step", 500, True)
    assert program["share_ratio"] == pytest.approx(0.5, rel=1e-6)
    assert program["residual_ratio"] == pytest.approx(1 - 10 / 12, rel=1e-6)


def test_a_category_names_its_unobservable_ops(lake_of: Callable[..., Snapshot]) -> None:
    tables = _lake(shim=True)
    tables["op_10s"][1] |= {"duty_q30": 0, "whole_q30": 0}
    snapshot = lake_of(**tables)
    hidden = [row for row in op_table(snapshot, EVERYTHING).to_pylist() if row["op"] == "dot.5"]
    assert [(row["share_ratio"], row["reason"]) for row in hidden] == [(None, UNOBSERVABLE)]
    for by in ("category", "program"):
        (row,) = group_table(snapshot, EVERYTHING, by).to_pylist()  # type: ignore[arg-type]
        assert (row["unobservable"], row["share_ratio"]) == (["dot.5"], pytest.approx(0.25, rel=1e-6))


def test_executions_alone_are_no_busy_time(lake_of: Callable[..., Snapshot]) -> None:
    tables = _lake(shim=True)
    tables["device_10s"] = tables["device_10s"][1:]
    tables["op_10s"] = tables["op_10s"][3:]
    snapshot = lake_of(**tables)
    (row,) = device_table(snapshot, EVERYTHING).to_pylist()
    assert (row["seen"], row["busy_ratio"], row["occupancy_ratio"]) == ("executions", None, pytest.approx(0.6))
    (run,) = run_table(snapshot, EVERYTHING).to_pylist()
    assert (run["seen"], run["busy_ratio"]) == ("executions", None)


@pytest.mark.property
@pytest.mark.timeout(120)
def test_intervals_hold_the_truth_through_the_real_kernels(repository: Path) -> None:
    """benchmarks/estimator_truth.py with fewer runs of three mixes; its full form takes minutes."""
    command = [sys.executable, str(repository / "benchmarks" / "estimator_truth.py"), "--runs", "50"]
    done = subprocess.run([*command, "--mixes", "bursty", "long"], capture_output=True, text=True, timeout=110)
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.returncode, result["failed"]) == (0, []), done.stderr
    assert result["mixes"]["long, capped"]["named"] > 0
