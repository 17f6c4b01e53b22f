"""Every value of the real captures, against google.protobuf reading the same bytes."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetscope.native import xspace

EVENT_STATS = {
    "device_offset_ps", "device_duration_ps", "run_id", "program_id", "hlo_op", "hlo_module", "correlation_id",
    "device_ordinal", "device_id", "step_num", "iter_num", "group_id", "replica_id", "queue_id", "core_type",
    "all_reduce_unique_id", "_pt", "_p", "_ct", "_c", "_r", "_a", "_src", "flow", "tf_op", "kernel_details",
    "memcpy_details", "flops", "model_flops", "bytes_accessed", "dma_stall_duration_ps", "counter_value",
}  # fmt: skip
RENAMED = {
    "_pt": "producer_type", "_p": "producer_id", "_ct": "consumer_type", "_c": "consumer_id", "_r": "is_root",
    "_a": "is_async", "_src": "source", "Hlo Proto": "hlo_proto",
}  # fmt: skip
METADATA_STATS = {
    "flops", "model_flops", "bytes_accessed", "raw_bytes_accessed", "hlo_category", "program_id", "symbol_id", "source",
    "source_stack", "tf_op", "deduplicated_name", "shape_with_layout", "memory_access_breakdown", "Hlo Proto",
}  # fmt: skip
INT_STATS = {
    "device_offset_ps", "device_duration_ps", "run_id", "program_id", "correlation_id", "device_ordinal", "device_id",
    "step_num", "iter_num", "group_id", "replica_id", "queue_id", "core_type", "all_reduce_unique_id", "_pt", "_p",
    "_ct", "_c", "_r", "_a", "flow", "flops", "model_flops", "bytes_accessed", "dma_stall_duration_ps",
    "counter_value", "raw_bytes_accessed", "symbol_id",
}  # fmt: skip
BYTES_STATS = {"memory_access_breakdown", "Hlo Proto"}


def signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def expected(space: Any) -> dict[str, list[dict[str, Any]]]:
    """What the tables should hold: sparse rows, absent = null."""
    tables: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("planes", "lines", "events", "event_metadata", "stat_metadata", "stats")
    }
    for plane_row, plane in enumerate(space.planes):
        names = {entry.key: text(entry.value.name) for entry in plane.stat_metadata}
        tables["planes"].append({"plane": plane_row, "id": plane.id, "name": text(plane.name)})
        for key, entry in {entry.key: entry.value for entry in plane.stat_metadata}.items():
            tables["stat_metadata"].append(
                {"plane": plane_row, "id": key, "name": text(entry.name), "description": text(entry.description)}
            )

        def spread(
            stats: Any,
            row: dict[str, Any],
            typed: set[str],
            owner: int,
            at: int,
            plane_row: int = plane_row,
            names: dict[int, str] = names,
        ) -> None:
            for stat in stats:
                kind = stat.WhichOneof("value")
                value = getattr(stat, kind) if kind else None
                name = names.get(stat.metadata_id)
                column = RENAMED.get(name or "", name or "")
                resolved = (
                    names.get(signed(value)) if kind == "ref_value" else text(value) if kind == "str_value" else None
                )
                if name in typed and column not in row:
                    if name in INT_STATS and kind in ("int64_value", "uint64_value"):
                        row[column] = signed(value)
                        continue
                    if name in BYTES_STATS and kind == "bytes_value":
                        row[column] = value
                        continue
                    if name not in INT_STATS and name not in BYTES_STATS and resolved is not None:
                        row[column] = resolved
                        continue
                number = {
                    None: 0,
                    "double_value": 2,
                    "uint64_value": 3,
                    "int64_value": 4,
                    "str_value": 5,
                    "bytes_value": 6,
                    "ref_value": 7,
                }[kind]
                generic = {"owner": owner, "row": at, "name": name, "kind": number}
                if name is None:
                    generic["stat_id"] = stat.metadata_id
                if number in (3, 4, 7):
                    generic["int_value"] = signed(value)
                if number == 2:
                    generic["double_value"] = value
                if resolved is not None:
                    generic["str_value"] = resolved
                if number == 6:
                    generic["bytes_value"] = value
                tables["stats"].append({key: value for key, value in generic.items() if value is not None})

        rows = {}
        for key, entry in {entry.key: entry.value for entry in plane.event_metadata}.items():
            row = {"plane": plane_row, "id": key, "name": text(entry.name), "display_name": text(entry.display_name)}
            if entry.metadata:
                row["metadata"] = entry.metadata
            rows[key] = len(tables["event_metadata"])
            spread(entry.stats, row, METADATA_STATS, xspace.OWNER_EVENT_METADATA, rows[key])
            tables["event_metadata"].append(row)
        spread(plane.stats, {}, set(), xspace.OWNER_PLANE, plane_row)
        for line in plane.lines:
            line_row = len(tables["lines"])
            row = {"plane": plane_row, "line": line_row, "id": line.id, "display_id": line.display_id}
            row |= {"name": text(line.name), "display_name": text(line.display_name)}
            row |= {"timestamp_ns": line.timestamp_ns, "duration_ps": line.duration_ps}
            row |= {"first_event": len(tables["events"]), "event_count": len(line.events)}
            tables["lines"].append(row)
            for event in line.events:
                row = {
                    "plane": plane_row,
                    "line": line_row,
                    "metadata_id": event.metadata_id,
                    "offset_ps": event.offset_ps,
                    "duration_ps": event.duration_ps,
                }
                if event.metadata_id in rows:
                    row["metadata"] = rows[event.metadata_id]
                if event.WhichOneof("value") == "num_occurrences":
                    row["num_occurrences"] = event.num_occurrences
                spread(event.stats, row, EVENT_STATS, xspace.OWNER_EVENT, len(tables["events"]))
                tables["events"].append(row)
    return tables


def sparse(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if value is not None} for row in batch.to_pylist()]


def multiset(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def assert_equal(decoded: xspace.XSpace, tables: dict[str, list[dict[str, Any]]]) -> None:
    for name in ("planes", "lines", "events", "event_metadata", "stat_metadata"):
        assert sparse(getattr(decoded, name)) == tables[name], name
    # A plane's own stats stand in the bytes among its lines: their order among the others is not part of the contract.
    assert multiset(sparse(decoded.stats)) == multiset(tables["stats"])


@pytest.mark.golden
def test_every_value_is_what_protobuf_reads(capture: bytes, message_class: Any) -> None:
    decoded = xspace.decode(capture)
    assert decoded.replaced_utf8 == 0
    assert_equal(decoded, expected(message_class.FromString(capture)))


@pytest.mark.golden
def test_messages_of_the_producer(message_class: Any) -> None:
    space = message_class(errors=[b"e1", b"\xffe2"], warnings=[b"w\0"], hostnames=[b"h1", b"h2"])
    decoded = xspace.decode(space.SerializeToString())
    assert (decoded.errors, decoded.warnings, decoded.hostnames) == (["e1", "\ufffde2"], ["w\0"], ["h1", "h2"])
    assert decoded.replaced_utf8 == 1


NAMES = [
    b"",
    b"hlo_op",
    b"run_id",
    b"_pt",
    b"flops",
    b"Hlo Proto",
    b"memory_access_breakdown",
    b"odd",
    b"\xc3\x28 \xff",
]
IDS = st.sampled_from([0, 1, 2, 3, 63, 70, 1 << 40, -1, -(1 << 63), (1 << 63) - 1])
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
UINT64 = st.sampled_from([0, 1, 2, 3, 70, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)
TEXT = st.sampled_from(NAMES) | st.binary(max_size=12)
VALUE = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"double_value": st.floats(allow_nan=False)}),
    st.fixed_dictionaries({"uint64_value": UINT64}),
    st.fixed_dictionaries({"int64_value": INT64}),
    st.fixed_dictionaries({"str_value": TEXT}),
    st.fixed_dictionaries({"bytes_value": st.binary(max_size=6)}),
    st.fixed_dictionaries({"ref_value": UINT64}),
)
STATS = st.lists(st.builds(lambda id_, value: {"metadata_id": id_, **value}, IDS, VALUE), max_size=4)
WHEN = st.one_of(
    st.just({}), st.fixed_dictionaries({"offset_ps": INT64}), st.fixed_dictionaries({"num_occurrences": INT64})
)
EVENTS = st.lists(
    st.builds(
        lambda id_, when, duration, stats: {"metadata_id": id_, "duration_ps": duration, "stats": stats, **when},
        IDS, WHEN, INT64, STATS,
    ),
    max_size=4,
)  # fmt: skip
LINE = st.fixed_dictionaries({"id": INT64, "name": TEXT, "display_name": TEXT, "timestamp_ns": INT64, "events": EVENTS})
EVENT_METADATA = st.fixed_dictionaries(
    {"name": TEXT, "display_name": TEXT, "metadata": TEXT, "stats": STATS, "child_id": st.lists(INT64, max_size=2)}
)
PLANE = st.fixed_dictionaries(
    {
        "id": INT64,
        "name": TEXT,
        "lines": st.lists(LINE, max_size=3),
        "event_metadata": st.lists(st.fixed_dictionaries({"key": IDS, "value": EVENT_METADATA}), max_size=4),
        "stat_metadata": st.lists(
            st.fixed_dictionaries({"key": IDS, "value": st.fixed_dictionaries({"name": TEXT, "description": TEXT})}),
            max_size=6,
        ),
        "stats": STATS,
    }
)


@pytest.mark.property
@given(planes=st.lists(PLANE, max_size=3))
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_space_is_what_protobuf_reads(planes: list[dict[str, Any]], message_class: Any) -> None:
    space = message_class(planes=planes)
    assert_equal(xspace.decode(space.SerializeToString()), expected(space))


@pytest.mark.unit
def test_split_messages_merge_as_protobuf_says(message_class: Any) -> None:
    """Scalars: the last one counts. A map value spelt twice in one entry merges. Unknown fields and groups go by."""
    value_a = bytes([0x12, 3]) + b"old" + bytes([0x22, 1]) + b"d"
    value_b = bytes([0x12, 3]) + b"new"
    entry = bytes([0x12, len(value_a)]) + value_a + bytes([0x08, 9]) + bytes([0x12, len(value_b)]) + value_b
    event = bytes(
        [0x08, 1, 0x08, 9, 0x28, 4, 0x10, 7, 0x18, 5, 0x18, 6]
    )  # metadata_id 1 then 9; occurrences, then offset
    unknown = (
        bytes([0x7B, 0x08, 1, 0x7C]) + bytes([0x55, 1, 2, 3, 4]) + bytes([0x51]) + bytes(8) + bytes([0x60, 0xFF, 1])
    )
    line = bytes([0x22, len(event)]) + event + unknown
    plane = (
        bytes([0x1A, len(line)])
        + line
        + bytes([0x22, len(entry)])
        + entry
        + bytes([0x12, 1])
        + b"a"
        + bytes([0x12, 1])
        + b"b"
    )
    data = unknown + bytes([0x0A, len(plane)]) + plane
    decoded = xspace.decode(data)
    assert_equal(decoded, expected(message_class.FromString(data)))
    [event_row] = sparse(decoded.events)
    assert event_row == {"plane": 0, "line": 0, "metadata_id": 9, "metadata": 0, "offset_ps": 7, "duration_ps": 6}
    assert sparse(decoded.event_metadata) == [{"plane": 0, "id": 9, "name": "new", "display_name": "d"}]
    assert sparse(decoded.planes)[0]["name"] == "b"
