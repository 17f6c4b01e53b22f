"""Torn, flipped, cut and overwritten files: nothing whole is lost, nothing lost is silent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetscope.transport import Log, TopicSpec, open_log
from fleetscope.transport.errors import LogDamaged, UnreadableRecord
from fleetscope.transport.log import Message

pytestmark = pytest.mark.fault

VALUES = [bytes([65 + n]) * (90 + n) for n in range(12)]
SEGMENT_HEADER_BYTES = 64


def write(folder: Path, segment_bytes: int = 700) -> None:
    with open_log(f"file://{folder}", segment_bytes=segment_bytes) as log:
        log.create_topics([TopicSpec("t")])
        for value in VALUES:
            log.append("t", b"key", value)


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "topics" / "t" / "0").glob("*.seg"))


def read(log: Log, end: int | None = None) -> list[Message]:
    return list(log.read("t", 0, 0, log.end_offsets("t")[0] if end is None else end))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "log")
    return tmp_path / "log"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine") / "log"
    write(folder)
    assert len(segments(folder)) == 3
    return folder


def places(pristine: Path) -> Iterator[tuple[int, int]]:
    for number, path in enumerate(segments(pristine)):
        for byte in range(path.stat().st_size):
            yield number, byte


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_costs_at_most_its_record(data, pristine: Path, tmp_path: Path) -> None:
    number, byte = data.draw(st.sampled_from(list(places(pristine))))
    bit = data.draw(st.integers(0, 7))
    folder = tmp_path / "log"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(pristine, folder)
    path = segments(folder)[number]
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1 << bit
    path.write_bytes(raw)
    with open_log(f"file://{folder}", segment_bytes=700) as log:
        # What follows is appended behind the damage, never over it.
        assert log.append("t", b"key", b"after").result()[1] == 12
        messages = read(log)
        counted = log.counters()["unreadable"]
    assert [m.offset for m in messages] == list(range(13))
    lost = [m for m in messages if m.unreadable is not None]
    assert len(lost) == counted == (0 if byte < SEGMENT_HEADER_BYTES else 1)
    for message, value in zip(messages, [*VALUES, b"after"], strict=True):
        if message.unreadable is None:
            assert (message.key, message.value) == (b"key", value)
    for message in lost:
        assert message.value == b""
        assert isinstance(message.unreadable, UnreadableRecord)
        assert message.unreadable.number == 2035
        assert str(path) in str(message.unreadable)
        assert f"offset {message.offset}" in str(message.unreadable)


def test_the_error_names_the_byte_and_keeps_what_was_there(folder: Path) -> None:
    first = segments(folder)[0]
    raw = bytearray(first.read_bytes())
    position = raw.index(VALUES[2])
    raw[position + 5] ^= 0xFF
    first.write_bytes(raw)
    with open_log(f"file://{folder}") as log:
        damaged = read(log)[2]
    begins = raw.index(b"FSR1", raw.index(VALUES[1]))
    assert str(damaged.unreadable) == f"FS2035: t/0, offset 2: {first} is damaged at byte {begins}"
    assert bytes(raw[position : position + 92]) in damaged.raw


@pytest.mark.parametrize("kept", range(1, 44 + 3 + 101))
def test_a_torn_record_is_not_there_and_its_offset_is_given_again(tmp_path: Path, kept: int) -> None:
    folder = tmp_path / "log"
    write(folder, segment_bytes=1_000_000)
    (only,) = segments(folder)
    record_bytes = 44 + 3 + len(VALUES[11])
    whole = only.stat().st_size - record_bytes
    with open(only, "r+b") as file:
        file.truncate(whole + kept)
    with open_log(f"file://{folder}") as log:
        assert log.end_offsets("t") == {0: 11}
        assert only.stat().st_size == whole + kept, "a reader repairs nothing"
        assert log.append("t", b"key", b"again").result() == (0, 11)
        assert log.counters()["torn_tails"] == 1
        assert [m.value for m in read(log)] == [*VALUES[:11], b"again"]
        log.append("t", b"key", b"next")
        assert log.counters()["torn_tails"] == 1


def test_zeros_at_the_end_are_a_torn_write(folder: Path) -> None:
    """A file system that lost power may have grown the file without its data."""
    last = segments(folder)[-1]
    with open(last, "ab") as file:
        file.write(bytes(5000))
    with open_log(f"file://{folder}") as log:
        assert log.end_offsets("t") == {0: 12}
        assert log.append("t", b"key", b"next").result() == (0, 12)
        assert log.counters()["torn_tails"] == 1
        assert [m.value for m in read(log)] == [*VALUES, b"next"]


def test_garbage_at_the_end_is_stepped_over_not_cut(folder: Path) -> None:
    last = segments(folder)[-1]
    with open(last, "ab") as file:
        file.write(b"garbage " * 20)
    with open_log(f"file://{folder}") as log:
        assert log.append("t", b"key", b"next").result() == (0, 13)
        assert log.counters()["damaged_tails"] == 1
        assert b"garbage garbage" in last.read_bytes()
        messages = read(log)
    assert [m.offset for m in messages if m.unreadable] == [12]
    assert [m.value for m in messages if not m.unreadable] == [*VALUES, b"next"]


def test_a_closed_segment_that_was_cut_short(folder: Path) -> None:
    second = segments(folder)[1]
    first_offset, next_offset = int(second.stem), int(segments(folder)[2].stem)
    with open(second, "r+b") as file:
        file.truncate(SEGMENT_HEADER_BYTES + 20)
    with open_log(f"file://{folder}") as log:
        messages = read(log)
    assert [m.offset for m in messages] == list(range(12))
    assert [m.offset for m in messages if m.unreadable] == list(range(first_offset, next_offset))


def test_a_missing_segment_in_the_middle(folder: Path) -> None:
    second = segments(folder)[1]
    lost = list(range(int(second.stem), int(segments(folder)[2].stem)))
    second.unlink()
    with open_log(f"file://{folder}") as log:
        messages = read(log)
    assert [m.offset for m in messages] == list(range(12))
    assert [m.offset for m in messages if m.unreadable] == lost


def test_records_inside_a_value_are_not_taken_for_records(tmp_path: Path) -> None:
    """Log bytes carried in a message must not be found by a scan that looks for its footing after damage."""
    other = tmp_path / "other"
    write(other)
    inner = b"".join(path.read_bytes() for path in segments(other))
    folder = tmp_path / "log"
    with open_log(f"file://{folder}") as log:
        log.create_topics([TopicSpec("t")])
        for value in (b"a", inner, b"b"):
            log.append("t", b"", value)
    (path,) = segments(folder)
    raw = bytearray(path.read_bytes())
    header_at = raw.index(b"FSR1", 64 + 44)
    raw[header_at + 40] ^= 1
    path.write_bytes(raw)
    with open_log(f"file://{folder}") as log:
        messages = read(log)
    assert [(m.offset, m.value) for m in messages if not m.unreadable] == [(0, b"a"), (2, b"b")]
    assert [m.offset for m in messages if m.unreadable] == [1]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 99, "topic_id": "00"}'])
def test_a_topic_description_that_cannot_be_read(folder: Path, content: bytes) -> None:
    (folder / "topics" / "t" / "topic.json").write_bytes(content)
    with open_log(f"file://{folder}") as log, pytest.raises(LogDamaged, match=r"topic\.json"):
        log.topic("t")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}'])
def test_a_log_of_another_format_is_refused(folder: Path, content: bytes) -> None:
    (folder / "log.json").write_bytes(content)
    with pytest.raises(LogDamaged, match=r"log\.json"):
        open_log(f"file://{folder}")


def test_an_open_log_says_where_a_segment_that_was_cut_ends_now(folder: Path) -> None:
    with open_log(f"file://{folder}") as log:
        assert log.end_offsets("t") == {0: 12}
        last = segments(folder)[-1]
        last.write_bytes(last.read_bytes()[: SEGMENT_HEADER_BYTES + 10])
        assert log.end_offsets("t")[0] < 12
        assert all(message.unreadable is None for message in read(log))
