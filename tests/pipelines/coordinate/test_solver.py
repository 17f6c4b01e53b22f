"""The clock of the fleet in the coordinator: records in, maps out; restarted, fenced, and what it refuses."""

import importlib
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fleetscope.pipelines.align.fleet import FleetClock
from fleetscope.pipelines.align.observed import Wall
from fleetscope.pipelines.align.steps import Kind
from fleetscope.pipelines.coordinate.clock_records import Records
from fleetscope.pipelines.coordinate.solver import Solver
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import FleetClockConfig
from fleetscope.schema.metrics import metric
from fleetscope.sinks.lake.objects import open_store
from fleetscope.transport import Log, Topics, open_log

TOPICS = Topics()
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/clock_runs.py, with the simulator of benchmarks/clocklab."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("clock_runs")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(f"file://{tmp_path}/log") as opened:
        opened.create_topics(TOPICS.specs(1))
        yield opened


class Site:
    """A simulated fleet that writes to a log, and solvers that read it."""

    def __init__(self, runs: ModuleType, log: Log, folder: Path) -> None:
        self.runs, self.log = runs, log
        self.store = open_store(folder / "lake")
        self.fleet = runs.Fleet(3, 6, 400, collectives=None)
        self.now_s = 0.0

    def solver(self, name: str, hop_s: int = 10) -> Solver:
        config = FleetClockConfig(hop_s=hop_s)
        made = Solver(self.log, TOPICS.clocks, TOPICS.clock_maps, self.store, config, name)
        made.poll(self.now_s)
        return made

    def hop(self, number: int, *solvers: Solver, twice: bool = False, living: int = 6) -> list[int]:
        """One hop later; how many hops each solver solved. Only the first `living` hosts tell anything."""
        records = [one for one in self.runs.told(self.fleet, number) if int(one.source.host[1:]) < living]
        if twice:
            records += records
            random.Random(number).shuffle(records)
        for record in records:
            self.log.append(TOPICS.clocks, record.source.host.encode(), record.SerializeToString())
        self.log.flush()
        solved = []
        for solver in solvers:
            first = solver.poll(self.now_s)
            solved.append(first + solver.poll(self.now_s + 5))
        self.now_s += 10
        return solved

    def published(self) -> dict[str, wire.ClockMaps]:
        self.log.flush()
        found = [wire.ClockMaps.FromString(value) for value in self.log.read_compacted(TOPICS.clock_maps).values()]
        return {told.host: told for told in found}

    def worst_ns(self) -> float:
        """Of all published stretches: how far two hosts' stated times of one true moment are apart."""
        told = self.published()
        middle = (int(self.now_s) - 15) * 1_000_000_000
        stated = []
        for host in range(6):
            maps = told[f"h{host}"]
            raw = int(self.fleet.crystals.read(self.runs.np.array([host]), self.runs.np.array([middle]))[0])
            piece = next(p for p in maps.pieces if p.valid_from <= raw < p.valid_to)
            stated.append(piece.y0 + (raw - piece.x0) * piece.n // piece.d)
        return max(stated) - min(stated)


@pytest.fixture
def site(runs: ModuleType, log: Log, tmp_path: Path) -> Site:
    return Site(runs, log, tmp_path)


@pytest.mark.unit
def test_records_become_maps_and_hosts_agree(site: Site) -> None:
    solver = site.solver("one")
    for number in range(16):
        # Every record twice, in any order.
        site.hop(number, solver, twice=True)
    assert solver.records.duplicates == 16 * 10 * 6
    told = site.published()
    assert set(told) == {f"h{host}" for host in range(6)}
    assert all(maps.epoch == site.runs.host_epoch(int(maps.host[1:])) for maps in told.values())
    assert site.worst_ns() < 20_000
    for maps in told.values():
        ends = [(piece.valid_from, piece.valid_to) for piece in maps.pieces]
        assert all(one[1] == two[0] for one, two in itertools.pairwise(ends))
        assert [piece.final for piece in maps.pieces[:4]] == [True] * 4
        assert maps.pieces[2].guaranteed
        assert not maps.pieces[-1].guaranteed
        assert (maps.utc.lo_ns, maps.utc.hi_ns) != (0, 0)
        assert maps.utc.lo_ns <= maps.utc.hi_ns
    rows = solver.table_rows()
    assert {row.final for row in rows} == {True, False}
    assert solver.table_rows() == []
    final = [row for row in rows if row.final and row.node == 0]
    before = {row.x0: row for row in rows if not row.final and row.node == 0}
    # What is proved of a stretch is told one hop after it, what is final six.
    assert all(row.version == before[row.x0].version + 5 for row in final[1:])


@pytest.mark.fault
def test_a_new_coordinator_goes_on_along_the_same_axis_and_the_old_one_falls_silent(site: Site) -> None:
    one = site.solver("one")
    for number in range(8):
        site.hop(number, one)
    before = site.published()["h0"]
    two = site.solver("two")
    # What it solves once more the other one has told.
    assert two.clock.number is not None
    assert before.solved - 8 < two.clock.number < before.solved
    assert (two.result, two.live) == (None, [])
    for number in range(8, 13):
        site.hop(number, two, one)
    after = site.published()["h0"]
    assert (after.term, after.coordinator) == (2, "two")
    assert after.solved == before.solved + 5
    assert two.result is not None
    assert two.result.number == after.solved
    assert [made.x0 for made in two.live if made.epoch == after.epoch] == [after.pieces[-1].x0]
    # The same reading is the same time, but for what the clocks themselves could not say better before.
    raw = before.pieces[-1].x0
    piece = next((p for p in after.pieces if p.valid_from <= raw < p.valid_to), after.pieces[0])
    old, new = before.pieces[-1].y0, piece.y0 + (raw - piece.x0) * piece.n // piece.d
    assert abs(new - old) < 100_000
    assert site.worst_ns() < 20_000
    # One that is alone again takes the next term, once the other has been silent for long.
    for number in range(13, 36):
        site.hop(number, one)
    assert site.published()["h0"].coordinator == "one"


@pytest.mark.fault
def test_hosts_that_were_gone_before_a_takeover_leave_the_topic_too(site: Site) -> None:
    """Two hours gone, and half an hour: the former has no map any more."""
    one = site.solver("one")
    for number in range(4):
        site.hop(number, one)
    one.close()
    for name, gone_s in (("gone", 7_200), ("late", 1_800)):
        maps = wire.ClockMaps()
        maps.CopyFrom(site.published()["h0"])
        maps.host, maps.epoch, maps.solved = name, gone_s, maps.solved - gone_s // 10
        for piece in maps.pieces:
            piece.y0 -= gone_s * 10**9
        site.log.append(TOPICS.clock_maps, f"{gone_s:016x}".encode(), maps.SerializeToString())
    site.log.flush()
    two = site.solver("two")
    for number in range(4, 6):
        site.hop(number, two)
    assert set(site.published()) == {*(f"h{host}" for host in range(6)), "late"}


@pytest.mark.fault
def test_one_that_leaves_lets_the_fenced_one_go_on_at_once(site: Site) -> None:
    one, two = site.solver("one"), site.solver("two")
    for number in range(4):
        site.hop(number, two, one)
    assert site.published()["h0"].coordinator == "two"
    two.leave()
    for number in range(4, 6):
        site.hop(number, one)
    after = site.published()["h0"]
    assert (after.term, after.coordinator) == (3, "one")
    assert after.solved == site.runs.first_hop(site.fleet) + 4


@pytest.mark.fault
def test_what_nobody_solved_is_solved_by_the_next_and_final_maps_have_no_gap(site: Site) -> None:
    one = site.solver("one")
    for number in range(12):
        site.hop(number, one)
    rows = one.table_rows()
    one.close()
    for number in range(12, 17):
        site.hop(number)
    two = site.solver("two")
    for number in range(17, 26):
        site.hop(number, two)
    assert site.published()["h0"].solved == site.runs.first_hop(site.fleet) + 24
    rows += two.table_rows()
    final = [row for row in rows if row.final and row.node == 0]
    assert len({row.epoch for row in final}) == 1
    # Both chose readings for the middles of hops by what they had predicted: the seam is as wide as they differ.
    assert max(abs(before.x1 - after.x0) for before, after in itertools.pairwise(final)) < 20_000
    assert [before.x1 == after.x0 for before, after in itertools.pairwise(final)].count(False) <= 1
    versions = [row.version for row in final]
    assert versions == list(range(versions[0], versions[0] + len(final)))
    assert versions[-1] == site.runs.first_hop(site.fleet) + 24
    assert len(final) > 15
    assert site.worst_ns() < 20_000


@pytest.mark.fault
def test_a_fleet_that_was_not_solved_for_a_while_is_taken_up_again(site: Site) -> None:
    solver = site.solver("one")
    for number in range(6):
        site.hop(number, solver)
    for number in range(6, 14):
        site.hop(number)
    site.hop(14, solver)
    site.hop(15, solver)
    assert site.published()["h0"].solved == site.runs.first_hop(site.fleet) + 14
    assert site.worst_ns() < 50_000


@pytest.mark.fault
def test_hosts_that_are_gone_hold_up_nobody_and_an_absurd_counter_takes_nobody_along(site: Site) -> None:
    """Four of six hosts end; of the two that are left one claims to be 73 years further."""
    solver = site.solver("one")
    for number in range(6):
        site.hop(number, solver)
    for number in range(6, 14):
        site.hop(number, solver, living=2)
    first = site.runs.first_hop(site.fleet)
    assert site.published()["h0"].solved == first + 12
    source = next(one.source for one in site.runs.told(site.fleet, 13) if one.source.host == "h1")
    absurd = wire.ClockRecord(source=source, sequence=10**6, at_ns=1 << 61)
    site.log.append(TOPICS.clocks, b"h1", absurd.SerializeToString())
    site.hop(14, solver, living=2)
    site.hop(15, solver, living=2)
    assert site.published()["h0"].solved == first + 14


@pytest.mark.fault
@pytest.mark.parametrize(("before_s", "after_s"), [(1, 10), (10, 2)])
def test_hops_of_another_length_go_on_along_the_same_axis(site: Site, before_s: int, after_s: int) -> None:
    one = site.solver("one", before_s)
    for number in range(8):
        site.hop(number, one)
    before = site.published()["h0"]
    one.close()
    two = site.solver("two", after_s)
    for number in range(8, 14):
        site.hop(number, two)
    after = site.published()["h0"]
    assert (after.term, after.coordinator) == (2, "two")
    assert after.solved == (site.runs.first_hop(site.fleet) + 14) * 10 // after_s - 2
    raw = before.pieces[-1].x0
    piece = next((p for p in after.pieces if p.valid_from <= raw < p.valid_to), after.pieces[0])
    assert abs(piece.y0 + (raw - piece.x0) * piece.n // piece.d - before.pieces[-1].y0) < 100_000


@pytest.mark.fault
def test_hops_shorter_than_the_wait_for_others_begin_too(site: Site) -> None:
    """Hops of 2 s, polled every second, while records come."""
    solver = site.solver("one", 2)
    for second in range(8):
        at = second * 1_000_000_000
        wall = wire.ClockSnapshot(
            clock=wire.ClockEpoch(clock="realtime"), ref_before=at, ref_after=at + 60, value=1_800_000_000 * 10**9 + at
        )
        source = wire.Source(host="h", boot_id="b")
        told = wire.ClockRecord(source=source, sequence=second, at_ns=at + 100, snapshots=[wall])
        site.log.append(TOPICS.clocks, b"h", told.SerializeToString())
        site.log.flush()
        solver.poll(float(second))
    assert solver.clock.number is not None


@pytest.mark.fault
def test_maps_that_no_solver_told_are_not_gone_on_with(site: Site) -> None:
    one = site.solver("one")
    for number in range(6):
        site.hop(number, one)
    one.close()
    good = site.published()["h0"]
    bad = [b"\xff" * 9, b""]
    lines = [(0, 0, 1, 1), (1, 0, 1, 1), (1, 1, 1 << 62, 1), (1, 1, -(1 << 63), 1), (1, 1, 1 << 61, 1 << 63)]
    for n, d, y0, term in lines:
        evil = wire.ClockMaps(host="evil", term=term, solved=1 << 60, epoch=5)
        evil.pieces.add(x0=1, y0=y0, n=n, d=d)
        bad.append(evil.SerializeToString())
    for number, value in enumerate(bad):
        site.log.append(TOPICS.clock_maps, f"{number}".encode(), value)
    site.log.flush()
    two = site.solver("two")
    for number in range(6, 9):
        site.hop(number, two)
    told = {maps.host: maps for maps in two._published()}
    assert set(told) == {*(f"h{host}" for host in range(6)), "evil"}  # of a term that nobody took: known, not adopted
    assert (told["h0"].coordinator, told["h0"].solved) == ("two", good.solved + 3)
    assert len(two.clock.epochs) == 6


@pytest.mark.fault
def test_a_hop_centuries_later_takes_no_centuries() -> None:
    clock = FleetClock()
    clock.observed.take_wall(Wall(clock.node(7), 1_000, 1_800_000_000 * 10**9, 100, 1_000))
    clock.solve(180_000_000)
    assert clock.solve(180_000_000 + 400_000_000).number == 580_000_000


@pytest.mark.fault
def test_clock_epochs_that_are_over_are_left_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hosts that told once and never again: the solver begins anew without them, along the same axis."""
    monkeypatch.setattr("fleetscope.pipelines.coordinate.solver.DEAD_NODES", -4)
    monkeypatch.setattr("fleetscope.pipelines.coordinate.solver.RENEW_S", 120.0)
    solver = site.solver("one")
    for number in range(4):
        site.hop(number, solver)
    assert len(solver.clock.epochs) == 6
    for gone in range(5):
        source = wire.Source(cluster="lab", host=f"gone{gone}", boot_id="b")
        site.log.append(TOPICS.clocks, b"g", wire.ClockRecord(source=source, at_ns=1).SerializeToString())
    before = site.published()["h0"]
    for number in range(4, 20):
        site.hop(number, solver)
        if number == 10:
            assert len(solver.clock.epochs) == 11
    assert len(solver.clock.epochs) == 6
    after = site.published()["h0"]
    assert after.solved > before.solved
    assert site.worst_ns() < 50_000


def record(**fields: object) -> wire.ClockRecord:
    made = wire.ClockRecord(source=wire.Source(cluster="c", host="h", boot_id="b"), at_ns=1, **fields)
    return made


RAW = wire.ClockEpoch(clock="monotonic_raw")


@pytest.mark.unit
@pytest.mark.parametrize(
    ("reason", "bad"),
    [
        ("torn_stamps", record(probes=[wire.PeerProbes(peer="p", stamps=[1, 2, 3])])),
        ("inverted_exchange", record(probes=[wire.PeerProbes(peer="p", stamps=[5, 2, 3, 4])])),
        ("inverted_exchange", record(probes=[wire.PeerProbes(peer="p", stamps=[1, 3, 2, 4])])),
        ("out_of_range", record(probes=[wire.PeerProbes(peer="p", stamps=[1, 2, 3, 1 << 62])])),
        ("unnamed", record(probes=[wire.PeerProbes(stamps=[1, 2, 3, 4])])),
        ("unnamed", record(probes=[wire.PeerProbes(peer="p", boot_id="b" * 257, stamps=[1, 2, 3, 4])])),
        ("unnamed", wire.ClockRecord(at_ns=1)),
        ("inverted_bracket", record(snapshots=[wire.ClockSnapshot(clock=RAW, ref=RAW, ref_before=2, ref_after=1)])),
        ("negative_error", record(state=wire.ClockState(max_error_ns=-1))),
        ("impossible_rank", record(collectives=[wire.CollectiveObservation(rank=2, size=2)])),
        ("inverted_collective", record(collectives=[wire.CollectiveObservation(start_ns=9, end_ns=1, size=2)])),
        ("out_of_range", record(collectives=[wire.CollectiveObservation(err_ns=-1, size=2)])),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_whole_and_counted(reason: str, bad: wire.ClockRecord) -> None:
    records = Records(FleetClock())
    good = wire.PeerProbes(peer="q", stamps=[1, 2, 3, 4])
    bad.probes.append(good)
    records.take(bad.SerializeToString())
    assert dict(records.refused) == {reason: 1}
    assert records.hosts == []
    assert len(records.clock.observed.exchanges()[2]) == 0


@pytest.mark.unit
def test_records_come_in_any_order_and_each_counts_once() -> None:
    records = Records(FleetClock())
    order = [*range(200, 100, -1), *range(101, 201), 50, 205, 201, 205, 10**9, 203]
    for sequence in order:
        records.take(record(sequence=sequence).SerializeToString())
    # 100 and 3 (205, 201, 10^9) are new; 100 of the way back and 205 again are not; 50 and 203 are too old to tell.
    assert (records.duplicates, records.late) == (101, 2)


@pytest.mark.unit
def test_bytes_that_are_no_record_are_counted() -> None:
    records = Records(FleetClock())
    records.take(b"\xff\xff\xff")
    assert dict(records.refused) == {"undecodable": 1}


@pytest.mark.unit
def test_every_verdict_about_a_host_is_a_reason_that_the_series_knows() -> None:
    """Found: hosts that tell each peer something else were quarantined by a reason that no alert asked for."""
    assert set(metric("fleetscope_clock_quarantined").values["reason"]) == {
        kind.value for kind in Kind if kind is not Kind.COLLECTIVE
    }
