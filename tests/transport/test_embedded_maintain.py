"""Segments, retention, compaction, and readers that are in the middle of it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetscope.transport import TopicSpec, open_log
from fleetscope.transport.embedded.catalog import Catalog
from fleetscope.transport.embedded.files import PartitionFiles
from fleetscope.transport.embedded.log import EmbeddedLog
from fleetscope.transport.embedded.maintain import compact, expire
from fleetscope.transport.errors import OffsetOutOfRange, TopicRecreated

HOUR_MS = 3_600_000


def files_of(folder: Path, partition: int = 0) -> PartitionFiles:
    return Catalog(folder).load("t").partition(partition)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.unit
def test_segments_roll_by_size_and_read_on_across_them(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t")])
        for n in range(50):
            log.append("t", b"k", b"%03d" % n * 100)
        paths = sorted((tmp_path / "topics" / "t" / "0").glob("*.seg"))
        # 64 bytes of header, then 345 a record: five fit into 2000.
        assert [int(path.stem) for path in paths] == list(range(0, 50, 5))
        assert [m.value for m in log.read("t", 0, 3, 50)] == [b"%03d" % n * 100 for n in range(3, 50)]


@pytest.mark.unit
def test_a_message_larger_than_a_segment_gets_its_own(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=1000) as log:
        log.create_topics([TopicSpec("t")])
        for size in (10, 5000, 10):
            log.append("t", b"k", bytes(size))
        assert [len(m.value) for m in log.read("t", 0, 0, 3)] == [10, 5000, 10]


@pytest.mark.unit
def test_retention_by_bytes_deletes_whole_old_segments(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t")])
        for _ in range(50):
            log.append("t", b"k", bytes(300))
        files = files_of(tmp_path)
        # 10 segments of 64 + 5 * 345 = 1789 bytes: keeping at least 5000 bytes keeps 3.
        assert expire(files, None, 5000, now_ms()) == 7
        assert log.start_offsets("t") == {0: 35}
        assert log.end_offsets("t") == {0: 50}
        with pytest.raises(OffsetOutOfRange):
            next(log.read("t", 0, 34, 50))
        assert [m.offset for m in log.read("t", 0, 35, 50)] == list(range(35, 50))
        assert expire(files, None, 0, now_ms()) == 2, "the segment being written stays"
        assert log.append("t", b"k", b"").result() == (0, 50)


@pytest.mark.unit
def test_retention_by_age(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t")])
        for _ in range(20):
            log.append("t", b"k", bytes(300))
        files = files_of(tmp_path)
        for base in (0, 5):
            os.utime(files.path(base), (time.time() - 7200, time.time() - 7200))
        assert expire(files, HOUR_MS, None, now_ms()) == 2
        assert log.start_offsets("t") == {0: 10}


@pytest.mark.unit
def test_retention_works_by_itself(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", sync_s=0.02) as log:
        log.create_topics([TopicSpec("t", retention_bytes=40_000)])
        deadline = time.monotonic() + 60
        while log.counters().get("expired_segments", 0) == 0 and time.monotonic() < deadline:
            log.append("t", b"k", bytes(1000))
            time.sleep(0.001)
        used = sum(path.stat().st_size for path in files_of(tmp_path).folder.glob("*.seg"))
        assert log.start_offsets("t")[0] > 0
        assert log.counters()["expired_segments"] > 0
        assert used < 200_000


@pytest.mark.unit
def test_an_idle_topic_expires_too(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}") as log:
        log.create_topics([TopicSpec("t", retention_ms=HOUR_MS)])
        log.append("t", b"k", b"v")
        files = files_of(tmp_path)
        os.utime(files.path(0), (time.time() - 7200, time.time() - 7200))
        cast(EmbeddedLog, log)._maintain()
        assert log.start_offsets("t") == log.end_offsets("t") == {0: 1}
        assert log.append("t", b"k", b"v").result() == (0, 1)


WRITES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.one_of(st.none(), st.binary(max_size=60))),
    min_size=1,
    max_size=60,
)


@pytest.mark.property
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(WRITES, min_size=1, max_size=4), old_tombstones=st.booleans())
def test_compaction_never_changes_the_table(tmp_path: Path, rounds, old_tombstones: bool) -> None:
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    table: dict[bytes, bytes] = {}
    offsets: dict[int, tuple[bytes, bytes]] = {}
    with open_log(f"file://{tmp_path / 'log'}", compacted_segment_bytes=400) as log:
        log.create_topics([TopicSpec("t", compacted=True)])
        files = files_of(tmp_path / "log")
        for writes in rounds:
            for key, value in writes:
                _, offset = log.append("t", key, value).result()
                offsets[offset] = (key, value or b"")
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            compact(files, 400, 0 if old_tombstones else HOUR_MS, now_ms() + 1000)
            assert log.read_compacted("t") == table
            end = log.end_offsets("t")[0]
            assert end == len(offsets)
            left = list(log.read("t", 0, 0, end))
            assert all(m.unreadable is None for m in left)
            assert [m.offset for m in left] == sorted(m.offset for m in left)
            assert all(offsets[m.offset] == (m.key, m.value) for m in left)
    with open_log(f"file://{tmp_path / 'log'}") as again:
        assert again.read_compacted("t") == table


def fill_compacted(folder: Path, keys: int = 5, count: int = 100) -> None:
    with open_log(f"file://{folder}", compacted_segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t", compacted=True)])
        for n in range(count):
            log.append("t", b"%d" % (n % keys), b"%03d" % n * 50)


@pytest.mark.unit
def test_compaction_leaves_one_record_a_key_and_merges_segments(tmp_path: Path) -> None:
    fill_compacted(tmp_path)
    files = files_of(tmp_path)
    closed = files.bases()[:-1]
    assert compact(files, 2000, HOUR_MS, now_ms()) == len(closed) - 1
    newest_closed = files.bases()[-1]
    with open_log(f"file://{tmp_path}") as log:
        offsets = [m.offset for m in log.read("t", 0, 0, 100) if m.offset < newest_closed]
        assert offsets == list(range(newest_closed - 5, newest_closed))
        assert list(log.read("t", 0, 3, 20)) == [], "a range inside the gap"
        assert compact(files, 2000, HOUR_MS, now_ms()) == 0, "nothing new, nothing to do"


@pytest.mark.unit
def test_tombstones_go_after_their_time(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", compacted_segment_bytes=300) as log:
        log.create_topics([TopicSpec("t", compacted=True)])
        log.append("t", b"gone", b"x" * 100)
        log.append("t", b"gone", None)
        for _ in range(6):
            log.append("t", b"other", b"y" * 100)
        files = files_of(tmp_path)
        compact(files, 300, HOUR_MS, now_ms())
        assert [m.tombstone for m in log.read("t", 0, 0, 8) if m.key == b"gone"] == [True]
        for _ in range(6):
            log.append("t", b"other", b"y" * 100)
        compact(files, 300, HOUR_MS, now_ms() + 2 * HOUR_MS)
        assert [m for m in log.read("t", 0, 0, 14) if m.key == b"gone"] == []


@pytest.mark.fault
def test_a_compaction_killed_before_it_removed_the_old_files(tmp_path: Path) -> None:
    fill_compacted(tmp_path)
    files = files_of(tmp_path)
    before = {base: files.path(base).read_bytes() for base in files.bases()}
    with open_log(f"file://{tmp_path}") as log:
        expected = log.read_compacted("t")
        compact(files, 2000, HOUR_MS, now_ms())
        left = [m.offset for m in log.read("t", 0, 0, 100)]
        for base, content in before.items():
            if not files.path(base).exists():
                files.path(base).write_bytes(content)
        (files.folder / "00000000000000000000.1.compact.tmp").write_bytes(b"half")
        assert [m.offset for m in log.read("t", 0, 0, 100)] == left
        assert log.read_compacted("t") == expected
    with open_log(f"file://{tmp_path}") as log:
        assert log.append("t", b"0", b"new").result() == (0, 100)
        compact(files, 2000, HOUR_MS, now_ms())
        assert not list(files.folder.glob("*.tmp"))
        assert len(list(files.folder.glob("*.seg"))) == len(files.bases())
        assert log.read_compacted("t") == {**expected, b"0": b"new"}


@pytest.mark.fault
def test_a_segment_begun_during_a_sweep_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by 55 SIGKILLs under load: a sweep that listed the folder twice deleted what an appender had just begun."""
    fill_compacted(tmp_path)
    files = files_of(tmp_path)
    real = os.listdir
    with open_log(f"file://{tmp_path}", compacted_segment_bytes=1) as log:

        def listing(folder: object) -> list[str]:
            names = real(folder)
            monkeypatch.setattr(os, "listdir", real)
            log.append("t", b"new", b"value")
            return names

        monkeypatch.setattr(os, "listdir", listing)
        compact(files, 2000, HOUR_MS, now_ms())
        assert log.end_offsets("t") == {0: 101}
        assert log.read_compacted("t")[b"new"] == b"value"


@pytest.mark.fault
def test_readers_go_on_while_files_are_compacted_and_deleted_under_them(tmp_path: Path) -> None:
    fill_compacted(tmp_path)
    files = files_of(tmp_path)
    with open_log(f"file://{tmp_path}") as log:
        newest = {m.key: m.value for m in log.read("t", 0, 0, 100)}
        for stop_after in (1, 4, 7, 30):
            shutil.rmtree(tmp_path)
            fill_compacted(tmp_path)
            seen: dict[bytes, bytes] = {}
            for count, message in enumerate(log.read("t", 0, 0, 100)):
                assert message.unreadable is None
                seen[message.key] = message.value
                if count == stop_after:
                    compact(files_of(tmp_path), 2000, HOUR_MS, now_ms())
            assert seen == newest
    assert files.compacted


@pytest.mark.fault
def test_retention_overtakes_a_reader(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t")])
        for _ in range(50):
            log.append("t", b"k", bytes(300))
        reader = log.read("t", 0, 0, 50)
        assert next(reader).offset == 0
        expire(files_of(tmp_path), None, 5000, now_ms())
        with pytest.raises(OffsetOutOfRange, match="starts at 35"):
            list(reader)


@pytest.mark.fault
def test_a_topic_deleted_under_a_reader(tmp_path: Path) -> None:
    with open_log(f"file://{tmp_path}", segment_bytes=2000) as log:
        log.create_topics([TopicSpec("t")])
        for _ in range(50):
            log.append("t", b"k", bytes(300))
        reader = log.read("t", 0, 0, 50)
        next(reader)
        with open_log(f"file://{tmp_path}") as other:
            other.delete_topics(["t"])
        assert not (tmp_path / "topics" / "t").exists()
        with pytest.raises(TopicRecreated, match="deleted while in use"):
            list(reader)
