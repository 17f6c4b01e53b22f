"""Appenders that are killed, readers, retention and compaction, all at once on one folder."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetscope.transport import TopicSpec, open_log
from fleetscope.transport.errors import OffsetOutOfRange

pytestmark = pytest.mark.fault

_APPENDER = """
import hashlib, random, sys
from fleetscope.transport import open_log
log = open_log(sys.argv[1], segment_bytes=300_000, compacted_segment_bytes=60_000, sync_s=0.05, append_block_s=20)
randomly = random.Random(int(sys.argv[2]))
print("ready", flush=True)
while True:
    value = randomly.randbytes(randomly.choice([0, 5, 100, 3000, 200_000]))
    value = hashlib.blake2b(value, digest_size=8).digest() + value
    log.append("raw", b"k%d" % randomly.randrange(9), value)
    log.append("table", b"k%d" % randomly.randrange(9), value if randomly.random() < 0.9 else None)
"""


def whole(value: bytes) -> bool:
    return hashlib.blake2b(value[8:], digest_size=8).digest() == value[:8]


def test_everything_at_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    main = open_log(url)
    main.create_topics([TopicSpec("raw", 2, retention_bytes=2_000_000), TopicSpec("table", compacted=True)])
    stop = threading.Event()
    failures: list[BaseException] = []
    seen = {"raw": 0, "tables": 0}
    followed: dict[bytes, bytes] = {}
    tail = main.tail("table")

    def follow() -> bool:
        messages = tail.poll(0.05)
        for message in messages:
            assert message.unreadable is None
            if message.tombstone:
                followed.pop(message.key, None)
            else:
                assert whole(message.value)
                followed[message.key] = message.value
        return bool(messages)

    def read_raw() -> None:
        with open_log(url) as log:
            position = [0, 0]
            while not stop.is_set():
                for partition, end in log.end_offsets("raw").items():
                    assert end >= position[partition]
                    try:
                        for message in log.read("raw", partition, position[partition], end):
                            assert message.offset == position[partition]
                            assert message.unreadable is None
                            assert whole(message.value)
                            position[partition] += 1
                            seen["raw"] += 1
                    except OffsetOutOfRange:
                        position[partition] = log.start_offsets("raw")[partition]

    def read_table() -> None:
        with open_log(url) as log:
            while not stop.is_set():
                assert all(whole(value) for value in log.read_compacted("table").values())
                seen["tables"] += 1

    def follow_table() -> None:
        while not stop.is_set():
            follow()

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        return run

    threads = [threading.Thread(target=guarded(work)) for work in (read_raw, read_table, follow_table)]
    for thread in threads:
        thread.start()
    randomly = random.Random(2)
    running: list[subprocess.Popen[str]] = []
    try:
        for seed in range(8):
            running.append(
                subprocess.Popen([sys.executable, "-c", _APPENDER, url, str(seed)], stdout=subprocess.PIPE, text=True)
            )
            if len(running) == 2:
                victim = running.pop(0)
                assert victim.stdout is not None
                assert victim.stdout.readline() == "ready\n"
                time.sleep(randomly.uniform(0.3, 0.8))
                victim.kill()
                victim.wait()
                victim.stdout.close()
                assert victim.returncode == -9, "it ended by itself"
    finally:
        for process in running:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    while follow():
        pass
    assert main.read_compacted("table") == followed
    assert len(followed) > 0
    assert min(seen.values()) > 0
    main.append("raw", b"k", b"still works")
    main.close()


_HOG = """
import sys
from fleetscope.transport import open_log
log = open_log(sys.argv[1], append_block_s=20)
print("ready", flush=True)
while True:
    log.append("t", b"k", bytes(100_000))
"""


def test_an_appender_in_a_loop_starves_nobody(tmp_path: Path) -> None:
    """It gives the lock back for microseconds; without a queue, half of the others' appends waited 0.5 s in vain."""
    url = f"file://{tmp_path}/log"
    with open_log(url, append_block_s=2) as log:
        log.create_topics([TopicSpec("t", retention_bytes=50_000_000)])
        hog = subprocess.Popen([sys.executable, "-c", _HOG, url], stdout=subprocess.PIPE, text=True)
        try:
            assert hog.stdout is not None
            assert hog.stdout.readline() == "ready\n"
            waits = []
            for _ in range(100):
                started = time.monotonic()
                log.append("t", b"k", b"v")
                waits.append(time.monotonic() - started)
            assert hog.poll() is None
        finally:
            hog.kill()
            hog.wait()
            hog.stdout.close()
    assert sorted(waits)[50] < 0.1, sorted(waits)
