"""Real agents on loopback: their clock records, the offset between two of them, what is odd about a host's clocks."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetscope.agents.clocks import ClockSources, HostClocks, HostReading, Readers
from fleetscope.agents.clocks.vmclock import VmClock
from fleetscope.agents.node import NodeAgent
from fleetscope.agents.profiler.protocol import Clocks
from fleetscope.native import recorder
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import AgentConfig, Config, LogConfig, ProbeConfig
from fleetscope.schema.errors import ConfigInvalid
from fleetscope.schema.vocabulary import CLOCK_REASONS

from .conftest import eventually, shipped

SECOND = 1_000_000_000


class Shifted:
    """Fault point `clock.offset`: this host's counters are ahead of the machine's by `offset_ns`, its wall clock by
    `wall_ns` more."""

    def __init__(self, offset_ns: int = 0) -> None:
        self.offset_ns, self.wall_ns, self.why = offset_ns, 0, ""

    def epoch(self) -> wire.ClockEpoch:
        return wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)

    def read(self, clock: str) -> HostReading:
        before, _, realtime, after = recorder.read_clocks("monotonic_raw")
        raw = before + self.offset_ns
        return HostReading(raw, raw, realtime + self.wall_ns, after + self.offset_ns)

    def change(self, clock: str, before: HostReading, look: bool) -> str:
        why, self.why = self.why, ""
        return why

    def bracket(self, clock_id: int) -> tuple[int, int, int]:
        before, value, after = recorder.read_clock(clock_id)
        return before + self.offset_ns, value, after + self.offset_ns


Fleet = Callable[..., NodeAgent]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Agents of several hosts on one log, each started; they tick when the test says so."""
    made: list[NodeAgent] = []
    key = tmp_path / "key"
    key.write_text(bytes(range(32)).hex())

    def start(host: str, counter: Shifted | None = None, readers: Readers | None = None, **probes: Any) -> NodeAgent:
        options = {"enabled": True, "address": "127.0.0.1:0", "key_file": key, "rate_hz": 2.0, **probes}
        shm = tmp_path / f"{host}-shm"
        shm.mkdir()
        agent = AgentConfig(
            host=host, shm_dir=shm, spool_bytes=64 << 20, probes=ProbeConfig(**options), snapshot_s=0.05,
            metrics_address="127.0.0.1:0",
        )  # fmt: skip
        config = Config(state_dir=tmp_path / host, agent=agent, log=LogConfig(url=f"file://{tmp_path}/log"))
        built = NodeAgent(config, collectors=[], clocks=HostClocks(counter), sources=ClockSources(readers))
        built.start()
        made.append(built)
        return built

    yield start
    for agent in made:
        agent.close()


def records(tmp_path: Path) -> list[wire.ClockRecord]:
    return [wire.ClockRecord.FromString(value) for value in shipped(tmp_path, "fleetscope.clocks")]


@pytest.mark.e2e
def test_two_hosts_find_each_other_and_the_offset_between_them(fleet: Fleet, tmp_path: Path) -> None:
    offset = 3 * 86_400 * SECOND + 12_345
    a, b = fleet("host-a"), fleet("host-b", Shifted(offset))
    seen: dict[tuple[str, str], list[int]] = {("host-a", "host-b"): [], ("host-b", "host-a"): []}

    def enough() -> bool:
        for agent in (a, b):
            agent.tick()
        for found in seen.values():
            found.clear()
        for record in records(tmp_path):
            for probes in record.probes:
                assert probes.boot_id == a.host.boot_id or not probes.stamps
                seen[record.source.host, probes.peer] += probes.stamps
        return all(len(found) >= 12 for found in seen.values())

    eventually(enough, 120)
    for (host, _), stamps in seen.items():
        truth = offset if host == "host-a" else -offset
        for at in range(0, len(stamps), 4):
            t1, t2, t3, t4 = stamps[at : at + 4]
            assert t3 - t4 <= truth <= t2 - t1
            assert t1 <= t4
            assert t2 <= t3
    assert a.timekeeper.probing is not None
    values = {name: value for name, _, value in a.timekeeper.probing.values()}
    assert values["fleetscope_agent_probe_peers"] == 1
    assert values["fleetscope_agent_probe_exchanges_total"] >= 3


@pytest.mark.unit
def test_records_are_numbered_and_hold_every_clock_of_the_host(fleet: Fleet, tmp_path: Path) -> None:
    agent = fleet("host-a")
    for _ in range(3):
        time.sleep(0.06)
        agent.tick()
    agent.close()
    found = records(tmp_path)
    assert [record.sequence for record in found] == list(range(len(found)))
    assert found[0].reason == "start"
    assert found[-1].reason == "stop"
    assert len({record.source.incarnation for record in found}) == 1
    for record in found:
        clocks = {snapshot.clock.clock for snapshot in record.snapshots}
        assert {"realtime", "tai", "boottime"} <= clocks
        assert all(s.ref.clock == "monotonic_raw" and s.ref_before <= s.ref_after for s in record.snapshots)
    assert found[-1].state.clocksource == agent.timekeeper.sources.told().source or found[-1].state.clocksource
    # The first is a burst: every clock six times.
    first = [snapshot.clock.clock for snapshot in found[0].snapshots]
    assert first.count("realtime") == 6


@pytest.mark.fault
def test_what_is_odd_is_told_at_once_with_its_reason(fleet: Fleet, tmp_path: Path) -> None:
    vm, counter = {"now": VmClock(2, 7, 1)}, Shifted()
    suspended = {"ns": 0}

    class Page:
        def read(self) -> VmClock:
            return vm["now"]

        def close(self) -> None: ...

    readers = Readers(vmclock=Page, suspended_ns=lambda: suspended["ns"])  # type: ignore[arg-type]
    agent = fleet("host-a", counter, readers, enabled=False)
    eventually(lambda: agent.timekeeper.sources.vm() is not None)
    agent.tick()
    agent.tick()
    counter.wall_ns = 64 * SECOND
    agent.tick()
    suspended["ns"] = 90 * SECOND
    agent.tick()
    counter.why = "another source"
    agent.tick()
    vm["now"] = VmClock(4, 8, 2)
    agent.tick()
    agent.timekeeper.records.window(Clocks(100, 10**18, 150), Clocks(300, 10**18 + 200, 340))
    agent.timekeeper.records.window(Clocks(150, 10**18, 100), Clocks(0, 1 << 70, 10))  # what cannot be is no record
    agent.close()
    found = records(tmp_path)
    told = [record.reason for record in found if record.reason]
    assert told == ["start", "step", "suspend", "clocksource", "vm_restore", "window_begin", "window_end", "stop"]
    assert set(told) <= set(CLOCK_REASONS)
    by = {record.reason: record for record in found}
    assert by["suspend"].state.suspended_ns in (0, 90 * SECOND)  # its thread looks once a second
    assert by["clocksource"].resets == 0
    assert by["vm_restore"].resets == 1
    assert all(s.ref.resets == 1 for s in by["vm_restore"].snapshots)
    (opened,) = by["window_begin"].snapshots
    assert (opened.clock.clock, opened.value, opened.ref_before, opened.ref_after) == ("realtime", 10**18, 100, 150)
    assert agent.timekeeper.records.reasons["step"] == 1


@pytest.mark.unit
def test_probes_are_off_until_there_is_a_key(tmp_path: Path) -> None:
    assert not AgentConfig().probes.enabled
    assert AgentConfig().probes.address == "127.0.0.1:9466"
    with pytest.raises(ValueError, match="key_file"):
        ProbeConfig(enabled=True)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("probes", "why"),
    [
        ({"address": "localhost:1"}, "no address"),
        ({"address": "192.0.2.1:0"}, "192.0.2.1"),
        ({"address": "0.0.0.0:0"}, "announce"),
        ({"known": {"host-b": "nowhere"}}, "no address"),
    ],
)
def test_what_cannot_be_used_stops_the_agent_at_its_start(fleet: Fleet, probes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        fleet("host-a", **probes)
    # and leaves nothing open: another can start
    fleet("host-b")
