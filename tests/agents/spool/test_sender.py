"""Spool -> log: order, acknowledgement, repetition, outage."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from fleetscope.agents.batches import Draft, span_rows
from fleetscope.agents.spool import Sender, Spool, Topic
from fleetscope.schema import wire_pb2 as wire
from fleetscope.transport import Log, Topics, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.errors import (
    BrokerUnavailable,
    BufferFull,
    DeliveryUnknown,
    LogClosed,
    LoginRefused,
    MessageTooLarge,
)

CLOCK = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)
TOPICS = Topics("t")


def draft(rows: int, at: int = 0) -> Draft:
    source = wire.Source(cluster="c", host="h", boot_id="b", pid=1, start_ticks=3)
    return Draft(source, at, at + rows, CLOCK, rows=span_rows(start=at + np.arange(rows), dur=1, line=0, kind=8))


class Flaky:
    """A log in memory that does what a list says to each append: None takes it, an error fails it, now or later."""

    def __init__(self, plan: list[object]) -> None:
        self.plan = plan
        self.got: list[tuple[str, bytes, bytes]] = []
        self.closed = 0

    def create_topics(self, specs: object) -> None:
        pass

    def append(self, topic: str, key: bytes, value: bytes) -> "Answer":
        step = self.plan.pop(0) if self.plan else None
        if isinstance(step, BufferFull | LogClosed | LoginRefused | MessageTooLarge):
            raise step
        # DeliveryUnknown: half of them did get there.
        if step is None or isinstance(step, DeliveryUnknown):
            self.got.append((topic, key, value))
        return Answer(step)

    def close(self) -> None:
        self.closed += 1


class Answer:
    def __init__(self, step: object) -> None:
        self.step = step

    def done(self) -> bool:
        return True

    def result(self, timeout_s: float | None = None) -> tuple[int, int]:
        if isinstance(self.step, Exception):
            raise self.step
        return 0, 0


def numbers(got: list[tuple[str, bytes, bytes]]) -> list[int]:
    return [wire.Batch.FromString(value).batch_number for topic, _, value in got if topic == "t.telemetry"]


@pytest.fixture
def spool() -> Iterator[Spool]:
    opened = Spool.in_memory()
    yield opened
    opened.close()


@pytest.mark.fault
@pytest.mark.parametrize(
    "plan",
    [
        [],
        [None, None, BufferFull("full")],
        [None, DeliveryUnknown("no answer"), None],
        [BrokerUnavailable("away"), BrokerUnavailable("away"), None, BrokerUnavailable("away")],
        [None, LogClosed("closed")],
        [None, LoginRefused("the password was changed")],
        [ValueError("a defect of the client")],
    ],
    ids=["fine", "backpressure", "unknown", "away", "closed", "login", "defect"],
)
def test_every_batch_arrives_and_repetitions_keep_their_numbers(spool: Spool, plan: list[object]) -> None:
    log = Flaky(list(plan))
    for index in range(8):
        spool.put(draft(10, index * 10))
    sender = Sender(spool, lambda: log, TOPICS)  # type: ignore[arg-type, return-value]
    deadline = time.monotonic() + 60
    while not sender.drain(0.5):
        assert time.monotonic() < deadline
    got = numbers(log.got)
    assert sorted(set(got)) == list(range(8))
    first_seen = list(dict.fromkeys(got))
    if all(step is None or isinstance(step, BufferFull | LogClosed | LoginRefused) for step in plan):
        assert got == sorted(got)  # nothing failed behind another that was delivered
    assert len(first_seen) == 8
    by_number = {wire.Batch.FromString(v).batch_number: v for _, _, v in log.got}
    assert all(by_number[wire.Batch.FromString(v).batch_number] == v for _, _, v in log.got)
    stats = spool.stats()
    assert (stats.sent, stats.in_flight, stats.dropped) == (8, 0, {})
    assert log.got[0][1] == b"h"


@pytest.mark.fault
def test_a_message_the_log_never_takes_is_given_up_and_counted(spool: Spool) -> None:
    log = Flaky([None, MessageTooLarge("9 MiB"), None])
    for index in range(3):
        spool.put(draft(10, index * 10))
    assert Sender(spool, lambda: log, TOPICS).drain(60)  # type: ignore[arg-type, return-value]
    assert numbers(log.got) == [0, 2]
    assert spool.stats().dropped == {"batch_too_large": 10}


@pytest.mark.fault
def test_a_log_that_cannot_be_opened_costs_nothing_and_is_found_when_it_comes(spool: Spool, tmp_path: Path) -> None:
    calls: list[float] = []
    there = threading.Event()

    def opener() -> Log:
        calls.append(time.monotonic())
        if not there.is_set():
            raise BrokerUnavailable("nobody listens")
        return open_log(f"file://{tmp_path}/log")

    sender = Sender(spool, opener, TOPICS, partitions=2)
    spool.put(draft(5))
    sender.start()
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.3
    assert 2 <= len(calls) <= 12
    assert sender.stats.failing_since_s > 0
    assert "nobody listens" in sender.stats.last_error
    there.set()
    deadline = time.monotonic() + 60
    while spool.stats().sent < 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert sender.stats.failing_since_s == 0
    sender.stop()
    with open_log(f"file://{tmp_path}/log") as log:
        ends = log.end_offsets("t.telemetry")
        assert sum(ends.values()) == 1
        assert len(ends) == 2


@pytest.mark.contract
def test_topics_and_keys_through_the_embedded_log(spool: Spool, tmp_path: Path) -> None:
    spool.put(draft(5))
    spool.put_message(Topic.CLOCKS, b"h", b"clock record")
    spool.put_message(Topic.PROGRAMS, b"p0", b"chunk")
    url = f"file://{tmp_path}/log"
    assert Sender(spool, lambda: open_log(url), TOPICS).drain(60)
    with open_log(url) as log:
        (clock,) = log.read("t.clocks", 0, 0, 1)
        assert (clock.key, clock.value) == (b"h", b"clock record")
        assert log.read_compacted("t.programs") == {b"p0": b"chunk"}
    assert spool.stats().size_bytes < 100_000


@pytest.mark.e2e
def test_a_real_broker_that_pauses_gets_everything_once_it_is_back(
    require: Callable[[str], Path], tmp_path: Path
) -> None:
    with Broker(tmp_path / "kafka", require("kafka")) as broker:
        spool = Spool.at(tmp_path / "spool", 8 << 20)
        sender = Sender(spool, lambda: open_log(broker.url, delivery_timeout_s=3, request_timeout_s=1), TOPICS, 2)
        sender.start()
        for index in range(5):
            spool.put(draft(100, index * 100))
        deadline = time.monotonic() + 60
        while spool.stats().sent < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        broker.pause()
        for index in range(5, 20):
            spool.put(draft(100, index * 100))
        time.sleep(6)
        assert spool.stats().sent == 5
        broker.resume()
        while spool.stats().sent < 20 and time.monotonic() < deadline:
            time.sleep(0.05)
        sender.stop()
        with open_log(broker.url) as log:
            ends = log.end_offsets("t.telemetry")
            values = [m.value for p, end in ends.items() for m in log.read("t.telemetry", p, 0, end)]
        spool.close()
    found = {wire.Batch.FromString(value).batch_number: value for value in values}
    assert sorted(found) == list(range(20))
    # Whatever was sent twice was sent the same.
    assert all(found[wire.Batch.FromString(value).batch_number] == value for value in values)
