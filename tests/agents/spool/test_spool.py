"""The queue: numbers, order, drops, restarts, damage."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fleetscope.agents.batches import Draft, span_rows
from fleetscope.agents.spool import Delivery, Spool, Topic
from fleetscope.agents.spool.store import DiskSegment, DiskStore
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.errors import AgentRunning

CLOCK = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1)


def source(pid: int = 1) -> wire.Source:
    return wire.Source(cluster="c", host="h", boot_id="b", pid=pid, start_ticks=3)


def draft(rows: int, pid: int = 1, at: int = 0, **more: object) -> Draft:
    """Rows of random durations: about 8 bytes each on disk."""
    noise = np.random.default_rng(at + rows).integers(0, 1 << 40, rows)
    table = span_rows(start=at + np.arange(rows), dur=noise, line=0, kind=8)
    return Draft(source(pid), at, at + rows, CLOCK, rows=table, **more)  # type: ignore[arg-type]


def take(spool: Spool, count: int = 1 << 30) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < count and (some := spool.read(max_records=min(64, count - len(taken)))):
        taken += some
    return taken


def batches(deliveries: Sequence[Delivery]) -> list[wire.Batch]:
    return [wire.Batch.FromString(d.record.value) for d in deliveries if d.record.topic is Topic.TELEMETRY]


def acknowledge(spool: Spool, deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        spool.acknowledge(delivery)


@pytest.mark.unit
def test_in_order_across_segments_and_gone_when_acknowledged(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(40):
        assert spool.put(draft(1000, at=index * 1000)) == 1000
    assert spool.stats().segments > 3
    taken = take(spool)
    assert [b.batch_number for b in batches(taken)] == list(range(40))
    assert [b.first_event for b in batches(taken)] == [i * 1000 for i in range(40)]
    acknowledge(spool, taken)
    stats = spool.stats()
    assert stats.sent == 40
    assert stats.segments == 1
    assert len(list(tmp_path.glob("*.spool"))) == 1
    assert not spool.wait(0)


@pytest.mark.unit
def test_payloads_are_cut_above_the_configured_size(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(1, 1 << 30, 4000)
    rows = span_rows(start=np.cumsum(2 * noise), dur=noise, line=0, kind=8)
    sizes = {}
    for soft_bytes in (1 << 20, 10_000):
        spool = Spool.at(tmp_path / str(soft_bytes), 1 << 20, soft_bytes)
        assert spool.put(Draft(source(), 0, 1 << 50, CLOCK, rows=rows)) == 4000
        sizes[soft_bytes] = [len(batch.payload) for batch in batches(take(spool))]
    assert len(sizes[1 << 20]) == 1
    assert sizes[1 << 20][0] > 20_000
    assert len(sizes[10_000]) > 2
    assert max(sizes[10_000]) <= 10_000


@pytest.mark.unit
def test_not_acknowledged_is_given_again_under_the_same_numbers(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(6):
        spool.put(draft(100, at=index))
    spool.put_message(Topic.CLOCKS, b"h", b"snapshot")
    first = take(spool, 4)
    acknowledge(spool, first[:2])
    spool.rewind()
    again = take(spool)
    assert [b.batch_number for b in batches(again)] == [2, 3, 4, 5]
    assert [d.record.value for d in again[:2]] == [d.record.value for d in first[2:]]
    assert again[-1].record.value == b"snapshot"
    assert again[-1].record.topic is Topic.CLOCKS


@pytest.mark.fault
def test_a_restart_goes_on_counting_and_remembers_marks_and_losses(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(5):
        spool.put(draft(10, at=index, mark=f"ring:{index}", lost={"ring_overwritten": 2}))
    spool.put(draft(7, pid=2))
    acknowledge(spool, take(spool, 3))
    spool.close()
    incarnation = spool.incarnation
    spool = Spool.at(tmp_path, 1 << 20)
    assert spool.incarnation == incarnation
    assert spool.mark(source()) == "ring:4"
    assert spool.mark(source(3)) == ""
    spool.put(draft(4))
    left = batches(take(spool))
    assert [(b.source.pid, b.batch_number, b.first_event) for b in left] == [
        (1, 3, 30),
        (1, 4, 40),
        (2, 0, 0),
        (1, 5, 50),
    ]
    assert left[-1].produced == 50 + 4 + 10
    spool.close()


@pytest.mark.fault
def test_overflow_drops_the_oldest_not_given_out_and_counts_them_by_range(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 512 << 10)
    spool.put(draft(500, at=0))
    (held,) = take(spool)
    for index in range(1, 400):
        spool.put(draft(500, at=index))
    stats = spool.stats()
    assert stats.size_bytes <= 512 << 10
    rest = batches(take(spool))
    numbers = [b.batch_number for b in rest]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 399
    dropped = {event for r in spool.dropped_ranges for event in range(r.first_event, r.end_event)}
    kept = {e for b in rest for e in range(b.first_event, b.first_event + b.rows)}
    # What was in flight may be in the log already, so it is neither dropped nor counted.
    assert dropped | kept | set(range(500)) == set(range(200_000))
    assert not dropped & (kept | set(range(500)))
    assert stats.dropped == {"spool_full": len(dropped)}
    assert {d.reason: d.events for d in rest[-1].dropped}["spool_full"] <= len(dropped)
    spool.acknowledge(held)
    spool.put(draft(1, at=500))
    newest = batches(take(spool))[-1]
    assert newest.dropped[0].events == len(dropped)
    assert newest.produced == newest.first_event + 1


@pytest.mark.fault
def test_when_everything_may_have_been_sent_the_newest_is_dropped(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 256 << 10)
    while not spool.stats().dropped:
        spool.put(draft(500))
        take(spool)
        spool.rewind()
    held = spool.stats()
    for _ in range(50):
        assert spool.put(draft(500)) == 0
    stats = spool.stats()
    assert stats.size_bytes <= 256 << 10
    assert stats.events - stats.dropped["spool_full"] == held.events - held.dropped["spool_full"]
    taken = take(spool)
    assert sum(b.rows for b in batches(taken)) + stats.dropped["spool_full"] == stats.events
    acknowledge(spool, taken)
    assert spool.put(draft(500)) == 500


@pytest.mark.fault
def test_dropped_counts_survive_a_restart(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 256 << 10)
    for index in range(200):
        spool.put(draft(500, at=index))
    dropped = spool.stats().dropped["spool_full"]
    assert dropped > 10_000
    spool.close()
    spool = Spool.at(tmp_path, 256 << 10)
    spool.put(draft(1, at=999))
    taken = batches(take(spool))
    assert taken[-1].batch_number == 200
    total = dropped + spool.stats().dropped.get("spool_full", 0)
    assert taken[-1].dropped[0].events == total
    assert sum(b.rows for b in taken) + total == 100_001


@pytest.mark.fault
@pytest.mark.parametrize("cut", [1, 7, 40, 300])
def test_a_torn_tail_is_removed_and_its_number_given_again(tmp_path: Path, cut: int) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(3):
        spool.put(draft(50, at=index))
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    os.truncate(path, path.stat().st_size - cut)
    spool = Spool.at(tmp_path, 1 << 20)
    assert spool.torn_tails == 1
    spool.put(draft(9))
    assert [(b.batch_number, b.rows) for b in batches(take(spool))] == [(0, 50), (1, 50), (2, 9)]


@pytest.mark.fault
def test_an_entry_of_several_batches_is_torn_as_a_whole(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 64 << 20)
    spool.put(draft(5))
    rng = np.random.default_rng(0)
    start = np.arange(400_000) * 1000
    table = span_rows(
        start=start, dur=rng.integers(0, 999, 400_000), line=0, kind=3, flow=rng.integers(0, 1 << 60, 400_000)
    )
    spool.put(Draft(source(), 10, 1 << 40, CLOCK, rows=table, mark="after"))
    spool.close()
    path = max(tmp_path.glob("*.spool"))
    assert path.stat().st_size > 2 << 20
    os.truncate(path, path.stat().st_size - 1)
    spool = Spool.at(tmp_path, 64 << 20)
    assert spool.mark(source()) == ""
    spool.put(draft(2))
    assert [(b.batch_number, b.first_event, b.rows) for b in batches(take(spool))] == [(0, 0, 5), (1, 5, 2)]


@pytest.mark.fault
def test_damage_in_the_newest_segment_begins_a_new_incarnation(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(3):
        spool.put(draft(50, at=index))
    spool.close()
    (path,) = tmp_path.glob("*.spool")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    again = Spool.at(tmp_path, 1 << 20)
    assert again.incarnation != spool.incarnation
    again.put(draft(9))
    newest = batches(take(again))[-1]
    assert (newest.batch_number, newest.source.incarnation) == (0, again.incarnation)


@pytest.mark.fault
def test_damage_in_an_old_segment_is_counted_from_the_next_ones_head(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for index in range(40):
        spool.put(draft(1000, at=index))
    spool.close()
    first = sorted(tmp_path.glob("*.spool"))[0]
    raw = bytearray(first.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    first.write_bytes(raw)
    again = Spool.at(tmp_path, 1 << 20)
    assert again.incarnation == spool.incarnation
    kept = sum(b.rows for b in batches(take(again)))
    again.put(draft(1))
    (last,) = batches(take(again))
    assert 0 < kept < 40_000
    assert {d.reason: d.events for d in last.dropped} == {"spool_disk": 40_000 - kept}


@pytest.mark.fault
def test_a_lost_spool_is_a_new_incarnation(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    spool.put(draft(1))
    acknowledge(spool, take(spool))
    spool.close()
    for path in tmp_path.glob("*.spool"):
        path.unlink()
    again = Spool.at(tmp_path, 1 << 20)
    assert again.incarnation != spool.incarnation
    again.put(draft(3))
    assert [b.rows for b in batches(take(again))] == [3]


@pytest.mark.unit
def test_two_agents_refuse_each_other(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    with pytest.raises(AgentRunning, match=f"FS3101: spool .* belongs to pid {os.getpid()}"):
        Spool.at(tmp_path, 1 << 20)
    spool.close()
    Spool.at(tmp_path, 1 << 20).close()


class _Quota:
    """A disk with room for so many bytes of segments; the reserve was taken before."""

    def __init__(self, room: int) -> None:
        self.room = room

    def install(self, patch: pytest.MonkeyPatch) -> None:
        append, delete = DiskSegment.append, DiskSegment.delete

        def limited(segment: DiskSegment, data: bytes) -> None:
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, "no space left")
            append(segment, data)
            self.room -= len(data)

        def freed(segment: DiskSegment) -> None:
            self.room += segment.size_bytes
            delete(segment)

        patch.setattr(DiskSegment, "append", limited)
        patch.setattr(DiskSegment, "delete", freed)


@pytest.mark.fault
def test_a_full_disk_drops_the_oldest_and_every_event_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = _Quota(300_000)
    quota.install(monkeypatch)
    spool = Spool(DiskStore(tmp_path), 8 << 20)
    for index in range(200):
        spool.put(draft(500, at=index))
    quota.room = 0
    for index in range(200, 220):
        spool.put(draft(500, at=index))
    quota.room = 1 << 30
    spool.put(draft(500, at=220))
    taken = batches(take(spool))
    kept = sum(b.rows for b in taken)
    stats = spool.stats()
    assert sum(stats.dropped.values()) + kept == 221 * 500
    last = taken[-1]
    assert last.batch_number == 220
    assert sum(d.events for d in last.dropped) + kept == 221 * 500


@pytest.mark.fault
def test_losses_on_a_full_disk_survive_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = _Quota(5_000)
    with monkeypatch.context() as patch:
        quota.install(patch)
        spool = Spool(DiskStore(tmp_path), 8 << 20)
        spool.put(draft(100, at=0))
        quota.room = 0
        for index in range(10):
            assert spool.put(draft(100, at=index)) == 0
        # Not closed: as after SIGKILL, only what is in files counts.
        os.close(spool._store._lock)  # type: ignore[attr-defined]
    again = Spool.at(tmp_path, 8 << 20)
    again.put(draft(1))
    taken = batches(take(again))
    assert [(b.batch_number, b.first_event) for b in taken] == [(0, 0), (11, 1100)]
    assert {d.reason: d.events for d in taken[-1].dropped} == {"spool_disk": 1000}


@pytest.mark.unit
def test_rejected_batches_are_counted_and_the_rest_goes_on(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    spool.put(draft(3))
    spool.put(draft(4))
    taken = take(spool)
    spool.reject(taken[0], "batch_too_large")
    spool.acknowledge(taken[1])
    spool.put(draft(1))
    (last,) = batches(take(spool))
    assert {d.reason: d.events for d in last.dropped} == {"batch_too_large": 3}
    assert last.produced == 8


@pytest.mark.unit
def test_in_memory_it_is_the_same_queue() -> None:
    spool = Spool.in_memory(256 << 10)
    for index in range(100):
        spool.put(draft(500, at=index))
    kept = sum(b.rows for b in batches(take(spool)))
    assert kept + spool.stats().dropped["spool_full"] == 50_000
    assert spool.stats().size_bytes <= 256 << 10


@pytest.mark.unit
def test_sources_that_ended_leave_the_heads(tmp_path: Path) -> None:
    spool = Spool.at(tmp_path, 1 << 20)
    for pid in range(1, 300):
        spool.put(draft(1, pid=pid))
        spool.lose(source(pid), {"process_killed": 4})
        spool.retire(source(pid))
    acknowledge(spool, take(spool))
    spool.put(draft(20_000, pid=1000))
    spool.put(draft(20_000, pid=1000))
    spool.close()
    newest = max(tmp_path.glob("*.spool"))
    assert b"process_killed" not in newest.read_bytes()
