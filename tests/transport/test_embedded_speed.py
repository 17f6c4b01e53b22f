"""The embedded log against the system calls it cannot do without."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from crc32c import crc32c

from fleetscope.transport import TopicSpec, open_log

VALUE_BYTES = 60_000
COUNT = 500


@pytest.mark.unit
@pytest.mark.alone
def test_append_and_read_cost_a_few_times_the_bare_calls(tmp_path: Path) -> None:
    """Write, checksum, read, checksum of 30 MB by hand is the unit; measured 1.5-2.1 of it."""
    value = os.urandom(VALUE_BYTES)

    def by_hand() -> float:
        started = time.process_time()
        fd = os.open(tmp_path / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for n in range(COUNT):
            crc32c(value)
            os.pwrite(fd, value, n * VALUE_BYTES)
        for n in range(COUNT):
            crc32c(os.pread(fd, VALUE_BYTES, n * VALUE_BYTES))
        os.close(fd)
        return time.process_time() - started

    def by_log() -> float:
        with open_log(f"file://{tmp_path}/log", sync="never") as log:
            log.delete_topics(["t"])
            log.create_topics([TopicSpec("t")])
            started = time.process_time()
            for _ in range(COUNT):
                log.append("t", b"host", value)
            assert sum(len(m.value) for m in log.read("t", 0, 0, COUNT)) == VALUE_BYTES * COUNT
            return time.process_time() - started

    by_hand()
    ratios = sorted(by_log() / by_hand() for _ in range(5))
    assert ratios[2] < 5, ratios
