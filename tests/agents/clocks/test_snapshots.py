"""Brackets of host and device clocks."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleetscope.agents.clocks import MONOTONIC_RAW, DeviceClock, HostClocks, HostReading, KeptEpochs, Register
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag

TSC = wire.ClockEpoch(clock="tsc", period_num=1, period_den=2)


class FakeCounter:
    """A host whose clocks a test sets."""

    def __init__(self, *readings: HostReading) -> None:
        self.now, self.name, self.why = list(readings), "tsc", ""

    def epoch(self) -> wire.ClockEpoch:
        found = wire.ClockEpoch()
        found.CopyFrom(TSC if self.name == "tsc" else MONOTONIC_RAW)
        return found

    def read(self, clock: str) -> HostReading:
        reading = self.now.pop(0) if len(self.now) > 1 else self.now[0]
        return reading if clock == "tsc" else replace(reading, counter=reading.raw_before_ns)

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        why, self.why = self.why, ""
        return why

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        return 300, clock_id, 350


def flags_of(*readings: HostReading) -> list[int]:
    clocks = HostClocks(FakeCounter(readings[0], *readings))
    return [clocks.snapshot()[0].flags for _ in readings]


@pytest.mark.unit
def test_realtime_and_counter_are_bracketed_by_monotonic_raw() -> None:
    clocks = HostClocks(FakeCounter(HostReading(100, 7000, 10**18, 160)))
    realtime, tsc = clocks.snapshot()
    assert (realtime.clock.clock, realtime.ref.clock, realtime.value) == ("realtime", "monotonic_raw", 10**18)
    assert (tsc.clock.clock, tsc.value, tsc.ref_before, tsc.ref_after) == ("tsc", 7000, 100, 160)


@pytest.mark.unit
def test_steps_of_the_wall_clock_are_flagged_once_slewing_is_not() -> None:
    second = 10**9
    base = 10**18
    assert flags_of(
        HostReading(0, 0, base, 60),
        HostReading(second, 0, base + second + 500_000, second + 60),  # 500 ppm: adjtime
        HostReading(2 * second, 0, base + 2 * second + 900_000, 2 * second + 60),
        HostReading(3 * second, 0, base + 3 * second - 4_000_000, 3 * second + 60),
        HostReading(4 * second, 0, base + 4 * second - 4_000_000, 4 * second + 60),
        HostReading(5 * second, 0, base + 5 * second + 64 * second, 5 * second + 60),
    ) == [0, 0, 0, ClockFlag.STEPPED, 0, ClockFlag.STEPPED]


@pytest.mark.unit
def test_an_interrupted_bracket_is_marked() -> None:
    assert flags_of(HostReading(0, 0, 10**18, 60_000)) == [ClockFlag.SUSPECT]


@pytest.mark.unit
def test_a_counter_that_steps_back_or_is_replaced_begins_a_new_epoch() -> None:
    """2 ticks a ns. A segment's anchor says of which epoch its ticks are."""
    second = 10**9
    host = FakeCounter(HostReading(second, 10 * second, 10**18, second + 60))
    clocks = HostClocks(host)
    clocks.check()
    assert (clocks.counter.clock, clocks.counter.resets, clocks.changes) == ("tsc", 0, [])
    host.why, host.now = "stepped back", [HostReading(2 * second, 1000, 10**18, 2 * second + 60)]
    clocks.check()
    assert (clocks.counter.clock, clocks.counter.resets, clocks.changes) == ("tsc", 1, ["stepped back"])
    host.now = [HostReading(5 * second, 1000 + 6 * second, 10**18, 5 * second + 60)]
    assert clocks.resets("tsc", (second, 10 * second, 0, second + 60)) == 0
    assert clocks.resets("tsc", (3 * second, 1000 + 2 * second, 0, 3 * second + 60)) == 1
    assert clocks.resets("monotonic_raw", (3 * second, 3 * second, 0, 3 * second + 60)) == 0
    host.why, host.name = "another source", "raw"
    clocks.check()
    assert (clocks.counter.clock, clocks.counter.resets) == ("monotonic_raw", 0)
    # Rows of the old counter still lie in rings: it is bracketed further.
    assert [(s.clock.clock, s.clock.resets) for s in clocks.snapshot()] == [("realtime", 0), ("tsc", 1)]
    assert clocks.ticks() == {"tsc": 1000 + 6 * second, "monotonic_raw": 5 * second}


@pytest.mark.unit
def test_the_real_clocks_of_this_host() -> None:
    clocks = HostClocks()
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    for snapshot in clocks.snapshot():
        assert before <= snapshot.ref_before <= snapshot.ref_after
        assert snapshot.ref_after <= time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    assert abs(clocks.snapshot()[0].value - time.time_ns()) < 10**9
    first = clocks.now()
    assert clocks.now() >= first


@pytest.mark.unit
def test_a_device_clock_takes_the_tightest_bracket_and_unwraps() -> None:
    register = Register(1 << 32, 1, 1)
    # host times of (before, after) pairs and raw values in between; the second try is the tightest
    host = iter([0, 900, 1000, 1040, 1100, 1900, 4 * 10**9, 4 * 10**9 + 9, 5 * 10**9, 5 * 10**9 + 99] + [0] * 4)

    def raws() -> Iterator[int]:
        yield from (1, 2, 3)
        yield from ((2 + 4 * 10**9) % (1 << 32), 77)

    values = raws()
    clock = DeviceClock("ptimer", "GPU-1", register, lambda: next(values), lambda: next(host), tries=3)
    first = clock.snapshot()
    assert (first.value, first.ref_before, first.ref_after) == (2, 1000, 1040)
    assert (first.clock.clock, first.clock.device, first.clock.width_bits) == ("ptimer", "GPU-1", 32)


@pytest.mark.unit
def test_a_device_that_restarts_begins_a_new_epoch() -> None:
    now, raw = [0], [10**12]
    clock = DeviceClock("c", "d", Register(1 << 48, 1, 1), lambda: raw[0], lambda: now[0], tries=1)
    clock.snapshot()
    now[0], raw[0] = 10**9, 5
    after = clock.snapshot()
    assert (after.clock.resets, after.value) == (1, 5)
    assert len(clock.reasons) == 1


@pytest.mark.fault
def test_an_agent_that_restarts_goes_on_in_the_epoch_of_its_counter(tmp_path: Path) -> None:
    """A VM is restored while the agent lives, and once more while it does not: three epochs, and none twice."""

    def begun(kept: str = "b1", why: str = "") -> HostClocks:
        counter = FakeCounter(HostReading(100, 7000, 10**18, 160))
        counter.why = why
        return HostClocks(counter, KeptEpochs(tmp_path / "clocks.json", kept))

    first = begun()
    assert first.counter.resets == 0
    assert begun().counter.resets == 0
    source = first._source
    assert isinstance(source, FakeCounter)
    source.why = "stepped back"
    first.check()
    assert (first.counter.resets, first.present("tsc")) == (1, 1)
    again = begun()
    assert (again.counter.resets, again.present("tsc")) == (1, 1)
    assert [snapshot.clock.resets for snapshot in again.snapshot() if snapshot.clock.clock == "tsc"] == [1]
    assert begun(why="leapt").counter.resets == 2
    assert begun().counter.resets == 2
    assert begun(kept="another boot").counter.resets == 0


@pytest.mark.fault
@pytest.mark.parametrize("text", ["", "{", "[]", '{"boot_id": "b"}', '{"boot_id": "b", "counters": {"tsc": [1]}}'])
def test_kept_epochs_that_are_none_are_no_reason_to_fail(tmp_path: Path, text: str) -> None:
    (tmp_path / "clocks.json").write_text(text)
    clocks = HostClocks(FakeCounter(HostReading(100, 7000, 10**18, 160)), KeptEpochs(tmp_path / "clocks.json", "b"))
    assert clocks.counter.resets == 0
