"""Columns of profiler windows as sampling units, by hand; what is read from them is tested in tests/analysis."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fleetscope.analysis.estimate import UNOBSERVABLE, joined, op_duty, rate_hz
from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo
from fleetscope.pipelines.busy import device_rollup
from fleetscope.pipelines.histogram import quantile
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.schema.vocabulary import Kind


def _unit(small: SimpleNamespace, number: int, rows: tuple[Any, ...], length: int) -> Any:
    info = BatchInfo(1, 2, 3, number * length, (number + 1) * length, 5, 4, 77 + number, length, 9, False)
    moved = tuple(small.Row(r.line, r.start + number * length, r.dur, r.kind, r.program, r.op, 0, r.exec) for r in rows)
    return small.Given(info, (small.line_of(0, 0, 5, 4),), moved)


@pytest.mark.unit
def test_columns_of_units_by_hand(small: SimpleNamespace) -> None:
    """W = 1 000 ns (800 ticks of 1.25 ns): an op of 100 ns twice in one window, once in the next, and one of 990 ns."""
    length = 800
    first = (small.Row(0, 0, 80, op=1, exec=1), small.Row(0, 100, 80, op=1, exec=2), small.Row(1, 0, 160, op=2, exec=1))
    second = (small.Row(0, 40, 80, op=1, exec=3), small.Row(1, 0, 792, op=3, exec=3))
    batches = [_unit(small, 0, first, length), _unit(small, 1, second, length)]
    block = small.build(batches)
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    rows = {row["op"]: row for row in op_rollup(block, placed, nested).to_pylist()}
    one = 100 * 2**30 // 900
    assert (rows[1]["weight"], rows[1]["windows"], rows[1]["count"]) == (0, 2, 3)
    assert rows[1]["duty_q30"] == 3 * one
    assert joined(rows[1]["duty_sq_hi"], rows[1]["duty_sq_lo"]) == (2 * one) ** 2 + one**2
    assert rows[1]["rate_uhz"] == 3 * (10**15 // 900)
    assert joined(rows[1]["time_sq_hi"], rows[1]["time_sq_lo"]) == 200**2 + 100**2
    assert (rows[1]["executions"], rows[1]["time_exec"], rows[1]["exec_sq"]) == (3, 200 * 2 + 100 * 1, 5)
    assert rows[2]["duty_q30"] == 200 * 2**30 // 800
    assert (rows[3]["count"], rows[3]["duty_q30"], rows[3]["rate_uhz"]) == (1, 0, 0)
    assert op_duty(rows[3], 50).reason == UNOBSERVABLE
    assert rate_hz(rows[1], 2).value == pytest.approx(3 / 900e-9 / 2)
    (device,) = device_rollup(block, placed, nested).to_pylist()
    assert (device["weight"], device["windows"], device["observed_ns"]) == (0, 2, 2000)
    # Window 1: lines 0 and 1 hide each other: 200 + 200 ns of ops in 300 - 0 = 225 ns busy.
    busy = (225, 990)
    assert device["busy_ns"] == sum(busy)
    assert joined(device["busy_sq_hi"], device["busy_sq_lo"]) == busy[0] ** 2 + busy[1] ** 2
    duties = [(2 * one + 200 * 2**30 // 800) * 225 // 400, one * 990 // 1090]
    assert device["duty_q30"] == sum(duties)
    # However the windows come, the sums between them are those of whole windows.
    parts = [small.build([batch]) for batch in batches]
    tables = [op_rollup(part, place_rows(part), nest(part, place_rows(part).dur_ns)) for part in parts]
    assert merge("op_10s", tables).equals(merge("op_10s", [op_rollup(block, placed, nested)]))


@pytest.mark.unit
def test_a_window_across_an_edge_is_one_unit(small: SimpleNamespace) -> None:
    """Its spans are counted in the windows they end in, its estimator columns in the one it ends in."""
    second = 800_000_000
    rows = (small.Row(0, 9 * second, second // 2, op=1), small.Row(0, 11 * second, second // 4, op=1))
    info = BatchInfo(1, 2, 3, 8 * second, 12 * second, 5, 4, 7, 4 * second, 3, False)
    rows = tuple(small.Row(r.line, r.start, r.dur, op=1, weight=0) for r in rows)
    block = small.build([small.Given(info, (small.line_of(0, 0, 5, 4),), rows)])
    placed = place_rows(block)
    nested = nest(block, placed.dur_ns)
    table = merge("op_10s", [op_rollup(block, placed, nested)]).to_pylist()
    assert [(r["t_ns"], r["count"], r["windows"], r["executions"]) for r in table] == [(0, 1, 0, 0), (10**10, 1, 1, 3)]
    assert joined(table[1]["time_sq_hi"], table[1]["time_sq_lo"]) == 750_000_000**2
    devices = device_rollup(block, placed, nested).to_pylist()
    assert [(r["observed_ns"], r["busy_ns"], r["windows"]) for r in devices] == [
        (2 * 10**9, 5 * 10**8, 0),
        (2 * 10**9, 25 * 10**7, 1),
    ]


@pytest.mark.unit
def test_quantiles_lie_in_their_bucket() -> None:
    durations = np.sort((np.random.default_rng(1).lognormal(10, 1, 5000)).astype(np.int64))
    from fleetscope.pipelines.histogram import bucket_index

    index, count = np.unique(bucket_index(durations), return_counts=True)
    for share in (0.01, 0.5, 0.99, 1.0):
        low, high = quantile(index.tolist(), count.tolist(), share, int(durations[0]), int(durations[-1]))
        exact = int(durations[max(int(np.ceil(share * 5000)) - 1, 0)])
        assert low <= exact <= high <= low * 1.023
    with pytest.raises(ValueError, match="empty"):
        quantile([], [], 0.5, 0, 0)


@pytest.mark.unit
def test_module_spans_are_the_executions_of_a_unit(small: SimpleNamespace) -> None:
    rows = (
        small.Row(0, 0, 100, Kind.MODULE, program=7),
        small.Row(0, 200, 100, Kind.MODULE, program=7),
        small.Row(1, 0, 50, op=1, program=7, exec=4),
    )
    block = small.build([_unit(small, 0, rows, 800)])
    placed = place_rows(block)
    table = op_rollup(block, placed, nest(block, placed.dur_ns)).to_pylist()
    assert {row["kind"]: row["executions"] for row in table} == {Kind.MODULE: 2, Kind.COMPUTE: 2}
