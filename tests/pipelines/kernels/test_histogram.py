"""Bucket i holds (2^(i/32), 2^((i+1)/32)]: compared with big integers, d^32 against 2^i."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.pipelines.histogram import THRESHOLDS, ZERO_BUCKET, bounds_of, bucket_index


def _inside(dur: int, index: int) -> bool:
    """2^index < d^32 <= 2^(index + 1), whole numbers on both sides (index >= 0), or d = 1 in bucket -1."""
    if index == -1:
        return dur == 1
    return (1 << index) < dur**32 <= (1 << (index + 1))


@pytest.mark.property
@given(st.lists(st.integers(1, (1 << 53) - 1), min_size=1, max_size=50))
def test_every_duration_lies_in_its_bucket(durations: list[int]) -> None:
    found = bucket_index(np.array(durations, np.int64)).tolist()
    assert all(_inside(dur, index) for dur, index in zip(durations, found, strict=True))


@pytest.mark.unit
def test_at_every_edge() -> None:
    edges = np.unique(np.concatenate([THRESHOLDS + step for step in (-1, 0, 1)]))
    edges = edges[(edges > 0) & (edges < 1 << 53)]
    found = bucket_index(edges).tolist()
    assert all(_inside(dur, index) for dur, index in zip(edges.tolist(), found, strict=True))


@pytest.mark.unit
def test_zero_and_one_and_powers_of_two() -> None:
    assert bucket_index(np.array([0, 1, 2, 3, 4, 1024], np.int64)).tolist() == [ZERO_BUCKET, -1, 31, 50, 63, 319]


@pytest.mark.unit
@pytest.mark.parametrize("index", [0, 31, 100, 319, 640, 1600])
def test_bounds_are_the_integers_of_a_bucket(index: int) -> None:
    low, high = bounds_of(index)
    assert all(_inside(dur, index) == (low <= dur <= high) for dur in range(max(low - 2, 1), low + 2))
    assert all(_inside(dur, index) == (low <= dur <= high) for dur in range(max(high - 1, 1), high + 2))
