"""What executions of a program with a collective say about clocks: which programs, which ones, in which numbers."""

import time

import pyarrow as pa
import pytest

from fleetscope.agents.clocks import ClockSources, HostClocks, HostReading
from fleetscope.agents.clocks.ptp import Found
from fleetscope.agents.clocks.sources import Told
from fleetscope.agents.node import clocking
from fleetscope.agents.node.clocking import ClockRecords
from fleetscope.agents.node.collectives import Collectives, Passed, spans_job
from fleetscope.agents.node.executions import Completion, DeviceRows, Executions
from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.pairing import Execution
from fleetscope.agents.node.pjrt import Pjrt
from fleetscope.agents.node.timekeeper import Timekeeper
from fleetscope.agents.programs.optable import Program
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.schema.identity import key_hash
from fleetscope.schema.tables import PROGRAM_OPS
from fleetscope.schema.vocabulary import ClockFlag, CollectiveFlag
from fleetscope.transport import Log

MS = 1_000_000
SECOND = 1000 * MS


def program(*ops: tuple[str, bool, str], key: int = 77) -> Program:
    """Of (opcode, in the entry computation, dims)."""
    rows = [
        {field.name: 0 for field in PROGRAM_OPS if pa.types.is_integer(field.type)}
        | {"opcode": opcode, "entry": entry, "dims": dims}
        for opcode, entry, dims in ops
    ]
    return Program(key, "jit_step", 1, pa.Table.from_pylist(rows, PROGRAM_OPS))


STEP = program(("dot", True, ""), ("all-reduce", True, '{"group":8}'))


@pytest.mark.unit
@pytest.mark.parametrize(
    ("ops", "spans"),
    [
        ([("all-reduce", True, '{"group":8}')], True),
        ([("all-gather-start", True, '{"group":8}'), ("all-gather-done", True, "")], True),
        ([("reduce-scatter", True, '{"group":8}')], True),
        ([("all-reduce", True, '{"group":4}')], False),  # of which ranks?
        ([("all-reduce", False, '{"group":8}')], False),  # in a branch or a loop that may not run
        ([("collective-permute", True, '{"group":8}')], False),  # nobody waits for all
        ([("collective-broadcast", True, '{"group":8}')], False),
        ([("all-reduce", True, "not json")], False),
        ([("all-reduce", True, '["group"]')], False),
        ([("dot", True, '{"group":8}')], False),
        ([], False),
    ],
)
def test_which_programs_no_rank_leaves_before_all_entered(ops: list[tuple[str, bool, str]], spans: bool) -> None:
    assert spans_job(program(*ops), 8) is spans


class Job:
    """A process of 2 ranks with 4 devices each, whose counter is in ns."""

    def __init__(self, world: int = 2) -> None:
        self.collectives, self.executions, self.launch = Collectives(world), Executions(), 0
        self.programs = {1: STEP, 2: program(("all-reduce", True, '{"group":4}'), key=78)}
        for ordinal in range(4):
            self.executions.add_device(ordinal, wire.Device(key=f"d{ordinal}", platform="gpu"), 0)

    def run(self, at: int, label: int = 1, failed: bool = False) -> None:
        self.launch += 1
        self.executions.launches.launch(self.launch, at, label, 4)
        for ordinal in range(4):
            done = Completion(at + 9 * MS + ordinal, at, self.launch, label, failed)
            self.executions.add_done(ordinal, done)

    def tell(self, now: int, whole: bool = True) -> list[Passed]:
        told = list(self.executions.settle(now, MS, lambda label: (self.programs[label].program, False)))
        self.collectives.note(told, list(self.programs.values()), 4, whole, SECOND)
        return self.collectives.take()


@pytest.mark.unit
def test_executions_are_numbered_by_program_and_one_device_stands_for_all() -> None:
    job = Job()
    for turn in range(4):
        job.run(turn * SECOND)
        job.run(turn * SECOND + 100 * MS, label=2)
    found = job.tell(10 * SECOND)
    assert [(one.program, one.sequence, one.device) for one in found] == [(77, n, "d0") for n in (1, 2, 3, 4)]
    assert [one.enqueue for one in found] == [turn * SECOND for turn in range(4)]
    assert all(one.end == one.enqueue + 9 * MS for one in found)


@pytest.mark.unit
def test_an_execution_that_waited_began_when_it_was_enqueued_for_all_anybody_knows() -> None:
    job = Job()
    job.run(0, label=2)
    job.run(2 * MS)  # behind the other until 9 ms
    (found,) = job.tell(5 * SECOND)
    assert (found.program, found.enqueue, found.end) == (77, 2 * MS, 11 * MS)


@pytest.mark.unit
def test_a_fast_program_is_observed_at_numbers_that_ranks_of_another_pace_choose_too() -> None:
    chosen = []
    for period in (19 * MS, 34 * MS):
        job = Job()
        for turn in range(400):
            job.run(turn * period)
        chosen.append({one.sequence for one in job.tell(60 * SECOND) if one.sequence > 64})
    fast, slow = chosen
    # One and a half a second: every 32nd of the one, every 16th of the other.
    assert fast == set(range(96, 401, 32))
    assert slow == set(range(80, 401, 16))


@pytest.mark.fault
def test_nothing_is_claimed_where_the_number_is_not_known() -> None:
    job = Job()
    job.run(0)
    assert job.tell(2 * SECOND, whole=False) == []
    job.run(3 * SECOND, failed=True)
    job.run(4 * SECOND)
    # What was not observed is counted all the same: other ranks do.
    assert [one.sequence for one in job.tell(8 * SECOND)] == [3]
    alone = Job(world=1)
    alone.run(0)
    assert alone.tell(2 * SECOND) == []


def no_log() -> Log:
    raise AssertionError("nobody reads")


class Ticking:
    """A host whose counter runs at 2.4 GHz, 30 ppm fast; raw time is what the test says."""

    raw = 0

    def epoch(self) -> wire.ClockEpoch:
        return wire.ClockEpoch(clock="tsc", period_num=5, period_den=12, width_bits=64)

    def tick(self, raw: int) -> int:
        return raw * 12 * 1_000_030 // (5 * 1_000_000)

    def read(self, clock: str) -> HostReading:
        counter = self.tick(self.raw + 20) if clock == "tsc" else self.raw
        return HostReading(self.raw, counter, 10**18 + self.raw + 25, self.raw + 40)

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        return ""

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        return self.raw, self.raw, self.raw


@pytest.mark.unit
def test_ticks_of_the_counter_become_raw_time_with_what_they_may_be_off() -> None:
    host, sent = Ticking(), []
    records = ClockRecords(Host("c", "h", "b"), HostClocks(host), ClockSources(), 1.0, sent.append)
    for second in range(1, 5):
        host.raw = second * SECOND
        records.check()
    source = wire.Source(cluster="c", host="h", boot_id="b", run="r", attempt="a", rank=1)
    inside, beyond = 2 * SECOND + 123_456, 5 * SECOND
    passed = [Passed(77, 8, host.tick(inside), host.tick(inside + 9 * MS), "d0")]
    records.observe(source, 2, "tsc", [*passed, Passed(77, 9, host.tick(inside), host.tick(beyond), "d0")])
    records.observe(source, 2, "monotonic_raw", [Passed(77, 10, 5, 6, "d0")])
    records.observe(source, 2, "hpet", [Passed(77, 11, 5, 6, "d0")])
    records.tick(5.0, [])
    (record,) = [wire.ClockRecord.FromString(value) for value in sent]
    first, second, third = record.collectives
    assert abs(first.start_ns - inside) <= first.err_ns <= 25
    assert abs(first.end_ns - inside - 9 * MS) <= first.err_ns
    # Beyond the newest bracket only the nominal rate is known: 30 ppm off, said to be up to 200.
    assert 25_000 < abs(second.end_ns - beyond) <= second.err_ns <= 201_000
    assert (third.start_ns, third.end_ns, third.err_ns) == (5, 6, 0)
    assert len(record.collectives) == 3
    group = key_hash("collective", "c", "r", "a", 77, 0, 0)
    assert (first.group, first.sequence, first.rank, first.size) == (group, 8, 1, 2)
    assert first.flags == CollectiveFlag.BARRIER_LIKE | CollectiveFlag.FROM_SHIM


@pytest.mark.unit
def test_ticks_of_two_minutes_ago_are_known_as_well_where_rounds_are_short() -> None:
    host = Ticking()
    records = ClockRecords(Host("c", "h", "b"), HostClocks(host), ClockSources(), 1.0, lambda value: None)
    for number in range(1, 121 * 20):
        host.raw = number * SECOND // 20
        records.check()
    raw_of = records.raw_of("tsc")
    assert raw_of is not None
    for true in (SECOND + 3, 60 * SECOND + 123_456, 120 * SECOND + 900 * MS + 7):
        at, error = raw_of(host.tick(true))
        assert abs(at - true) <= error <= 25
    assert records.raw_of("hpet") is None


@pytest.mark.fault
def test_observations_without_room_are_told_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocking, "COLLECTIVES", 2)
    keeper = Timekeeper(
        Config(), Host("c", "h", "b"), HostClocks(Ticking()), ClockSources(), no_log, lambda topic, value: None
    )
    source = wire.Source(cluster="c", host="h", boot_id="b", run="r", attempt="a", rank=1)
    keeper.records.observe(source, 2, "monotonic_raw", [Passed(77, number, 5, 6, "d0") for number in range(5)])
    lost = {labels["reason"]: n for name, labels, n in keeper.values() if name.endswith("dropped_events_total")}
    assert lost == {"collective_overflow": 3}


@pytest.mark.unit
def test_rows_are_not_looked_at_while_no_program_spans_the_job() -> None:
    class Untouched:
        num_rows = 5

    told = DeviceRows(wire.Device(key="d0"), 0, 9, Untouched())  # type: ignore[arg-type]
    Collectives(2).note([told], [program(("all-reduce", True, '{"group":4}'))], 4, True, SECOND)


@pytest.mark.unit
def test_an_execution_states_what_its_times_may_be_off() -> None:
    """No later than it was enqueued and no earlier than it was complete, with ticks of 2 ns."""
    pjrt = Pjrt(1, {5: "jit_step#1"}.__getitem__, lambda *_: wire.Device(key="d0"))
    pjrt.executions.add_device(0, wire.Device(key="d0", platform="tpu"), 0)
    pjrt.executions.launches.launch(1, 100, 5, 1)
    pjrt.executions.add_done(0, Completion(900, 100, 1, 5, False))
    list(pjrt.executions.settle(10 * SECOND, MS, lambda label: (77, False)))
    assert pjrt.executed("d0", 0, SECOND, lambda tick: (2 * tick, 30 if tick > 500 else 7)) == [
        Execution("jit_step", 200 - 7, 1800 + 30)
    ]


@pytest.mark.unit
def test_a_network_cards_wide_bracket_is_flagged() -> None:
    sent: list[bytes] = []
    sources = ClockSources()
    found = (Found("ptp0", (10, 37, 11), "posix"), Found("ptp1", (10, 38, 60_011), "posix"))
    sources._told = Told(time.monotonic(), hardware=found)  # its thread would have put it there
    records = ClockRecords(Host("c", "h", "b"), HostClocks(Ticking()), sources, 1.0, sent.append)
    records.tick(5.0, [])
    told = [s for s in wire.ClockRecord.FromString(sent[0]).snapshots if s.clock.clock.startswith("ptp")]
    assert [(s.clock.clock, s.value, s.flags) for s in told] == [("ptp0", 37, 0), ("ptp1", 38, ClockFlag.SUSPECT)]
