"""Rounds: every committed row once and all tables of one moment, through races, kills and zombies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.coordinate import moment
from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.errors import EpochFenced, FoldConflict, LakeFull
from fleetscope.sinks.lake.chain import Chain, manifest_key
from fleetscope.sinks.lake.faults import ENVIRONMENT, armed
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.rounds import newest_round, round_key

pytestmark = pytest.mark.fault


def _moments(folder: LocalFolder, name: str = "me") -> Moments:
    return Moments(folder, merge_rows, name)


def _expected(world: ModuleType, *numbers: int, chain: int = 0) -> set[int]:
    return {seq for number in numbers for seq in world.seqs(chain, number)}


def test_a_round_brings_all_tables_to_the_same_manifests(world: ModuleType, folder: LocalFolder) -> None:
    moments = _moments(folder)
    assert moments.make() is None
    for _ in range(3):
        world.commit_epoch(folder)
    world.commit_epoch(folder, chain=2)
    record = moments.make()
    assert record is not None
    assert record.folded == {0: 3, 2: 1}
    assert set(record.versions) == {"spans", "op_10s", "hosts"}
    everything = _expected(world, 1, 2, 3) | _expected(world, 1, chain=2)
    world.check(folder, everything, include_tail=False)
    world.check(folder, everything)
    assert moments.make() is None
    world.commit_epoch(folder)
    second = moments.make()
    assert second is not None
    assert (second.number, second.folded) == (2, {0: 4, 2: 1})


def test_a_reader_keeps_its_moment_while_files_are_replaced(world: ModuleType, folder: LocalFolder) -> None:
    moments = _moments(folder)
    for _ in range(4):
        world.commit_epoch(folder)
    moments.make()
    pinned = Snapshot.open(folder)
    before = pinned.files("spans")
    assert replace_small(moments.tables["spans"], merge_rows, small_files=4).files == 4
    moments.touch("spans")
    world.commit_epoch(folder)
    assert moments.make() is not None
    assert pinned.files("spans") == before
    assert sorted(pinned.table("spans").column("seq").to_pylist()) == sorted(_expected(world, 1, 2, 3, 4))
    again = Snapshot(folder, pinned.round, pinned.tail)  # the same moment, its files looked up only now
    assert sorted(again.table("spans").column("seq").to_pylist()) == sorted(_expected(world, 1, 2, 3, 4))
    world.check(folder, _expected(world, 1, 2, 3, 4, 5))


def test_only_one_of_two_coordinators_publishes_a_round(world: ModuleType, folder: LocalFolder) -> None:
    first, second = _moments(folder, "first"), _moments(folder, "second")
    world.commit_epoch(folder)
    with armed("round.before_put", lambda: second.make() and None):
        assert first.make() is None
    assert first.last is not None
    assert first.last.made_by == "second"
    world.check(folder, _expected(world, 1))
    world.commit_epoch(folder)
    record = first.make()
    assert record is not None
    assert (record.number, record.made_by) == (2, "first")
    world.check(folder, _expected(world, 1, 2), include_tail=False)


@pytest.mark.parametrize("point", ["fold.merged", "delta.before_commit", "delta.committed", "round.before_put"])
@pytest.mark.parametrize("passage", [1, 2, 3])
def test_a_table_that_another_has_taken_further_raises_the_target(
    world: ModuleType, folder: LocalFolder, point: str, passage: int
) -> None:
    """The other folds a later epoch, but dies before its round: our round must hold that epoch in every table or in
    none."""
    first, second = _moments(folder, "first"), _moments(folder, "second")
    world.commit_epoch(folder)

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    def other_folds_further() -> None:
        world.commit_epoch(folder)
        # hosts and op_10s are folded, spans are not
        with armed("delta.committed", die, 2), pytest.raises(Died):
            second.make()

    with armed(point, other_folds_further, passage):
        first.make()
    world.check(folder, include_tail=True)
    world.check(folder, include_tail=False)
    first.make()
    done = {item.number for item in Chain(folder, 0).after(0)}
    world.check(folder, _expected(world, *done), include_tail=False)
    world.check(folder, _expected(world, *done))


def test_a_zombie_that_slept_through_many_rounds_changes_nothing(world: ModuleType, folder: LocalFolder) -> None:
    zombie, other = _moments(folder, "zombie"), _moments(folder, "other")
    for _ in range(2):
        world.commit_epoch(folder)

    def sleep() -> None:
        for _ in range(6):
            world.commit_epoch(folder)
            other.make()
            replace_small(other.tables["spans"], merge_rows, small_files=3)
            other.touch("spans")

    with armed("delta.before_commit", sleep):
        zombie.make()
    world.check(folder, _expected(world, *range(1, 9)))
    zombie.make()
    world.check(folder, _expected(world, *range(1, 9)), include_tail=False)


_POINTS = [
    "fold.merged",
    "delta.before_commit",
    "delta.committed",
    "round.before_put",
    "round.after_put",
    "object.before_link",
    "object.linked",
    "file.written",
    "segment.written",
    "replace.written",
]


@pytest.mark.parametrize("point", _POINTS)
def test_a_coordinator_killed_anywhere_loses_and_doubles_nothing(
    world: ModuleType, folder: LocalFolder, point: str
) -> None:
    moments = _moments(folder)
    world.commit_epoch(folder)
    moments.make()
    for _ in range(4):
        world.commit_epoch(folder)
    everything = _expected(world, 1, 2, 3, 4, 5)
    done = subprocess.run(
        [sys.executable, str(Path(world.__file__ or "")), "coordinate", folder.url],
        env={**os.environ, ENVIRONMENT: f"{point}=kill"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    world.check(folder, everything)
    world.check(folder, include_tail=False)
    world.commit_epoch(folder)
    world.coordinate(folder, "successor")
    world.check(folder, everything | _expected(world, 6), include_tail=False)
    world.check(folder, everything | _expected(world, 6))


@pytest.mark.parametrize("point", ["file.written", "object.written"])
@pytest.mark.parametrize("passage", [1, 2])
def test_a_full_disk_during_a_round_costs_only_the_round(
    world: ModuleType, folder: LocalFolder, point: str, passage: int
) -> None:
    for _ in range(2):
        world.commit_epoch(folder)
    moments = _moments(folder)

    def full() -> None:
        raise OSError(28, "No space left on device")

    with armed(point, full, passage):
        try:
            moments.make()
        except LakeFull:
            assert newest_round(folder) is None
    world.check(folder, _expected(world, 1, 2))
    assert not [key for key in folder.modified("") if "/.writing-" in key]
    moments.make()
    world.check(folder, _expected(world, 1, 2), include_tail=False)


def test_two_coordinators_a_worker_and_a_reader_at_once(world: ModuleType, folder: LocalFolder) -> None:
    epochs = 25
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(step: Any) -> None:
        try:
            while not stop.is_set():
                step()
        except BaseException as error:
            failures.append(error)
            stop.set()

    def coordinator(name: str) -> Any:
        moments = _moments(folder, name)

        def step() -> None:
            try:
                moments.make()
                for table in ("spans", "op_10s"):
                    if replace_small(moments.tables[table], merge_rows, small_files=5).files:
                        moments.touch(table)
            except FoldConflict:
                pass
            stop.wait(0.01)

        return step

    def reader() -> None:
        world.check(folder, include_tail=True)
        world.check(folder, include_tail=False)

    threads = [threading.Thread(target=guarded, args=(step,)) for step in (coordinator("a"), coordinator("b"), reader)]
    for thread in threads:
        thread.start()
    for _ in range(epochs):
        world.commit_epoch(folder)
        if stop.wait(0.02):
            break
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not failures, failures
    _moments(folder, "last").make()
    world.check(folder, _expected(world, *range(1, epochs + 1)), include_tail=False)


def test_a_zombie_worker_is_fenced_and_its_rows_are_orphans(world: ModuleType, folder: LocalFolder) -> None:
    world.commit_epoch(folder)

    def successor() -> None:
        world.commit_epoch(folder, attempt="successor")
        world.commit_epoch(folder, attempt="successor")

    with armed("manifest.before_put", successor), pytest.raises(EpochFenced):
        world.commit_epoch(folder, attempt="zombie")
    _moments(folder).make()
    world.check(folder, _expected(world, 1, 2, 3), include_tail=False)


def test_a_chain_that_does_not_join_is_folded_up_to_the_damage(world: ModuleType, folder: LocalFolder) -> None:
    world.commit_epoch(folder)
    second = world.commit_epoch(folder)
    world.commit_epoch(folder)
    world.commit_epoch(folder, chain=1)
    damaged = second.to_bytes().replace(b'"from":20', b'"from":21')
    assert damaged != second.to_bytes()
    folder.put(manifest_key(0, 2), damaged)
    moments = _moments(folder)
    record = moments.make()
    assert record is not None
    assert record.folded == {0: 1, 1: 1}
    assert "FS5011" in str(moments.broken[0])
    assert "t/0 covers [21, 30), its parent ended at 20" in str(moments.broken[0])
    world.check(folder, _expected(world, 1) | _expected(world, 1, chain=1), include_tail=False)


def test_after_an_outage_rounds_stay_small(
    world: ModuleType, folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moment, "ROUND_MERGED_ROWS", 5)  # an epoch has two rows to merge
    for _ in range(5):
        world.commit_epoch(folder)
    moments = _moments(folder)
    folded = []
    while moments.look() and moments.behind:
        record = moments.make()
        assert record is not None
        folded.append(record.folded[0])
        world.check(folder, _expected(world, 1, 2, 3, 4, 5))
        world.check(folder, _expected(world, *range(1, record.folded[0] + 1)), include_tail=False)
    assert folded == [2, 4, 5]


def test_a_coordinator_that_stood_by_past_the_sweep_finds_the_newest_round(
    world: ModuleType, folder: LocalFolder
) -> None:
    sleeper, leader = _moments(folder, "sleeper"), _moments(folder, "leader")
    world.commit_epoch(folder)
    assert sleeper.make() is not None
    for _ in range(3):
        world.commit_epoch(folder)
        leader.make()
    for number in (1, 2, 3):
        folder.delete(round_key(number))
    world.commit_epoch(folder)
    record = sleeper.make()
    assert record is not None
    assert (record.number, record.folded) == (5, {0: 5})


class _Crash(BaseException):
    pass


def _crash() -> None:
    raise _Crash


_STEPS = st.one_of(
    st.tuples(st.just("epoch"), st.integers(0, 1)),
    st.tuples(st.just("round"), st.integers(0, 1)),
    st.tuples(st.just("replace"), st.integers(0, 1)),
    st.tuples(st.just("crash"), st.integers(0, 1), st.sampled_from(_POINTS), st.integers(1, 4)),
)


@pytest.mark.property
@settings(max_examples=15, deadline=None)
@given(steps=st.lists(_STEPS, min_size=4, max_size=12))
def test_any_interleaving_keeps_every_row_once(world: ModuleType, steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder = LocalFolder(Path(path))
        actors = [_moments(folder, f"actor-{number}-{0}") for number in range(2)]
        made = {0: 0, 1: 0}

        def replace(moments: Moments) -> None:
            for table in ("spans", "op_10s"):
                if replace_small(moments.tables[table], merge_rows, small_files=2).files:
                    moments.touch(table)

        for index, (what, who, *fault) in enumerate(steps):
            if what == "epoch":
                world.commit_epoch(folder, chain=who)
                made[who] += 1
            elif what == "round":
                actors[who].make()
            elif what == "replace":
                replace(actors[who])
            else:
                with armed(fault[0], _crash, fault[1]):
                    try:
                        replace(actors[who])
                        actors[who].make()
                    except _Crash:
                        # the process is gone: its successor knows only what is in the lake
                        actors[who] = _moments(folder, f"actor-{who}-{index}")
            expected = {
                seq for chain, count in made.items() for n in range(1, count + 1) for seq in world.seqs(chain, n)
            }
            world.check(folder, expected)
            world.check(folder, include_tail=False)
