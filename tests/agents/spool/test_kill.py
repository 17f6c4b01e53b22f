"""SIGKILL in mid-write, many times: numbers are never given twice, nothing kept is lost, no gap without a count."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleetscope.agents.spool import Spool, Topic
from fleetscope.schema import wire_pb2 as wire

_WRITER = """
import itertools, os, sys
import numpy as np
from pathlib import Path
from fleetscope.agents.batches import Draft, span_rows
from fleetscope.agents.spool import Spool
from fleetscope.schema import wire_pb2 as wire
spool = Spool.at(Path(sys.argv[1]), 1 << 30)
source = wire.Source(cluster="c", host="h", boot_id="b", pid=1, start_ticks=3)
clock = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)
begin = int(spool.mark(source) or 0)
for item in itertools.count(begin):
    rows = 1 + item * 7919 % 3000
    noise = np.random.default_rng(item).integers(0, 1 << 60, rows)
    table = span_rows(start=np.arange(rows) + item * 10_000, dur=1, line=0, kind=8, flow=noise, exec=item)
    # The losses of item i are i % 3, so that the last batch's total can be told from its mark alone.
    spool.put(Draft(source, 0, 1 << 60, clock, rows=table, lost={"ring_overwritten": item % 3}, mark=str(item + 1)))
    os.write(1, b"%d\\n" % item)
"""


@pytest.mark.fault
def test_killed_in_mid_write(tmp_path: Path) -> None:
    rng = random.Random(4)
    put: set[int] = set()
    for _ in range(6):
        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        reported = [child.stdout.readline()]
        time.sleep(rng.uniform(0.01, 0.15))
        child.send_signal(signal.SIGKILL)
        reported += child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        put |= {int(line) for line in reported if line.strip()}
    spool = Spool.at(tmp_path, 1 << 30)
    found: list[wire.Batch] = []
    while taken := spool.read():
        found += [wire.Batch.FromString(d.record.value) for d in taken if d.record.topic is Topic.TELEMETRY]
    assert len(found) > 20
    assert len({b.source_id for b in found}) == 1
    assert [b.batch_number for b in found] == list(range(len(found)))
    assert [b.rows for b in found] == [1 + item * 7919 % 3000 for item in range(len(found))]
    event = 0
    for batch in found:
        assert batch.first_event == event
        event += batch.rows
    assert max(put) < len(found)
    lost = sum(item % 3 for item in range(len(found)))
    assert found[-1].dropped[0].events == lost
    assert found[-1].produced == event + lost
    spool.close()
