"""Op rollups against sums of Python integers, and the law that merging parts equals doing all at once."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo, Block
from fleetscope.pipelines.busy import device_rollup
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.pipelines.squares import square
from fleetscope.schema.tables import OP_10S_KEY
from fleetscope.schema.vocabulary import WINDOW_NS, Kind


def joined(hi: int, lo: int) -> int:
    return hi * 4294967296 + lo


def _ops(block: Block) -> pa.Table:
    placed = place_rows(block)
    return op_rollup(block, placed, nest(block, placed.dur_ns))


def _devices(block: Block) -> pa.Table:
    placed = place_rows(block)
    return device_rollup(block, placed, nest(block, placed.dur_ns))


def _bucket(dur: int) -> int:
    if dur == 0:
        return -32768
    return (dur**32 - 1).bit_length() - 1  # 2^i < d^32 <= 2^(i+1)


def _by_hand(block: Block) -> dict[tuple[int, ...], dict[str, Any]]:
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    told: dict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    for b, info in enumerate(block.infos):
        for row in range(int(block.offsets[b]), int(block.offsets[b + 1])):
            dur = int(block.dur[row])
            if dur < 0:
                continue
            end = int(block.start[row]) + dur
            part = [p for p in block.placements[b] if p.valid_from <= end][-1]
            kind = int(block.kind[row])
            device = info.device if kind in (Kind.MODULE, Kind.COLLECTIVE) else 0
            key = (
                part.at(end) // WINDOW_NS * WINDOW_NS,
                info.host,
                info.process,
                device,
                kind,
                int(block.program[row]),
                int(block.op[row]),
                int(block.weight[row]),
            )
            told[key].append((dur * info.period_num // info.period_den, int(nested.child_ns[row])))
    out: dict[tuple[int, ...], dict[str, Any]] = {}
    for key, spans in told.items():
        durations = [dur for dur, _ in spans]
        buckets = sorted({_bucket(dur) for dur in durations})
        out[key] = {
            "count": len(spans),
            "sum_ns": sum(durations),
            "child_ns": sum(child for _, child in spans),
            "squares": sum(dur**2 for dur in durations),
            "min_ns": min(durations),
            "max_ns": max(durations),
            "hist_index": buckets,
            "hist_count": [sum(_bucket(dur) == bucket for dur in durations) for bucket in buckets],
        }
    return out


@pytest.mark.property
@given(st.data())
@settings(max_examples=100)
def test_every_span_is_counted_in_the_window_of_its_end(small: SimpleNamespace, data: st.DataObject) -> None:
    block = small.build(data.draw(small.batches(device_zero=True)))
    rows = _ops(block).to_pylist()
    expected = _by_hand(block)
    assert len(rows) == len(expected)
    for row in rows:
        key = tuple(row[name] for name in OP_10S_KEY)
        row["squares"] = joined(row["sumsq_hi"], row["sumsq_lo"])
        assert {name: row[name] for name in expected[key]} == expected[key]


@pytest.mark.property
@given(st.data())
@settings(max_examples=50)
def test_parts_merged_are_the_whole(small: SimpleNamespace, data: st.DataObject) -> None:
    """Any split between batches, in any order and grouping, gives the same bytes."""
    batches = data.draw(small.batches(device_zero=True))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(batches), max_size=len(batches)))
    order = data.draw(st.permutations(range(3)))
    for name, rollup in (("op_10s", _ops), ("device_10s", _devices)):
        whole = merge(name, [rollup(small.build(batches))])
        parts = [
            rollup(small.build([batch for batch, group in zip(batches, groups, strict=True) if group == number]))
            for number in order
        ]
        assert merge(name, parts).equals(whole)
        assert merge(name, [merge(name, parts[:2]), parts[2]]).equals(whole)
        assert merge(name, [parts[0], merge(name, parts[1:])]).equals(whole)


@pytest.mark.property
@given(st.lists(st.integers(0, (1 << 47) - 1), min_size=1, max_size=20))
def test_squares_are_exact(values: list[int]) -> None:
    hi, lo = square(np.array(values, np.int64))
    assert [joined(h, low) for h, low in zip(hi.tolist(), lo.tolist(), strict=True)] == [value**2 for value in values]


@pytest.mark.unit
@pytest.mark.parametrize("dur", [3_037_000_499, 3_037_000_500, 10**13, (1 << 47) - 1])
def test_around_the_wide_path(small: SimpleNamespace, dur: int) -> None:
    line = small.line_of(0, 0, 1, 1, -(1 << 60), 1 << 60)
    block = small.build(
        [
            small.Given(
                BatchInfo(1, 2, 0, dur - 5, dur + 1, 1, 1), (line,), (small.Row(0, 0, dur), small.Row(1, dur - 5, 5))
            )
        ]
    )
    (row,) = _ops(block).to_pylist()
    assert joined(row["sumsq_hi"], row["sumsq_lo"]) == dur**2 + 25


@pytest.mark.unit
def test_negative_and_endless_spans_are_kept_out(small: SimpleNamespace) -> None:
    line = small.line_of(0, 0, 1, 1, -(1 << 62), 1 << 62)
    rows = (small.Row(0, 50, -10), small.Row(1, -(1 << 48), (1 << 48) + 60), small.Row(2, 10, 20))
    block = small.build([small.Given(BatchInfo(1, 2, 0, 0, 100, 1, 1), (line,), rows)])
    placed = place_rows(block)
    assert placed.flags.tolist() == [1 | 8, 1 | 16, 1]
    assert placed.dur_ns.tolist() == [-10, (1 << 48) + 60, 20]
    (row,) = _ops(block).to_pylist()
    assert (row["count"], row["sum_ns"]) == (1, 20)
