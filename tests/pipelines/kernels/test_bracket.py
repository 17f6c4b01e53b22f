"""The bracket line against clocks whose truth is known: accuracy, and the bound in every run.

Truth is kept in integers: the rate is constant in each second, and the device's time is summed in 1e-9 ns.
"""

import json
import random
from bisect import bisect_right
from dataclasses import dataclass
from math import pi, sin

import pytest

from fleetscope.pipelines.align.bracket import BracketLine
from fleetscope.pipelines.align.piece import Behaviour, Bracket, Outcome

SECOND = 10**9
UPTIME = 400 * 86_400 * SECOND
"""viztracer#529 overflowed at 190 days of uptime."""


class Truth:
    """A counter of `num / den` ns a tick, off by rates[second] ppb, started long ago."""

    def __init__(self, rates: list[int], num: int, den: int) -> None:
        self.rates, self.num, self.den = rates, num, den
        self.behind = [0]
        for rate in rates:
            self.behind.append(self.behind[-1] + rate * SECOND)

    def ticks(self, ns: int) -> int:
        """Ticks the counter shows `ns` after the start of the run: the whole ones of its own elapsed time."""
        second, rest = divmod(ns, SECOND)
        own = (UPTIME + ns) * SECOND + self.behind[second] + self.rates[second] * rest
        return own * self.den // (self.num * SECOND)


def _rates(rng: random.Random, seconds: int, drift: int, walk: float, sine: float, step: int) -> list[int]:
    """ppb of each second: fixed drift, random walk (per root second), a sine of 5 to 60 minutes, one step half way."""
    period, phase, value, out = rng.uniform(300, 3600), rng.uniform(0, 2 * pi), 0.0, []
    for second in range(seconds):
        value += rng.gauss(0, walk)
        out.append(
            round(drift + value + sine * sin(2 * pi * second / period + phase)) + (step if second > seconds // 2 else 0)
        )
    return out


@dataclass
class Told:
    errors: list[int]
    bounds: list[int]
    backwards: int
    segments: int
    outcomes: dict[Outcome, int]


def _run(
    seed: int,
    seconds: int = 900,
    *,
    drift: int = 17_000,
    walk: float = 1.0,
    sine: float = 200.0,
    step: int = 0,
    period: tuple[int, int] = (5, 4),
    every: int = SECOND,
    width: tuple[int, int] = (1_200, 800),
    loss: float = 0.0,
    late: float = 0.0,
    reload: bool = False,
) -> Told:
    """Snapshots `every` ns, rows placed every 2 s after the snapshots that were made by then."""
    rng = random.Random(seed)
    truth = Truth(_rates(rng, seconds + 2, drift, walk, sine, step), *period)
    line = BracketLine(*period, Behaviour())
    brackets = []
    for at in range(0, seconds * SECOND, every):
        wide = width[0] + round(rng.expovariate(1 / width[1]))
        if rng.random() < 0.02:
            wide += round(rng.expovariate(1 / 200_000))
        before = at - round(rng.random() * wide)
        if rng.random() >= loss:
            told = at + (3 * SECOND if rng.random() < late else 0)
            period_up = -(-period[0] // period[1])
            brackets.append((told, Bracket(truth.ticks(at), UPTIME + before - period_up, UPTIME + before + wide)))
    brackets.sort(key=lambda item: item[0])
    out = Told([], [], 0, 0, {})
    last, pieces_seen, fed = -1, set(), 0
    batch = max(2 * SECOND, every)
    for end in range(batch, seconds * SECOND, batch):
        while fed < len(brackets) and brackets[fed][0] <= end:
            outcome = line.add(brackets[fed][1])
            out.outcomes[outcome] = out.outcomes.get(outcome, 0) + 1
            fed += 1
        if not line.window:
            continue
        if reload:
            line = BracketLine.load(*period, Behaviour(), json.loads(json.dumps(line.dump())))
        times = [end - batch + round(batch * k / 25) for k in range(25)]
        ticks = [truth.ticks(time) for time in times]
        pieces = line.reach(ticks[0], ticks[-1] + 1)
        pieces_seen |= {(p.x0, p.y0, p.n, p.err) for p in pieces}
        begins = [p.begin for p in pieces]
        for time, tick in zip(times, ticks, strict=True):
            piece = pieces[max(bisect_right(begins, tick) - 1, 0)]
            stated = piece.floor_at(tick)
            # The row began at its tick: within one period before `time`.
            out.errors.append(stated - (UPTIME + time))
            out.bounds.append(piece.err + -(-period[0] // period[1]) + 1)
            out.backwards += stated < last
            last = stated
    out.segments = len(pieces_seen)
    return out


def _p99(values: list[int]) -> int:
    return sorted(abs(value) for value in values)[len(values) * 99 // 100]


@pytest.mark.unit
def test_a_chip_at_1_hz_is_placed_within_2_us_at_once() -> None:
    """17 ppm, 0.2 ppm wander, 2 us brackets with tails (reference/native-clock.md B4), live. The line is kept until a
    bracket contradicts it: few lines, the first minute, in which the rate is learned, included."""
    runs = [_run(seed) for seed in range(4)]
    errors = [error for run in runs for error in run.errors]
    assert _p99(errors) <= 2_000
    assert max(abs(error) for error in errors) <= 3_000
    assert sum(run.segments for run in runs) <= len(runs) * 160 * 900 / 3600
    for run in runs:
        assert all(abs(error) <= bound for error, bound in zip(run.errors, run.bounds, strict=True))
        assert run.backwards == 0
        assert run.outcomes == {Outcome.TAKEN: 899}
    assert sorted(run.bounds)[len(run.bounds) // 2] < 13_000


HARD: dict[str, dict[str, object]] = {
    "slow drift": {"drift": 1_000},
    "fast drift": {"drift": -100_000},
    "walk": {"walk": 100.0},
    "sine of 1 ppm": {"sine": 1_000.0},
    "rate step of 5 ppm": {"step": 5_000},
    "50 ns brackets": {"width": (40, 10)},
    "20 us brackets": {"width": (20_000, 8_000)},
    "0.1 Hz": {"every": 10 * SECOND},
    "a third lost": {"loss": 0.3},
    "late": {"late": 0.1},
    "x16 fraction bits": {"period": (5, 64)},
    "700 MHz": {"period": (10, 7)},
    "TSC": {"period": (10_000, 24_454)},
    "1 GHz": {"period": (1, 1)},
}


@pytest.mark.property
@pytest.mark.parametrize("name", HARD)
def test_the_bound_holds_and_order_is_kept(name: str) -> None:
    for seed in range(3):
        run = _run(seed, 300, **HARD[name])  # type: ignore[arg-type]
        wrong = [(e, b) for e, b in zip(run.errors, run.bounds, strict=True) if abs(e) > b]
        assert not wrong, wrong[:3]
        assert run.backwards == 0
        assert run.errors


@pytest.mark.unit
def test_a_worker_that_restarts_places_alike() -> None:
    assert _run(5, 200, late=0.05, loss=0.1, reload=True) == _run(5, 200, late=0.05, loss=0.1)


def _line() -> BracketLine:
    return BracketLine(1, 1, Behaviour())


def _tight(x: int, y: int) -> Bracket:
    return Bracket(x, y - 500, y + 500)


@pytest.mark.unit
def test_one_snapshot_is_extended_by_the_nominal_rate_with_a_growing_error() -> None:
    line = _line()
    line.add(_tight(1000, 5000))
    (near,) = line.reach(1000, 2000)
    assert near.floor_at(1500) == 5500
    assert 500 <= near.err <= 1024
    far = line.reach(1000, 1000 + 100 * SECOND)[-1]
    # 200 ppm of drift over 100 s is 20 ms, and assumption A adds 6 ppm.
    assert 20_000_000 <= far.err <= 32_000_000


@pytest.mark.unit
def test_equal_and_stuck_reads() -> None:
    line = _line()
    line.add(_tight(0, 0))
    assert line.add(_tight(SECOND, SECOND)) is Outcome.TAKEN
    assert line.add(_tight(SECOND, SECOND + 100)) is Outcome.EQUAL
    assert line.add(_tight(SECOND, 3 * SECOND)) is Outcome.STUCK
    assert len(line.window) == 2


@pytest.mark.unit
def test_a_single_false_read_is_left_out_and_widens_the_bound() -> None:
    line = _line()
    for second in range(5):
        line.add(_tight(second * SECOND, second * SECOND))
    assert line.add(_tight(5 * SECOND, 9 * SECOND)) is Outcome.SUSPECT
    assert line.reach(4 * SECOND, 5 * SECOND + 1)[-1].err >= 4 * SECOND
    assert line.add(_tight(6 * SECOND, 6 * SECOND)) is Outcome.TAKEN
    last = line.reach(5 * SECOND + 1, 6 * SECOND)[-1]
    assert abs(last.floor_at(6 * SECOND) - 6 * SECOND) < 500
    assert last.err < 20_000


@pytest.mark.unit
@pytest.mark.parametrize(("ahead", "jump"), [(0, 7 * SECOND), (2, -2 * SECOND)])
def test_three_that_agree_begin_anew(ahead: int, jump: int) -> None:
    """The counter stood still for 7 s (order is kept) or leapt 2 s ahead (a new map epoch, earlier than the last);
    what lies between has the jump as error."""
    line = _line()
    for second in range(5):
        line.add(_tight(second * SECOND, second * SECOND))
    line.reach(0, 4 * SECOND)
    ticks = [(second + ahead) * SECOND for second in (5, 6, 7)]
    outcomes = [line.add(_tight(tick, tick + jump)) for tick in ticks]
    assert outcomes == [Outcome.SUSPECT, Outcome.SUSPECT, Outcome.RESTART]
    between, after = line.reach(4 * SECOND + 1, ticks[2])[-2:]
    assert between.end == after.begin == ticks[0]
    assert between.err >= abs(jump) - 1000
    assert abs(after.floor_at(ticks[1]) - ticks[1] - jump) <= after.err < 30_000


@pytest.mark.unit
def test_a_wrong_nominal_rate_is_found_out() -> None:
    """A table that says 800 MHz for a chip that runs at 700: three reads agree, and from then on the rate is theirs."""
    line = BracketLine(5, 4, Behaviour())
    reads = [Bracket(second * 700_000_000, second * SECOND - 500, second * SECOND + 500) for second in range(12)]
    assert [line.add(read) for read in reads[:4]] == [Outcome.TAKEN, Outcome.SUSPECT, Outcome.SUSPECT, Outcome.RESTART]
    assert [line.add(read) for read in reads[4:]] == [Outcome.TAKEN] * 8
    piece = line.reach(reads[9].x, reads[11].x)[-1]
    assert abs(piece.floor_at(reads[10].x) - 10 * SECOND) < 500
    assert piece.err < 10_000


@pytest.mark.unit
def test_a_counter_that_went_back_without_a_new_epoch_is_not_believed_but_ends_the_promise() -> None:
    line = _line()
    for second in range(5):
        line.add(_tight(second * SECOND, second * SECOND))
    line.reach(0, 4 * SECOND)
    assert [line.add(_tight(tick * SECOND, (5 + tick) * SECOND)) for tick in range(4)] == [Outcome.BACKWARD] * 4
    assert line.reach(4 * SECOND, 5 * SECOND)[-1].err >= 5 * SECOND


@pytest.mark.unit
def test_snapshots_told_twice_or_late_change_nothing() -> None:
    line = _line()
    reads = [_tight(second * SECOND, second * SECOND) for second in range(6)]
    for read in reads:
        line.add(read)
    before = line.dump()
    assert [line.add(read) for read in reads[:5]] == [Outcome.LATE] * 5
    assert line.add(reads[5]) is Outcome.EQUAL
    assert line.dump() == before


@pytest.mark.unit
def test_late_rows_are_placed_by_the_piece_that_was_published() -> None:
    line = _line()
    for second in range(60):
        line.add(_tight(second * SECOND, second * SECOND + second * second * 400))
        line.reach(max(second - 1, 0) * SECOND, second * SECOND + 1)
    kept = line.pieces[0]
    assert kept.begin > 10 * SECOND
    assert line.reach(kept.begin, kept.end) == [kept]
    (ancient,) = line.reach(kept.begin - 10 * SECOND, kept.begin - 10 * SECOND + 5)
    assert (ancient.x0, ancient.y0, ancient.n) == (kept.x0, kept.y0, kept.n)
    assert ancient.err >= kept.err + 10 * SECOND * 400 // 10**6 - 10
