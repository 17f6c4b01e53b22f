"""Admission by numbers: gaps, duplicates, contradictions; and the law that order and repetition do not matter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.pipelines.admit import GAP_AGE_NS, GAP_LIMIT, Gap, Outcome, SourceState
from fleetscope.schema.errors import NumberingContradiction

pytestmark = pytest.mark.unit


def test_in_order_batches_are_taken_and_leave_no_gap() -> None:
    state = SourceState()
    assert [state.admit(0, 0, 10, 1), state.admit(1, 10, 0, 2), state.admit(2, 10, 5, 3)] == [Outcome.TAKEN] * 3
    assert (state.next_batch, state.next_event, state.gaps) == (3, 15, [])


def test_a_jump_opens_a_gap_that_late_batches_close_from_inside() -> None:
    state = SourceState()
    state.admit(0, 0, 10, 1)
    assert state.admit(5, 60, 10, 7) is Outcome.TAKEN
    assert state.gaps == [Gap(1, 4, 10, 60, 7)]
    assert state.admit(2, 20, 10, 8) is Outcome.FILLED
    assert state.gaps == [Gap(1, 1, 10, 20, 7), Gap(3, 4, 30, 60, 7)]
    assert state.admit(1, 10, 10, 8) is Outcome.FILLED
    assert state.admit(2, 20, 10, 8) is Outcome.DUPLICATE
    assert state.gaps == [Gap(3, 4, 30, 60, 7)]
    assert state.gap_events == 30


def test_a_lost_batch_without_events_is_still_a_gap_of_batches() -> None:
    state = SourceState()
    state.admit(1, 0, 4, 9)
    assert state.gaps == [Gap(0, 0, 0, 0, 9)]
    assert state.gap_events == 0


@pytest.mark.parametrize(
    ("batch", "first_event", "rows"),
    [
        (3, 31, 1),  # the next batch cannot skip events without skipping a batch
        (4, 29, 1),  # a later batch cannot repeat events
        (1, 10, 21),  # taken before, but reaches beyond the newest event
        (1 << 62, 1 << 62, 1),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_and_change_nothing(
    batch: int, first_event: int, rows: int
) -> None:
    state = SourceState()
    for number in range(3):
        state.admit(number, number * 10, 10, 1)
    before = state.to_json()
    with pytest.raises(NumberingContradiction, match=str(first_event)):
        state.admit(batch, first_event, rows, 2)
    assert state.to_json() == before


@pytest.mark.parametrize(("batch", "first_event", "rows"), [(1, 11, 3), (3, 30, 9), (2, 5, 10), (2, 35, 10)])
def test_a_batch_must_fit_into_the_gap_it_fills(batch: int, first_event: int, rows: int) -> None:
    state = SourceState(4, 50, [Gap(1, 3, 10, 40, 1)])
    with pytest.raises(NumberingContradiction, match="missing are batches"):
        state.admit(batch, first_event, rows, 2)
    assert state.gaps == [Gap(1, 3, 10, 40, 1)]


def test_a_gap_older_than_a_day_closes_as_lost() -> None:
    state = SourceState()
    state.admit(2, 20, 1, 100)
    state.admit(4, 31, 1, 200)
    state.expire(100 + GAP_AGE_NS)
    assert len(state.gaps) == 2
    state.expire(101 + GAP_AGE_NS)
    assert state.lost == [Gap(0, 1, 0, 20, 100)]
    assert state.gaps == [Gap(3, 3, 21, 31, 200)]
    assert state.lost_events == 20
    assert state.admit(0, 0, 10, 300) is Outcome.DUPLICATE


def test_the_gap_beyond_the_limit_closes_the_oldest() -> None:
    state = SourceState()
    for index in range(GAP_LIMIT + 1):
        state.admit(2 * index + 1, 20 * index + 10, 10, index)
    assert len(state.gaps) == GAP_LIMIT
    assert state.lost == [Gap(0, 0, 0, 10, 0)]


def test_state_survives_its_json() -> None:
    state = SourceState()
    state.admit(3, 30, 5, 1)
    state.admit(1, 10, 5, 2)
    again = SourceState.from_json(state.to_json())
    assert (again.next_batch, again.next_event, again.gaps) == (state.next_batch, state.next_event, state.gaps)


@pytest.mark.property
@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=25), data=st.data())
def test_any_order_with_repeats_and_losses_accounts_for_every_event(rows: list[int], data: st.DataObject) -> None:
    first = [sum(rows[:index]) for index in range(len(rows))]
    arrivals = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=60))
    state, taken, duplicates = SourceState(), [], 0
    for batch in arrivals:
        if state.admit(batch, first[batch], rows[batch], 1) is Outcome.DUPLICATE:
            duplicates += 1
        else:
            taken.append(batch)
    arrived = set(arrivals)
    newest = max(arrived, default=-1)
    assert sorted(taken) == sorted(arrived)
    assert duplicates == len(arrivals) - len(arrived)
    missing = [batch for gap in state.gaps for batch in range(gap.first_batch, gap.last_batch + 1)]
    assert missing == [batch for batch in range(newest + 1) if batch not in arrived]
    lost_events = {event for gap in state.gaps for event in range(gap.first_event, gap.end_event)}
    assert lost_events == {e for b in missing for e in range(first[b], first[b] + rows[b])}
    assert state.next_event == sum(rows[b] for b in taken) + state.gap_events
