"""Nesting against a search for each row's innermost container, row by row."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.block import BatchInfo, Block
from fleetscope.pipelines.nest import nest

pytestmark = pytest.mark.property


def _by_search(block: Block) -> list[dict[str, int]]:
    """parent: last earlier row of the line, among those with dur >= 0, that begins no later and ends no earlier; an
    empty row at the very end of another lies outside of it."""
    told = [{"parent": -1, "depth": 0, "child": 0, "overlaps": 0, "covered": 0, "size": 0} for _ in range(block.rows)]
    start, end = block.start.tolist(), (block.start + block.dur).tolist()
    for b in range(len(block.infos)):
        rows = [r for r in range(int(block.offsets[b]), int(block.offsets[b + 1])) if block.dur[r] >= 0]
        for position, row in enumerate(rows):
            before = [k for k in rows[:position] if block.line[k] == block.line[row]]
            holders = [k for k in before if end[k] >= end[row] and end[k] > start[row]]
            if holders:
                told[row]["parent"] = holders[-1]
                told[row]["depth"] = told[holders[-1]]["depth"] + 1
                told[holders[-1]]["child"] += int(block.dur[row]) * 3
            above = told[row]["parent"]
            while above >= 0:
                told[above]["size"] += 1
                above = told[above]["parent"]
            reached = max((end[k] for k in before if told[k]["parent"] == told[row]["parent"]), default=start[row])
            if start[row] < reached < end[row]:
                told[row]["overlaps"], told[row]["covered"] = 1, reached
    return told


@given(st.data())
@settings(max_examples=120)
def test_every_row_finds_its_innermost_container(small: SimpleNamespace, data: st.DataObject) -> None:
    block = small.build(data.draw(small.batches()))
    nested = nest(block, block.dur * 3)
    expected = _by_search(block)
    for name, got in (
        ("parent", nested.parent),
        ("depth", nested.depth),
        ("child", nested.child_ns),
        ("overlaps", nested.overlaps),
        ("covered", nested.covered_to),
        ("size", nested.size),
    ):
        assert got.tolist() == [row[name] for row in expected], name


@given(st.data())
@settings(max_examples=60)
def test_ticks_far_apart_nest_alike(small: SimpleNamespace, data: st.DataObject) -> None:
    """Durations near 2^60 leave no room for group numbers beside ticks: the ranks that replace them must order
    alike."""
    block = small.build(data.draw(small.batches()))
    far = Block(
        block.infos,
        block.placements,
        block.offsets,
        block.start << 50,
        block.dur << 50,
        *(getattr(block, name) for name in ("line", "kind", "program", "op", "exec", "weight", "flags", "flow")),
    )
    near, wide = nest(block, block.dur), nest(far, block.dur)
    assert near.parent.tolist() == wide.parent.tolist()
    assert near.overlaps.tolist() == wide.overlaps.tolist()
    assert (near.covered_to << 50).tolist() == wide.covered_to.tolist()


@pytest.mark.unit
def test_a_module_with_two_levels_of_ops(small: SimpleNamespace) -> None:
    info = BatchInfo(1, 1, 1, 0, 100, 1, 1)
    rows = (
        small.Row(0, 0, 100, 13, op=0),
        small.Row(0, 10, 30, op=1),
        small.Row(0, 10, 10, op=2),
        small.Row(0, 20, 20, op=3),
        small.Row(0, 50, 10, op=4),
        small.Row(1, 55, 10, op=5),
    )
    block = small.build([small.Given(info, (small.line_of(0, 0, 1, 1),), rows)])
    nested = nest(block, block.dur)
    assert nested.parent.tolist() == [-1, 0, 1, 1, 0, -1]
    assert nested.depth.tolist() == [0, 1, 2, 2, 1, 0]
    assert nested.child_ns.tolist() == [40, 30, 0, 0, 0, 0]
    assert nested.size.tolist() == [4, 2, 0, 0, 0, 0]


@pytest.mark.unit
def test_a_line_goes_on_in_the_next_batch_without_relatives(small: SimpleNamespace) -> None:
    given_ = [
        small.Given(BatchInfo(1, 1, 1, 0, 10, 1, 1), (small.line_of(0, 0, 1, 1),), (small.Row(0, 0, 10),)),
        small.Given(BatchInfo(1, 1, 1, 10, 20, 1, 1), (small.line_of(0, 0, 1, 1),), ()),
        small.Given(BatchInfo(1, 1, 1, 20, 30, 1, 1), (small.line_of(0, 0, 1, 1),), (small.Row(0, 20, 5),)),
    ]
    assert nest(small.build(given_), np.array([10, 5])).parent.tolist() == [-1, -1]


@pytest.mark.unit
def test_nothing_in_nothing_out(small: SimpleNamespace) -> None:
    assert len(nest(small.build([]), np.zeros(0, np.int64)).parent) == 0
