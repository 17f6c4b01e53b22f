"""Estimates of windows set right by exact counts of executions (the PJRT shim's), where there are any.

Time of an op = its time per execution, from executions wholly inside windows, times all executions there were. What
windows do not know, how often a program ran, is then not estimated at all: half widths fall from 22-37 % to 0.4-0.7 %
on bursty runs (reference/window-estimators.md).
"""

from dataclasses import dataclass
from math import nan

from fleetscope.analysis.estimate import (
    FEWEST,
    Q30,
    TOO_FEW,
    UNOBSERVABLE,
    Estimate,
    joined,
    op_duty,
    ratio,
    together,
    unknown,
)

SECOND_NS = 10**9


@dataclass(frozen=True, slots=True)
class Exact:
    """Every execution of a program in the scope, as the runtime reported them."""

    executions: int
    time_ns: int
    """Their sum, begin to completion: an upper bound of the time of the ops in them."""


def time_per_execution_ns(row: dict[str, int], program: dict[str, int]) -> Estimate:
    """ns in an op, or in all ops, per execution of its program.

    `row`: (merged) OP_10S row of weight 0 of the op, or `program` itself; `program`: that of the program's
    PROGRAM_TOTAL. Both weigh a whole execution of length c by 1 / (W - c), so that long ones, more often cut, count in
    full.
    """
    windows = program["windows"]
    if program["executions"] < FEWEST:
        return unknown(windows, TOO_FEW)
    found = ratio(
        row["whole_q30"],
        program["rate_uhz"],
        joined(row["whole_sq_hi"], row["whole_sq_lo"]),
        joined(row["whole_rate_hi"], row["whole_rate_lo"]),
        joined(program["rate_sq_hi"], program["rate_sq_lo"]),
        windows,
        row["windows"],
    )
    return found.scaled(1e6 / Q30 * SECOND_NS)


def total_ns(row: dict[str, int], program: dict[str, int] | None, exact: Exact | None) -> Estimate:
    """ns in an op, or in all ops of `program`, over all its executions; with a reason where it cannot be said so."""
    if program is None or exact is None or not exact.executions or not row["whole_q30"]:
        return unknown(row["windows"], TOO_FEW)
    return time_per_execution_ns(row, program).scaled(exact.executions)


def share(
    row: dict[str, int], windows: int, program: dict[str, int] | None, exact: Exact | None, watched_ns: int
) -> tuple[Estimate, bool]:
    """(share of device time in an op or in all ops of a program, whether it is calibrated).

    `windows`: units looked at; `watched_ns`: time over which `exact` counts. Without counts, or with too few whole
    executions, the estimate is that of windows alone.
    """
    found = op_duty(row, windows)
    if found.reason == UNOBSERVABLE or watched_ns <= 0:
        return found, False
    total = total_ns(row, program, exact)
    return (total.scaled(1 / watched_ns), True) if total.known else (found, False)


SETTLED = 0.95
"""A device's duty is calibrated if programs that take so much of its executions' time are."""


def duty(
    alone: Estimate, programs: dict[int, dict[str, int]], exact: dict[int, Exact], watched_ns: int
) -> tuple[Estimate, bool]:
    """(share of time a device was busy, whether it is calibrated). `alone`: by its windows alone (device_duty).

    Programs add up. What ran too seldom for windows to say anything of it is taken as busy as the rest, and lies
    between 0 and the time of its executions.
    """
    if watched_ns <= 0:
        return alone, False
    parts = {number: total_ns(row, row, exact.get(number)) for number, row in programs.items()}
    known = {number: part for number, part in parts.items() if part.known}
    told_ns = sum(exact[number].time_ns for number in known)
    all_ns = sum(part.time_ns for part in exact.values())
    if not known or told_ns < SETTLED * all_ns:
        return alone, False
    density = sum(part.value for part in known.values()) / told_ns
    rest_ns = all_ns - told_ns
    found = together(list(known.values()))
    value = found.value + rest_ns * density
    return Estimate(value, found.low, found.high + rest_ns, alone.windows).scaled(1 / watched_ns), True


def residual(found: Estimate, exact: Exact | None) -> float:
    """Share of the time of a program's executions that no op explains: gaps between ops, ops that windows do not show.

    NaN where the one or the other is not known; slightly below 0 is the estimate's error.
    """
    if exact is None or exact.time_ns <= 0 or not found.known:
        return nan
    return 1 - found.value / exact.time_ns
