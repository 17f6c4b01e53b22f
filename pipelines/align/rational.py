"""Slopes of map segments: ratios of two terms below 2^31, in Python integers. What they do to ticks:
schema/rational.py."""

from fractions import Fraction

from fleetscope.schema.rational import TERM_LIMIT


def round_ratio(num: int, den: int, *, below: bool = False) -> tuple[int, int]:
    """(n, d), both in [1, 2^31), next to num / den among the convergents and semiconvergents of its continued fraction.

    `below`: never greater than num / den, so that a map that is rounded ends no later than the exact one. The last
    convergent and the largest semiconvergent after it lie on either side of the ratio and are neighbours: |num/den -
    n/d| < 1 / (their denominators' product). Raises ValueError where no pair is within a factor of two.
    """
    if num <= 0 or den <= 0:
        raise ValueError(f"ratio {num}/{den} must be positive")
    limit = TERM_LIMIT - 1
    p0, q0, p1, q1 = 0, 1, 1, 0
    a, b = num, den
    while b:
        whole, rest = divmod(a, b)
        p2, q2 = p0 + whole * p1, q0 + whole * q1
        if p2 > limit or q2 > limit:
            part = min((limit - p0) // p1 if p1 else whole, (limit - q0) // q1 if q1 else whole)
            p1, q1 = _choose(num, den, [(p1, q1), (p0 + part * p1, q0 + part * q1)], below)
            break
        p0, q0, p1, q1 = p1, q1, p2, q2
        a, b = b, rest
    if not (p1 and q1) or p1 * den > 2 * num * q1 or num * q1 > 2 * p1 * den:
        raise ValueError(f"ratio {num}/{den} needs a term of 2^31 or more")
    return p1, q1


def _choose(num: int, den: int, pairs: list[tuple[int, int]], below: bool) -> tuple[int, int]:
    usable = [(p, q) for p, q in pairs if p and q and (not below or p * den <= num * q)]
    if not usable:
        return 0, 0
    # |num/den - p/q| over a common denominator; ties go to the first, the convergent.
    return min(usable, key=lambda pair: Fraction(abs(num * pair[1] - pair[0] * den), pair[1]))


def ratio_error(num: int, den: int, n: int, d: int, span: int) -> int:
    """ceil(span * |num/den - n/d|): what replacing the ratio costs over `span` ticks."""
    return -(-abs(num * d - n * den) * span // (den * d))
