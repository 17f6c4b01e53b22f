"""What only Kafka can do to us: outages, refusals, gaps, damage on the broker's disk."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer

from fleetscope.transport import Log, Pending, TopicSpec, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.errors import (
    BadLogUrl,
    BrokerUnavailable,
    ComponentMissing,
    DeliveryUnknown,
    Retryable,
    StateUnknown,
)

pytestmark = pytest.mark.fault


def name() -> str:
    return f"k-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="module")
def fragile(require: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker to be killed and damaged."""
    with Broker(tmp_path_factory.mktemp("fragile"), require("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(fragile: Broker) -> str:
    chosen = name()
    with open_log(fragile.url) as log:
        log.create_topics([TopicSpec(chosen)])
    return chosen


def _taken(log: Log, topic: str, value: bytes) -> Pending:
    """Appended as soon as the broker, just restarted, knows the topic again."""
    until = time.monotonic() + 60
    while True:
        try:
            return log.append(topic, b"k", value)
        except Retryable:
            assert time.monotonic() < until
            time.sleep(0.1)


def values(log: Log, topic: str) -> list[bytes]:
    return [m.value for m in log.read(topic, 0, 0, log.end_offsets(topic)[0])]


def test_nothing_listens(free_port: Callable[[], int]) -> None:
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="refused") as caught:
        open_log(f"kafka://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    assert isinstance(caught.value, Retryable)
    assert time.monotonic() - started < 2


def test_something_else_listens() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable, match="no broker answered"):
            open_log(f"kafka://127.0.0.1:{mute.getsockname()[1]}", connect_timeout_s=2)
        assert time.monotonic() - started < 4


def test_one_of_two_addresses_is_enough(kafka_broker: Broker, free_port: Callable[[], int]) -> None:
    with open_log(f"kafka://127.0.0.1:{free_port()},{kafka_broker.address}") as log:
        log.topics()


@pytest.mark.parametrize(
    "url",
    [
        "kafka://",
        "kafka:///x",
        "kafka://host",
        "kafka://host:port",
        "kafka://user:secret@host:9092",
        "kafka://h:1?sasl_password=secret",
        "kafka://h:1?linger_ms=secret",
        "redis://secret",
        "",
    ],
)
def test_a_bad_url_is_told_without_its_secrets(url: str) -> None:
    with pytest.raises(BadLogUrl) as caught:
        open_log(url)
    assert "secret" not in str(caught.value)


def test_an_unknown_setting_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BadLogUrl, match=r"'segment_byte'.*'segment_bytes'"):
        open_log(f"file://{tmp_path}?segment_byte=5")
    with pytest.raises(BadLogUrl, match=r"'linger'.*'linger_ms'"):
        open_log("kafka://127.0.0.1:1", linger=5)


def test_without_crc32c_it_refuses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    for url in ("kafka://127.0.0.1:1", f"file://{tmp_path}"):
        with pytest.raises(ComponentMissing, match="crc32c"):
            open_log(url)


def test_killed_and_restarted_it_loses_nothing_acknowledged(fragile: Broker, topic: str) -> None:
    with open_log(fragile.url) as log:
        acknowledged: dict[int, int] = {}
        unsure: list[int] = []
        stop = threading.Event()

        def work() -> None:
            n = 0
            while not stop.is_set():
                try:
                    acknowledged[n] = log.append(topic, b"k", b"%d" % n).result(60)[1]
                except Retryable:
                    time.sleep(0.05)
                except StateUnknown:
                    unsure.append(n)
                n += 1

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(1):
            seen = len(acknowledged)
            while len(acknowledged) < seen + 50:
                time.sleep(0.01)
            fragile.kill()
            time.sleep(0.5)
            fragile.start()
        seen = len(acknowledged)
        while len(acknowledged) < seen + 50:
            time.sleep(0.01)
        stop.set()
        thread.join(60)
        assert not thread.is_alive()
        read = [int(value) for value in values(log, topic)]
        assert {n: read[offset] for n, offset in acknowledged.items()} == {n: n for n in acknowledged}
        twice = {n for n in read if read.count(n) > 1}
        assert twice <= set(unsure), "the idempotent producer repeats nothing by itself"
        assert read == sorted(read), "and keeps the order"


def test_a_stopped_broker_blocks_nobody_for_long(fragile: Broker, topic: str) -> None:
    settings = {"buffer_bytes": 300_000, "append_block_s": 0.1, "delivery_timeout_s": 4}
    with open_log(fragile.url, **settings, request_timeout_s=2, connect_timeout_s=2) as log:
        log.append(topic, b"k", b"before").result(60)
        fragile.pause()
        try:
            slowest_s = 0.0
            pending = []
            rejected = 0
            for _ in range(12):
                started = time.monotonic()
                try:
                    pending.append(log.append(topic, b"k", bytes(50_000)))
                except Retryable:
                    rejected += 1
                slowest_s = max(slowest_s, time.monotonic() - started)
            assert len(pending) == 5
            assert rejected == 7
            assert slowest_s < 1.5
            with pytest.raises(DeliveryUnknown):
                pending[0].result(0.1)
            for each in pending:
                with pytest.raises(DeliveryUnknown):
                    each.result(60)
            started = time.monotonic()
            with pytest.raises(Retryable):
                log.end_offsets(topic)
            assert time.monotonic() - started < 8
        finally:
            fragile.resume()
        # Room again, and what was given up for lost is known to be unknown, not refused.
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                log.append(topic, b"k", b"after").result(60)
                break
            except (Retryable, StateUnknown):
                time.sleep(0.2)
        assert values(log, topic)[-1] == b"after"
        assert log.counters()["failed"] >= 5


def test_away_for_longer_than_the_delivery_timeout(fragile: Broker, topic: str) -> None:
    """kafka-python's own producer never sends again after this; see `transport.kafka.produce`."""
    with open_log(fragile.url, delivery_timeout_s=3, append_block_s=0.3) as log:
        log.append(topic, b"k", b"before").result(60)
        assert values(log, topic) == [b"before"]
        fragile.kill()
        taken = [log.append(topic, b"k", b"lost-%d" % n) for n in range(3)]
        time.sleep(3.2)
        started = time.monotonic()
        assert all(each.done() or each.done() or time.sleep(1) or each.done() for each in taken)
        for _ in range(5):
            with pytest.raises(BrokerUnavailable):
                log.append(topic, b"k", b"not taken")
        assert time.monotonic() - started < 5
        fragile.start()
        for n in range(3):
            _taken(log, topic, b"after-%d" % n).result(60)
        read = values(log, topic)
        assert [value for value in read if not value.startswith(b"lost")] == [
            b"before",
            b"after-0",
            b"after-1",
            b"after-2",
        ]
        for n, each in enumerate(taken):
            with pytest.raises(DeliveryUnknown):
                each.result(1)
            assert read.count(b"lost-%d" % n) <= 1


def test_a_flush_that_cannot_finish_says_so(fragile: Broker, topic: str) -> None:
    log = open_log(fragile.url, delivery_timeout_s=60)
    log.append(topic, b"k", b"before").result(60)
    fragile.pause()
    try:
        log.append(topic, b"k", b"waiting")
        with pytest.raises(Retryable, match="unacknowledged"):
            log.flush(0.5)
        started = time.monotonic()
        log.close()
        assert time.monotonic() - started < 12
    finally:
        fragile.resume()


def test_a_paused_tail_goes_on(fragile: Broker, topic: str) -> None:
    with open_log(fragile.url) as log:
        log.append(topic, b"k", b"1").result(60)
        tail = log.tail(topic)
        assert [m.value for m in tail.poll(60)] == [b"1"]
        fragile.pause()
        try:
            started = time.monotonic()
            assert tail.poll(1.0) == []
            assert time.monotonic() - started < 3
        finally:
            fragile.resume()
        log.append(topic, b"k", b"2").result(60)
        deadline = time.monotonic() + 60
        got: list[bytes] = []
        while not got and time.monotonic() < deadline:
            got = [m.value for m in tail.poll(1.0)]
        assert got == [b"2"]
        tail.close()


def test_a_flipped_bit_on_the_brokers_disk_costs_its_batch(fragile: Broker, topic: str) -> None:
    with open_log(fragile.url) as log:
        for n in range(6):
            log.append(topic, b"k", b"value-%d" % n * 50).result(60)
        (path,) = fragile.folder.glob(f"data/{topic}-0/*.log")
        raw = bytearray(path.read_bytes())
        raw[raw.index(b"value-3") + 40] ^= 1
        path.write_bytes(raw)
        messages = list(log.read(topic, 0, 0, 6))
        assert [m.offset for m in messages] == list(range(6))
        assert [m.offset for m in messages if m.unreadable] == [3]
        assert f"{topic}/0, offset 3" in str(messages[3].unreadable)
        assert [m.value for m in messages if not m.unreadable] == [b"value-%d" % n * 50 for n in (0, 1, 2, 4, 5)]


def test_control_records_are_gaps_not_messages(kafka_broker: Broker) -> None:
    """A transaction ends with a record nobody sees: the end offset lies one above the last message."""
    topic = name()
    with open_log(kafka_broker.url) as log:
        log.create_topics([TopicSpec(topic)])
        producer = KafkaProducer(bootstrap_servers=kafka_broker.address, transactional_id=topic)
        producer.init_transactions()
        for n in range(2):
            producer.begin_transaction()
            producer.send(topic, b"%d" % n, b"k", partition=0)
            producer.commit_transaction()
        producer.close()
        assert log.end_offsets(topic) == {0: 4}
        assert [(m.offset, m.value) for m in log.read(topic, 0, 0, 4)] == [(0, b"0"), (2, b"1")]
        assert list(log.read(topic, 0, 1, 2)) == []
        tail = log.tail(topic)
        deadline = time.monotonic() + 60
        while not tail.caught_up() and time.monotonic() < deadline:
            tail.poll(0.5)
        assert tail.caught_up()
        tail.close()


def test_a_topic_kafka_has_compacted(kafka_broker: Broker) -> None:
    topic = name()
    with open_log(kafka_broker.url) as log:
        log.create_topics([TopicSpec(topic, compacted=True)])
        log_folder = kafka_broker.folder / "data" / f"{topic}-0"
        value = bytes(1_000_000)
        for n in range(40):
            log.append(topic, b"%d" % (n % 3), value + b"%d" % n)
        log.flush()
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            messages = list(log.read(topic, 0, 0, 40))
            if len(messages) < 40:
                break
            time.sleep(0.5)
        assert len(messages) < 40, sorted(path.name for path in log_folder.iterdir())
        assert all(m.unreadable is None for m in messages)
        assert log.read_compacted(topic) == {b"%d" % (n % 3): value + b"%d" % n for n in (37, 38, 39)}
