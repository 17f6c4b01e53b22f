"""Whatever happens in whatever order: every event is in the log or in a count, never in both, never in neither."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.agents.batches import Draft, span_rows
from fleetscope.agents.spool import Delivery, Spool
from fleetscope.agents.spool.store import DiskSegment
from fleetscope.schema import wire_pb2 as wire

CLOCK = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)
SOURCE = wire.Source(cluster="c", host="h", boot_id="b", pid=1, start_ticks=3)
CAP = 256 << 10

OPERATIONS = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3000)),
    st.tuples(st.just("put"), st.integers(2000, 9000)),
    st.tuples(st.just("read"), st.integers(1, 8)),
    st.tuples(st.just("acknowledge"), st.integers(1, 8)),
    st.tuples(st.just("rewind"), st.just(0)),
    st.tuples(st.just("reject"), st.just(0)),
    st.tuples(st.just("reopen"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.just("disk"), st.sampled_from([0, 40_000, 1 << 40])),
)


class Disk:
    """Room for segments; restored when the example ends."""

    def __init__(self) -> None:
        self.room = 1 << 40
        self._append, self._delete = DiskSegment.append, DiskSegment.delete

    def __enter__(self) -> "Disk":
        disk = self

        def append(segment: DiskSegment, data: bytes) -> None:
            if len(data) > disk.room:
                raise OSError(errno.ENOSPC, "no space left")
            disk._append(segment, data)
            disk.room -= len(data)

        def delete(segment: DiskSegment) -> None:
            disk.room += segment.size_bytes
            disk._delete(segment)

        DiskSegment.append, DiskSegment.delete = append, delete  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        DiskSegment.append, DiskSegment.delete = self._append, self._delete  # type: ignore[method-assign]


def put(spool: Spool, rows: int, at: int) -> None:
    noise = np.random.default_rng(at).integers(0, 1 << 60, rows)
    table = span_rows(start=np.arange(rows), dur=1, line=0, kind=8, flow=noise)
    spool.put(Draft(SOURCE, 0, 1 << 20, CLOCK, rows=table, lost={"ring_overwritten": at % 3}))


@pytest.mark.property
@settings(max_examples=60)
@given(st.lists(OPERATIONS, max_size=40))
def test_the_balance_holds(operations: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Disk() as disk:
        spool = Spool.at(Path(folder), CAP)
        incarnation, given_out = spool.incarnation, list[Delivery]()
        delivered: dict[int, bytes] = {}
        rejected = puts = lost = 0
        for name, amount in [*operations, ("disk", 1 << 40), ("reopen", 0), ("put", 1)]:
            if name == "put":
                put(spool, amount, puts)
                lost += puts % 3
                puts += 1
            elif name == "read":
                given_out += spool.read(max_records=amount)
            elif name == "acknowledge":
                for delivery in given_out[:amount]:
                    delivered[delivery.record.batch_number] = delivery.record.value
                    spool.acknowledge(delivery)
                del given_out[:amount]
            elif name == "reject" and given_out:
                rejected += given_out[0].record.rows
                spool.reject(given_out.pop(0), "batch_too_large")
            elif name == "rewind":
                spool.rewind()
                given_out = []
            elif name == "disk":
                disk.room = amount
            elif name in ("reopen", "crash"):
                if name == "reopen":
                    spool.close()
                else:
                    for fd in (spool._store._lock, *(s._fd for s in spool._segments)):  # type: ignore[attr-defined]
                        os.close(fd)
                spool, given_out = Spool.at(Path(folder), CAP), []
                assert spool.incarnation == incarnation
            assert spool.stats().size_bytes <= CAP
        while taken := spool.read():
            for delivery in taken:
                assert delivered.get(delivery.record.batch_number, delivery.record.value) == delivery.record.value
                delivered[delivery.record.batch_number] = delivery.record.value
        found = [wire.Batch.FromString(value) for _, value in sorted(delivered.items())]
        last = found[-1]
        assert last.batch_number == puts - 1
        dropped = {entry.reason: entry.events for entry in last.dropped}
        assert dropped.pop("ring_overwritten", 0) == lost
        assert dropped.get("batch_too_large", 0) == rejected
        assert sum(dropped.values()) + sum(b.rows for b in found) == last.first_event + last.rows
        assert last.produced == last.first_event + last.rows + lost
        spool.close()
