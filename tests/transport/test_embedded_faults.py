"""Killed appenders, full disks, broken fsyncs, several processes."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from fleetscope.transport import TopicSpec, open_log
from fleetscope.transport.embedded.log import EmbeddedLog
from fleetscope.transport.errors import Backpressure, DiskFull, LogDamaged

pytestmark = pytest.mark.fault

_APPENDER = """
import sys
from fleetscope.transport import open_log
log = open_log(sys.argv[1])
n = 0
while True:
    value = f"{sys.argv[2]} {n} ".encode() * int(sys.argv[3])
    print(log.append("t", b"k", value).result()[1], n, flush=True)
    n += 1
"""


def test_killed_appenders_leave_whole_records_only(tmp_path: Path) -> None:
    """Values of 3 MB, so that most of the time is spent inside the write and most kills tear one."""
    url = f"file://{tmp_path / 'log'}"
    randomly = random.Random(1)
    with open_log(url) as log:
        log.create_topics([TopicSpec("t")])
        acknowledged: dict[int, bytes] = {}
        for attempt in range(12):
            repeat = 400_000
            process = subprocess.Popen(
                [sys.executable, "-c", _APPENDER, url, str(attempt), str(repeat)], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            first = process.stdout.readline()
            time.sleep(randomly.uniform(0.0, 0.03))
            process.send_signal(signal.SIGKILL)
            lines = (first + process.stdout.read()).decode().split("\n")
            process.wait()
            process.stdout.close()
            for line in lines[:-1]:
                offset, n = line.split()
                assert int(offset) not in acknowledged
                acknowledged[int(offset)] = f"{attempt} {n} ".encode()
        log.append("t", b"k", b"last")
        end = log.end_offsets("t")[0]
        found = {m.offset: m.value for m in log.read("t", 0, 0, end) if m.unreadable is None}
    assert sorted(found) == list(range(end))
    for offset, prefix in acknowledged.items():
        assert found[offset] == prefix * 400_000
    # A killed appender may have finished a record it could no longer tell of, never half of one.
    assert len(acknowledged) <= end - 1 <= len(acknowledged) + 12


_FILLER = """
import resource, sys
from fleetscope.transport import open_log
from fleetscope.transport.embedded.log import EmbeddedLog
from fleetscope.transport.errors import DiskFull
log = open_log(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
taken = 0
try:
    while True:
        log.append("t", b"k", bytes(70_000))
        taken += 1
except DiskFull:
    pass
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(taken, log.end_offsets("t")[0], log.append("t", b"k", b"room again").result()[1], log.counters()["backpressure"])
"""


def test_a_full_disk_takes_no_half_message(tmp_path: Path) -> None:
    """`ulimit -f` makes the kernel write part of a record and then fail, as a full disk does."""
    url = f"file://{tmp_path / 'log'}"
    with open_log(url) as log:
        log.create_topics([TopicSpec("t")])
        done = subprocess.run([sys.executable, "-c", _FILLER, url], capture_output=True, text=True, check=True)
        assert done.stdout.split() == ["14", "14", "14", "1"]
        values = [m.value for m in log.read("t", 0, 0, log.end_offsets("t")[0])]
    assert values == [bytes(70_000)] * 14 + [b"room again"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = os.pwritev
    written: list[int] = []

    def short(fd: int, buffers: list[bytes], position: int) -> int:
        if not written:
            written.append(real(fd, [buffers[0][:30]], position))
            return written[0]
        raise OSError(code, os.strerror(code))

    with open_log(f"file://{tmp_path}/log") as log:
        log.create_topics([TopicSpec("t")])
        log.append("t", b"k", b"before")
        size_bytes = next(tmp_path.rglob("*.seg")).stat().st_size
        monkeypatch.setattr(os, "pwritev", short)
        with pytest.raises(DiskFull) as caught:
            log.append("t", b"k", b"lost")
        monkeypatch.undo()
        assert isinstance(caught.value, Backpressure)
        assert written == [30]
        assert next(tmp_path.rglob("*.seg")).stat().st_size == size_bytes
        log.append("t", b"k", b"after")
        assert [m.value for m in log.read("t", 0, 0, 2)] == [b"before", b"after"]
        assert "torn_tails" not in log.counters() or log.counters()["torn_tails"] == 0


def test_no_space_for_a_new_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(f"file://{tmp_path}/log", segment_bytes=300) as log:
        log.create_topics([TopicSpec("t")])
        log.append("t", b"k", bytes(200))
        real = os.rename

        def full(source: object, target: object) -> None:
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "rename", full)
        with pytest.raises(DiskFull):
            log.append("t", b"k", bytes(200))
        monkeypatch.setattr(os, "rename", real)
        assert not list(tmp_path.rglob("*.tmp"))
        assert log.append("t", b"k", bytes(200)).result() == (0, 1)


def test_a_failed_sync_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed fsync the kernel drops the pages: going on as if nothing was would lose data without a word."""
    log = open_log(f"file://{tmp_path}/log", sync_s=0.01)
    log.create_topics([TopicSpec("t")])

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    log.append("t", b"k", b"v")
    deadline = time.monotonic() + 60
    while cast(EmbeddedLog, log)._keeper.failure is None and time.monotonic() < deadline:
        time.sleep(0.01)
    monkeypatch.undo()
    with pytest.raises(LogDamaged, match="could not be synced"):
        log.append("t", b"k", b"v")
    log.close()


def test_what_was_appended_is_synced_within_the_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fdatasync
    synced: list[float] = []

    def watched(fd: int) -> None:
        real(fd)
        synced.append(time.monotonic())

    monkeypatch.setattr(os, "fdatasync", watched)
    with open_log(f"file://{tmp_path}/log", sync_s=0.2) as log:
        log.create_topics([TopicSpec("t")])
        started = time.monotonic()
        for _ in range(50):
            log.append("t", b"k", b"v")
        assert synced == []
        time.sleep(0.5)
        assert len(synced) == 1
        assert 0.15 < synced[0] - started < 0.45
        time.sleep(0.4)
        assert len(synced) == 1, "nothing new, nothing to sync"


def test_sync_always_syncs_before_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with open_log(f"file://{tmp_path}/log", sync="always") as log:
        log.create_topics([TopicSpec("t")])
        for n in range(3):
            log.append("t", b"k", b"v")
            assert len(synced) == n + 1


def test_an_end_offset_that_was_told_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest stores it: if a power cut took it back, the worker would stop at an offset above the end."""
    with open_log(f"file://{tmp_path}/log", sync="never") as log:
        log.create_topics([TopicSpec("t")])
        log.append("t", b"k", b"v")
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        log.end_offsets("t")
        assert len(synced) == 1
        log.end_offsets("t")
        assert len(synced) == 1
