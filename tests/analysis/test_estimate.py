"""What windows say about a run, on timelines whose truth is known (mixes of reference/window-estimators.md)."""

import numpy as np
import pytest

from fleetscope.analysis.estimate import (
    FEWEST,
    TOO_FEW,
    UNOBSERVABLE,
    Estimate,
    device_duty,
    mean,
    op_duty,
    rate_hz,
    ratio,
    student_t,
    together,
    unknown,
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
def test_an_interval_is_of_the_windows_that_saw_something() -> None:
    """10 of 100 windows hold the value 5: mean 0.5, sample variance 25/10 x 100/99 x 0.9; 9 degrees of freedom."""
    found = mean(50, 250, 100, 10)
    assert found.value == pytest.approx(0.5)
    assert found.high - found.value == pytest.approx(2.262157 * (2.25 * 100 / 99 / 100) ** 0.5, rel=1e-5)
    assert mean(35, 175, 100, FEWEST - 1).reason == TOO_FEW
    assert ratio(5, 5, 25, 25, 25, 100, FEWEST - 1).reason == TOO_FEW


def _rows(per: int, windows: int, rate_uhz: int) -> dict[str, int]:
    """An op whose share and rate are the same in every window."""
    row = {
        "count": 100,
        "executions": 50,
        "windows": windows,
        "duty_q30": per * windows,
        "rate_uhz": rate_uhz * windows,
        "near_q30": 0,
    }
    row |= {"duty_sq_hi": per**2 * windows >> 32, "duty_sq_lo": per**2 * windows % 2**32}
    return row | {"rate_sq_hi": rate_uhz**2 * windows >> 32, "rate_sq_lo": rate_uhz**2 * windows % 2**32}


@pytest.mark.unit
def test_estimates_of_a_merged_row() -> None:
    op = _rows(2**28, 50, 4_000_000)
    for found, value in ((op_duty(op, 50), 0.25), (rate_hz(op, 50), 4), (op_duty(op, 100), 0.125)):
        assert found.value == pytest.approx(value)
    assert op_duty(op, 50).high == pytest.approx(0.25)
    # Twice in each of 50 executions and nothing that varies: 3 of 50 more or fewer (the rule of three).
    assert rate_hz(op, 50).high == pytest.approx(4 * 1.06)
    assert rate_hz(op, 50).low == pytest.approx(4 * 0.94)
    # A program's row has no count of ops: 3 of its executions.
    assert rate_hz({**op, "count": 0}, 50).high == pytest.approx(4 * 1.06)
    assert device_duty(op).value == pytest.approx(0.25)
    assert rate_hz({**op, "rate_sq_hi": 0, "rate_sq_lo": 0}, 50).reason == TOO_FEW  # of format 1


@pytest.mark.property
def test_rates_of_few_windows_of_four_steps_and_a_bit_hold_the_truth() -> None:
    """20 windows of 4.1 periods at uniform phases, 1 000 samples: 0.91^20 = 15 % of the samples have no window with a
    fifth execution, and their rates do not vary at all. Counted from the phases, 1 ms of 100 to an execution."""
    random, held = np.random.default_rng(5), []
    for _ in range(1000):
        first = 100 - random.uniform(0, 100, 20)
        whole = np.floor((410 - 1 - first) / 100).astype(int) + 1
        each = 10**9 // 409 * whole  # 1 / (W - d) of ms, in 1e-6 / s
        squares = sum(int(rate) ** 2 for rate in each)
        row = {"count": int(whole.sum()), "executions": int(whole.sum()), "windows": 20, "rate_uhz": int(each.sum())}
        row |= {"rate_sq_hi": squares >> 32, "rate_sq_lo": squares % 2**32, "duty_q30": 1, "near_q30": 0}
        found = rate_hz(row, 20)
        held.append(found.low <= 10 <= found.high)
    assert np.mean(held) >= 0.95


@pytest.mark.unit
@pytest.mark.parametrize(("near", "duty", "reason"), [(0, 0, UNOBSERVABLE), (6, 100, UNOBSERVABLE), (5, 100, "")])
def test_an_op_with_spans_near_the_window_s_length_is_unobservable(near: int, duty: int, reason: str) -> None:
    op = _rows(duty, 50, 4_000_000) | {"near_q30": near * 50}
    assert (op_duty(op, 50).reason, rate_hz(op, 50).reason) == (reason, reason)


@pytest.mark.unit
def test_sums_of_estimates_have_the_sum_of_half_widths() -> None:
    found = together([Estimate(1.0, 0.9, 1.1, 50), Estimate(2.0, 1.7, 2.3, 50)])
    assert (found.value, found.low, found.high) == (pytest.approx(3), pytest.approx(2.6), pytest.approx(3.4))
    part = together([Estimate(1.0, 0.9, 1.1, 50), unknown(50, UNOBSERVABLE)])
    assert (part.value, part.reason) == (1.0, UNOBSERVABLE)
    assert together([]).reason == TOO_FEW
