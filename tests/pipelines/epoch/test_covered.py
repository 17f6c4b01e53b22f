"""Observed ranges against a set of ticks."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.pipelines.covered import RANGES, observe
from fleetscope.schema.errors import RangeOverlap

spans = st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.property
@given(st.lists(spans, max_size=30))
def test_a_range_is_taken_exactly_if_none_of_its_ticks_was(offered: list[tuple[int, int]]) -> None:
    ranges: list[list[int]] = []
    ticks: set[int] = set()
    for tick_from, tick_to in offered:
        wanted = set(range(tick_from, tick_to))
        if wanted & ticks:
            with pytest.raises(RangeOverlap):
                observe(ranges, tick_from, tick_to, "chip")
        else:
            observe(ranges, tick_from, tick_to, "chip")
            ticks |= wanted
        assert [tick for low, high in ranges for tick in range(low, high)] == sorted(ticks)
        assert all(left[1] < right[0] for left, right in pairwise(ranges))


@pytest.mark.unit
def test_only_the_newest_ranges_are_remembered() -> None:
    ranges: list[list[int]] = []
    for number in range(RANGES + 5):
        observe(ranges, 10 * number, 10 * number + 5, "chip")
    assert ranges[0] == [50, 55]
    assert len(ranges) == RANGES
    observe(ranges, 0, 5, "chip")
    assert ranges[0] == [50, 55], "older than the memory: neither refused nor kept"
