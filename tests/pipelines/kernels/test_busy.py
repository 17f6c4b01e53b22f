"""Busy time against a walk over single ticks: who runs on each line, which class wins, which window the tick is in."""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines import busy as kernel
from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo, Block
from fleetscope.pipelines.nest import nest
from fleetscope.schema.vocabulary import DEVICE_WORK, WINDOW_NS, Kind, SpanFlag

PRIORITY = ["compute", "sparse_core", "collective", "copy", "infeed", "outfeed", "other"]
CLASS = {
    Kind.COMPUTE: "compute",
    Kind.SPARSE_CORE: "sparse_core",
    Kind.COLLECTIVE: "collective",
    Kind.COPY: "copy",
    Kind.INFEED: "infeed",
    Kind.OUTFEED: "outfeed",
}


def _window_of(block: Block, batch: int, tick: int) -> int:
    part = block.placements[batch][0]
    for later in block.placements[batch][1:]:
        if tick >= later.valid_from:
            part = later
    return part.at(tick) // WINDOW_NS * WINDOW_NS


def _class_of(kind: int) -> str | None:
    return CLASS.get(Kind(kind), "other") if kind in DEVICE_WORK else None


def _walk(block: Block) -> dict[tuple[int, ...], dict[str, int]]:
    """(t_ns, host, process, device) -> column -> ns. A tick [x, x + 1) lasts N(x + 1) - N(x)."""
    told: dict[tuple[int, ...], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for b, info in enumerate(block.infos):
        if not info.device:
            continue
        rows = range(int(block.offsets[b]), int(block.offsets[b + 1]))
        start, end, kind, line = (
            block.start.tolist(),
            (block.start + block.dur).tolist(),
            block.kind.tolist(),
            block.line.tolist(),
        )
        parent: dict[int, int] = {}
        for row in rows:
            holders = [
                k
                for k in rows
                if k < row
                and line[k] == line[row]
                and end[k] >= end[row]
                and end[k] > start[row]
                and end[k] >= start[k]
            ]
            parent[row] = holders[-1] if holders and end[row] >= start[row] else -1
        key = (info.host, info.process, info.device)

        def inherited(row: int, parent: dict[int, int] = parent, kind: list[int] = kind) -> str | None:
            while row >= 0 and kind[row] not in DEVICE_WORK:
                row = parent[row]
            return _class_of(kind[row]) if row >= 0 else None

        low = min([info.tick_from, *(start[r] for r in rows)])
        high = max([info.tick_to, *(end[r] for r in rows)])
        for tick in range(low, high):
            length = (tick + 1) * info.period_num // info.period_den - tick * info.period_num // info.period_den
            into = told[(_window_of(block, b, tick), *key)]
            if info.tick_from <= tick < info.tick_to:
                into["observed_ns"] += length
            active = [row for row in rows if start[row] <= tick < end[row]]
            leaves = [row for row in active if not any(parent[k] == row for k in active)]
            classes = {inherited(row) for row in leaves} - {None}
            if classes:
                into["busy_ns"] += length
                into[f"{min(classes, key=lambda name: PRIORITY.index(str(name)))}_ns"] += length
            for name, whole in (("collective_total_ns", Kind.COLLECTIVE), ("copy_total_ns", Kind.COPY)):
                into[name] += length * any(kind[row] == whole for row in active)
    return told


COLUMNS = [f"{name}_ns" for name in ("busy", "observed", "collective_total", "copy_total", *PRIORITY)]


def _table(block: Block) -> dict[tuple[int, ...], dict[str, int]]:
    placed = place_rows(block)
    rows = kernel.device_rollup(block, placed, nest(block, placed.dur_ns)).to_pylist()
    keys = [(row["t_ns"], row["host"], row["process"], row["device"]) for row in rows]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, rows, strict=True))


def _compare(block: Block) -> None:
    got, expected = _table(block), _walk(block)
    for key in set(expected) | set(got):
        for name in COLUMNS:
            stated = got[key][name] if key in got else 0
            assert stated == expected.get(key, {}).get(name, 0), (key, name)


@pytest.mark.property
@given(st.data())
@settings(max_examples=120)
def test_every_tick_is_counted_once_and_in_its_class(small: SimpleNamespace, data: st.DataObject) -> None:
    _compare(small.build(data.draw(small.batches(device_zero=True))))


@pytest.mark.property
@pytest.mark.parametrize("mode", ["crowded", "far"])
@given(data=st.data())
@settings(max_examples=40)
def test_the_rare_ways_count_alike(small: SimpleNamespace, mode: str, data: st.DataObject) -> None:
    """More lines than a counter field holds, and ranges that leave no room for a code beside the tick."""
    block = small.build(data.draw(small.batches()))
    with pytest.MonkeyPatch.context() as patch:
        if mode == "crowded":
            patch.setattr(kernel, "FIELD_LIMIT", -1)
        else:
            patch.setattr(kernel, "PACKED_TICKS", 0)
        _compare(block)


@pytest.mark.unit
def test_what_nothing_computes_under_is_exposed(small: SimpleNamespace) -> None:
    """compute [0, 40), collective [30, 60), copy [50, 80), sparse core [55, 65), a module over all: by hand."""
    rows = (
        small.Row(0, 0, 40, Kind.COMPUTE),
        small.Row(1, 30, 30, Kind.COLLECTIVE),
        small.Row(2, 50, 30, Kind.COPY),
        small.Row(3, 0, 100, Kind.MODULE),
        small.Row(4, 55, 10, Kind.SPARSE_CORE),
    )
    block = small.build([small.Given(BatchInfo(1, 2, 3, 0, 100, 1, 1), (small.line_of(0, 0, 1, 1),), rows)])
    (row,) = _table(block).values()
    assert {name: row[name] for name in COLUMNS} == {
        "busy_ns": 80,
        "observed_ns": 100,
        "compute_ns": 40,
        "sparse_core_ns": 10,
        "collective_ns": 15,
        "collective_total_ns": 30,
        "copy_ns": 15,
        "copy_total_ns": 30,
        "infeed_ns": 0,
        "outfeed_ns": 0,
        "other_ns": 0,
    }
    assert row["executions"] == 1
    assert row["op_ns"] == 110


@pytest.mark.unit
def test_unsynced_is_what_no_bracket_ties_to_the_host(small: SimpleNamespace) -> None:
    """Every row is UNSYNCED while it is new: an alert on those would never end."""
    tied, rows = small.line_of(0, 0, 1, 1), (small.Row(0, 5, 10, Kind.COMPUTE), small.Row(0, 20, 10, Kind.COMPUTE))
    loose = replace(tied, flags=tied.flags | int(SpanFlag.NO_DEVICE_CLOCK))
    assert tied.flags & SpanFlag.UNSYNCED
    given = [small.Given(BatchInfo(1, 2, n, 0, 100, 1, 1), (line,), rows) for n, line in ((3, tied), (4, loose))]
    assert {key[3]: row["unsynced"] for key, row in _table(small.build(given)).items()} == {3: 0, 4: 2}


@pytest.mark.unit
def test_siblings_that_overlap_hide_their_parent_once(small: SimpleNamespace) -> None:
    """compute [0, 100) around copies [10, 50), [30, 70) of its line: compute is innermost in [0, 10) and [70, 100)."""
    rows = (small.Row(0, 0, 100, Kind.COMPUTE), small.Row(0, 10, 40, Kind.COPY), small.Row(0, 30, 40, Kind.COPY))
    block = small.build([small.Given(BatchInfo(1, 2, 3, 0, 100, 1, 1), (small.line_of(0, 0, 1, 1),), rows)])
    (row,) = _table(block).values()
    assert (row["busy_ns"], row["compute_ns"], row["copy_ns"]) == (100, 40, 60)


@pytest.mark.unit
def test_a_batch_that_looked_and_found_nothing_is_observed(small: SimpleNamespace) -> None:
    block = small.build([small.Given(BatchInfo(1, 2, 3, 0, 100, 1, 1), (small.line_of(0, 0, 1, 1),), ())])
    (row,) = _table(block).values()
    assert (row["observed_ns"], row["busy_ns"], row["weight"]) == (100, 0, 1)


@pytest.mark.unit
def test_a_range_of_a_century_makes_no_windows(small: SimpleNamespace) -> None:
    years = 100 * 365 * 86_400 * 10**9
    wild = small.Given(BatchInfo(1, 2, 3, 0, years, 1, 1), (small.line_of(0, 0, 1, 1),), (small.Row(0, 5, 10),))
    good = small.Given(BatchInfo(1, 2, 4, 0, 100, 1, 1), (small.line_of(0, 0, 1, 1),), (small.Row(0, 5, 10),))
    assert [key[3] for key in _table(small.build([wild, good]))] == [4]


@pytest.mark.unit
def test_costs_are_added_where_known(small: SimpleNamespace) -> None:
    rows = (small.Row(0, 0, 40, Kind.COMPUTE), small.Row(0, 50, 20, Kind.COMPUTE), small.Row(0, 80, 5, Kind.COPY))
    block = small.build([small.Given(BatchInfo(1, 2, 3, 0, 100, 1, 1), (small.line_of(0, 0, 1, 1),), rows)])
    placed = place_rows(block)
    costs = SimpleNamespace(
        flops=np.array([1000, -1, 0]), model_flops=np.array([900, -1, 0]), bytes_hbm=np.array([7, 8, -1])
    )
    (row,) = kernel.device_rollup(block, placed, nest(block, placed.dur_ns), costs=costs).to_pylist()
    assert (row["flops"], row["model_flops"], row["bytes_hbm"]) == (1000, 900, 15)
    assert (row["flops_known_ns"], row["op_ns"]) == (45, 65)
