"""Silent sources are put away and come back as they were: nothing twice, nothing lost, nothing looked at meanwhile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetscope.pipelines import state as states
from fleetscope.pipelines import step
from fleetscope.pipelines.admit import SourceState
from fleetscope.pipelines.shelf import BUCKETS, Shelf
from fleetscope.pipelines.state import Held, PartitionState, SourceRecord
from fleetscope.schema.vocabulary import Kind

MS = 1_000_000
HOUR_NS = 3_600_000_000_000
NOW = 1_800_000_000_000_000_000


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that owes nothing is shelved after each epoch."""
    monkeypatch.setattr(states, "SHELVE_NS", -1)
    monkeypatch.setattr(states, "SHELVE_AT", 1)


def _ops(first: int) -> dict[str, Any]:
    return {"start": [first, first + 300_000], "dur": [200_000] * 2, "line": 0, "kind": Kind.COMPUTE, "program": 5}


def _record(seen_ns: int, **more: Any) -> SourceRecord:
    return SourceRecord(host=7, process=9, run="r", numbers=SourceState(3, 10), seen_ns=seen_ns, **more)


@pytest.mark.unit
def test_a_shelf_gives_back_what_was_put() -> None:
    shelf = Shelf()
    entries = {number * 37 - 500: [[number], {"run": "é"}, None] for number in range(300)}
    shelf.put(entries)
    assert len(shelf.packed) == BUCKETS
    assert dict(Shelf(dict(shelf.packed)).items()) == entries
    assert shelf.take(37 * 5 - 500) == entries[37 * 5 - 500]
    assert shelf.take(37 * 5 - 500) is None
    assert len(dict(shelf.items())) == 299
    shelf.keep({1: [[1], None, None]})
    assert list(shelf.packed) == [1]
    assert shelf.take(1) == [[1], None, None]
    assert shelf.packed == {}


@pytest.mark.fault
def test_a_source_that_comes_back_goes_on_and_its_duplicates_are_duplicates(bench: Any, eager: None) -> None:
    host, other = bench.host("h1"), bench.host("h1", pid=77)
    first = host.spans(0, 0, MS, _ops(0))
    bench.send(first)
    bench.drain()
    bench.send(other.spans(1, 0, MS, _ops(0)))
    bench.drain()
    bench.send(first)  # sent again when nobody thought of its source any more
    bench.send(host.spans(0, MS, 2 * MS, _ops(MS)))
    bench.drain()
    lost, late = host.spans(0, 2 * MS, 3 * MS, _ops(2 * MS)), host.spans(0, 3 * MS, 4 * MS, _ops(3 * MS))
    bench.send(late)
    bench.drain()
    newest = {row["source"]: row for row in bench.rows("ledger")}[first[0].source_id]
    assert (newest["stored"], newest["duplicate"], newest["gaps"]) == (6, 2, [{"first": 4, "last": 5}])
    bench.send(lost)
    bench.drain()
    rows = [(row["process"], row["seq"]) for row in bench.rows("spans")]
    assert len(rows) == len(set(rows)) == 10
    newest = {row["source"]: row for row in bench.rows("ledger")}[first[0].source_id]
    assert (newest["stored"], newest["duplicate"], newest["gaps"]) == (8, 2, [])


@pytest.mark.unit
def test_what_owes_something_stays_and_old_things_are_forgotten(eager: None) -> None:
    state = PartitionState(
        age_ns=NOW, processes={9: {"run": "r"}}, steps={9: [1]}, clocks={7: {"z": "x"}}, watermarks={7: 5}
    )
    state.sources = {1: _record(NOW), 2: _record(NOW), 3: _record(NOW - 49 * HOUR_NS)}
    state.sources[1].numbers.admit(5, 12, 1, NOW)  # batches 3 and 4 are missing
    state.held = [Held(0, NOW, 2, 1)]
    state.shelve()
    assert set(state.sources) == {1, 2}
    assert state.processes == {9: {"run": "r"}}, "a source of the process is still there"
    state = PartitionState.from_json(json.loads(json.dumps(state.to_json())))
    assert [source for source, _ in state.shelf.items()] == [3]
    state.forget()
    assert list(state.shelf.items()) == []
    state.held, state.sources[1].numbers.gaps = [], []
    state.shelve()
    assert (state.sources, state.processes, state.steps) == ({}, {}, {})
    state.age_ns += HOUR_NS
    state.forget()
    assert state.clocks == {7: {"z": "x"}}, "of a host whose sources are shelved"
    back = state.source(1)
    assert back is not None
    assert (back.numbers.next_batch, back.run, state.processes, state.steps) == (6, "r", {9: {"run": "r"}}, {9: [1]})
    state.age_ns += 49 * HOUR_NS
    state.forget()
    assert (state.sources, state.clocks, state.processes, state.shelf.packed) == ({}, {}, {}, {})


@pytest.mark.unit
def test_a_process_without_steps_is_not_looked_at_each_epoch() -> None:
    waiting = step.ProcessSteps(pending=[["exec", 5, 1, 2, 0, 9, 0, 0, 0]])
    assert not step._overdue(waiting.to_json(), NOW, step.PATIENCE_NS)
    waiting.begins = [[1, 0, 0, 0, 0]]
    assert step._overdue(waiting.to_json(), NOW, step.PATIENCE_NS)


@pytest.mark.fault
def test_sources_that_are_gone_are_not_unpacked_by_an_epoch(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that crashes and starts again all night. Counted, not timed: unpacking a record is what an epoch pays."""
    for pid in range(200):
        host = bench.host("h1", pid=1000 + pid, attempt=f"{pid}")
        bench.send(host.spans(0, pid * MS, (pid + 1) * MS, _ops(pid * MS)))
    worker = bench.worker()
    worker.run_once()
    unpacked = 0
    plain = SourceRecord.from_json.__func__  # type: ignore[attr-defined]

    def counting(cls: type[SourceRecord], value: list[Any]) -> SourceRecord:
        nonlocal unpacked
        unpacked += 1
        return plain(cls, value)  # type: ignore[no-any-return]

    monkeypatch.setattr(SourceRecord, "from_json", classmethod(counting))
    live = bench.host("h1", pid=7)

    def epoch(index: int) -> int:
        before = unpacked
        bench.send(live.spans(0, index * MS, (index + 1) * MS, _ops(index * MS)))
        worker.run_once()
        return unpacked - before

    assert epoch(0) >= 200
    monkeypatch.setattr(states, "SHELVE_NS", 0)
    epoch(1)  # puts them away
    assert epoch(2) < 20
    assert len(bench.rows("spans")) == 2 * 200 + 3 * 2


@pytest.mark.fault
@pytest.mark.parametrize("away_h", [50, 24 * 365])
def test_a_worker_that_was_away_for_days_has_not_been_looking_and_forgets_nothing(bench: Any, away_h: int) -> None:
    """Found: after 49 h without a worker (or with its clock wrong for a moment) sources were forgotten, and their next
    batches opened gaps of all that had been stored long ago; gaps whose batches waited in the log closed as lost."""
    host = bench.host("h1")
    sent = [host.spans(0, index * MS, (index + 1) * MS, _ops(index * MS)) for index in range(6)]
    (chain,) = bench.worker()._chains
    now = NOW

    def epoch() -> None:
        plan = chain.plan(now)
        assert plan is not None
        chain.run(plan, bench.graph)

    chain.load()
    bench.send(sent[0], sent[2])
    epoch()
    now += away_h * HOUR_NS
    bench.send(bench.host("h1", pid=77).spans(1, 0, MS, _ops(0)))
    epoch()
    bench.send(sent[1], sent[4])
    epoch()
    ledger = {row["source"]: row for row in bench.rows("ledger")}[sent[0][0].source_id]
    assert (ledger["stored"], ledger["duplicate"], ledger["appended"]) == (8, 0, 10)
    assert (ledger["gaps"], ledger["lost"]) == ([{"first": 6, "last": 7}], [])


@pytest.mark.unit
def test_age_grows_with_the_clock_but_never_by_more_than_an_epoch_can_have_taken() -> None:
    state = PartitionState()
    state.grow_older(NOW)
    assert state.age_ns == NOW
    for now, passed in ((NOW + 5, 5), (NOW + 2, 5), (NOW + 3, 6), (NOW + 48 * HOUR_NS, 6 + states.AGE_STEP_NS)):
        state.grow_older(now)
        state = PartitionState.from_json(json.loads(json.dumps(state.to_json())))
        assert state.age_ns == NOW + passed
