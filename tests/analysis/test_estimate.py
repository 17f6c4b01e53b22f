"""What windows say about a run, on timelines whose truth is known (mixes of reference/window-estimators.md)."""

import numpy as np
import pytest

from fleetscope.analysis.estimate import (
    TOO_FEW,
    device_duty,
    mean,
    op_rate_hz,
    op_time_per_execution,
    op_total_ns,
    ratio,
    share_of_busy,
    student_t,
)

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
