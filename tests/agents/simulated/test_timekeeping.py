"""Clock records of the simulated fleet against its truth: what bounds what, and which faults break it."""

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fleetscope.agents.simulated import Simulation
from fleetscope.agents.simulated.faults import CLOCK_SHAPES, parse_faults
from fleetscope.pipelines.align.fleet import FleetClock
from fleetscope.pipelines.coordinate.clock_records import Records
from fleetscope.schema import config
from fleetscope.schema import wire_pb2 as wire
from fleetscope.transport import Topics, open_log

SECOND = 1_000_000_000
HOSTS, SECONDS = 8, 30


class Fleet:
    """Records by host, and raw -> true and wall of each host from the truth, interpolated between its seconds."""

    def __init__(self, folder: Path, faults: list[str]) -> None:
        loaded = config.load(None, state_dir=folder, log={"partitions": 1})
        Simulation(
            loaded, hosts=HOSTS, chips=1, seconds=SECONDS, seed=3, truth=folder / "truth", speed="max", faults=faults,
            ops=20, step_ms=500,
        ).run(threading.Event())  # fmt: skip
        with open_log(loaded.log_url) as log:
            topics = Topics(loaded.log.topic_prefix)
            values, told = (
                [m.value for p, end in log.end_offsets(topic).items() for m in log.read(topic, p, 0, end)]
                for topic in (topics.clocks, topics.telemetry)
            )
        self.records: dict[int, list[wire.ClockRecord]] = defaultdict(list)
        for value in values:
            record = wire.ClockRecord.FromString(value)
            self.records[int(record.source.host.removeprefix("sim-"))].append(record)
        self.last: dict[int, wire.Batch] = {}
        """The last batch that each host's process put."""
        for batch in map(wire.Batch.FromString, told):
            if batch.source.pid:
                self.last[int(batch.source.host.removeprefix("sim-"))] = batch
        rows = pq.read_table(folder / "truth" / "host_clocks.parquet").to_pylist()
        self.clocks: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            self.clocks[row["host"]].append(row)

    def true_of(self, host: int, raw: int) -> float:
        """True ns since the first truth row of this host; rates are constant between two seconds."""
        rows = self.clocks[host]
        raws = np.array([row["raw_ns"] - rows[0]["raw_ns"] for row in rows], float)
        trues = np.array([row["true_ns"] - self.clocks[0][0]["true_ns"] for row in rows], float)
        at = raw - rows[0]["raw_ns"]
        slope = (trues[1] - trues[0]) / (raws[1] - raws[0])
        return float(np.interp(at, raws, trues)) if at >= 0 else trues[0] + at * slope

    def exchanges(self, host: int) -> list[tuple[int, list[int]]]:
        """(peer, stamps)"""
        return [
            (int(probes.peer.removeprefix("sim-")), list(probes.stamps[at : at + 4]))
            for record in self.records[host]
            for probes in record.probes
            for at in range(0, len(probes.stamps), 4)
        ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("sound"), ["probe_loss:host=5,share=0.3", "asymmetry:host=2,by_us=100"])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("odd"), ["all-clocks", "clock_step:host=0,at=10,by_ms=-64000"])


@pytest.mark.unit
def test_every_exchange_encloses_the_true_offset(sound: Fleet) -> None:
    count, peers = 0, set()
    for host in range(HOSTS):
        for peer, (t1, t2, t3, t4) in sound.exchanges(host):
            # In true time a request is received after it was sent, and a reply returned after it was answered.
            assert sound.true_of(peer, t2) - sound.true_of(host, t1) > -5
            assert sound.true_of(host, t4) - sound.true_of(peer, t3) > -5
            count += 1
            peers.add((host, peer))
    # 8 hosts, about 4 distinct peers of 7 each, two a second
    assert count > HOSTS * 3 * 2 * SECONDS * 0.8
    assert all(len({b for a, b in peers if a == host}) >= 3 for host in range(HOSTS))


@pytest.mark.unit
def test_loss_and_asymmetry_are_as_asked_for(sound: Fleet) -> None:
    sent = sum(probes.sent for record in sound.records[5] for probes in record.probes)
    assert 0.55 < len(sound.exchanges(5)) / sent < 0.85
    to_2 = [
        (sound.true_of(2, t2) - sound.true_of(host, t1)) - (sound.true_of(host, t4) - sound.true_of(2, t3))
        for host in range(HOSTS)
        for peer, (t1, t2, t3, t4) in sound.exchanges(host)
        if peer == 2
    ]
    assert 80_000 < float(np.median(to_2)) < 120_000


@pytest.mark.unit
def test_no_rank_leaves_a_collective_before_all_have_entered(sound: Fleet) -> None:
    ranks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for host in range(HOSTS):
        for record in sound.records[host]:
            for seen in record.collectives:
                assert (seen.rank, seen.size) == (host, HOSTS)
                ranks[seen.group, seen.sequence].append(
                    (sound.true_of(host, seen.start_ns), sound.true_of(host, seen.end_ns))
                )
    whole = [times for times in ranks.values() if len(times) == HOSTS]
    assert len(whole) > 30
    for times in whole:
        assert max(begin for begin, _ in times) <= min(end for _, end in times) + 5


@pytest.mark.fault
def test_records_say_what_is_odd_about_a_hosts_clocks(odd: Fleet) -> None:
    told = {host: [record.reason for record in odd.records[host] if record.reason] for host in range(HOSTS)}
    assert told[0] == ["start", "step"]
    assert told[1] == told[2] == ["start"]  # nobody on a host sees its counter step
    assert told[3] == ["start", "suspend"]
    assert told[4] == ["start", "vm_restore"]
    assert told[5] == ["start", "leap", "step"]
    last = {host: odd.records[host][-1] for host in range(HOSTS)}
    assert last[3].state.suspended_ns == 3 * SECOND
    assert (last[4].resets, last[4].state.vm_disruption, last[3].resets) == (1, 2, 0)
    assert {s.ref.resets for s in last[4].snapshots} == {1}
    assert [odd.last[host].clock.resets for host in (3, 4)] == [0, 1]
    assert "end" in {told.run_event.event for told in odd.last[4].announcements}
    assert (last[5].state.tai_s, last[6].state.tai_s, last[7].state.tai_s) == (38, 37, 0)
    assert not last[7].state.synchronized
    assert last[7].state.max_error_ns == 16 * SECOND
    wall = {s.clock.clock: s.value for s in last[7].snapshots}
    assert 0 < wall["realtime"] < 86_400 * SECOND  # 1970
    assert wall["tai"] == pytest.approx(wall["realtime"], abs=SECOND // 100)
    assert [record.sequence for record in odd.records[4]] == list(range(len(odd.records[4])))


@pytest.mark.fault
def test_the_truth_has_the_steps_smears_and_pauses(odd: Fleet) -> None:
    def raw(host: int, second: int) -> int:
        rows = odd.clocks[host]
        return int(rows[second]["raw_ns"] - rows[second - 1]["raw_ns"] - SECOND)

    def wall(host: int, second: int) -> int:
        rows = odd.clocks[host]
        return int(rows[second]["realtime_ns"] - rows[second - 1]["realtime_ns"] - SECOND)

    assert raw(1, 14) - raw(1, 13) == pytest.approx(200_000, abs=2_000)
    assert raw(2, 20) - raw(2, 10) == pytest.approx(5_000, abs=1_500)
    assert [raw(3, second) for second in (12, 13, 14)] == [-SECOND] * 3
    assert wall(5, 14) == pytest.approx(-SECOND, abs=50_000)
    assert wall(6, 15) - wall(6, 5) == pytest.approx(-11_600, abs=500)
    assert wall(0, 9) == pytest.approx(-64 * SECOND, abs=50_000)


@pytest.mark.fault
def test_a_liar_and_a_wrong_number_break_what_holds_for_all_others(odd: Fleet) -> None:
    broken = {"liar": 0, "others": 0}
    for host in range(HOSTS):
        for peer, (t1, t2, t3, t4) in odd.exchanges(host):
            if {host, peer} & {1, 3, 4}:  # the truth of a second in which a counter steps or stands has no slope
                continue
            late = (
                odd.true_of(host, t4) - odd.true_of(peer, t3) < -5 or odd.true_of(peer, t2) - odd.true_of(host, t1) < -5
            )
            broken["liar" if peer == 6 else "others"] += late
    assert broken["others"] == 0
    assert broken["liar"] > 20
    numbers = [seen.sequence for record in odd.records[3] for seen in record.collectives]
    assert len(numbers) > len(set(numbers))


@pytest.mark.unit
def test_clock_faults_are_asked_for_by_name() -> None:
    assert {fault.kind for fault in parse_faults(["all-clocks"], 30, 8, 1)} == set(CLOCK_SHAPES)
    assert not {fault.kind for fault in parse_faults(["all"], 30, 8, 1)} & set(CLOCK_SHAPES)


@pytest.mark.e2e
def test_the_clock_of_the_fleet_is_found_from_these_records(sound: Fleet) -> None:
    clock = FleetClock()
    records = Records(clock)
    solved = 0
    for second in range(SECONDS):
        for host in range(HOSTS):
            records.take(sound.records[host][second].SerializeToString())
        number = clock.first_number() if clock.number is None else clock.number + 1
        if number is None:
            continue
        reached = [clock.stated(node, raw) or 0 for node, raw in records.newest.items()]
        if clock.number is None or min(reached) > (number + 1) * 10 * SECOND + SECOND:
            clock.solve(number)
            solved += 1
    assert solved >= 2
    assert not records.refused
    errors = {}
    for node, (_, name, _, _) in enumerate(records.hosts):
        host = int(name.removeprefix("sim-"))
        row = sound.clocks[host][SECONDS - 6]
        stated = clock.stated(node, row["raw_ns"])
        assert stated is not None
        errors[host] = stated - row["true_ns"]
    # All hosts are off by the same, but for what asymmetry does: half of 100 us for the host behind the slow path.
    common = float(np.median(list(errors.values())))
    assert len(errors) == HOSTS
    for host, error in errors.items():
        assert abs(error - common) < (80_000 if host == 2 else 30_000), errors
