"""What a line through brackets is made of: brackets, published pieces, jumps, and what is assumed of a clock."""

from dataclasses import dataclass
from enum import Enum

Slope = tuple[int, int]
"""num / den, ns a tick, den > 0."""

BILLION = 10**9


@dataclass(frozen=True, slots=True)
class Bracket:
    """At tick `x` the reference stood in [lo, hi] ns."""

    x: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Published: reference ns = y0 + (x - x0) * n / d for x in [begin, end), truth within `err` of it.

    `blind`: of a clock that may be set, beyond all that was read of it; `err` then holds if it was not.
    """

    x0: int
    y0: int
    n: int
    d: int
    begin: int
    end: int
    err: int
    blind: bool = False

    def floor_at(self, x: int) -> int:
        return self.y0 + (x - self.x0) * self.n // self.d

    def ceil_at(self, x: int) -> int:
        return self.y0 - (self.x0 - x) * self.n // self.d

    def first_tick(self, y: int) -> int:
        """The smallest x whose exact (not floored) image is >= y."""
        return self.x0 - (self.y0 - y) * self.d // self.n


@dataclass(frozen=True, slots=True)
class Turn:
    """A jump that was seen at tick `at`, by at most `size` ns. `before`: the line until then, proved up to its end.
    `slack`: width in ns of the wider of the two reads it lies between: within them it may have happened too."""

    before: Piece
    at: int
    size: int
    slack: int


class Outcome(Enum):
    """What became of a bracket."""

    TAKEN = "taken"
    EQUAL = "equal"
    LATE = "late"
    STUCK = "stuck"
    BACKWARD = "backward"
    SUSPECT = "suspect"
    RESTART = "restart"
    STEP_FORWARD = "step_forward"
    STEP_BACK = "step_back"
    PAIRED = "paired"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What is assumed of a kind of clock.

    slew_ppb: assumption A. 6 ppm covers a rate step of 5 ppm and a temperature cycle of +-1 ppm
    (reference/native-clock.md B6). drift_ppb: distance of the true rate from nominal: 200 ppm is what Sundial (OSDI
    2020) assumes in production. steps: values may jump (a wall clock that is set) and are then believed at once;
    else a jump is a suspect until three agree. What is assumed then: a jump is seen by the next read, that is, two
    between two reads do not cancel out, and one of less than STEP_NS may be taken for a change of rate. keep_ns: by how
    much a published line may miss a bracket, however narrow that is, before another takes its place. straight: the
    truth is itself a line, to 1 ns, for as long as the epoch lasts (assumption B); slew_ppb is 0 then.
    """

    slew_ppb: int = 6_000
    drift_ppb: int = 200_000
    steps: bool = False
    keep_ns: int = 100
    straight: bool = False


def less(a: Slope, b: Slope) -> bool:
    return a[0] * b[1] < b[0] * a[1]


def difference_ppb(a: Slope, b: Slope) -> int:
    """ceil(1e9 * |a - b| / a)."""
    return -(-abs(a[0] * b[1] - b[0] * a[1]) * BILLION // (a[0] * b[1]))


def widen(slope: Slope, ppb: int) -> tuple[Slope, Slope]:
    return (slope[0] * (BILLION - ppb), slope[1] * BILLION), (slope[0] * (BILLION + ppb), slope[1] * BILLION)


def grid(err: int) -> int:
    """Rounded up to two significant bits: a bound that moves by a few ns with every bracket would make a segment
    each time."""
    shift = max(err.bit_length() - 2, 0)
    return -(-err >> shift) << shift
