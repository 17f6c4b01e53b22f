"""What `transport.log.Log` promises, asked of both implementations."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from zlib import crc32

import pytest

from fleetscope.transport import Log, Topics, TopicSpec
from fleetscope.transport.errors import (
    Backpressure,
    BadName,
    FleetscopeError,
    LogClosed,
    MessageTooLarge,
    NotATombstoneTopic,
    OffsetOutOfRange,
    TopicConflict,
    TopicRecreated,
    UnknownTopic,
)
from fleetscope.transport.log import MAX_VALUE_BYTES, Message

pytestmark = pytest.mark.contract

ReadAll = Callable[..., list[Message]]


def fill(log: Log, topic: str, values: list[bytes], partition: int = 0) -> None:
    for pending in [log.append(topic, b"k", value, partition=partition) for value in values]:
        pending.result(60)


def test_one_key_is_ordered_in_the_partition_crc32_names(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=4)
    keys = [f"host-{n}".encode() for n in range(9)]
    pending = [log.append(topic, keys[n % 9], b"%d" % n) for n in range(180)]
    places = [each.result(60) for each in pending]
    assert [partition for partition, _ in places] == [crc32(keys[n % 9]) % 4 for n in range(180)]
    read = [message for partition in range(4) for message in read_all(log, topic, partition)]
    assert len(read) == 180
    for key in keys:
        of_key = [message for message in read if message.key == key]
        assert [int(message.value) for message in of_key] == [n for n in range(180) if keys[n % 9] == key]
        assert {message.partition for message in of_key} == {crc32(key) % 4}
    assert sorted((m.partition, m.offset) for m in read) == sorted(places)


def test_a_range_is_half_open(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    fill(log, topic, [b"%d" % n for n in range(20)])
    assert [m.offset for m in log.read(topic, 0, 5, 12)] == list(range(5, 12))
    assert [m.value for m in log.read(topic, 0, 19, 20)] == [b"19"]
    assert list(log.read(topic, 0, 7, 7)) == []
    assert list(log.read(topic, 0, 20, 20)) == []
    assert [m.offset for m in log.read(topic, 0, 0, 3)] == [0, 1, 2]


def test_max_bytes_stops_after_at_least_one_message(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    fill(log, topic, [b"x" * 1000] * 10)
    assert [m.offset for m in log.read(topic, 0, 0, 10, max_bytes=2500)] == [0, 1, 2]
    assert [m.offset for m in log.read(topic, 0, 3, 10, max_bytes=1)] == [3]


def test_reads_may_be_interleaved(backend) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=2)
    for partition in (0, 1):
        fill(log, topic, [b"%d-%d" % (partition, n) for n in range(200)], partition)
    pairs = zip(log.read(topic, 0, 0, 200), log.read(topic, 1, 0, 200), strict=True)
    assert [(a.value, b.value) for a, b in pairs] == [(b"0-%d" % n, b"1-%d" % n) for n in range(200)]


def test_an_empty_topic(backend) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=3)
    assert log.start_offsets(topic) == log.end_offsets(topic) == {0: 0, 1: 0, 2: 0}
    assert list(log.read(topic, 1, 0, 0)) == []
    assert log.read_compacted(topic) == {}
    tail = log.tail(topic)
    assert tail.poll(0.05) == []
    assert tail.caught_up()
    tail.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 1024 * 1024, MAX_VALUE_BYTES])
def test_values_up_to_the_wire_limit(backend, read_all: ReadAll, size_bytes: int) -> None:
    log = backend.open()
    topic = backend.topic(log)
    value = (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]
    log.append(topic, b"k", value).result(60)
    (message,) = read_all(log, topic)
    assert message.value == value
    assert not message.tombstone


def test_a_message_over_the_limit_is_refused(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    with pytest.raises(MessageTooLarge):
        log.append(topic, b"k", bytes(MAX_VALUE_BYTES + 512 * 1024))
    small = backend.topic(log, max_message_bytes=10_000)
    with pytest.raises(MessageTooLarge):
        log.append(small, b"k", bytes(20_000))
    log.append(small, b"k", b"fits").result(60)
    assert [m.value for m in read_all(log, small)] == [b"fits"]


def test_keys_headers_and_time_come_back_as_they_were(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    cases = [
        (b"", b"v", ()),
        (bytes(range(256)), b"\x00\xff" * 10, (("empty", b""), ("same", b"1"), ("same", b"2"))),
        ("\u4e3b\u673a".encode(), b"", (("\u540d", bytes(range(256))),)),
        (b"k" * 4000, b"FSR1" * 100, (("n" * 300, b"v"),)),
    ]
    for n, (key, value, headers) in enumerate(cases):
        log.append(topic, key, value, headers, partition=0, timestamp_ms=1_700_000_000_000 + n).result(60)
    read = read_all(log, topic)
    assert [(m.key, m.value, m.headers) for m in read] == cases
    assert [m.timestamp_ms for m in read] == [1_700_000_000_000 + n for n in range(4)]
    assert {m.topic for m in read} == {topic}


def test_without_a_timestamp_it_is_now(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    before = time.time_ns() // 1_000_000
    log.append(topic, b"k", b"v").result(60)
    assert before <= read_all(log, topic)[0].timestamp_ms <= time.time_ns() // 1_000_000


def test_two_logs_and_their_threads_append_together(backend, read_all: ReadAll) -> None:
    logs = [backend.open(), backend.open()]
    topic = backend.topic(logs[0])
    failures: list[BaseException] = []

    def work(log: Log, worker: int) -> None:
        try:
            fill(log, topic, [b"%d %d" % (worker, n) for n in range(50)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(logs[n % 2], n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    read = read_all(logs[0], topic)
    assert [m.offset for m in read] == list(range(200))
    for worker in range(4):
        own = [m.value for m in read if m.value.startswith(b"%d " % worker)]
        assert own == [b"%d %d" % (worker, n) for n in range(50)]


_APPENDER = """
import sys
from fleetscope.transport import open_log
with open_log(sys.argv[1]) as log:
    pending = [log.append(sys.argv[2], b"k", f"{sys.argv[3]} {n}".encode() * 200) for n in range(300)]
    for each in pending:
        each.result(60)
"""


def test_processes_append_together(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    started = [subprocess.Popen([sys.executable, "-c", _APPENDER, backend.url, topic, str(n)]) for n in range(2)]
    assert [process.wait(60) for process in started] == [0, 0]
    read = read_all(log, topic)
    assert [m.offset for m in read] == list(range(600))
    for process in range(2):
        own = [m.value for m in read if m.value.startswith(b"%d " % process)]
        assert own == [b"%d %d" % (process, n) * 200 for n in range(300)]


def test_a_topic_survives_a_restart(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=2)
    fill(log, topic, [b"a", b"b"])
    before = log.topic(topic)
    log.close()
    again = backend.open()
    assert again.topic(topic) == before
    fill(again, topic, [b"c"])
    assert [(m.offset, m.value) for m in read_all(again, topic)] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert topic in again.topics()


def test_an_offset_above_the_end_is_an_error_not_silence(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    fill(log, topic, [b"a", b"b"])
    for start, end in ((3, 3), (5, 9), (0, 3)):
        with pytest.raises(OffsetOutOfRange, match="ends at 2"):
            next(log.read(topic, 0, start, end))


def test_an_offset_below_the_start_is_an_error(backend) -> None:
    log = backend.open(**({"segment_bytes": 4000} if backend.url.startswith("file") else {}))
    topic = backend.topic(log)
    fill(log, topic, [bytes(1000)] * 12)
    backend.drop_before(topic, 6)
    start = log.start_offsets(topic)[0]
    assert 0 < start <= 6
    with pytest.raises(OffsetOutOfRange, match=f"starts at {start}"):
        list(log.read(topic, 0, 0, 12))
    assert [m.offset for m in log.read(topic, 0, start, 12)] == list(range(start, 12))


def test_a_recreated_topic_is_another_topic(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    fill(log, topic, [b"old"] * 3)
    old = log.topic(topic)
    assert len(list(log.read(topic, 0, 0, 3, topic_id=old.topic_id))) == 3
    other = backend.open()
    other.delete_topics([topic, "never-existed"])
    with pytest.raises(UnknownTopic):
        log.end_offsets(topic)
    other.create_topics([TopicSpec(topic)])
    assert log.topic(topic).topic_id != old.topic_id
    with pytest.raises(TopicRecreated, match=old.topic_id):
        next(log.read(topic, 0, 0, 3, topic_id=old.topic_id))
    fill(log, topic, [b"new"])
    assert [(m.offset, m.value) for m in read_all(log, topic)] == [(0, b"new")]


def test_a_compacted_topic_reads_as_a_table(backend) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=2, compacted=True)
    expected = {}
    for n in range(300):
        key = b"%d" % (n % 40)
        value = None if n % 7 == 0 else b"%d" % n
        log.append(topic, key, value)
        expected[key] = value
    log.flush()
    assert log.read_compacted(topic) == {key: value for key, value in expected.items() if value is not None}
    assert any(m.tombstone and m.value == b"" for p in (0, 1) for m in log.read(topic, p, 0, log.end_offsets(topic)[p]))


def test_tombstones_only_where_they_mean_something(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    with pytest.raises(NotATombstoneTopic):
        log.append(topic, b"k", None)


def test_backpressure_comes_in_time_and_keeps_nothing(backend, read_all: ReadAll) -> None:
    log = backend.open(append_block_s=0.3, **backend.backpressure_settings())
    topic = backend.topic(log)
    log.append(topic, b"k", b"first").result(60)
    taken = []
    with backend.taking_nothing(topic):
        for n in range(100):
            started = time.monotonic()
            try:
                taken.append(log.append(topic, b"k", b"%d" % n * 5000))
            except Backpressure:
                break
        assert 0.25 < time.monotonic() - started < 1.5
        rejected = len(taken)
        assert rejected < 100
    for each in taken:
        each.result(60)
    log.append(topic, b"k", b"last").result(60)
    values = [m.value for m in read_all(log, topic)]
    assert values == [b"first", *(b"%d" % n * 5000 for n in range(rejected)), b"last"]
    assert log.counters()["backpressure"] == 1


def test_close_during_append_loses_nothing_acknowledged(backend, read_all: ReadAll) -> None:
    log = backend.open()
    topic = backend.topic(log)
    acknowledged: list[int] = []
    ended: list[FleetscopeError] = []

    def work() -> None:
        try:
            while True:
                acknowledged.append(log.append(topic, b"k", b"x" * 500).result(60)[1])
        except FleetscopeError as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while len(acknowledged) < 20:
        time.sleep(0.005)
    log.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(ended) == 1
    with pytest.raises(LogClosed):
        log.append(topic, b"k", b"late")
    with pytest.raises(LogClosed):
        log.end_offsets(topic)
    log.close()
    offsets = {m.offset for m in read_all(backend.open(), topic)}
    assert set(acknowledged) <= offsets


def test_reading_while_another_appends_sees_each_message_once(backend) -> None:
    writer, reader = backend.open(), backend.open()
    topic = backend.topic(writer)
    total = 400

    def work() -> None:
        for n in range(total):
            writer.append(topic, b"k", b"%06d" % n * 300).result(60)

    thread = threading.Thread(target=work)
    thread.start()
    seen: list[bytes] = []
    position = 0
    deadline = time.monotonic() + 60
    while position < total and time.monotonic() < deadline:
        end = reader.end_offsets(topic)[0]
        seen += [m.value for m in reader.read(topic, 0, position, end)]
        position = end
    thread.join()
    assert seen == [b"%06d" % n * 300 for n in range(total)]


def test_a_tail_follows(backend) -> None:
    writer, reader = backend.open(), backend.open()
    topic = backend.topic(writer, partitions=2)
    for partition in (0, 1):
        fill(writer, topic, [b"%d-%d" % (partition, n) for n in range(5)], partition)
    tail = reader.tail(topic, {0: 3})
    assert not tail.caught_up()
    got: list[Message] = []
    deadline = time.monotonic() + 60
    while not tail.caught_up() and time.monotonic() < deadline:
        got += tail.poll(1.0)
    assert sorted(m.value for m in got) == [b"0-3", b"0-4", b"1-0", b"1-1", b"1-2", b"1-3", b"1-4"]
    assert tail.positions() == {0: 5, 1: 5}
    writer.append(topic, b"k", b"new", partition=1).result(60)
    assert [m.value for m in tail.poll(60.0)] == [b"new"]
    assert tail.positions() == {0: 5, 1: 6}
    started = time.monotonic()
    assert tail.poll(0.2) == []
    assert time.monotonic() - started < 2
    tail.close()


def test_a_tail_beyond_the_end_is_an_error(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    with pytest.raises(OffsetOutOfRange):
        log.tail(topic, {0: 7}).poll(1.0)


def test_topics_are_made_once(backend) -> None:
    logs = [backend.open(), backend.open()]
    name = backend.topic(logs[0], partitions=2)
    logs[1].create_topics([TopicSpec(name, 2)])
    with pytest.raises(TopicConflict):
        logs[1].create_topics([TopicSpec(name, 3)])
    raced = f"{name}-raced"
    threads = [threading.Thread(target=log.create_topics, args=([TopicSpec(raced, 2)],)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert logs[0].topic(raced) == logs[1].topic(raced)
    fill(logs[0], raced, [b"a"])
    assert logs[1].end_offsets(raced)[0] == 1


def test_the_topics_of_the_design_can_be_made(backend) -> None:
    log = backend.open()
    topics = Topics(backend.topic(log))
    log.create_topics(topics.specs(partitions=3))
    assert log.topic(topics.telemetry).partitions == 3
    assert {spec.name for spec in topics.specs()} <= set(log.topics())
    log.append(topics.metrics, b"chain-0", None).result(60)
    assert log.read_compacted(topics.metrics) == {}


def test_what_does_not_exist_has_a_name(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    for call in (
        lambda: log.topic("no-such-topic"),
        lambda: log.append("no-such-topic", b"k", b"v"),
        lambda: log.end_offsets("no-such-topic"),
        lambda: next(log.read("no-such-topic", 0, 0, 0)),
        lambda: next(log.read(topic, 1, 0, 0)),
        lambda: log.append(topic, b"k", b"v", partition=1),
    ):
        with pytest.raises(UnknownTopic):
            call()


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 250, "caf\u00e9"])
def test_bad_names(backend, name: str) -> None:
    log = backend.open()
    with pytest.raises(BadName):
        log.create_topics([TopicSpec(name)])


def test_advisory_progress(backend) -> None:
    log = backend.open()
    topic = backend.topic(log, partitions=2)
    group = f"g-{topic}"
    assert log.committed_advisory(group, topic) == {}
    log.commit_advisory(group, topic, {0: 5, 1: 1})
    log.commit_advisory(group, topic, {1: 9})
    assert backend.open().committed_advisory(group, topic) == {0: 5, 1: 9}


def test_counters(backend) -> None:
    log = backend.open()
    topic = backend.topic(log)
    fill(log, topic, [b"12345", b"678"])
    log.flush()
    counts = log.counters()
    assert counts["appended"] == 2
    assert counts["appended_bytes"] >= 8
