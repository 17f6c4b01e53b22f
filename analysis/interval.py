"""Student's t for intervals between windows."""

import math

# Two-sided 95 % quantiles for 1..30 degrees of freedom (any statistics table); beyond, the Cornish-Fisher expansion is
# right to three digits.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
    2.042,
)  # fmt: skip


def t_quantile(degrees: int) -> float:
    """Half width, in standard errors, of a two-sided 95 % interval. Infinite without a degree of freedom."""
    if degrees < 1:
        return math.inf
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees)
