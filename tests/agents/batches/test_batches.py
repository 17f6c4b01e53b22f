"""Drafts to batches: order, cuts, sizes, numbers, announcements."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.agents.batches import Announcer, Draft, Numberer, clean_text, pack, sample_rows, span_rows
from fleetscope.agents.batches.cut import quiet_points
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.identity import source_id
from fleetscope.schema.payloads import WIRE_SAMPLES, WIRE_SPANS
from fleetscope.schema.vocabulary import BatchFlag, Kind, SpanFlag

SOURCE = wire.Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=9, run="r", attempt="a")
CLOCK = wire.ClockEpoch(clock="gtc", device="d", period_num=5, period_den=4)
INT64 = st.integers(-(2**40), 2**40)


def draft(rows: pa.RecordBatch, low: int = 0, high: int = 1 << 50, **more: object) -> Draft:
    return Draft(SOURCE, low, high, CLOCK, wire.Device(key="d"), rows, **more)  # type: ignore[arg-type]


def read(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


@pytest.mark.unit
def test_rows_have_the_wire_columns_and_order() -> None:
    rows = span_rows(start=[50, 10, 10, 10], dur=[5, 1, 9, 3], line=[0, 1, 1, 0], kind=Kind.COMPUTE, op=[0, 1, 2, 3])
    assert rows.schema.names == WIRE_SPANS.names
    assert rows.schema.types == WIRE_SPANS.types
    assert rows.column("op").to_pylist() == [3, 0, 2, 1]
    assert rows.column("step").to_pylist() == [-1] * 4
    samples = sample_rows(tick=[1, 2], series=5, values=[3, 4.5])
    assert samples.schema.types == WIRE_SAMPLES.types
    assert samples.column("value_int").to_pylist() == [3, None]
    assert samples.column("value_float").to_pylist() == [None, 4.5]


@pytest.mark.unit
def test_negative_duration_is_kept_and_flagged() -> None:
    rows = span_rows(start=[10, 20], dur=[-3, 4], line=0, kind=Kind.HOST, args=['{"a":1}', None])
    assert rows.column("dur").to_pylist() == [-3, 4]
    assert rows.column("flags").to_pylist() == [SpanFlag.NEGATIVE_DURATION, 0]
    assert rows.column("args").to_pylist() == ['{"a":1}', None]


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 200), st.integers(-3, 40), st.integers(0, 2)), min_size=1, max_size=40))
def test_quiet_points_are_exactly_the_starts_no_span_covers(spans: list[tuple[int, int, int]]) -> None:
    start, dur, _ = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    counts, ticks = quiet_points(start, dur)
    first = start.min()
    expected = sorted({t for t in start.tolist() if t != first and not any(s < t < s + d for s, d, _ in spans)})
    assert ticks.tolist() == expected
    assert counts.tolist() == [sum(s < t for s, _, _ in spans) for t in expected]


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60), st.integers(0, 2)), min_size=2, max_size=60))
def test_cuts_lose_nothing_and_cover_the_range_once(spans: list[tuple[int, int, int]]) -> None:
    start, dur, line = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    rows = span_rows(start=start, dur=dur, line=line, kind=Kind.COMPUTE, op=np.arange(len(spans)))
    # 1.5 kB is little more than the schema of an IPC stream, so that nearly every draft has to be cut.
    parts = pack(draft(rows, -5, 600, lost={"no_ring": 3}), soft_bytes=1500, hard_bytes=1 << 20)
    assert [part.draft.lost for part in parts] == [{"no_ring": 3}] + [{}] * (len(parts) - 1)
    edges = [(part.draft.tick_from, part.draft.tick_to) for part in parts]
    assert edges[0][0] == -5
    assert edges[-1][1] == 600
    assert all(left[1] == right[0] and left[0] < left[1] for left, right in pairwise(edges))
    seen: list[int] = []
    for part in parts:
        table = read(part.payload)
        begin, end = table["start"].to_numpy(), table["start"].to_numpy() + table["dur"].to_numpy()
        assert (begin >= part.draft.tick_from).all()
        assert (end <= part.draft.tick_to).all()
        assert not part.draft.flags & BatchFlag.FORCED_CUT
        key = list(zip(table["line"].to_pylist(), begin.tolist(), (-table["dur"].to_numpy()).tolist(), strict=True))
        assert key == sorted(key)
        seen += table["op"].to_pylist()
    assert sorted(seen) == list(range(len(spans)))


@pytest.mark.unit
def test_an_op_that_never_closes_forces_a_flagged_cut_at_the_hard_limit_only() -> None:
    rng = np.random.default_rng(1)
    start = np.sort(rng.integers(1, 1 << 40, 20_000))
    inner = rng.integers(1, 1 << 20, 20_000)
    rows = span_rows(start=np.r_[0, start], dur=np.r_[1 << 41, inner], line=np.r_[9, np.zeros(20_000)], kind=3)
    whole = pack(draft(rows, 0, 1 << 42), soft_bytes=10_000)
    assert len(whole) == 1
    assert whole[0].draft.flags == 0
    parts = pack(draft(rows, 0, 1 << 42), soft_bytes=10_000, hard_bytes=60_000)
    assert len(parts) > 2
    assert all(len(part.payload) <= 60_000 for part in parts)
    assert parts[0].draft.flags & BatchFlag.FORCED_CUT
    assert sum(part.draft.row_count for part in parts) == 20_001
    assert all(flag & SpanFlag.CUT_BATCH for flag in read(parts[0].payload)["flags"].to_pylist())


@pytest.mark.unit
def test_a_sampled_window_stays_one_batch_up_to_the_hard_limit() -> None:
    rng = np.random.default_rng(2)
    rows = span_rows(start=np.arange(9_000) * 1000, dur=rng.integers(1, 900, 9_000), line=0, kind=3)
    sampled = draft(rows, window=wire.Window(id=1, length_ticks=9_000_000))
    assert len(pack(sampled, soft_bytes=10_000)) == 1
    assert len(pack(draft(rows, window=wire.Window(id=1, complete=True)), soft_bytes=10_000)) > 1


@pytest.mark.unit
def test_one_huge_row_loses_its_args_but_not_itself() -> None:
    text = "".join(np.random.default_rng(3).choice(list("abcdefghijklmnopqrstuvwxyz012345"), 100_000))
    rows = span_rows(start=[5], dur=[1], line=0, kind=8, args=[text])
    (part,) = pack(draft(rows), soft_bytes=5_000, hard_bytes=50_000)
    assert len(part.payload) < 5_000
    assert read(part.payload)["args"].to_pylist() == [None]
    assert part.draft.flags & BatchFlag.FORCED_CUT


@pytest.mark.unit
def test_numbers_have_no_gaps_and_losses_add_up() -> None:
    numberer = Numberer(77)
    rows = span_rows(start=[1, 2, 3], dur=[1, 1, 1], line=0, kind=3)
    batches = []
    for lost in ({}, {"ring_overwritten": 5}, {"spool_full": 2}):
        (part,) = pack(draft(rows, lost=lost))
        numbered = numberer.number(part, sent_ns=123)
        batches.append(wire.Batch.FromString(numbered.value))
        assert numbered.key == b"h"
    assert [batch.batch_number for batch in batches] == [0, 1, 2]
    assert [batch.first_event for batch in batches] == [0, 3, 6]
    # 9 numbered; ring losses never had a number, the spool's are among the 9.
    assert [batch.produced for batch in batches] == [3, 11, 14]
    assert {entry.reason: entry.events for entry in batches[2].dropped} == {"ring_overwritten": 5, "spool_full": 2}
    assert batches[0].source.incarnation == 77
    assert batches[0].source_id == source_id(batches[0].source)
    assert batches[0].payload_kind == wire.PAYLOAD_SPANS
    other = wire.Source()
    other.CopyFrom(SOURCE)
    other.pid = 8
    (part,) = pack(Draft(other, 0, 10))
    empty = wire.Batch.FromString(numberer.number(part, 1).value)
    assert (empty.batch_number, empty.first_event, empty.rows, empty.payload) == (0, 0, 0, b"")


@pytest.mark.unit
def test_announcements_new_ones_first_then_every_five_minutes() -> None:
    def name(text: str) -> wire.Announcement:
        return wire.Announcement(name=wire.NameInfo(program=1, name=text))

    announcer = Announcer(resend_s=300, limit=3)
    assert announcer.add(name("a"))
    assert not announcer.add(name("a"))
    assert announcer.due(0.0) == [name("a")]
    assert announcer.due(299.0) == []
    assert announcer.add(name("b"))
    assert announcer.due(299.0) == [name("b")]
    assert announcer.due(300.0) == [name("a")]
    assert announcer.due(301.0) == []
    assert announcer.add(name("c" * 900))
    assert not announcer.add(name("d"))
    assert announcer.refused == 1
    # A budget too small for all still lets one through, and the rest comes next time.
    assert len(announcer.due(2000.0, budget_bytes=10)) == 1
    assert len(announcer.due(2000.0, budget_bytes=10)) == 1


@pytest.mark.unit
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("fusion.1", "fusion.1"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("a\x00b\x1b[31m", "a\\x00b\\x1b[31m"),
        ("", ""),
    ],
)
def test_text_is_made_safe(given: str | bytes, expected: str) -> None:
    assert clean_text(given) == expected


@pytest.mark.property
@given(st.binary(max_size=3000), st.integers(40, 1024))
def test_any_bytes_become_bounded_utf8(raw: bytes, limit: int) -> None:
    text = clean_text(raw, limit)
    assert len(text.encode()) <= limit
    assert not any(ord(char) < 0x20 for char in text)
    wire.NameInfo(name=text)


@pytest.mark.unit
def test_a_megabyte_name_is_cut_but_told_apart() -> None:
    one, two = clean_text("x" * (1 << 20) + "1"), clean_text("x" * (1 << 20) + "2")
    assert one != two
    assert len(one) <= 1024


@pytest.mark.property
@given(st.lists(st.tuples(st.integers(0, 50), st.none() | st.text(max_size=20)), max_size=40))
def test_args_follow_their_rows_however_they_are_given(spans: list[tuple[int, str | None]]) -> None:
    starts, texts = [start for start, _ in spans], [text for _, text in spans]
    sparse = {row: text for row, text in enumerate(texts) if text is not None}
    for args in (texts, sparse, pa.array(texts, pa.string())):
        rows = span_rows(start=starts, dur=1, line=0, kind=8, op=np.arange(len(spans)), args=args)
        rows.validate(full=True)
        assert rows.column("args").to_pylist() == [texts[op] for op in rows.column("op").to_pylist()]
