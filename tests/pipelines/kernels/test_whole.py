"""Executions wholly inside a window, and what rollups keep of them, by hand. W = 1 000 ns, 800 ticks of 1.25 ns."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fleetscope.analysis.estimate import joined
from fleetscope.pipelines.align.spans import place_rows
from fleetscope.pipelines.block import BatchInfo
from fleetscope.pipelines.merge import merge
from fleetscope.pipelines.moments import op_rollup
from fleetscope.pipelines.nest import nest
from fleetscope.pipelines.program_totals import program_rollup
from fleetscope.pipelines.squares import product
from fleetscope.pipelines.whole import whole_executions
from fleetscope.pipelines.windows import slots_of
from fleetscope.schema.tables import PROGRAM_TOTAL
from fleetscope.schema.vocabulary import Kind

LENGTH = 800
pytestmark = pytest.mark.unit


def _window(small: SimpleNamespace, *rows: Any, device: int = 3, number: int = 0) -> Any:
    info = BatchInfo(1, 2, device, number * LENGTH, (number + 1) * LENGTH, 5, 4, 77 + number, LENGTH, 0, False)
    moved = tuple(small.Row(r.line, r.start + number * LENGTH, r.dur, r.kind, r.program, r.op, 0, r.exec) for r in rows)
    return small.Given(info, (small.line_of(0, 0, 5, 4),), moved)


def _module(small: SimpleNamespace, start: int, dur: int, program: int = 7) -> Any:
    return small.Row(0, start, dur, Kind.MODULE, program)


def _op(small: SimpleNamespace, start: int, dur: int, op: int = 1, program: int = 7, run: int = -1) -> Any:
    return small.Row(1, start, dur, Kind.COMPUTE, program, op, 1, run)


def test_module_spans_say_which_ops_belong_to_a_whole_execution(small: SimpleNamespace) -> None:
    """An execution of 200 ns (160 ticks) with one op; before it an op of one that began before the window."""
    block = small.build([_window(small, _op(small, 10, 40), _module(small, 100, 160), _op(small, 120, 80))])
    whole = whole_executions(block)
    assert whole.rest_ns.tolist() == [800]
    assert whole.rate_uhz.tolist() == [10**15 // 800]
    by_start = dict(zip(block.start.tolist(), whole.of_row.tolist(), strict=True))
    assert by_start == {10: -1, 100: 0, 120: 0}


def test_execution_numbers_leave_out_the_outermost(small: SimpleNamespace) -> None:
    """Without modules: 1 and 3 may be cut; 2, of ops from 300 to 500 ticks = 250 ns, has another on either side."""
    rows = [
        _op(small, 0, 90, run=1),
        _op(small, 300, 50, run=2),
        _op(small, 400, 100, run=2),
        _op(small, 600, 50, run=3),
    ]
    whole = whole_executions(small.build([_window(small, *rows)]))
    assert whole.rest_ns.tolist() == [750]
    assert whole.of_row.tolist() == [-1, 0, 0, -1]
    assert whole_executions(small.build([_window(small, *rows[:3])])).rest_ns.tolist() == []


def test_an_execution_as_long_as_the_window_stands_for_nothing(small: SimpleNamespace) -> None:
    whole = whole_executions(small.build([_window(small, _module(small, 0, 792), _op(small, 5, 10))]))
    assert len(whole.unit) == 0
    assert set(whole.of_row.tolist()) == {-1}


def test_whole_device_batches_and_hosts_have_none(small: SimpleNamespace) -> None:
    rows = (_module(small, 100, 100), _op(small, 120, 50))
    whole = small.Given(BatchInfo(1, 2, 3, 0, LENGTH, 5, 4), (small.line_of(0, 0, 5, 4),), rows)
    block = small.build([whole, _window(small, *rows, device=0)])
    assert len(whole_executions(block).unit) == 0
    placed, slots = place_rows(block), slots_of(block)
    nested = nest(block, placed.dur_ns)
    assert program_rollup(block, placed, nested, slots).num_rows == 0


def test_sums_of_ops_and_programs_over_two_windows(small: SimpleNamespace) -> None:
    """Executions of 200 and 250 ns in the first window, one of 200 in the second; the op takes 100, 125 and 50 ns in
    them, and 50 ns before the first."""
    first = _window(
        small, _op(small, 10, 40), _module(small, 100, 160), _op(small, 120, 80), _module(small, 400, 200),
        _op(small, 450, 100),
    )  # fmt: skip
    second = _window(small, _module(small, 200, 160), _op(small, 210, 40), number=1)
    block = small.build([first, second])
    placed, slots = place_rows(block), slots_of(block)
    nested = nest(block, placed.dur_ns)
    ops = {row["op"]: row for row in op_rollup(block, placed, nested, slots).to_pylist() if row["kind"] == Kind.COMPUTE}
    (program,) = merge("op_10s", [program_rollup(block, placed, nested, slots)]).to_pylist()
    q30 = 2**30
    one, two = 100 * q30 // 800 + 125 * q30 // 750, 50 * q30 // 800
    rates = (10**15 // 800 + 10**15 // 750, 10**15 // 800)
    for row in (ops[1], program):
        assert row["whole_q30"] == one + two
        assert joined(row["whole_sq_hi"], row["whole_sq_lo"]) == one**2 + two**2
        assert joined(row["whole_rate_hi"], row["whole_rate_lo"]) == one * rates[0] + two * rates[1]
    key = ("kind", "op", "device", "program", "windows", "executions", "count", "rate_uhz")
    assert [program[name] for name in key] == [Kind.MODULE, PROGRAM_TOTAL, 3, 7, 2, 3, 0, sum(rates)]
    assert joined(program["rate_sq_hi"], program["rate_sq_lo"]) == sum(rate**2 for rate in rates)
    # The op's own rate counts all its spans, the cut execution's too.
    often = [10**15 // 950 + 10**15 // 900 + 10**15 // 875, 10**15 // 950]
    assert ops[1]["rate_uhz"] == sum(often)
    assert joined(ops[1]["rate_sq_hi"], ops[1]["rate_sq_lo"]) == sum(rate**2 for rate in often)
    duty = [50 * q30 // 950 + 100 * q30 // 900 + 125 * q30 // 875, 50 * q30 // 950]
    assert program["duty_q30"] == sum(duty)
    assert joined(program["duty_sq_hi"], program["duty_sq_lo"]) == sum(value**2 for value in duty)


def test_the_time_of_a_program_is_the_union_of_its_lines(small: SimpleNamespace) -> None:
    """Program 7: ops of 200 and 100 ns on two lines, the second within the first; program 9 alone, 100 ns: it is not
    scaled by what 7 hides."""
    rows = (
        small.Row(0, 0, 160, Kind.COMPUTE, 7, 1), small.Row(1, 40, 80, Kind.COMPUTE, 7, 2),
        small.Row(0, 300, 80, Kind.COMPUTE, 9, 1),
    )  # fmt: skip
    block = small.build([_window(small, *rows)])
    placed, slots = place_rows(block), slots_of(block)
    table = program_rollup(block, placed, nest(block, placed.dur_ns), slots)
    found = dict(zip(table["program"].to_pylist(), table["duty_q30"].to_pylist(), strict=True))
    q30 = 2**30
    assert found == {7: (200 * q30 // 800 + 100 * q30 // 900) * 200 // 300, 9: 100 * q30 // 900}


def test_products_are_exact_up_to_47_bits() -> None:
    values = [0, 1, 2**24 - 1, 2**24, 3_037_000_499, 3_037_000_500, 2**46 + 12345, 2**47 - 1]
    x, y = (np.array(side, np.int64) for side in zip(*((a, b) for a in values for b in values), strict=True))
    for a, b, hi, lo in zip(x.tolist(), y.tolist(), *(side.tolist() for side in product(x, y)), strict=True):
        assert ((hi << 32) + lo, 0 <= lo < 2**32) == (a * b, True)
