"""From rollup columns of profiler windows to totals with honest intervals, for readers of weight 0 rows.

Windows are the sampling units. For a mean over them the jackknife is the classical interval m +- t s / sqrt(n); for
a ratio of two sums it agrees to first order with the linearised one used here. Intervals are 95 %, Student's t with
n - 1 degrees of freedom: the percentile bootstrap dips below 93 % at 50 windows, this does not
(reference/window-estimators.md).
"""

from dataclasses import dataclass
from functools import cache
from math import exp, isfinite, lgamma, log, nan, pi, sqrt

FEWEST = 8
"""Windows below which no interval is given: one window has a spread of 11-18 %, and t alone is 2.4 times the
normal's then."""

Q30 = 1 << 30

TOO_FEW = "too few windows"
UNOBSERVABLE = "unobservable in windows of this length"


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

    @property
    def low_share(self) -> float | None:
        """`low` of a share or a rate: not below 0, however wide the interval; None where there is no interval."""
        return max(self.low, 0.0) if isfinite(self.low) else None

    def scaled(self, factor: float) -> "Estimate":
        return Estimate(self.value * factor, self.low * factor, self.high * factor, self.windows, self.reason)


def finite(value: float) -> float | None:
    """The value, or None where it is no number."""
    return value if isfinite(value) else None


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


def mean(total: int, squares: int, windows: int, seen: int | None = None) -> Estimate:
    """Mean over `windows` units whose values add to `total` and their squares to `squares`; units without a value
    count as 0.

    `seen`: units with a value. Only they tell how much values differ, so they decide whether there is an interval and
    are its degrees of freedom: an evaluation met by 3 of 150 windows has none.
    """
    seen = windows if seen is None else min(seen, windows)
    if seen < FEWEST:
        return unknown(windows, TOO_FEW, total / windows if windows else nan)
    value = total / windows
    # n * sum of squares - sum^2 in whole numbers: in floats the difference would lose what it is about.
    spread = max(squares * windows - total * total, 0) / (windows * (windows - 1))
    half = student_t(seen - 1) * sqrt(spread / windows)
    return Estimate(value, value - half, value + half, windows)


def ratio(
    above: int, below: int, above_sq: int, both: int, below_sq: int, windows: int, seen: int | None = None
) -> Estimate:
    """(sum of a) / (sum of b) over units from sums of a, b, a^2, a b, b^2 (linearised: Cochran, Sampling Techniques,
    6.4). `seen` as in `mean`."""
    seen = windows if seen is None else min(seen, windows)
    if seen < FEWEST or below <= 0:
        return unknown(windows, TOO_FEW, above / below if below > 0 else nan)
    value = above / below
    # sum (a - r b)^2 with r = A / B, times B^2.
    residual = max(above_sq * below * below - 2 * both * above * below + below_sq * above * above, 0)
    spread = residual / (below * below) * windows / (windows - 1)
    half = student_t(seen - 1) * sqrt(spread) / below
    return Estimate(value, value - half, value + half, windows)


def device_duty(row: dict[str, int]) -> Estimate:
    """Share of time a device was busy, from a (merged) DEVICE_10S row of weight 0."""
    squares = joined(row["duty_sq_hi"], row["duty_sq_lo"])
    return mean(row["duty_q30"], squares, row["windows"]).scaled(1 / Q30)


NEAR_SHARE = 0.05


def unobservable(row: dict[str, int]) -> bool:
    """An op was seen, but only in spans too near the window's length to stand for those that were not, or more than
    NEAR_SHARE in such: then there are longer ones that no window shows."""
    return bool(row["count"]) and (not row["duty_q30"] or row["near_q30"] > NEAR_SHARE * row["duty_q30"])


def op_duty(row: dict[str, int], windows: int) -> Estimate:
    """Share of time in an op, from a (merged) OP_10S row of weight 0; `windows`: all units looked at, also those
    without the op.

    Above 1 where several lines run it at once.
    """
    if unobservable(row):
        return unknown(windows, UNOBSERVABLE)
    squares = joined(row["duty_sq_hi"], row["duty_sq_lo"])
    return mean(row["duty_q30"], squares, windows, row["windows"]).scaled(1 / Q30)


def rate_hz(row: dict[str, int], windows: int) -> Estimate:
    """Occurrences a second of an op, or whole executions of a program (PROGRAM_TOTAL); `windows` as in `op_duty`.

    Executions are whole numbers: a window four steps long holds four, and now and then a fifth that a sample may not
    have. What none of n executions showed can happen in up to 3 of n (the rule of three: 1 - 0.95^(1/n) < 3 / n), so
    the interval is never narrower than that on either side.
    """
    if unobservable(row):
        return unknown(windows, UNOBSERVABLE)
    squares = joined(row["rate_sq_hi"], row["rate_sq_lo"])
    if row["rate_uhz"] and not squares:
        # Written before squares of rates were kept (format 1).
        return unknown(windows, TOO_FEW, row["rate_uhz"] / windows * 1e-6 if windows else nan)
    found = mean(row["rate_uhz"], squares, windows, row["windows"]).scaled(1e-6)
    if not found.known or not found.value:
        return found
    # A program's row counts no ops.
    fewest = min((n for n in (row["count"], row["executions"]) if n), default=1)
    half = max(found.high - found.value, 3 * found.value / fewest)
    return Estimate(found.value, found.value - half, found.value + half, windows)


def together(parts: list[Estimate]) -> Estimate:
    """Sum of estimates from the same windows. Their spreads depend on each other in a way that is not kept, so half
    widths add: right where they move together, too wide elsewhere, never too narrow."""
    windows = max((part.windows for part in parts), default=0)
    value = sum(part.value for part in parts if isfinite(part.value))
    missing = next((part.reason for part in parts if not part.known), "" if parts else TOO_FEW)
    if missing:
        return unknown(windows, missing, value if any(isfinite(part.value) for part in parts) else nan)
    half = sum(part.high - part.value for part in parts)
    return Estimate(value, value - half, value + half, windows)
