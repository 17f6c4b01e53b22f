"""From rollup columns of profiler windows to totals with honest intervals, for readers of weight 0 rows.

Windows are the sampling units. For a mean over them the jackknife is the classical interval m +- t s / sqrt(n); for
a ratio of two sums it agrees to first order with the linearised one used here. Intervals are 95 %, Student's t with
n - 1 degrees of freedom: the percentile bootstrap dips below 93 % at 50 windows, this does not
(reference/window-estimators.md).
"""

from dataclasses import dataclass
from functools import cache
from math import exp, lgamma, log, nan, pi, sqrt

FEWEST = 8
"""Windows below which no interval is given: one window has a spread of 11-18 %, and t alone is 2.4 times the
normal's then."""

Q30 = 1 << 30

TOO_FEW = "too few windows"
UNOBSERVABLE = "longer than the window"


@dataclass(frozen=True, slots=True)
class Estimate:
    """`value` with its 95 % interval [low, high] from `windows` units. `reason` says why there is no interval: then
    both ends are NaN, and so is `value` where there is none either."""

    value: float
    low: float
    high: float
    windows: int
    reason: str = ""

    @property
    def known(self) -> bool:
        """There is an interval."""
        return not self.reason

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.windows, self.reason)


def unknown(windows: int, reason: str, value: float = nan) -> Estimate:
    """No interval; perhaps a value."""
    return Estimate(value, nan, nan, windows, reason)


def joined(hi: int, lo: int) -> int:
    """The exact sum of squares from the columns *_sq_hi and *_sq_lo (schema.tables)."""
    return (hi << 32) + lo


@cache
def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, by bisection of its integral (Simpson over 2 000 steps: 1e-7)."""
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(freedom * pi)

    def upto(x: float) -> float:
        step = x / 2000
        weights = [1, *([4, 2] * 999), 4, 1]
        return (
            step
            / 3
            * sum(
                w * scale * exp(-(freedom + 1) / 2 * log(1 + (i * step) ** 2 / freedom)) for i, w in enumerate(weights)
            )
        )

    low, high = 0.0, 13.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if upto(middle) < 0.475 else (low, middle)
    return (low + high) / 2


def mean(total: int, squares: int, windows: int) -> Estimate:
    """Mean over `windows` units whose values add to `total` and their squares to `squares`; units without a value
    count as 0."""
    if windows < FEWEST:
        return unknown(windows, TOO_FEW, total / windows if windows else nan)
    value = total / windows
    # n * sum of squares - sum^2 in whole numbers: in floats the difference would lose what it is about.
    spread = max(squares * windows - total * total, 0) / (windows * (windows - 1))
    half = student_t(windows - 1) * sqrt(spread / windows)
    return Estimate(value, value - half, value + half, windows)


def ratio(above: int, below: int, above_sq: int, both: int, below_sq: int, windows: int) -> Estimate:
    """(sum of a) / (sum of b) over units from sums of a, b, a^2, a b, b^2 (linearised: Cochran, Sampling Techniques,
    6.4)."""
    if windows < FEWEST or below <= 0:
        return unknown(windows, TOO_FEW, above / below if below > 0 else nan)
    value = above / below
    # sum (a - r b)^2 with r = A / B, times B^2.
    residual = max(above_sq * below * below - 2 * both * above * below + below_sq * above * above, 0)
    spread = residual / (below * below) * windows / (windows - 1)
    half = student_t(windows - 1) * sqrt(spread) / below
    return Estimate(value, value - half, value + half, windows)


def device_duty(row: dict[str, int]) -> Estimate:
    """Share of time a device was busy, from a (merged) DEVICE_10S row of weight 0."""
    squares = joined(row["duty_sq_hi"], row["duty_sq_lo"])
    return mean(row["duty_q30"], squares, row["windows"]).scaled(1 / Q30)


def op_duty(row: dict[str, int], windows: int) -> Estimate:
    """Share of time in an op, from a (merged) OP_10S row of weight 0; `windows`: all units looked at, also those
    without the op.

    Above 1 where several lines run it at once. Unobservable: it was seen, but only in spans too near the window's
    length to stand for those that were not.
    """
    if row["count"] and not row["duty_q30"]:
        return unknown(windows, UNOBSERVABLE)
    return mean(row["duty_q30"], joined(row["duty_sq_hi"], row["duty_sq_lo"]), windows).scaled(1 / Q30)


def op_rate_hz(row: dict[str, int], windows: int) -> float:
    """Occurrences a second, without an interval (their squares are not kept)."""
    return row["rate_uhz"] / windows * 1e-6 if windows else nan


def op_total_ns(row: dict[str, int], windows: int, elapsed_ns: int) -> Estimate:
    """Time in an op over `elapsed_ns` (devices x wall time) of which the windows are a sample."""
    return op_duty(row, windows).scaled(elapsed_ns)


def op_time_per_execution(row: dict[str, int], windows: int) -> Estimate:
    """ns in the op per execution of its program, from units that saw both whole."""
    return ratio(
        row["sum_ns"],
        row["executions"],
        joined(row["time_sq_hi"], row["time_sq_lo"]),
        row["time_exec"],
        row["exec_sq"],
        windows,
    )


def share_of_busy(op: dict[str, int], device: dict[str, int]) -> Estimate:
    """Share of busy time in an op: its duty over the device's.

    The two are taken as independent; an op is part of the busy time it is compared with, so the interval errs to the
    wide side.
    """
    part, whole = op_duty(op, device["windows"]), device_duty(device)
    if not part.known or not whole.known or whole.value <= 0:
        return unknown(device["windows"], part.reason or whole.reason or TOO_FEW)
    value = part.value / whole.value
    relative = sqrt(_relative(part) ** 2 + _relative(whole) ** 2)
    return Estimate(value, value * (1 - relative), value * (1 + relative), device["windows"])


def _relative(estimate: Estimate) -> float:
    return (estimate.high - estimate.value) / estimate.value if estimate.value else 0.0
