"""Map arithmetic against Fractions, at the far ends: 400 days of uptime at 1 GHz and beyond, 2^62 ticks, slopes from
1/30 to 30."""

from fractions import Fraction
from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.align.piece import Piece
from fleetscope.pipelines.align.rational import ratio_error, round_ratio
from fleetscope.pipelines.align.segment import compose
from fleetscope.schema.rational import apply, first_ticks

pytestmark = pytest.mark.property

TERMS = st.integers(1, (1 << 31) - 1)
TICKS = st.integers(-(1 << 61), 1 << 61)
UPTIME = 400 * 86_400 * 10**9


def _fits(*values: Fraction) -> bool:
    return all(abs(value) < 1 << 62 for value in values)


@given(st.lists(TICKS, min_size=1, max_size=5), TICKS, TICKS, TERMS, TERMS)
@settings(max_examples=300)
def test_apply_is_exact(xs: list[int], x0: int, y0: int, n: int, d: int) -> None:
    exact = [y0 + Fraction((x - x0) * n, d) for x in xs]
    if _fits(*exact, *(value - y0 for value in exact)):
        assert apply(np.array(xs), x0, y0, n, d).tolist() == [floor(value) for value in exact]


@given(st.lists(TICKS, min_size=1, max_size=5), TICKS, TICKS, TERMS, TERMS)
@settings(max_examples=300)
def test_first_ticks_is_the_smallest_that_reaches(ts: list[int], x0: int, y0: int, n: int, d: int) -> None:
    exact = [x0 + Fraction((t - y0) * d, n) for t in ts]
    if _fits(*exact, *(value - x0 for value in exact)):
        assert first_ticks(np.array(ts), x0, y0, n, d).tolist() == [ceil(value) for value in exact]


@given(st.integers(0, 10**9), st.integers(1, 10**6), TERMS, TERMS)
@settings(max_examples=300)
def test_ticks_are_recovered_from_times(step: int, offset: int, n: int, d: int) -> None:
    """x = (smallest tick of t) + t_sub, after 400 days at 1 GHz; t never goes back and is strictly ascending where n
    >= d."""
    if not Fraction(1, 30) < Fraction(n, d) < 30:
        return
    x0 = UPTIME
    xs = np.array([x0 + offset, x0 + offset + 1, x0 + offset + 1 + step], np.int64)
    t = apply(xs, x0, 1_753_000_000_000_000_000, n, d)
    sub = xs - first_ticks(t, x0, 1_753_000_000_000_000_000, n, d)
    assert (sub >= 0).all()
    assert (first_ticks(t, x0, 1_753_000_000_000_000_000, n, d) + sub == xs).all()
    assert t[1] >= t[0]
    if n >= d:
        assert t[1] > t[0]
        assert not sub.any()


@given(st.integers(1, 1 << 90), st.integers(1, 1 << 90), st.booleans())
@settings(max_examples=500)
def test_ratios_are_rounded_as_well_as_31_bits_allow(num: int, den: int, below: bool) -> None:
    exact = Fraction(num, den)
    if not Fraction(1, 1000) < exact < 1000:
        return
    n, d = round_ratio(num, den, below=below)
    assert 0 < n < 1 << 31
    assert 0 < d < 1 << 31
    stated = Fraction(n, d)
    assert ratio_error(num, den, n, d, 10**12) == ceil(abs(exact - stated) * 10**12)
    if below:
        assert stated <= exact
        # No fraction with terms below 2^31 lies between: neighbours differ by 1 over the product of their denominators.
        assert exact - stated < Fraction(1000, (1 << 31) - 1)
    best = exact.limit_denominator((1 << 31) - 1)
    if not below and best.numerator < 1 << 31:
        assert abs(exact - stated) == abs(exact - best)


@pytest.mark.unit
@pytest.mark.parametrize(("num", "den"), [(0, 1), (1, 0), (-1, 2), (1 << 40, 1), (1, 1 << 40)])
def test_a_ratio_that_does_not_fit_is_refused(num: int, den: int) -> None:
    with pytest.raises(ValueError, match="ratio"):
        round_ratio(num, den)


LINES = st.builds(
    lambda ppm, x0, y0, err: Piece(x0, y0, 10**9 + ppm, 10**9, 0, 1, err),
    st.integers(-(10**6), 10**6),
    st.integers(0, UPTIME),
    st.integers(0, UPTIME),
    st.integers(0, 10**6),
)


@given(
    LINES,
    LINES,
    st.sampled_from([(5, 4), (5, 64), (1, 1), (409, 1000)]),
    st.integers(0, UPTIME),
    st.integers(1, 10**12),
)
@settings(max_examples=300)
def test_composition_stays_within_its_error(
    first: Piece, second: Piece, period: tuple[int, int], begin: int, length: int
) -> None:
    n, d = round_ratio(first.n * period[0], first.d * period[1])
    first = Piece(first.x0, first.y0, n, d, begin, begin + length, first.err)
    line, err = compose(first, second, begin, begin + length)
    slack = err - ceil(Fraction(first.err * second.n, second.d)) - second.err
    x0, y0, n, d = line
    for x in (begin, begin + 1, begin + length // 2, begin + length - 1):
        middle = first.y0 + Fraction((x - first.x0) * first.n, first.d)
        exact = second.y0 + (middle - second.x0) * Fraction(second.n, second.d)
        stated = y0 + (x - x0) * n // d
        assert -slack <= stated - exact < 1
