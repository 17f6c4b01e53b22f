"""Maps leave when no row refers to them, and no sooner."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fleetscope.pipelines.coordinate.clock_retention import DAY_NS, expire_maps, unreferred
from fleetscope.pipelines.coordinate.moment import Moments
from fleetscope.pipelines.coordinate.rounds import merge_rows
from fleetscope.schema.tables import CLOCK_MAPS, SPANS
from fleetscope.sinks.lake.fold import fold_rows, read_rows, write_rows
from fleetscope.sinks.lake.local_store import LocalFolder

pytestmark = pytest.mark.unit
NOW = 1_796_000_000 * 10**9
HOP = NOW // 10**10


def row(name: int, at_ns: int, **more: Any) -> dict[str, Any]:
    """A host's final map of 10 s from `at_ns` on, told when it ended."""
    return {
        "map": name, "epoch": 1, "host": 1, "device": 0, "clock": "", "version": at_ns // 10**10 + 6, "x0": at_ns,
        "y0": at_ns, "n": 1, "d": 1, "valid_from": at_ns, "valid_to": at_ns + 10**10, "err_ns": 9,
        "quality": "guaranteed", "period_num": 1, "period_den": 1, "seen_ns": at_ns + 10**10, "ref": 0, "lo_ns": -9,
        "hi_ns": 9, "sigma_ns": 0, "method": "smoother", "final": True, "reference": 1, **more,
    }  # fmt: skip


def gone(rows: list[dict[str, Any]], oldest_ns: int, named: list[int]) -> list[int]:
    table = pa.Table.from_pylist(rows, CLOCK_MAPS)
    chosen = unreferred(table, oldest_ns, NOW, lambda: pa.array(named, pa.int64()))
    return [one["map"] for one, out in zip(rows, chosen.tolist(), strict=True) if out]


OLD, PROVISIONAL = NOW - 30 * DAY_NS, {"final": False, "method": "filter"}


def test_what_rows_may_refer_to_is_kept() -> None:
    rows = [
        row(1, OLD),
        row(2, NOW - DAY_NS),
        row(3, OLD, version=1, epoch=7, seen_ns=OLD),  # a segment, named by a row
        row(4, OLD, version=1, epoch=8, seen_ns=OLD),  # one that none names any more
        row(5, OLD, version=1, epoch=9, ref=1, seen_ns=OLD),  # a device's, long over
        row(6, OLD, version=1, epoch=9, ref=1, seen_ns=NOW),  # one that rows came of just now
    ]
    assert gone(rows, OLD, [3, 4]) == []
    assert gone(rows, NOW - 2 * DAY_NS, [3]) == [1, 4, 5]


def test_a_provisional_map_stays_a_day_beside_the_final_one_and_alone_for_good() -> None:
    late = NOW - 2 * DAY_NS
    rows = [
        row(1, late),
        row(2, late, **PROVISIONAL, version=HOP),
        row(3, late + 10**10, **PROVISIONAL),  # no final one of its time
        row(4, NOW - 10**11),
        row(5, NOW - 10**11, **PROVISIONAL),
    ]
    assert gone(rows, late, []) == [2]


def test_rows_of_a_wall_clock_that_was_months_ahead_keep_their_maps() -> None:
    """Written for NOW + 250 days, true two days ago: the oldest row as written lies behind every map."""
    ahead = 250 * DAY_NS
    true = NOW - 2 * DAY_NS
    written = row(9, true, version=1, y0=true + ahead, seen_ns=true)
    assert gone([written, row(1, true)], true + ahead, [9]) == []


def test_files_without_such_rows_stay_and_the_next_round_names_the_version(tmp_path: Any) -> None:
    store = LocalFolder(tmp_path / "lake")
    moments = Moments(store, merge_rows, "me")
    table = moments.tables["clock_maps"]
    assert expire_maps(moments, NOW) == 0
    kept = [row(100 + n, NOW - DAY_NS // 2 + n * 10**10) for n in range(12_000)]
    fold_rows(table, pa.Table.from_pylist(kept, CLOCK_MAPS), {})
    # Segments that no row names go too, where there is no row at all.
    told = [row(1, OLD), row(2, NOW), row(3, OLD, version=1, epoch=7, seen_ns=OLD)]
    fold_rows(table, pa.Table.from_pylist(told, CLOCK_MAPS), {})
    before = {item.path for item in table.live()}
    assert len(before) == 2
    assert expire_maps(moments, NOW) == 2
    after = {item.path for item in table.live()}
    assert len(before & after) == 1
    rows = read_rows(store, "clock_maps", sorted(after))
    assert sorted(rows["map"].to_pylist())[:2] == [2, 100]
    assert len(rows) == 12_001
    assert moments.touched
    assert not np.isin(1, rows["map"].to_numpy())
    assert SPANS.field("map").type == pa.int64()


def test_segments_that_rows_in_files_name_are_kept(tmp_path: Any) -> None:
    store = LocalFolder(tmp_path / "lake")
    moments = Moments(store, merge_rows, "me")
    spans, table = moments.tables["spans"], moments.tables["clock_maps"]
    spans.refresh(create=True)
    for names in ([3, 4, 3], [5]):
        rows = pa.Table.from_pylist([{"map": name, "t_ns": NOW} for name in names], SPANS)
        spans.commit([write_rows(spans, {"date": "2026-12-01"}, rows, "s")], [], {})
    told = [row(name, OLD, version=1, epoch=7, seen_ns=OLD) for name in (3, 5, 6)]
    fold_rows(table, pa.Table.from_pylist(told, CLOCK_MAPS), {})
    assert expire_maps(moments, NOW) == 1
    left = read_rows(store, "clock_maps", [item.path for item in table.live()])
    assert sorted(left["map"].to_pylist()) == [3, 5]
