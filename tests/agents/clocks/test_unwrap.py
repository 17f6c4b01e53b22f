"""Registers of every width and modulus against counters that never wrap."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.clocks import Register, Unwrapper, near

REGISTERS = st.sampled_from(
    [
        Register(1 << 32, 1, 1),
        Register(1 << 36, 1, 1),
        Register(1 << 45, 5, 4 * 16, fraction_bits=4),
        Register(1 << 48, 1000, 700),
        Register(1 << 56, 10, 19),
        Register(1 << 64, 1, 1),
        Register((1 << 40) - 87, 3, 2),
    ]
)


@pytest.mark.property
@given(
    REGISTERS,
    st.integers(0, (1 << 64) - 1),
    st.lists(st.floats(0.0, 0.49), min_size=1, max_size=30),
    st.integers(-500, 500),
)
def test_any_number_of_wraps_is_followed_while_gaps_stay_below_half_a_wrap(
    register: Register, begin: int, gaps: list[float], ppm: int
) -> None:
    wrap_ns = register.modulus * register.period_num // register.period_den
    unwrapper = Unwrapper(register)
    true, host = begin % register.modulus, 0
    first = unwrapper.observe(true, host)
    moved = 0
    for gap in gaps:
        # A whole 64-bit wrap is 584 years: its ticks would leave 2^62.
        step_ns = int(min(gap * wrap_ns * 0.99, 10**17))
        host += step_ns
        moved += register.ticks_of(step_ns) * (1_000_000 + ppm) // 1_000_000
        reading = unwrapper.observe((true + moved) % register.modulus, host)
        if abs(first.ticks + moved) >= 1 << 62:
            return
        assert (reading.ticks - first.ticks, reading.resets, reading.reason) == (moved, 0, "")


@pytest.mark.unit
def test_gap_of_half_a_wrap_begins_a_new_epoch_with_its_reason() -> None:
    unwrapper = Unwrapper(Register(1 << 32, 1, 1))
    unwrapper.observe(5, 0)
    reading = unwrapper.observe(5, 1 << 31)
    assert reading.resets == 1
    assert "half a wrap" in reading.reason
    assert reading.ticks == 5


@pytest.mark.unit
@pytest.mark.parametrize(
    ("raw", "why"),
    [(10**9 - 10, "backwards"), (3, "backwards"), (10**12, "were expected"), (10**9 + 5 * 10**9, "were expected")],
)
def test_backwards_and_jumps_begin_a_new_epoch(raw: int, why: str) -> None:
    unwrapper = Unwrapper(Register(1 << 48, 1, 1))
    unwrapper.observe(10**9, 0)
    reading = unwrapper.observe(raw, 10**9 if why != "backwards" else 1000)
    assert reading.resets == 1
    assert why in reading.reason
    assert unwrapper.observe(raw + 10**9, 2 * 10**9 if why != "backwards" else 1000 + 10**9).reason == ""


@pytest.mark.unit
def test_equal_readings_are_no_wrap() -> None:
    unwrapper = Unwrapper(Register(1 << 45, 1, 1))
    unwrapper.observe(7, 0)
    assert unwrapper.observe(7, 50) == unwrapper.last
    assert unwrapper.last is not None
    assert (unwrapper.last.ticks, unwrapper.last.resets) == (7, 0)


@pytest.mark.unit
def test_45_bit_gtc_wraps_after_46_minutes() -> None:
    """45 bits of which 4 are fraction, 800 MHz: 2^41 / 8e8 = 2 749 s."""
    register = Register(1 << 45, 5, 64, fraction_bits=4)
    assert register.width_bits == 45
    unwrapper = Unwrapper(register)
    wraps = 0
    for second in range(3 * 2750):
        wraps += unwrapper.observe(second * 16 * 800_000_000 % (1 << 45), second * 10**9).wraps
    assert wraps == 3
    assert unwrapper.last is not None
    assert unwrapper.last.ticks == (3 * 2750 - 1) * 16 * 800_000_000


@pytest.mark.property
@given(REGISTERS, st.integers(0, 1 << 61), st.lists(st.integers(-(1 << 30), 1 << 30), min_size=1, max_size=20))
def test_event_stamps_near_a_reading(register: Register, ticks: int, moves: list[int]) -> None:
    unwrapper = Unwrapper(register)
    raw = ticks % register.modulus
    reading = unwrapper.observe(raw, 0)
    stamps = np.array([(raw + move) % register.modulus for move in moves], np.uint64)
    assert near(stamps, reading, register.modulus).tolist() == [reading.ticks + move for move in moves]


@pytest.mark.unit
def test_a_value_beyond_the_register_is_no_reading() -> None:
    unwrapper = Unwrapper(Register(1 << 32, 1, 1))
    first = unwrapper.observe(7, 0)
    reading = unwrapper.observe(1 << 32, 1000)
    assert "no value of a register" in reading.refused
    assert (reading.ticks, reading.resets, unwrapper.last) == (7, 0, first)
