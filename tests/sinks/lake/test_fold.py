"""Folding: every committed row once, whoever folds, dies or wakes late. The truth table of
reference/eco-style-storage.md B4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.errors import FoldConflict, SegmentInvalid
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.faults import armed
from fleetscope.sinks.lake.fold import ABSORB_ROWS, chain_app, fold_rows, fold_table, read_rows
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.objects import ObjectStore, open_store
from fleetscope.sinks.lake.replace import PREFIX, replace_small
from fleetscope.sinks.lake.segment import write_segment
from fleetscope.sinks.lake.tables import REPLACE, LakeTable

pytestmark = pytest.mark.contract

Commit = Callable[..., Manifest]


@pytest.fixture(params=["folder", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """The truth table holds wherever a lake may be."""
    if request.param == "folder":
        return LocalFolder(tmp_path / "lake")
    return open_store(f"s3://lake/fold/{tmp_path.name}", request.getfixturevalue("s3").options())


@pytest.fixture
def commit(folder: ObjectStore) -> Commit:
    """`commit(table=rows, ...)`: the next manifest of chain 0 (or `chain=`) with a segment of each table."""
    newest: dict[int, Manifest] = {}

    def make(chain: int = 0, **tables: pa.Table) -> Manifest:
        parent = newest.get(chain)
        number = 1 if parent is None else parent.number + 1
        segments = []
        for index, (name, rows) in enumerate(tables.items()):
            segments += write_segment(folder, name, rows, f"{chain}-{number}-a-{index}")
        manifest = Manifest(
            chain, number, 1, f"a{number}", "" if parent is None else parent.digest, number, (), tuple(segments)
        )
        newest[chain] = Chain(folder, chain).commit(manifest)
        return newest[chain]

    return make


def _seqs(table: LakeTable) -> list[int]:
    table.refresh()
    paths = [item.path for item in table.live()]
    if not paths:
        return []
    return sorted(read_rows(table.store, table.name, paths).column("seq").to_pylist())


def _fold(table: LakeTable, *manifests: Manifest, floor: Mapping[int, int] | None = None) -> Mapping[int, int]:
    chains: dict[int, list[Manifest]] = {}
    for manifest in manifests:
        chains.setdefault(manifest.chain, []).append(manifest)
    return fold_table(table, chains, floor or {}, merge_rows)


def test_raw_segments_become_files_without_being_rewritten(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    manifest = commit(spans=make_rows("spans", 3, seq=[1, 2, 3]))
    table = LakeTable(folder, "spans")
    assert _fold(table, manifest) == {0: 1}
    assert [item.path for item in table.live()] == [manifest.segments[0].path]
    assert _seqs(table) == [1, 2, 3]
    assert table.live()[0].partition == {"date": "2025-06-15", "hour": "12", "retention_class": "standard"}


def test_folding_again_or_by_another_changes_nothing(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    manifest = commit(spans=make_rows("spans", 2, seq=[1, 2]))
    first, second = LakeTable(folder, "spans"), LakeTable(folder, "spans")
    second.refresh(create=True)  # opened before the fold: stale from here on
    _fold(first, manifest)
    version = first.version
    assert _fold(second, manifest) == {0: 1}
    assert _fold(first, manifest) == {0: 1}
    assert second.refresh() == version
    assert _seqs(first) == [1, 2]


def test_an_older_manifest_is_never_folded_after_a_newer_one(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    # the library accepts an older app transaction; comparing first is ours
    manifests = [commit(spans=make_rows("spans", 1, seq=[i])) for i in range(3)]
    _fold(LakeTable(folder, "spans"), *manifests)
    late = LakeTable(folder, "spans")
    assert _fold(late, manifests[0]) == {0: 3}
    assert _seqs(late) == [0, 1, 2]


@pytest.mark.parametrize("point", ["fold.compared", "delta.before_commit"])
def test_a_coordinator_that_wakes_between_look_and_commit_is_refused(
    folder: ObjectStore, commit: Commit, make_rows: Any, point: str
) -> None:
    manifests = [commit(spans=make_rows("spans", 1, seq=[i])) for i in range(4)]
    sleeper, other = LakeTable(folder, "spans"), LakeTable(folder, "spans")
    with armed(point, lambda: _fold(other, *manifests) and None):
        assert _fold(sleeper, *manifests[:2]) == {0: 4}
    assert _seqs(sleeper) == [0, 1, 2, 3]
    assert sleeper.transaction(chain_app(0)) == 4


def test_a_coordinator_that_slept_past_the_log_s_retention_does_not_commit_to_a_dead_branch(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    # its next version's name is free again, so only the library's look at the checkpoint refuses it
    manifests = [commit(spans=make_rows("spans", 1, seq=[i])) for i in range(6)]
    sleeper, other = LakeTable(folder, "spans"), LakeTable(folder, "spans")
    _fold(sleeper, manifests[0])

    def hours_pass() -> None:
        for end in range(2, 5):
            _fold(other, *manifests[:end])
        DeltaTable(folder.location_url("tables/spans"), storage_options=folder.options).create_checkpoint()
        for number in range(other.version):
            folder.delete(f"tables/spans/_delta_log/{number:020d}.json")

    with armed("delta.before_commit", hours_pass):
        assert _fold(sleeper, *manifests[:2]) == {0: 4}
    assert _fold(sleeper, *manifests) == {0: 6}
    assert _seqs(LakeTable(folder, "spans")) == [0, 1, 2, 3, 4, 5]


def test_chains_are_folded_independently(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    a = commit(chain=0, spans=make_rows("spans", 1, seq=[1]))
    b = commit(chain=7, spans=make_rows("spans", 1, seq=[2]))
    c = commit(chain=7, spans=make_rows("spans", 1, seq=[3]))
    table = LakeTable(folder, "spans")
    assert _fold(table, a, b) == {0: 1, 7: 1}
    assert _fold(table, a, b, c) == {0: 1, 7: 2}
    assert _seqs(table) == [1, 2, 3]


def test_a_table_without_segments_is_not_touched(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    manifest = commit(spans=make_rows("spans", 1))
    table = LakeTable(folder, "samples")
    assert _fold(table, manifest) == {0: 1}
    assert table.version == -1


def test_rollup_rows_of_a_key_are_merged_into_one_file_a_date(
    folder: ObjectStore, commit: Commit, make_rows: Any, noon_ns: int
) -> None:
    day = 24 * 3_600_000_000_000
    times = [noon_ns, noon_ns, noon_ns + day]
    key = {"t_ns": times, "program": 5, "kind": 3, "weight": 1}
    one = commit(op_10s=make_rows("op_10s", 3, count=[1, 2, 4], min_ns=[9, 4, 7], max_ns=[9, 5, 7], **key))
    two = commit(op_10s=make_rows("op_10s", 3, count=[10, 20, 40], min_ns=[3, 8, 7], max_ns=[3, 8, 70], **key))
    table = LakeTable(folder, "op_10s")
    _fold(table, one, two)
    assert sorted((item.partition["date"], item.rows) for item in table.live()) == [
        ("2025-06-15", 1),
        ("2025-06-16", 1),
    ]
    rows = read_rows(folder, "op_10s", sorted(item.path for item in table.live())).sort_by("t_ns")
    assert rows.column("count").to_pylist() == [33, 44]
    assert rows.column("min_ns").to_pylist() == [3, 7]
    assert rows.column("max_ns").to_pylist() == [9, 70]


def test_a_small_dimension_table_is_one_file_with_the_newest_rows(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    table = LakeTable(folder, "hosts")
    _fold(table, commit(hosts=make_rows("hosts", 3, host=[1, 2, 1], name=["old", "b", "older"], seen_ns=[5, 5, 4])))
    _fold(table, commit(hosts=make_rows("hosts", 2, host=[3, 1], name=["c", "new"], seen_ns=[1, 6])), floor={0: 1})
    assert [item.rows for item in table.live()] == [3]
    rows = read_rows(folder, "hosts", [table.live()[0].path])
    assert dict(zip(rows.column("host").to_pylist(), rows.column("name").to_pylist(), strict=True)) == {
        1: "new",
        2: "b",
        3: "c",
    }


def test_a_large_dimension_table_is_not_rewritten_for_a_few_rows(folder: ObjectStore, make_rows: Any) -> None:
    table = LakeTable(folder, "clock_maps")
    count = ABSORB_ROWS + 1
    fold_rows(table, make_rows("clock_maps", count, map=list(range(count))), {})
    large = table.live()[0].path
    for value in range(3):
        fold_rows(table, make_rows("clock_maps", 2, map=[value, count + value], version=7, seen_ns=2**62), {})
    assert {item.rows for item in table.live() if item.path != large} == {6}
    fold_rows(table, make_rows("clock_maps", count, map=list(range(count)), version=9, seen_ns=2**62 + 1), {})
    assert [item.rows for item in table.live()] == [count + 3]


def test_two_dimension_folds_of_one_moment_lose_no_row(folder: ObjectStore, make_rows: Any) -> None:
    first, second = LakeTable(folder, "hosts"), LakeTable(folder, "hosts")
    fold_rows(first, make_rows("hosts", 1, host=[1], seen_ns=1), {})

    def other() -> None:
        fold_rows(second, make_rows("hosts", 1, host=[2], seen_ns=1), {})

    with armed("delta.before_commit", other):
        fold_rows(first, make_rows("hosts", 1, host=[3], seen_ns=1), {})
    paths = [item.path for item in first.live()]
    assert sorted(read_rows(folder, "hosts", paths).column("host").to_pylist()) == [1, 2, 3]


def test_a_damaged_segment_is_named(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    manifest = commit(op_10s=make_rows("op_10s", 1))
    key = manifest.segments[0].key
    folder.put(key, folder.get(key)[:-20])
    with pytest.raises(SegmentInvalid, match=r"FS5021: tables/op_10s/date=2025-06-15"):
        _fold(LakeTable(folder, "op_10s"), manifest)
    folder.delete(key)
    with pytest.raises(SegmentInvalid, match="FS5021"):
        _fold(LakeTable(folder, "op_10s"), manifest)


# ---- replace


def _filled(folder: ObjectStore, commit: Commit, make_rows: Any, files: int) -> LakeTable:
    table = LakeTable(folder, "spans")
    _fold(table, *(commit(spans=make_rows("spans", 2, seq=[2 * i, 2 * i + 1])) for i in range(files)))
    return table


_AFTERWARDS = datetime(2025, 6, 15, 13, 0, tzinfo=UTC)
"""The hour of the rows has just ended: nothing is replaced for age."""


def test_small_files_are_replaced_once(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = _filled(folder, commit, make_rows, 5)
    assert replace_small(table, merge_rows, small_files=6, now=_AFTERWARDS).files == 0
    done = replace_small(table, merge_rows, small_files=5, now=_AFTERWARDS)
    assert (done.files, done.rows, done.into) == (5, 10, 1)
    assert [item.path.rsplit("/", 1)[-1][: len(PREFIX)] for item in table.live()] == [PREFIX]
    assert _seqs(table) == list(range(10))
    assert replace_small(table, merge_rows, small_files=1, now=_AFTERWARDS).files == 0


def test_bins_hold_no_more_than_the_given_rows(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = _filled(folder, commit, make_rows, 5)
    done = replace_small(table, merge_rows, small_files=2, bin_rows=4, now=_AFTERWARDS)
    # a bin of one file alone stays what it is
    assert (done.files, done.into) == (4, 2)
    assert sorted(item.rows for item in table.live()) == [2, 4, 4]
    assert _seqs(table) == list(range(10))


def test_a_partition_of_the_past_is_replaced_without_waiting_for_more(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    table = _filled(folder, commit, make_rows, 8)
    assert replace_small(table, merge_rows, small_files=64, now=_AFTERWARDS).files == 0
    assert replace_small(table, merge_rows, small_files=64, now=datetime(2025, 6, 15, 15, 1, tzinfo=UTC)).files == 8


def test_of_two_replaces_the_second_is_refused(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = _filled(folder, commit, make_rows, 4)
    other = LakeTable(folder, "spans")
    with armed(
        "delta.before_commit", lambda: replace_small(other, merge_rows, small_files=4, now=_AFTERWARDS) and None
    ):
        done = replace_small(table, merge_rows, small_files=4, now=_AFTERWARDS)
    assert done.files == 0
    assert _seqs(table) == list(range(8))
    assert table.transaction(REPLACE) == 1
    assert len(list(folder.keys("tables/spans/date=2025-06-15"))) == 5  # the loser's file is gone


def test_a_replace_of_several_bins_stops_when_another_was_in_between(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    table = _filled(folder, commit, make_rows, 6)
    other = LakeTable(folder, "spans")

    def replace_the_rest() -> None:
        replace_small(other, merge_rows, small_files=2, now=_AFTERWARDS)

    with armed("delta.committed", replace_the_rest):
        replace_small(table, merge_rows, small_files=2, bin_rows=4, now=_AFTERWARDS)
    assert _seqs(table) == list(range(12))


def test_the_library_would_have_doubled_the_rows(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    # why the REPLACE transaction is there: if this ever fails, the library has learned it and the fence may go
    table = _filled(folder, commit, make_rows, 4)
    url = folder.location_url("tables/spans")
    first, second = (DeltaTable(url, storage_options=folder.options) for _ in range(2))
    first.optimize.compact()
    second.optimize.compact()
    assert len(_seqs(table)) == 16


def test_a_replace_beside_an_append_keeps_both(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = _filled(folder, commit, make_rows, 4)
    late = commit(spans=make_rows("spans", 1, seq=[99]))
    other = LakeTable(folder, "spans")
    with armed("delta.before_commit", lambda: _fold(other, late, floor={0: 4}) and None):
        assert replace_small(table, merge_rows, small_files=4, now=_AFTERWARDS).files == 4
    assert _seqs(table) == [*range(8), 99]


def test_a_fold_beside_a_replace_keeps_both(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = _filled(folder, commit, make_rows, 4)
    late = commit(spans=make_rows("spans", 1, seq=[99]))
    other = LakeTable(folder, "spans")
    with armed(
        "delta.before_commit", lambda: replace_small(other, merge_rows, small_files=4, now=_AFTERWARDS) and None
    ):
        _fold(table, late, floor={0: 4})
    assert _seqs(table) == [*range(8), 99]
    assert len(table.live()) == 2


def test_rollup_files_are_merged_by_their_replace(folder: ObjectStore, commit: Commit, make_rows: Any) -> None:
    table = LakeTable(folder, "op_10s")
    for number in range(3):
        _fold(table, commit(op_10s=make_rows("op_10s", 1, t_ns=[7], count=[number + 1])), floor={0: number})
    assert len(table.live()) == 3
    replace_small(table, merge_rows, small_files=3, now=datetime(1970, 1, 1, tzinfo=UTC))
    rows = read_rows(folder, "op_10s", [item.path for item in table.live()])
    assert rows.column("count").to_pylist() == [6]


def test_a_commit_on_a_version_that_lost_its_files_is_refused(
    folder: ObjectStore, commit: Commit, make_rows: Any
) -> None:
    table = _filled(folder, commit, make_rows, 4)
    stale = table.live()
    replace_small(table, merge_rows, small_files=4, now=_AFTERWARDS)
    other = LakeTable(folder, "spans")
    other.refresh()
    old = LakeTable(folder, "spans")
    old.refresh()
    replaced = other.live()
    other.commit([], replaced, {}, data_change=False)
    with pytest.raises(FoldConflict, match="FS5020"):
        old.commit([], [*stale, *replaced], {}, data_change=False)
