"""Small blocks for the kernels: rows as tuples, clocks so coarse that a few dozen ticks cross several 10 s windows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import strategies as st

from fleetscope.pipelines.align.segment import Placement, Segment, segment
from fleetscope.pipelines.block import BatchInfo, Block, block_of
from fleetscope.schema.vocabulary import SpanFlag


@dataclass(frozen=True)
class Row:
    line: int
    start: int
    dur: int
    kind: int = 3
    program: int = 7
    op: int = 0
    weight: int = 1
    exec: int = -1
    flow: int = 0
    flags: int = 0


@dataclass(frozen=True)
class Given:
    """One batch: header, map segments and rows (put in order by `build`)."""

    info: BatchInfo
    placement: Placement
    rows: tuple[Row, ...] = field(default=())


def ordered(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.line, row.start, -row.dur))


def build_block(batches: Sequence[Given]) -> Block:
    rows = [row for given in batches for row in ordered(given.rows)]
    column = {
        name: np.array([getattr(row, name) for row in rows], kind)
        for name, kind in (
            ("start", np.int64),
            ("dur", np.int64),
            ("line", np.int32),
            ("kind", np.uint8),
            ("program", np.int64),
            ("op", np.int32),
            ("weight", np.int32),
            ("exec", np.int64),
            ("flow", np.int64),
            ("flags", np.uint32),
        )
    }
    return block_of(
        [given.info for given in batches],
        [given.placement for given in batches],
        [len(g.rows) for g in batches],
        column,
    )


def line_of(x0: int, y0: int, n: int, d: int, begin: int = -(1 << 40), end: int = 1 << 40, err: int = 10) -> Segment:
    return segment(1, (x0, y0, n, d), (begin, end), err, "unsynced", int(SpanFlag.UNSYNCED))


KINDS = st.sampled_from([0, 1, 2, 3, 3, 3, 4, 5, 6, 7, 13, 13, 17])


def rows_between(low: int, high: int, *, most: int = 14, negative: bool = True) -> st.SearchStrategy[tuple[Row, ...]]:
    def make(line: int, start: int, end: int, kind: int, op: int, program: int, weight: int) -> Row:
        if not negative:
            start, end = min(start, end), max(start, end)
        return Row(line, start, end - start, kind, program, op, weight)

    row = st.builds(
        make,
        st.sampled_from([0, 0, 0, 1, 2]),
        st.integers(low, high),
        st.integers(low, high),
        KINDS,
        st.integers(0, 3),
        st.sampled_from([7, -9]),
        st.sampled_from([1, 1, 1, 4]),
    )
    return st.lists(row, max_size=most).map(tuple)


def batches(*, negative: bool = True, device_zero: bool = False) -> st.SearchStrategy[list[Given]]:
    """Disjoint batches of up to 3 devices on 2 processes of 2 hosts; periods around 1.5 s a tick, so windows are ~7
    ticks long."""

    @st.composite
    def one(draw: st.DrawFn, number: int) -> Given:
        device = draw(st.integers(0 if device_zero else 1, 3))
        process = 10 + device % 2
        low = number * 40 + draw(st.integers(0, 5))
        high = low + draw(st.integers(0, 10) | st.integers(10, 30))
        num, den = draw(st.sampled_from([(1_500_000_000, 1), (1_999_999_999, 2), (1_400_000_001, 1)]))
        info = BatchInfo(process // 11, process, device, low, high, num, den)
        x0 = draw(st.integers(-5, 5))
        y0 = draw(st.integers(0, 10**12))
        n = draw(st.integers(1_000_000_000, 2_000_000_000))
        parts = [line_of(x0, y0, n, 1)]
        if draw(st.booleans()) and high > low + 2:
            cut = draw(st.integers(low + 1, high - 1))
            jump = draw(st.sampled_from([0, 0, 3 * 10**9, 10**11, -(10**10)]))
            parts = [
                line_of(x0, y0, n, 1, -(1 << 40), cut, 5),
                line_of(cut, y0 + (cut - x0) * n + jump, n + 1, 1, cut, 1 << 40, 50),
            ]
        rows = draw(rows_between(low, high, negative=negative)) if high > low else ()
        return Given(info, tuple(parts), rows)

    @st.composite
    def several(draw: st.DrawFn) -> list[Given]:
        return [draw(one(number)) for number in range(draw(st.integers(1, 4)))]

    return several()


@pytest.fixture(scope="session")
def small() -> SimpleNamespace:
    """Row, Given, build_block, line_of, batches: tests are not a package, so what they share comes by fixture."""
    return SimpleNamespace(
        Row=Row,
        Given=Given,
        build=build_block,
        line_of=line_of,
        batches=batches,
        rows_between=rows_between,
        ordered=ordered,
    )
