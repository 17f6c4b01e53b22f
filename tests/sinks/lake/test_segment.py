"""Segments: partitions, statistics, encodings, and that a failed write shows nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.schema.errors import RowsMismatch
from fleetscope.schema.tables import SPANS, TABLES
from fleetscope.sinks.lake.encode import from_stored, to_stored
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.objects import ObjectStore
from fleetscope.sinks.lake.segment import write_segment

HOUR_NS = 3_600_000_000_000


def _read(store: ObjectStore, key: str) -> pa.Table:
    return pq.read_table(store.location(key), filesystem=store.filesystem(), partitioning=None)


@pytest.mark.contract
def test_rows_go_to_the_utc_hour_they_begin_in(store: ObjectStore, make_rows: Any, noon_ns: int) -> None:
    times = [noon_ns + HOUR_NS - 1, noon_ns + HOUR_NS, noon_ns + 12 * HOUR_NS - 1, noon_ns + 12 * HOUR_NS, noon_ns]
    refs = write_segment(store, "spans", make_rows("spans", 5, t_ns=times, seq=[0, 1, 2, 3, 4]), "0-1-a-0")
    found = {ref.path: _read(store, ref.key).column("seq").to_pylist() for ref in refs}
    assert found == {
        "date=2025-06-15/hour=12/retention_class=standard/0-1-a-0.parquet": [0, 4],
        "date=2025-06-15/hour=13/retention_class=standard/0-1-a-0.parquet": [1],
        "date=2025-06-15/hour=23/retention_class=standard/0-1-a-0.parquet": [2],
        "date=2025-06-16/hour=00/retention_class=standard/0-1-a-0.parquet": [3],
    }
    assert sum(ref.rows for ref in refs) == 5
    assert all(store.size(ref.key) == ref.size_bytes for ref in refs)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("zone", "days"),
    [
        ("Europe/Berlin", ("2025-03-30", "2025-10-26")),
        ("America/New_York", ("2025-03-09", "2025-11-02")),
        ("Australia/Lord_Howe", ("2025-04-06", "2025-10-05")),  # by half an hour
    ],
)
def test_a_day_has_24_partitions_whatever_the_time_zone_does(
    folder: LocalFolder, make_rows: Any, monkeypatch: pytest.MonkeyPatch, zone: str, days: tuple[str, str]
) -> None:
    """pcp 1936, grafana 48508 (RT-9): an hour lost, one twice, where the clocks change. The zone changes under us."""
    for number, day in enumerate(days):
        monkeypatch.setenv("TZ", ("UTC", zone)[number])
        time.tzset()
        begin = np.datetime64(day).astype("datetime64[ns]").astype(np.int64)
        times = [int(begin) + n * HOUR_NS // 2 for n in range(48)]
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        refs = write_segment(folder, "spans", make_rows("spans", 48, t_ns=times), f"n{number}")
        assert [(ref.partition["date"], ref.partition["hour"], ref.rows) for ref in refs] == [
            (day, f"{hour:02d}", 2) for hour in range(24)
        ]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.unit
def test_rollups_go_by_date_and_dimensions_nowhere(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    times = [noon_ns, noon_ns + 11 * HOUR_NS, noon_ns + 12 * HOUR_NS]
    refs = write_segment(folder, "op_10s", make_rows("op_10s", 3, t_ns=times), "n")
    assert [(ref.partition["date"], ref.rows) for ref in refs] == [("2025-06-15", 2), ("2025-06-16", 1)]
    assert [ref.path for ref in write_segment(folder, "hosts", make_rows("hosts", 2), "n")] == ["n.parquet"]
    assert write_segment(folder, "spans", make_rows("spans", 0), "n") == ()


@pytest.mark.unit
def test_nonsense_times_share_one_partition_and_keep_their_value(folder: LocalFolder, make_rows: Any) -> None:
    times = [-1, 0, 5 * HOUR_NS, 2**62, -(2**62)]
    (ref,) = write_segment(folder, "spans", make_rows("spans", 5, t_ns=times), "n")
    assert dict(ref.partition) == {"date": "1970-01-01", "hour": "00", "retention_class": "standard"}
    assert _read(folder, ref.key).column("t_ns").to_pylist() == times


@pytest.mark.unit
def test_statistics_are_delta_s(folder: LocalFolder, make_rows: Any, noon_ns: int) -> None:
    rows = make_rows("spans", 3, host=[7, -9, 8], device=[1, 1, 2], t_ns=[noon_ns + 5, noon_ns, noon_ns + 9])
    (ref,) = write_segment(folder, "spans", rows, "n")
    assert json.loads(ref.stats) == {
        "numRecords": 3,
        "minValues": {"t_ns": noon_ns, "host": -9, "process": 0, "device": 1},
        "maxValues": {"t_ns": noon_ns + 9, "host": 8, "process": 0, "device": 2},
    }


@pytest.mark.unit
def test_a_taken_name_is_not_overwritten(folder: LocalFolder, make_rows: Any) -> None:
    (first,) = write_segment(folder, "hosts", make_rows("hosts", 1, host=[1]), "n")
    (second,) = write_segment(folder, "hosts", make_rows("hosts", 1, host=[2]), "n")
    assert first.path != second.path
    assert [_read(folder, ref.key).column("host").to_pylist() for ref in (first, second)] == [[1], [2]]


@pytest.mark.unit
def test_wrong_rows_are_refused_by_name(folder: LocalFolder, make_rows: Any) -> None:
    rows = make_rows("spans", 1)
    with pytest.raises(RowsMismatch, match="FS5005: spans: column 'seq' is missing"):
        write_segment(folder, "spans", rows.drop_columns(["seq"]), "n")
    with pytest.raises(RowsMismatch, match="'kind' is int64, not uint8"):
        write_segment(folder, "spans", rows.set_column(11, "kind", rows.column("kind").cast(pa.int64())), "n")
    with pytest.raises(RowsMismatch, match="no table called 'span'"):
        write_segment(folder, "span", rows, "n")
    assert folder.keys("tables") == []


def _encodings(folder: LocalFolder, key: str) -> dict[str, set[str]]:
    group = pq.ParquetFile(folder.location(key)).metadata.row_group(0)
    return {group.column(i).path_in_schema: set(group.column(i).encodings) for i in range(group.num_columns)}


@pytest.mark.unit
def test_encodings_of_the_two_profiles(folder: LocalFolder, make_rows: Any) -> None:
    rows = make_rows("spans", 1000, dur_ns=np.arange(1000) * 7919, seq=np.arange(1000))
    (compact,) = write_segment(folder, "spans", rows, "c")
    (portable,) = write_segment(folder, "spans", rows, "p", "portable")
    small, plain = _encodings(folder, compact.key), _encodings(folder, portable.key)
    assert "BYTE_STREAM_SPLIT" in small["t_ns"]
    assert "BYTE_STREAM_SPLIT" in small["dur_ns"]
    assert "DELTA_BINARY_PACKED" in small["seq"]
    assert "RLE_DICTIONARY" in small["op"]
    assert all("BYTE_STREAM_SPLIT" not in found for found in plain.values())
    footer = pq.ParquetFile(folder.location(compact.key)).metadata
    assert footer.row_group(0).column(0).compression == "ZSTD"
    assert footer.row_group(0).column(0).has_offset_index


@pytest.mark.property
@settings(max_examples=25)
@given(data=st.data())
def test_what_is_written_is_what_is_read(data: st.DataObject) -> None:
    columns = []
    rows = data.draw(st.integers(0, 12))
    for field in SPANS:
        bits = field.type.bit_width
        low, high = (0, 2**bits - 1) if str(field.type).startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        columns.append(pa.array(data.draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows)), field.type))
    table = pa.Table.from_arrays(columns, schema=SPANS)
    assert from_stored("spans", to_stored("spans", table)).cast(SPANS).equals(table)


@pytest.mark.unit
@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_table_can_be_written_and_read(folder: LocalFolder, make_rows: Any, name: str) -> None:
    rows = make_rows(name, 3)
    (ref,) = write_segment(folder, name, rows, "n")
    back = from_stored(name, _read(folder, ref.key))
    assert back.select(rows.schema.names).cast(rows.schema).equals(rows)


_FULL_DISK = """
import resource, signal, sys
import numpy as np, pyarrow as pa
from pathlib import Path
from fleetscope.schema.errors import LakeFull
from fleetscope.schema.tables import SPANS
from fleetscope.sinks.lake.local_store import LocalFolder
from fleetscope.sinks.lake.segment import write_segment

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
noise = np.random.default_rng(1)
columns = [pa.array(noise.integers(0, 100, 50_000), field.type) for field in SPANS]
columns[0] = pa.array(noise.integers(0, 10**12, 50_000) + 1_750_000_000_000_000_000)
store = LocalFolder(Path(sys.argv[1]))
try:
    write_segment(store, "spans", pa.Table.from_arrays(columns, schema=SPANS), "n")
except LakeFull as error:
    assert not store.modified("tables"), store.modified("tables")
    print("full:", error)
"""


@pytest.mark.fault
def test_a_kernel_that_refuses_more_bytes_leaves_nothing_visible(tmp_path: Path) -> None:
    # a file size limit is the full disk that needs no root: write(2) itself fails
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("full: FS5003")
