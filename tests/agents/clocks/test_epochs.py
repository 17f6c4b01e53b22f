"""Registers of every width, fraction bits or none, reset, stopped, slept through: against counters that never wrap."""

import importlib
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fleetscope.agents.clocks import DeviceClock, Register, Unwrapper, near

SECOND = 10**9
DAYS_400 = 400 * 86_400 * SECOND
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/clocklab/counters.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("clocklab.counters")


def _register(shape: Any) -> Register:
    return Register(shape.modulus, shape.period_num, shape.period_den, shape.fraction_bits)


def _gap_ns(shape: Any) -> int:
    """Between two reads: two fifths of a wrap, a second at most."""
    return min(SECOND, 2 * shape.modulus * shape.period_num // (5 * shape.period_den))


@pytest.mark.property
def test_counters_of_every_width_up_for_400_days(lab: ModuleType) -> None:
    for shape in (*lab.SHAPES, *lab.ODD):
        for ppm in (-100, 1, 100):
            base = DAYS_400 * shape.period_den // shape.period_num
            counter = lab.Counter(shape, [ppm * 1000] * 400, base=base)
            register, gap = _register(shape), _gap_ns(shape)
            unwrapper = Unwrapper(register, slack_ns=min(1_000_000, gap // 20))
            times = np.arange(200, dtype=np.int64) * gap
            moved = counter.moved(times)
            first = unwrapper.observe(counter.raw(0), DAYS_400)
            for at, ticks in zip(times[1:].tolist(), moved[1:].tolist(), strict=True):
                reading = unwrapper.observe(counter.raw(at), DAYS_400 + at)
                assert (reading.ticks - first.ticks, reading.resets, reading.reason, reading.refused) == (
                    ticks, 0, "", "",
                ), shape  # fmt: skip
            # A span that wraps inside: both of its ends near the newest reading.
            ends = np.array([times[-1] - gap // 3, times[-1] + gap // 3])
            raw = np.array([counter.raw(int(at)) for at in ends], np.uint64)
            begin, end = near(raw, reading, shape.modulus).tolist()
            assert end - begin == int(np.diff(counter.moved(ends))[0])


@pytest.mark.property
def test_resets_to_0_and_to_a_large_value_and_standing_still(lab: ModuleType) -> None:
    dice = random.Random(5)
    for shape in (*lab.SHAPES, *lab.ODD):
        gap = _gap_ns(shape)
        reset, stop = 20 * gap + gap // 2, 40 * gap + gap // 3
        shown = dice.choice([0, shape.modulus - 5, shape.modulus // 2 + 12_345])
        stands = [(stop, stop + 5 * gap)]
        counter = lab.Counter(shape, [17_000] * 100, base=7, resets=[(reset, shown)], stands=stands)
        unwrapper = Unwrapper(_register(shape), slack_ns=min(1_000_000, gap // 20))
        found = [unwrapper.observe(counter.raw(number * gap), number * gap) for number in range(60)]
        began = [number for number, reading in enumerate(found) if reading.reason]
        assert began[0] == 21, shape
        assert [reading.resets for reading in found[:22]] == [0] * 21 + [1]
        assert {reading.refused for reading in found[42:45]} == {"stands still"}
        assert len({reading.resets for reading in found[42:45]}) == 1
        # What it did meanwhile nobody knows: it goes on as another epoch.
        assert began[-1] in (45, 46)
        for a, b in ((0, 20), (21, 39), (47, 59)):
            assert found[a].resets == found[b].resets
            moved = np.diff(counter.moved(np.array([a * gap, b * gap])))[0]
            assert found[b].ticks - found[a].ticks == moved, shape


@pytest.mark.unit
@pytest.mark.parametrize(
    ("raw", "resets"),
    [
        (800_001_000 + 3 * 800_000_000, 1),  # it went on while MONOTONIC_RAW stood still: a suspension of 3 s
        (17, 1),  # it was reset meanwhile, or the VM was moved to another chip
        (800_001_000, 0),  # it stood still as well: nothing says that anything happened
    ],
)
def test_what_happened_to_the_host_shows_in_the_register_or_not_at_all(raw: int, resets: int) -> None:
    unwrapper = Unwrapper(Register(1 << 45, 5, 4))
    unwrapper.observe(1_000, 0)
    reading = unwrapper.observe(raw, SECOND)
    assert (reading.resets, bool(reading.reason)) == (resets, bool(resets))
    assert unwrapper.observe(raw + 800_000_000, 2 * SECOND).resets == resets


@pytest.mark.unit
def test_a_register_that_stands_still_for_longer_than_it_takes_to_wrap_is_one_stop() -> None:
    unwrapper = Unwrapper(Register(1 << 32, 1, 1))
    unwrapper.observe(5, 0)
    found = [unwrapper.observe(5, number * SECOND) for number in range(1, 20)]
    assert {reading.refused for reading in found} == {"stands still"}
    assert unwrapper.observe(9, 20 * SECOND).resets == 1


@pytest.mark.unit
def test_a_device_clock_tells_no_snapshot_it_cannot_stand_for() -> None:
    shown = iter([5, 5, 1 << 45, 6, 7])
    times = iter(range(0, 10**12, SECOND // 2))
    clock = DeviceClock("gtc", "chip", Register(1 << 45, 5, 4), lambda: next(shown), lambda: next(times), 1)
    assert clock.snapshot() is not None
    assert [clock.snapshot(), clock.snapshot()] == [None, None]
    assert clock.refused == {"stands still": 1, "no value of the register": 1}
    assert [snapshot.clock.resets for snapshot in (clock.snapshot(), clock.snapshot()) if snapshot] == [1, 2]
    assert len(clock.reasons) == 2
