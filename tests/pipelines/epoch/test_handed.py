"""States that pass between the stages of one process by reference."""

from collections.abc import Iterator

import pytest

from fleetscope.pipelines import handed
from fleetscope.pipelines.state import PartitionState

pytestmark = pytest.mark.unit


@pytest.fixture
def attempt() -> Iterator[str]:
    handed.begin("mine")
    yield "mine"
    handed.end("mine")


def test_a_state_is_taken_once(attempt: str) -> None:
    state = PartitionState()
    assert handed.hand(attempt, 3, state)
    assert handed.take(attempt, 3) is state
    with pytest.raises(KeyError):
        handed.take(attempt, 3)


def test_an_epoch_of_another_process_hands_nothing_over(attempt: str) -> None:
    assert not handed.hand("another", 3, PartitionState())
    handed.end(attempt)
    assert not handed.hand(attempt, 3, PartitionState())
    handed.packed(b"text", PartitionState())
    assert handed.unpacked(b"text") is None


def test_what_was_packed_is_forgotten_when_the_next_epoch_begins(attempt: str) -> None:
    state = PartitionState()
    handed.packed(b"text", state)
    assert handed.unpacked(b"text") is state
    handed.packed(b"text", state)
    handed.begin("next")
    assert handed.unpacked(b"text") is None
    handed.end("next")
