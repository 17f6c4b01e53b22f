"""What windows say about a run, on timelines whose truth is known (mixes of reference/window-estimators.md)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo
from fleetscope.pipelines.busy import device_rollup
from fleetscope.pipelines.estimate import (
    TOO_FEW,
    UNOBSERVABLE,
    device_duty,
    mean,
    op_duty,
    op_rate_hz,
    op_time_per_execution,
    op_total_ns,
    ratio,
    share_of_busy,
    student_t,
)
from fleetscope.pipelines.histogram import quantile
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.pipelines.squares import joined
from fleetscope.schema.vocabulary import Kind

MS = 10**6


@pytest.mark.unit
@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706205), (2, 4.302653), (7, 2.364624), (49, 2.009575), (149, 1.976013)]
)
def test_student_t_by_the_tables(freedom: int, quantile: float) -> None:
    assert abs(student_t(freedom) - quantile) < 2e-5


@pytest.mark.unit
def test_a_mean_is_what_the_jackknife_over_windows_gives() -> None:
    values = [3, 5, 8, 13, 2, 7, 7, 9, 4, 6]
    n, total = len(values), sum(values)
    left_out = [(total - value) / (n - 1) for value in values]
    variance = (n - 1) / n * sum((one - sum(left_out) / n) ** 2 for one in left_out)
    got = mean(total, sum(value**2 for value in values), n)
    assert got.value == pytest.approx(6.4)
    assert got.high - got.value == pytest.approx(student_t(9) * variance**0.5)


@pytest.mark.unit
def test_a_ratio_is_near_what_the_jackknife_gives() -> None:
    rng = np.random.default_rng(3)
    b = rng.integers(5, 15, 60)
    a = (b * 1000 * (1 + 0.05 * rng.standard_normal(60))).astype(int)
    left_out = [(a.sum() - x) / (b.sum() - y) for x, y in zip(a, b, strict=True)]
    deviation = (59 / 60 * np.sum((left_out - np.mean(left_out)) ** 2)) ** 0.5
    got = ratio(int(a.sum()), int(b.sum()), int((a * a).sum()), int((a * b).sum()), int((b * b).sum()), 60)
    assert got.value == pytest.approx(a.sum() / b.sum())
    assert got.high - got.value == pytest.approx(student_t(59) * deviation, rel=0.03)


@pytest.mark.unit
def test_no_interval_is_given_without_windows() -> None:
    assert mean(5, 25, 3).reason == TOO_FEW
    assert ratio(5, 0, 25, 0, 0, 50).reason == TOO_FEW


def _timeline(
    mix: str, rng: np.random.Generator, executions: int
) -> tuple[list[np.ndarray], list[np.ndarray], int, int]:
    """Starts and durations of each op, total length, W = clamp(4 x the longest execution, 0.2 s, 30 s)."""
    if mix == "tiny":
        median, gap = np.full(6, 5_000.0), rng.exponential(20_000, executions)
    elif mix == "long":
        median, gap = np.array([2e5, 2e8, 5e6, 2e8]), rng.exponential(3e7, executions)
    else:
        median, gap = np.array([1e5, 2e6, 5e5]), 1e6 * (rng.pareto(1.6, executions) + 1)
    dur = np.maximum(median * (1 + 0.05 * rng.standard_normal((executions, len(median)))), 1).astype(np.int64)
    whole = dur.sum(axis=1)
    begin = np.cumsum(whole + gap.astype(np.int64)) - whole
    starts = begin[:, None] + np.cumsum(dur, axis=1) - dur
    length = min(max(4 * int(whole.max()), 200 * MS), 30_000 * MS)
    ops = range(len(median))
    return [starts[:, k] for k in ops], [dur[:, k] for k in ops], int(begin[-1] + whole[-1]), length


@pytest.mark.property
@pytest.mark.parametrize(("mix", "executions"), [("tiny", 400_000), ("long", 3_000), ("bursty", 40_000)])
def test_intervals_hold_the_truth(mix: str, executions: int) -> None:
    """200 runs of 60 windows at uniform phases: bias below 2 %, and at least 90 % of the 95 % intervals hold the
    truth."""
    rng = np.random.default_rng(11)
    starts, durations, end, length = _timeline(mix, rng, executions)
    runs, windows = 200, 60
    at = rng.integers(0, end - length, (runs, windows))
    truths, held, bias = [], [], []
    for start, dur in zip(starts, durations, strict=True):
        # A span is kept only if it is wholly inside.
        first = np.searchsorted(start, at, side="left")
        last = np.searchsorted(start + dur, at + length, side="right")
        weight = np.concatenate(([0], np.cumsum((dur << 30) // (length - dur))))
        duty = np.maximum(weight[np.maximum(last, first)] - weight[first], 0)
        truth = float(dur.sum() / end)
        found = [mean(int(row.sum()), sum(int(v) ** 2 for v in row), windows).scaled(2**-30) for row in duty]
        truths.append(truth)
        held.append(np.mean([one.low <= truth <= one.high for one in found]))
        bias.append(abs(np.mean([one.value for one in found]) / truth - 1))
    assert min(held) >= 0.90, (held, truths)
    assert max(bias) <= 0.02, bias


def _unit(small: SimpleNamespace, number: int, rows: tuple[Any, ...], length: int) -> Any:
    info = BatchInfo(1, 2, 3, number * length, (number + 1) * length, 5, 4, 77 + number, length, 9, False)
    moved = tuple(small.Row(r.line, r.start + number * length, r.dur, r.kind, r.program, r.op, 0, r.exec) for r in rows)
    return small.Given(info, (small.line_of(0, 0, 5, 4),), moved)


@pytest.mark.unit
def test_columns_of_units_by_hand(small: SimpleNamespace) -> None:
    """W = 1 000 ns (800 ticks of 1.25 ns): an op of 100 ns twice in one window, once in the next, and one of 990 ns."""
    length = 800
    first = (small.Row(0, 0, 80, op=1, exec=1), small.Row(0, 100, 80, op=1, exec=2), small.Row(1, 0, 160, op=2, exec=1))
    second = (small.Row(0, 40, 80, op=1, exec=3), small.Row(1, 0, 792, op=3, exec=3))
    batches = [_unit(small, 0, first, length), _unit(small, 1, second, length)]
    block = small.build(batches)
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    rows = {row["op"]: row for row in op_rollup(block, placed, nested).to_pylist()}
    one = 100 * 2**30 // 900
    assert (rows[1]["weight"], rows[1]["windows"], rows[1]["count"]) == (0, 2, 3)
    assert rows[1]["duty_q30"] == 3 * one
    assert joined(rows[1]["duty_sq_hi"], rows[1]["duty_sq_lo"]) == (2 * one) ** 2 + one**2
    assert rows[1]["rate_uhz"] == 3 * (10**15 // 900)
    assert joined(rows[1]["time_sq_hi"], rows[1]["time_sq_lo"]) == 200**2 + 100**2
    assert (rows[1]["executions"], rows[1]["time_exec"], rows[1]["exec_sq"]) == (3, 200 * 2 + 100 * 1, 5)
    assert rows[2]["duty_q30"] == 200 * 2**30 // 800
    assert (rows[3]["count"], rows[3]["duty_q30"], rows[3]["rate_uhz"]) == (1, 0, 0)
    assert op_duty(rows[3], 50).reason == UNOBSERVABLE
    assert op_rate_hz(rows[1], 2) == pytest.approx(3 / 900e-9 / 2)
    (device,) = device_rollup(block, placed, nested).to_pylist()
    assert (device["weight"], device["windows"], device["observed_ns"]) == (0, 2, 2000)
    # Window 1: lines 0 and 1 hide each other: 200 + 200 ns of ops in 300 - 0 = 225 ns busy.
    busy = (225, 990)
    assert device["busy_ns"] == sum(busy)
    assert joined(device["busy_sq_hi"], device["busy_sq_lo"]) == busy[0] ** 2 + busy[1] ** 2
    duties = [(2 * one + 200 * 2**30 // 800) * 225 // 400, one * 990 // 1090]
    assert device["duty_q30"] == sum(duties)
    # However the windows come, the sums between them are those of whole windows.
    parts = [small.build([batch]) for batch in batches]
    tables = [op_rollup(part, place_rows(part), nest(part, place_rows(part).dur_ns)) for part in parts]
    assert merge("op_10s", tables).equals(merge("op_10s", [op_rollup(block, placed, nested)]))


@pytest.mark.unit
def test_a_window_across_an_edge_is_one_unit(small: SimpleNamespace) -> None:
    """Its spans are counted in the windows they end in, its estimator columns in the one it ends in."""
    second = 800_000_000
    rows = (small.Row(0, 9 * second, second // 2, op=1), small.Row(0, 11 * second, second // 4, op=1))
    info = BatchInfo(1, 2, 3, 8 * second, 12 * second, 5, 4, 7, 4 * second, 3, False)
    rows = tuple(small.Row(r.line, r.start, r.dur, op=1, weight=0) for r in rows)
    block = small.build([small.Given(info, (small.line_of(0, 0, 5, 4),), rows)])
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    table = merge("op_10s", [op_rollup(block, placed, nested)]).to_pylist()
    assert [(r["t_ns"], r["count"], r["windows"], r["executions"]) for r in table] == [(0, 1, 0, 0), (10**10, 1, 1, 3)]
    assert joined(table[1]["time_sq_hi"], table[1]["time_sq_lo"]) == 750_000_000**2
    devices = device_rollup(block, placed, nested).to_pylist()
    assert [(r["observed_ns"], r["busy_ns"], r["windows"]) for r in devices] == [
        (2 * 10**9, 5 * 10**8, 0),
        (2 * 10**9, 25 * 10**7, 1),
    ]


@pytest.mark.unit
def test_estimates_of_a_merged_row() -> None:
    per, windows = 2**28, 50
    op = {"count": 100, "sum_ns": 50_000, "duty_q30": per * windows, "rate_uhz": 4_000_000 * windows, "executions": 100}
    op |= {"duty_sq_hi": per**2 * windows >> 32, "duty_sq_lo": per**2 * windows % 2**32}
    op |= {"time_sq_hi": 0, "time_sq_lo": 1000**2 * windows, "time_exec": 1000 * 2 * windows, "exec_sq": 4 * windows}
    device = {"windows": windows, "duty_q30": 2 * per * windows}
    device |= {"duty_sq_hi": 4 * per**2 * windows >> 32, "duty_sq_lo": 4 * per**2 * windows % 2**32}
    assert device_duty(device).value == pytest.approx(0.5)
    assert op_total_ns(op, windows, 10**9).value == pytest.approx(0.25e9)
    assert share_of_busy(op, device).value == pytest.approx(0.5)
    assert share_of_busy(op, device).high == pytest.approx(0.5)
    assert op_time_per_execution(op, windows).value == pytest.approx(500)
    assert op_time_per_execution(op, windows).high == pytest.approx(500)
    assert op_rate_hz(op, windows) == pytest.approx(4)


@pytest.mark.unit
def test_quantiles_lie_in_their_bucket() -> None:
    durations = np.sort((np.random.default_rng(1).lognormal(10, 1, 5000)).astype(np.int64))
    from fleetscope.pipelines.histogram import bucket_index

    index, count = np.unique(bucket_index(durations), return_counts=True)
    for share in (0.01, 0.5, 0.99, 1.0):
        low, high = quantile(index.tolist(), count.tolist(), share, int(durations[0]), int(durations[-1]))
        exact = int(durations[max(int(np.ceil(share * 5000)) - 1, 0)])
        assert low <= exact <= high <= low * 1.023
    with pytest.raises(ValueError, match="empty"):
        quantile([], [], 0.5, 0, 0)


@pytest.mark.unit
def test_module_spans_are_the_executions_of_a_unit(small: SimpleNamespace) -> None:
    rows = (
        small.Row(0, 0, 100, Kind.MODULE, program=7),
        small.Row(0, 200, 100, Kind.MODULE, program=7),
        small.Row(1, 0, 50, op=1, program=7, exec=4),
    )
    block = small.build([_unit(small, 0, rows, 800)])
    placed = place_rows(block)
    table = op_rollup(block, placed, nest(block, placed.dur_ns)).to_pylist()
    assert {row["kind"]: row["executions"] for row in table} == {Kind.MODULE: 2, Kind.COMPUTE: 2}
