"""Rows placed again by the fleet's maps: against plain Python integers, row by row and map by map."""

from collections.abc import Callable
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.schema.tables import CLOCK_MAPS, TABLES
from fleetscope.schema.vocabulary import MAP_QUALITIES
from fleetscope.sinks.lake.alignment import BENT_NS, Alignment
from fleetscope.sinks.lake.chain import Chain
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.manifest import Manifest
from fleetscope.sinks.lake.read import Snapshot
from fleetscope.sinks.lake.segment import write_segment

T0 = 1_796_000_000 * 10**9
SECOND = 10**9
CHIP, RAW, WALL = 11, 22, 33
HOP = T0 // (10 * SECOND)


def row(name: int, epoch: int, line: tuple[int, int, int, int], valid: tuple[int, int], **more: Any) -> dict[str, Any]:
    """Of clock_maps: what is not given is of a segment that rows were written with."""
    x0, y0, n, d = line
    return {
        "map": name, "epoch": epoch, "host": 1, "device": 0, "clock": "", "version": 1, "x0": x0, "y0": y0, "n": n,
        "d": d, "valid_from": valid[0], "valid_to": valid[1], "err_ns": 100, "quality": "unsynced", "period_num": 1,
        "period_den": 1, "seen_ns": 0, "ref": 0, "lo_ns": 0, "hi_ns": 0, "sigma_ns": 0, "method": "", "final": False,
        "reference": 0, **more,
    }  # fmt: skip


def fleet(name: int, line: tuple[int, int, int, int], valid: tuple[int, int], version: int = HOP, **more: Any) -> Any:
    return row(
        name, RAW, line, valid, **{"version": version, "quality": "guaranteed", "lo_ns": -30, "hi_ns": 40} | more
    )


def aligned(rows: list[dict[str, Any]], pinned: int | None = None) -> Alignment:
    return Alignment.of(pa.Table.from_pylist(rows, CLOCK_MAPS), pinned)


def image(line: tuple[int, int, int, int], x: int) -> int:
    return line[1] + floor(Fraction((x - line[0]) * line[2], line[3]))


CHIP_TO_WALL = (0, T0 - 7_000_000, 5, 4)
"""Written 7 ms early: 1.25 ns ticks."""
CHIP_TO_RAW = (0, 5_000 * SECOND, 1_250_000_017, 1_000_000_000)
RAW_TO_FLEET = (5_000 * SECOND, T0, 1_000_000_023, 1_000_000_000)


def test_over_both_maps_to_the_fleet() -> None:
    chip = row(2, CHIP, CHIP_TO_RAW, (0, 10**10), ref=RAW, quality="guaranteed", lo_ns=-500, hi_ns=600)
    found = aligned(
        [row(1, CHIP, CHIP_TO_WALL, (0, 1)), chip, fleet(3, RAW_TO_FLEET, (5_000 * SECOND, 5_020 * SECOND))]
    )
    ticks = [0, 1, 3, 799_999_999, 8_000_000_001]
    t_ns = [image(CHIP_TO_WALL, x) for x in ticks]
    placed = found.place(np.full(5, 1), np.array(t_ns), np.zeros(5, np.int64))
    assert placed.t_ns.tolist() == [image(RAW_TO_FLEET, image(CHIP_TO_RAW, x)) for x in ticks]
    assert placed.moved.all()
    assert placed.version.tolist() == [HOP] * 5
    # -30 - 500, and 1 % of the device's for the host's slope, and 1 ns for the floor between
    assert placed.lo_ns.tolist() == [-30 - 500 - 5 - 1] * 5
    assert placed.hi_ns.tolist() == [40 + 600 + 6 + 1] * 5


def test_what_no_map_covers_stays_as_it_was_written() -> None:
    found = aligned([row(1, RAW, (0, T0, 1, 1), (0, 1)), fleet(3, (0, T0 + 50, 1, 1), (100, 200))])
    placed = found.place(np.array([1, 1, 1, 99]), T0 + np.array([99, 100, 200, 150]), 0)
    assert placed.t_ns.tolist() == [T0 + 99, T0 + 150, T0 + 200, T0 + 150]
    assert placed.moved.tolist() == [False, True, False, False]
    assert [MAP_QUALITIES[q] for q in placed.quality] == ["unsynced", "guaranteed", "unsynced", "unsynced"]


@pytest.mark.parametrize(("pinned", "expected"), [(None, 9), (HOP + 6, 9), (HOP + 5, 5), (HOP - 1, 0), (0, 0)])
def test_the_newest_version_counts_unless_one_is_pinned(pinned: int | None, expected: int) -> None:
    provisional = fleet(3, (0, T0 + 5, 1, 1), (0, 100))
    final = fleet(4, (0, T0 + 9, 1, 1), (0, 100), HOP + 6, final=True)
    found = aligned([row(1, RAW, (0, T0, 1, 1), (0, 1)), final, provisional], pinned)
    assert found.place(np.array([1]), np.array([T0 + 7]), 0).t_ns.tolist() == [T0 + 7 + expected]


def test_a_way_is_as_good_as_its_worst_part() -> None:
    chip = row(2, CHIP, (0, 0, 1, 1), (0, 1000), ref=RAW, quality="statistical", sigma_ns=300)
    found = aligned([row(1, CHIP, (0, T0, 1, 1), (0, 1)), chip, fleet(3, (0, T0, 1, 1), (0, 1000), sigma_ns=400)])
    placed = found.place(np.array([1]), np.array([T0 + 5]), 0)
    assert (placed.lo_ns[0], placed.hi_ns[0], placed.sigma_ns[0]) == (0, 0, 500)
    assert MAP_QUALITIES[placed.quality[0]] == "statistical"


def test_what_a_worker_learned_later_places_rows_that_the_fleet_does_not() -> None:
    """Written with no bound; the host's wall clock as it was then is told as a map of version 2."""
    later = fleet(5, (0, T0 + 8, 1, 1), (0, 1000), 2, quality="host-only", lo_ns=0, hi_ns=0, err_ns=70)
    chip = row(2, CHIP, (0, 0, 5, 4), (0, 10**10), ref=RAW, quality="guaranteed")
    rows = [row(1, CHIP, (0, T0, 5, 4), (0, 1), err_ns=-1), later, chip, fleet(3, (0, T0 + 500, 1, 1), (250, 500))]
    placed = aligned(rows).place(np.full(4, 1), T0 + np.array([0, 250, 500, 1000]), 0)
    assert placed.t_ns.tolist() == [T0 + 8, T0 + 750, T0 + 508, T0 + 1000]
    assert placed.version.tolist() == [2, HOP, 2, 1]
    assert [MAP_QUALITIES[q] for q in placed.quality] == ["host-only", "guaranteed", "host-only", "unsynced"]


@pytest.mark.parametrize(
    ("reason", "wrong"),
    [
        ("slope", {"n": 0}),
        ("slope", {"d": 1 << 31}),
        ("range", {"valid_to": 0}),
        ("time", {"y0": 1 << 62}),
        ("version", {"version": 1 << 41}),
        ("version", {"version": -3}),
        ("quality", {"quality": "very good"}),
        ("interval", {"lo_ns": 41}),
        ("sigma", {"sigma_ns": -1}),
        ("itself", {"ref": RAW}),
        ("rate", {"n": 102, "d": 100}),
    ],
)
def test_an_impossible_map_is_left_out_with_its_reason(reason: str, wrong: dict[str, Any]) -> None:
    good = fleet(3, (0, T0 + 5, 1, 1), (0, 100))
    found = aligned([row(1, RAW, (0, T0, 1, 1), (0, 1)), good, fleet(4, (0, T0 + 9, 1, 1), (0, 100), HOP + 1) | wrong])
    assert dict(found.refused) == {reason: 1}
    assert found.place(np.array([1]), np.array([T0 + 7]), 0).t_ns.tolist() == [T0 + 12]


PIECES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(HOP, HOP + 3), st.integers(-900, 900), st.booleans()),
    min_size=1, max_size=12,
)  # fmt: skip


@given(PIECES, st.integers(0, 1))
def test_of_overlapping_pieces_the_one_with_the_highest_version_holds(
    pieces: list[tuple[int, int, int, int, bool]], device: int
) -> None:
    rows = [row(1, CHIP if device else RAW, (0, T0, 1, 1), (0, 1))]
    if device:
        rows.append(row(2, CHIP, (0, 0, 1, 1), (0, 100), ref=RAW, quality="guaranteed"))
    for place, (begin, length, version, more, final) in enumerate(pieces):
        line, seen = (begin, T0 + begin + more, 1, 1), place
        rows.append(fleet(10 + place, line, (begin, begin + length), version, final=final, seen_ns=seen))
    placed = aligned(rows).place(np.full(100, 1), T0 + np.arange(100), 0)
    for x in range(100):
        over = [(v, final, place, more) for place, (b, n, v, more, final) in enumerate(pieces) if b <= x < b + n]
        assert placed.t_ns[x] == T0 + x + (max(over)[3] if over else 0)


@given(
    st.integers(1, 1 << 20), st.integers(1, 1 << 20), st.integers(-(1 << 40), 1 << 40),
    st.lists(st.integers(0, 1 << 41), min_size=1, max_size=20),
)  # fmt: skip
def test_ticks_are_recovered_whatever_the_slope(n: int, d: int, x0: int, ticks: list[int]) -> None:
    line = (x0, T0, n, d)
    chip = row(2, CHIP, (0, 0, 1, 1), (-(1 << 61), 1 << 61), ref=RAW, quality="guaranteed")
    whole = fleet(3, (0, T0, 1, 1), (-(1 << 61), 1 << 61))
    found = aligned([row(1, CHIP, line, (0, 1)), chip, whole])
    t_ns = [image(line, x) for x in ticks]
    # t_sub by its definition (DESIGN 3.3): ticks beyond the smallest that gives t_ns
    sub = [x - (x0 - floor(Fraction(-(t - T0) * d, n))) for x, t in zip(ticks, t_ns, strict=True)]
    assert found.place(np.full(len(ticks), 1), np.array(t_ns), np.array(sub)).t_ns.tolist() == [T0 + x for x in ticks]


def lake(folder: LocalFolder, make_rows: Callable[..., pa.Table], off_ns: int) -> Snapshot:
    """A row each second of a minute, written by a wall clock that is `off_ns` ahead."""
    written = (5_000 * SECOND, T0 + off_ns, 1, 1)
    maps = [
        row(1, RAW, written, (5_000 * SECOND, 5_001 * SECOND)),
        fleet(3, (5_000 * SECOND, T0, 1, 1), (0, 9_000 * SECOND)),
    ]
    spans = make_rows("spans", 60, t_ns=T0 + off_ns + SECOND * np.arange(60), map=1, dur_ns=77, seq=list(range(60)))
    samples = make_rows("samples", 60, t_ns=T0 + off_ns + SECOND * np.arange(60), map=1)
    segments = write_segment(folder, "clock_maps", pa.Table.from_pylist(maps, CLOCK_MAPS), "maps")
    for name, rows in (("spans", spans), ("samples", samples)):
        for half in range(2):
            segments += write_segment(folder, name, rows.slice(30 * half, 30), f"{name}-{half}")
    Chain(folder, 0).commit(Manifest(0, 1, 1, "a", "", T0, (), tuple(segments)))
    return Snapshot.open(folder)


@pytest.mark.parametrize("off_ns", [64 * SECOND, -64 * SECOND, 250 * 86_400 * SECOND])
def test_every_reader_finds_the_rows_of_a_time_by_the_fleet(
    folder: LocalFolder, make_rows: Callable[..., pa.Table], off_ns: int
) -> None:
    snapshot = lake(folder, make_rows, off_ns)
    bounds = {"from_ns": T0 + 10 * SECOND, "to_ns": T0 + 12 * SECOND}
    for name in ("spans", "samples"):
        rows = snapshot.table(name, **bounds)
        assert rows.schema.equals(TABLES[name].schema)
        assert rows.column("t_ns").to_pylist() == [T0 + 10 * SECOND, T0 + 11 * SECOND]
        with snapshot.duckdb([name], **bounds) as connection:
            query = f"SELECT t_ns FROM {name} WHERE t_ns >= ? AND t_ns < ? ORDER BY t_ns"
            assert connection.execute(query, list(bounds.values())).fetchall() == [
                (T0 + 10 * SECOND,),
                (T0 + 11 * SECOND,),
            ]
    assert abs(off_ns) <= snapshot.alignment.widest_ns <= abs(off_ns) + BENT_NS + 1
    assert snapshot.table("spans").column("dur_ns").unique().to_pylist() == [77]


def test_whoever_gives_no_time_does_not_wait_for_the_largest_correction(
    folder: LocalFolder, make_rows: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding it looks at every map there is."""
    snapshot = lake(folder, make_rows, 5)
    asked = []
    monkeypatch.setattr(Alignment, "widest_ns", property(lambda _: asked.append(1) or 9))
    assert snapshot.table("spans").num_rows == 60
    assert snapshot.written_between("spans", None, None) == (None, None)
    assert not asked
    assert snapshot.written_between("spans", T0, None) == (T0 - 9, None)


def test_a_reader_may_ask_for_rows_as_they_were_written(
    folder: LocalFolder, make_rows: Callable[..., pa.Table]
) -> None:
    lake(folder, make_rows, 5)
    written = Snapshot.open(folder, clock_version=0)
    assert written.table("spans").column("t_ns")[0].as_py() == T0 + 5
    with Snapshot.open(folder).duckdb(["spans"], written=True) as connection:
        assert connection.sql("SELECT t_ns, written_ns FROM spans ORDER BY seq LIMIT 1").fetchall() == [(T0, T0 + 5)]
