"""A profiler window whose device clock nobody reads: placed by the programs that ran in it.

The times of a TPU's window count from the window's own begin, and no public call reads its counter. But each program in
it was enqueued by the host before it began, and told complete after it had ended: at its begin, tick x, the host's
clock stood between the enqueue and the completion less the program's length. These are brackets, wide ones, and lines
through them are found as for any other clock. What makes the result *statistical* is that which execution of the
window is which launch of the host is concluded, from order and names (agents/node/matching.py), not read.

A wrong pair is off by a whole step and contradicts the others: only the pairs that most agree on are used (Marzullo
1984), and no window is placed by less than half of what it has. Within a window of a second such brackets hardly tell a
rate; the chips of a slice share one, and keep it, so what the newest windows of all chips allow is known beforehand.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleetscope.pipelines.align.lines import Lines
from fleetscope.pipelines.align.piece import Bracket, Piece, Slope, less, widen

PAIRS = 64
"""Of a window; more say little."""
WINDOWS = 8
"""Newest windows of the chips of a host whose rates are remembered."""
WANDER_PPB = 1_000
"""How far the rate of a slice may have moved since those windows."""

Slopes = tuple[Slope, Slope]


@dataclass(frozen=True, slots=True)
class Placed:
    """`piece`: ticks -> host ns, the truth within `err` if the pairs are right. `slopes`: rates that its pairs alone
    allow."""

    piece: Piece
    slopes: Slopes
    sigma_ns: int


def place_window(
    pairs: Iterable[Bracket], nominal: Slopes, begin: int, end: int, known: Slopes | None = None
) -> Placed | None:
    """The line for ticks [begin, end). `nominal`: slopes of any such clock; `known`: of this slice, lately. None where
    the pairs do not agree."""
    given = sorted(pairs, key=lambda pair: (pair.x, pair.lo))
    if not given:
        return None
    slopes = known or nominal
    agreed = _agreed(given, slopes)
    if 2 * len(agreed) < len(given) + (len(given) > 1):
        return None
    own, lines = _through(agreed, nominal), _through(agreed, slopes)
    _, _, n, d = lines.middle()
    x = (begin + end) // 2
    low, high = lines.spread(x)
    y = (low + high) // 2
    # Over the ticks the highest of the lines is convex, so it is furthest from this one at an end.
    err = 1
    for at in (begin, x, end):
        lowest, highest = lines.spread(at)
        stated = y + (at - x) * n // d
        err = max(err, highest - stated + 1, stated - lowest + 1)
    piece = Piece(x, y, n, d, begin, end, err)
    # Anywhere between the two: a uniform distribution of that width.
    sigma = (high - low) * 289 // 1000 + 1
    return Placed(piece, (own.shallowest, own.steepest), sigma)


def _agreed(pairs: Sequence[Bracket], slopes: Slopes) -> list[Bracket]:
    """The pairs that hold the value at the middle tick which most of them hold."""
    x = pairs[len(pairs) // 2].x
    ends = []
    reach = []
    for index, pair in enumerate(pairs):
        moved = [_moved(x - pair.x, slope) for slope in slopes]
        low, high = pair.lo + min(moved), pair.hi + max(moved)
        reach.append((low, high))
        if low <= high:
            ends += [(low, -1, index), (high, 1, index)]
    best, held, at = 0, 0, 0
    for value, kind, _ in sorted(ends):
        held -= kind
        if held > best:
            best, at = held, value
    return [pair for pair, (low, high) in zip(pairs, reach, strict=True) if low <= at <= high]


def _moved(ticks: int, slope: Slope) -> int:
    return ticks * slope[0] // slope[1]


def _through(pairs: Sequence[Bracket], slopes: Slopes) -> Lines:
    lines = Lines(*slopes)
    for pair in pairs:
        if not lines.count or pair.x > lines.last:
            lines.add(pair)
    return lines


def shared(windows: Iterable[Slopes], nominal: Slopes) -> Slopes:
    """Slopes that all these windows allow, give or take WANDER_PPB; `nominal` where they contradict each other."""
    low, high = nominal
    for shallowest, steepest in windows:
        low = shallowest if less(low, shallowest) else low
        high = steepest if less(steepest, high) else high
    if less(high, low):
        return nominal
    low, high = widen(low, WANDER_PPB)[0], widen(high, WANDER_PPB)[1]
    return (nominal[0] if less(low, nominal[0]) else low), (nominal[1] if less(nominal[1], high) else high)
