"""Bad input beside good input: the bad becomes a dead letter with its place, number and bytes; the good goes on."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from fleetscope.agents.batches import Numbered
from fleetscope.agents.batches.draft import SPAN_ROWS
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import catalogue
from fleetscope.schema.vocabulary import Kind, SpanFlag

pytestmark = pytest.mark.fault

MS = 1_000_000


def number_of(name: str) -> int:
    return int(catalogue()[name]["number"])


def good(host: Any, first: int = 0) -> list[Numbered]:
    """Three ops in [first, first + 1 ms)."""
    rows = {
        "start": [first, first + 300_000, first + 600_000],
        "dur": [200_000, 200_000, 200_000],
        "line": 0,
        "kind": Kind.COMPUTE,
        "program": 5,
        "op": [1, 2, 3],
    }
    return host.spans(0, first, first + MS, rows)


def changed(numbered: Numbered, change: Callable[[wire.Batch], None]) -> bytes:
    batch = wire.Batch.FromString(numbered.value)
    change(batch)
    return batch.SerializeToString()


def with_payload(numbered: Numbered, change: Callable[[pa.Table], pa.Table], rows: int | None = None) -> bytes:
    options = pa.ipc.IpcWriteOptions(compression="zstd")

    def swap(batch: wire.Batch) -> None:
        table = change(pa.ipc.open_stream(batch.payload).read_all())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=options) as stream:
            stream.write_table(table)
        batch.payload = sink.getvalue().to_pybytes()
        batch.rows = table.num_rows if rows is None else rows

    return changed(numbered, swap)


def column(name: str, values: list[int]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        return table.set_column(index, table.schema.field(index), pa.array(values, table.schema.field(index).type))

    return change


def set_field(**fields: Any) -> Callable[[wire.Batch], None]:
    def change(batch: wire.Batch) -> None:
        for name, value in fields.items():
            setattr(batch, name, value)

    return change


def renamed(numbered: Numbered, **fields: str) -> bytes:
    """Under another source, whose id is right."""

    def change(batch: wire.Batch) -> None:
        set_field(**fields)(batch.source)  # type: ignore[arg-type]
        batch.source_id = identity.source_id(batch.source)

    return changed(numbered, change)


def short_buffers(numbered: Numbered) -> bytes:
    """Uncompressed, the lengths of its buffers (24 bytes for three int64) made shorter than their columns."""

    def swap(batch: wire.Batch) -> None:
        table = pa.ipc.open_stream(batch.payload).read_all()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        # A pa.Buffer's place in the body and its length, as they stand in the metadata: (0, 24), (24, 0)...
        said = struct.pack("<qq", 0, 24)
        data = sink.getvalue().to_pybytes()
        assert said in data
        batch.payload = data.replace(said, struct.pack("<qq", 0, 8))

    return changed(numbered, swap)


def bomb(batches: int, rows: int) -> Callable[[pa.Table], pa.Table]:
    """So many batches of so many equal rows, which compress to nothing."""

    def change(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table.take(pa.array([0] * rows))] * batches)

    return change


def text_as_bytes(value: bytes) -> Callable[[pa.Table], pa.Table]:
    """An args column whose buffer holds these bytes, whatever they are."""

    def change(table: pa.Table) -> pa.Table:
        text = pa.array([value] * table.num_rows, pa.binary()).view(pa.string())
        return table.set_column(table.schema.get_field_index("args"), SPAN_ROWS.field("args"), text)

    return change


def _claiming(payload: bytes, size: int, claim: int) -> bytes:
    """Compressed buffers (they begin with zstd's magic number) say another size than theirs."""
    magic = bytes.fromhex("28b52ffd")
    said = struct.pack("<q", size) + magic
    assert said in payload
    return payload.replace(said, struct.pack("<q", claim) + magic)


HEADER_FAULTS: dict[str, tuple[str, Callable[[Numbered], bytes]]] = {
    "random bytes": ("HeaderUnreadable", lambda n: bytes(range(255, 0, -1)) * 7),
    "empty": ("VersionUnknown", lambda n: b""),
    "truncated": ("HeaderUnreadable", lambda n: n.value[: len(n.value) // 2]),
    "text not UTF-8": ("HeaderUnreadable", lambda n: n.value.replace(b"train", b"tra\xff\xfe")),
    "unknown version": ("VersionUnknown", lambda n: changed(n, set_field(version=99))),
    "no host": ("HeaderInvalid", lambda n: changed(n, lambda b: b.source.ClearField("host"))),
    "source id of another": ("HeaderInvalid", lambda n: changed(n, set_field(source_id=12))),
    "unknown payload kind": ("HeaderInvalid", lambda n: changed(n, set_field(payload_kind=17))),
    "range backwards": ("HeaderInvalid", lambda n: changed(n, lambda b: set_field(tick_to=b.tick_from - 1)(b))),
    "ticks near 2^63": ("HeaderInvalid", lambda n: changed(n, set_field(tick_to=2**63 - 1))),
    "period of zero": ("HeaderInvalid", lambda n: changed(n, lambda b: setattr(b.clock, "period_den", 0))),
    "period too fine": (
        "HeaderInvalid",
        lambda n: changed(n, lambda b: b.clock.MergeFrom(wire.ClockEpoch(period_num=2**40 + 1, period_den=3))),
    ),
    "rows without payload kind": ("HeaderInvalid", lambda n: changed(n, set_field(payload_kind=0))),
    "numbers that contradict": ("NumberingContradiction", lambda n: changed(n, set_field(first_event=1))),
    "a run of 1 MiB": ("HeaderInvalid", lambda n: renamed(n, run="r" * (1 << 20))),
    "a host of 1 MiB": ("HeaderInvalid", lambda n: renamed(n, host="h" * (1 << 20))),
    "a device of 1 MiB": ("HeaderInvalid", lambda n: changed(n, lambda b: setattr(b.device, "key", "d" * (1 << 20)))),
    "a clock of 1 MiB": ("HeaderInvalid", lambda n: changed(n, lambda b: setattr(b.clock, "clock", "c" * (1 << 20)))),
    "a drop reason of 1 MiB": (
        "HeaderInvalid",
        lambda n: changed(n, lambda b: b.dropped.append(wire.Dropped(reason="r" * (1 << 20)))),
    ),
    "100 000 drop reasons": (
        "HeaderInvalid",
        lambda n: changed(n, lambda b: b.dropped.extend(wire.Dropped(reason=f"r{i}") for i in range(100_000))),
    ),
    "2^64 - 1 dropped": (
        "HeaderInvalid",
        lambda n: changed(n, lambda b: b.dropped.append(wire.Dropped(reason="ring_overwritten", events=2**64 - 1))),
    ),
    "2^64 - 1 produced": ("HeaderInvalid", lambda n: changed(n, set_field(produced=2**64 - 1))),
    "more events than its source produced": ("HeaderInvalid", lambda n: changed(n, set_field(produced=5))),
    "a gap of a billion events in three batches": (
        "NumberingContradiction",
        lambda n: changed(n, lambda b: set_field(batch_number=4, first_event=1 << 30, produced=1 << 31)(b)),
    ),
    "observed until 2116": ("HeaderInvalid", lambda n: changed(n, set_field(tick_to=1 << 61))),
    "2^32 - 1 rows": ("HeaderInvalid", lambda n: changed(n, set_field(rows=2**32 - 1))),
    "number beyond 2^62": ("NumberingContradiction", lambda n: changed(n, set_field(batch_number=2**63))),
}
"""Header cannot be believed: the events stay a gap of their source."""

PAYLOAD_FAULTS: dict[str, tuple[str, Callable[[Numbered], bytes]]] = {
    "payload random": ("PayloadUnreadable", lambda n: changed(n, set_field(payload=b"\x00\xff" * 200))),
    "payload truncated": ("PayloadUnreadable", lambda n: changed(n, lambda b: set_field(payload=b.payload[:-40])(b))),
    "payload missing": ("PayloadUnreadable", lambda n: changed(n, set_field(payload=b""))),
    "other columns": ("PayloadMismatch", lambda n: with_payload(n, lambda t: t.drop_columns(["flow"]))),
    "other types": (
        "PayloadMismatch",
        lambda n: with_payload(
            n, lambda t: t.set_column(0, pa.field("start", pa.float64(), False), t["start"].cast(pa.float64()))
        ),
    ),
    "more rows than said": ("PayloadMismatch", lambda n: with_payload(n, lambda t: pa.concat_tables([t, t]), rows=3)),
    "a million rows in place of three": ("PayloadMismatch", lambda n: with_payload(n, bomb(1, 1 << 20), rows=3)),
    "forty batches in place of one": ("PayloadMismatch", lambda n: with_payload(n, bomb(40, 100), rows=3)),
    "buffers shorter than columns": ("PayloadUnreadable", short_buffers),
    "buffers of 64 GiB": (
        "PayloadMismatch",
        lambda n: changed(n, lambda b: set_field(payload=_claiming(b.payload, 24, 1 << 36))(b)),
    ),
    "buffers of -7 bytes": (
        "PayloadUnreadable",
        lambda n: changed(n, lambda b: set_field(payload=_claiming(b.payload, 24, -7))(b)),
    ),
    "row outside range": (
        "RowOutsideRange",
        lambda n: with_payload(n, column("start", [800_000, 1_040_000, 80_000_000])),
    ),
    "rows out of order": (
        "RowsOutOfOrder",
        lambda n: with_payload(n, column("start", [1_280_000, 1_040_000, 800_000])),
    ),
    "start overflows": ("TimeOverflow", lambda n: with_payload(n, column("start", [0, 1, 2**63 - 1]))),
    "duration overflows": ("TimeOverflow", lambda n: with_payload(n, column("dur", [2**62 + 1, 1, 1]))),
    "args not UTF-8": ("TextInvalid", lambda n: with_payload(n, text_as_bytes(b"{\xff\xfe}"))),
}
"""Header stands: the events are counted as dead-lettered."""


@pytest.mark.parametrize("kind", [*HEADER_FAULTS, *PAYLOAD_FAULTS])
def test_the_rest_goes_on(bench: Any, kind: str) -> None:
    error, spoil = {**HEADER_FAULTS, **PAYLOAD_FAULTS}[kind]
    host = bench.host("h1")
    before, victim, after = good(host)[0], good(host, MS)[0], good(host, 2 * MS)[0]
    value = spoil(victim)
    bench.send(before)
    offset = bench.send_bytes(value)
    bench.send(after)
    bench.drain()

    (letter,) = bench.rows("dead_letter")
    partition = letter["partition"]
    assert (letter["topic"], letter["offset"], letter["value"]) == (bench.topics.telemetry, offset, value)
    assert letter["error"] == number_of(error)
    assert letter["message"].startswith(f"{bench.topics.telemetry}/{partition}@{offset}: FS{number_of(error)}: ")
    assert sorted(row["seq"] for row in bench.rows("spans")) == [0, 1, 2, 6, 7, 8]
    (ledger,) = bench.rows("ledger")
    counted = kind in PAYLOAD_FAULTS
    assert (ledger["stored"], ledger["dead_lettered"], ledger["duplicate"]) == (6, 3 if counted else 0, 0)
    assert ledger["gaps"] == ([] if counted else [{"first": 3, "last": 5}])
    assert (letter["rows"], letter["source"] != 0) == ((3, True) if counted else (0, False))


def test_overlapping_ranges_of_one_device_are_refused_whatever_order_they_come_in(bench: Any) -> None:
    host = bench.host("h1")
    late = good(host, MS)
    first, third = good(host), good(host, 2 * MS)
    again = good(host, 2 * MS)  # a new number for ticks that were observed
    bench.send(first, third, again, late)
    bench.drain()
    (letter,) = bench.rows("dead_letter")
    assert (letter["error"], letter["rows"], letter["offset"]) == (number_of("RangeOverlap"), 3, 2)
    assert "h1/chip0" in letter["message"]
    assert sorted(row["seq"] for row in bench.rows("spans")) == list(range(9))


def test_negative_durations_are_kept_flagged_and_left_out_of_sums(bench: Any) -> None:
    host = bench.host("h1")
    rows = {"start": [0, 500_000], "dur": [-100_000, 200_000], "line": 0, "kind": Kind.COMPUTE, "program": 5, "op": 1}
    bench.send(host.spans(0, 0, MS, rows))
    bench.drain()
    spans = {row["seq"]: row for row in bench.rows("spans")}
    assert spans[0]["dur_ns"] == -100_000
    assert spans[0]["flags"] & SpanFlag.NEGATIVE_DURATION
    assert not spans[1]["flags"] & SpanFlag.NEGATIVE_DURATION
    (op,) = bench.rows("op_10s")
    assert (op["count"], op["sum_ns"]) == (1, 200_000)


@pytest.mark.parametrize("year", [1970, 2100])
def test_impossible_times_are_kept_and_flagged_and_make_no_windows(bench: Any, year: int) -> None:
    host = bench.host("h1")
    clock = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1)
    base = (year - 1970) * 365_2425 * 86_400 * 100_000 + 5_000_000_000
    rows = {"start": [base], "dur": [1000], "line": 0, "kind": Kind.HOST, "program": 5}
    bench.send(good(host))
    from fleetscope.agents.batches import Draft, span_rows

    bench.send(host.number(Draft(host.source, base, base + MS, clock, None, span_rows(**rows))))
    bench.drain()
    spans = {row["seq"]: row for row in bench.rows("spans")}
    assert spans[3]["t_ns"] == base
    assert spans[3]["flags"] & SpanFlag.OUT_OF_RANGE_TIME
    assert not spans[0]["flags"] & SpanFlag.OUT_OF_RANGE_TIME
    assert len({row["t_ns"] for row in bench.rows("op_10s")}) == 1
    assert {row["op"] for row in bench.rows("op_10s")} == {1, 2, 3}
    assert bench.rows("dead_letter") == []


def test_a_megabyte_name_loses_only_itself(bench: Any) -> None:
    host = bench.host("h1")
    long = wire.Announcement(name=wire.NameInfo(program=1, name="x" * (1 << 20)))
    label = wire.Announcement(series=wire.SeriesInfo(id=2, name="s", labels={"k": "v" * (1 << 20)}))
    fine = wire.Announcement(name=wire.NameInfo(program=3, name="fwd"))
    bench.send(
        host.spans(
            0, 0, MS, {"start": [0], "dur": [5], "line": 0, "kind": Kind.COMPUTE}, announcements=[long, label, fine]
        )
    )
    bench.drain()
    assert [row["name"] for row in bench.rows("names")] == ["fwd"]
    letters = bench.rows("dead_letter")
    assert [row["error"] for row in letters] == [number_of("NameTooLong")] * 2
    assert [wire.Announcement.FromString(row["value"]) for row in letters] == [long, label]
    assert [row["rows"] for row in letters] == [0, 0]
    assert len(bench.rows("spans")) == 1


def test_nul_and_markup_in_names_are_data(bench: Any) -> None:
    host = bench.host("h1")
    names = ["a\0b", "<script>alert(1)</script>", "'; DROP TABLE spans; --", "\u202eevil", "{{7*7}}"]
    said = [wire.Announcement(name=wire.NameInfo(program=i + 1, name=name)) for i, name in enumerate(names)]
    bench.send(
        host.host_spans(
            0,
            MS,
            {"start": [0], "dur": [5], "line": 0, "kind": Kind.HOST, "args": ['{"k": "<b>\\u0000</b>"}']},
            announcements=said,
        )
    )
    bench.drain()
    assert [row["name"] for row in sorted(bench.rows("names"), key=lambda row: row["program"])] == names
    assert [row["args"] for row in bench.rows("span_args")] == ['{"k": "<b>\\u0000</b>"}']


def test_a_message_that_fails_its_checksum_is_a_dead_letter_too(bench: Any) -> None:
    host = bench.host("h1")
    bench.send(good(host))
    bench.send(good(host, MS))
    bench.log.flush()
    (segment,) = [
        path for path in (bench.config.state_dir / "log").rglob("*") if path.is_file() and b"train" in path.read_bytes()
    ]
    data = bytearray(segment.read_bytes())
    data[len(data) * 3 // 4] ^= 0x55
    segment.write_bytes(data)
    bench.send(good(host, 2 * MS))
    bench.drain()
    (letter,) = bench.rows("dead_letter")
    assert letter["error"] == number_of("UnreadableRecord")
    assert sorted(row["seq"] for row in bench.rows("spans")) == [0, 1, 2, 6, 7, 8]
