"""Where a frame stands: at the head of a loop, at next(), or elsewhere. Asked of frames that are really there."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from fleetscope.agents.profiler.inputs_stack import Stacks, waiting_places

pytestmark = pytest.mark.unit


def seen_from(look: Callable[[FrameType], bool], depth: int = 2) -> bool:
    return look(sys._getframe(depth))


class Looking:
    """An iterator whose next item is whether the frame that asks for it waits."""

    def __init__(self, look: Callable[[FrameType], bool]) -> None:
        self.look = look

    def __iter__(self) -> "Looking":
        return self

    def __next__(self) -> bool:
        return seen_from(self.look)


def waits(frame: FrameType) -> bool:
    return frame.f_lasti in waiting_places(frame.f_code)


def test_places() -> None:
    for answer in Looking(waits):
        assert answer
        break
    assert next(Looking(waits))
    assert next(iter(Looking(waits)), None)
    first, *_ = [next(Looking(waits)) for _ in range(2)]
    assert first
    assert not seen_from(waits, 1)
    assert not Looking(waits).__next__()
    for _ in [0]:
        assert not seen_from(waits, 1)
    assert any(answer for answer in Looking(waits))


def test_generators_in_specialised_code() -> None:
    """The interpreter rewrites a hot loop over a generator: its frame may stand at an inline cache."""

    def batches() -> Iterator[bool]:
        while True:
            yield seen_from(waits)

    for count, answer in enumerate(batches()):
        assert answer, count
        if count == 200:
            break


def test_a_name_that_only_looks_like_next() -> None:
    def next_batch(look: Callable[[FrameType], bool]) -> bool:
        return seen_from(look)

    assert not next_batch(waits)


def train(loader: Iterator[bool], stacks: Stacks) -> list[bool]:
    """What the loader hands out, one at a time, each fed to a jitted function."""
    answers = []
    for answer in loader:
        answers.append(answer)
        stacks.called()
    return answers


def test_a_loop_counts_once_calls_were_seen_in_its_body() -> None:
    stacks = Stacks()

    def loader() -> Iterator[bool]:
        for _ in range(3):  # a loop of its own, which feeds nothing
            yield stacks.waits(sys._getframe())

    assert not stacks.known
    assert train(loader(), stacks) == [False, True, True]


def test_calls_inside_the_loader_do_not_make_it_a_body() -> None:
    """`make_batch` may be jitted too: its call says nothing against the loop that waits for it."""
    stacks = Stacks()

    def loader() -> Iterator[bool]:
        for _ in range(3):
            stacks.called()
            yield stacks.waits(sys._getframe())

    assert train(loader(), stacks) == [False, True, True]
