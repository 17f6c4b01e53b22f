"""Sweeping: what can go goes, what anybody may need stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.sinks.lake.chain import Chain, manifest_key
from fleetscope.sinks.lake.fold import fold_table
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import INLINE_STATE_BYTES, Manifest
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.replace import replace_small
from fleetscope.sinks.lake.rounds import Round, commit_round, round_key
from fleetscope.sinks.lake.segment import write_segment
from fleetscope.sinks.lake.sweep import sweep
from fleetscope.sinks.lake.tables import LakeTable

pytestmark = pytest.mark.unit

HOUR_S = 3600.0


class _Lake:
    """Three folded epochs, one round, then one epoch that is not folded; everything `age_s` old."""

    def __init__(self, folder: LocalFolder, make_rows: Any) -> None:
        self.folder = folder
        self.chain = Chain(folder, 0)
        self.tables = {name: LakeTable(folder, name) for name in ("spans", "op_10s")}
        self.make_rows = make_rows
        for number in range(1, 4):
            self.commit(number)
        self.publish(1)
        self.commit(4)

    def commit(self, number: int, state: bytes = b"") -> Manifest:
        parent = self.chain.get(number - 1)
        rows = self.make_rows("spans", 2, seq=[2 * number, 2 * number + 1])
        segments = (
            *write_segment(self.folder, "spans", rows, f"0-{number}-a-0"),
            *write_segment(self.folder, "op_10s", self.make_rows("op_10s", 1, t_ns=[7], count=2), f"0-{number}-a-1"),
        )
        digest = "" if parent is None else parent.digest
        return self.chain.commit(Manifest(0, number, 1, "a", digest, number, (), segments, state))

    def publish(self, number: int) -> None:
        manifests = self.chain.after(0)
        floor = {} if number == 1 else {0: 0}
        for table in self.tables.values():
            fold_table(table, {0: manifests}, floor, merge_rows)
        versions = {name: table.version for name, table in self.tables.items()}
        assert commit_round(self.folder, Round(number, number, "t", versions, {0: manifests[-1].number}))

    def age(self, seconds: float, prefix: str = "") -> None:
        then = time.time() - seconds
        for key in self.folder.modified(prefix):
            os.utime(self.folder.location(key), (then, then))

    def seqs(self) -> list[int]:
        snapshot = Snapshot.open(self.folder)
        found: list[int] = sorted(snapshot.table("spans").column("seq").to_pylist())
        assert snapshot.table("op_10s").column("count").to_pylist() == [len(found)]
        return found


@pytest.fixture
def lake(folder: LocalFolder, make_rows: Any) -> _Lake:
    return _Lake(folder, make_rows)


def test_nothing_young_goes(lake: _Lake) -> None:
    before = lake.folder.keys("")
    done = sweep(lake.folder)
    assert (done.manifests, done.segments, done.rounds, done.unfinished) == (0, 0, 0, 0)
    assert lake.folder.keys("") == before


def test_merged_segments_go_when_no_reader_can_want_them(lake: _Lake) -> None:
    lake.age(2 * HOUR_S)
    assert sweep(lake.folder).segments == 3
    left = [key.rsplit("/", 1)[-1] for key in lake.folder.keys("tables/op_10s/date=1970-01-01")]
    assert [name for name in left if not name.startswith("f-")] == ["0-4-a-1.parquet"]
    assert lake.seqs() == list(range(2, 10))


def test_segments_of_a_fold_that_only_just_happened_stay(lake: _Lake) -> None:
    # the coordinator was away for hours: the manifests are old, the readers of the time before its round are not
    lake.age(5 * HOUR_S, "chains")
    lake.age(5 * HOUR_S, "tables")
    assert sweep(lake.folder).segments == 0


def test_losers_and_torn_files_go_after_a_day_and_waiting_epochs_never(lake: _Lake) -> None:
    write_segment(lake.folder, "spans", lake.make_rows("spans", 1, seq=[666]), "0-4-loser-0")
    torn = Path(lake.folder.url) / "tables/spans/.writing-99-abc"
    torn.write_bytes(b"PAR1")
    lake.age(20 * HOUR_S)
    assert sweep(lake.folder).unfinished == 0
    assert torn.exists()
    lake.age(25 * HOUR_S)
    done = sweep(lake.folder)
    assert done.unfinished == 1
    assert not torn.exists()
    assert not [key for key in lake.folder.keys("tables/spans") if "loser" in key]
    # epoch 4 is a day old and not folded: its segments and its manifest are all there is of it
    assert lake.seqs() == list(range(2, 10))


def test_manifests_go_oldest_first_and_the_newest_stays(lake: _Lake) -> None:
    lake.publish(2)
    lake.age(25 * HOUR_S)
    os.utime(lake.folder.location(manifest_key(0, 2)))  # number 2 is young: 3 must not go before it
    assert sweep(lake.folder).manifests == 1
    lake.age(25 * HOUR_S)
    assert sweep(lake.folder).manifests == 2
    assert lake.chain.latest() == lake.chain.get(4)
    assert lake.seqs() == list(range(2, 10))


def test_states_go_with_their_manifests(lake: _Lake) -> None:
    large = bytes(INLINE_STATE_BYTES + 1)
    fifth = lake.commit(5, large)
    sixth = lake.commit(6, large)
    orphan = "state/chain-0/000000000003-loser-0"
    lake.folder.put(orphan, large)
    lake.publish(2)
    lake.age(25 * HOUR_S)
    sweep(lake.folder)
    assert lake.folder.size(orphan) is None
    assert lake.folder.size(fifth.state_object) is None
    assert lake.chain.state(sixth) == large


def test_replaced_files_stay_for_an_hour(lake: _Lake) -> None:
    lake.age(30 * HOUR_S)
    table = lake.tables["spans"]
    old = [item.path for item in table.live()]
    assert replace_small(table, merge_rows, small_files=3).files == 3
    sweep(lake.folder)
    assert all(lake.folder.size(f"tables/spans/{path}") is not None for path in old)
    reader = Snapshot.open(lake.folder)
    assert sorted(reader.table("spans").column("seq").to_pylist()) == list(range(2, 10))


def test_old_rounds_go_but_the_one_readers_may_hold(lake: _Lake) -> None:
    for number in (2, 3):
        lake.publish(number)
        lake.age(2 * HOUR_S, "rounds")
    lake.publish(4)
    assert sweep(lake.folder).rounds == 2
    assert lake.folder.keys("rounds") == [round_key(3), round_key(4)]
