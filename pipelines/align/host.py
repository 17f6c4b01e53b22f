"""The last step of every map: the host counter (`monotonic_raw`) to the host's wall clock, which is fleet time in this
version.

The wall clock is what was read inside a bracket of the counter, so the bracket lies on the tick axis; turned round,
at the middle tick the wall clock stood at its value plus or minus half the bracket. It may be set: a jump forward
begins a new segment and keeps order; a jump back begins a new map epoch whose times overlap earlier ones (their
ticks order those rows) and is counted.
"""

from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.piece import Behaviour, Bracket

WALL = Behaviour(slew_ppb=6_000, drift_ppb=1_000_000, steps=True)
"""ntpd slews by up to 500 ppm; a read more than 1 000 ppm off the rate known so far is a clock that was set."""


def wall_line(period_num: int, period_den: int) -> BracketLine:
    return BracketLine(period_num, period_den, WALL)


def wall_bracket(value: int, ref_before: int, ref_after: int, period_num: int, period_den: int) -> Bracket:
    """Wall clock `value` ns was read while the counter went from `ref_before` to `ref_after` ticks.

    1 ns beyond half the bracket: the wall clock's own rate over the bracket differs from nominal by < 1 000 ppm, 1
    ns in a bracket of 1 us, and the wall clock counts whole ns.
    """
    middle = (ref_before + ref_after) // 2
    after = -(-(ref_after - middle) * period_num // period_den)
    before = -(-(middle - ref_before) * period_num // period_den)
    slack = 1 + (after + before) // 1000
    return Bracket(middle, value - after - slack, value + before + slack)
