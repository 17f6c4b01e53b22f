"""Clocks of a host, wire messages in and placements out, against a host whose clocks are set by hand."""

import itertools
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleetscope.pipelines.align.clocks import ClockState
from fleetscope.pipelines.align.segment import Placement, Segment
from fleetscope.schema import identity
from fleetscope.schema.vocabulary import ClockFlag, SpanFlag
from fleetscope.schema.wire_pb2 import ClockEpoch, ClockSnapshot, Source

SECOND = 10**9
EPOCH = 1_753_000_000 * SECOND
UPTIME = 40 * 86_400 * SECOND

SOURCE = Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=9, incarnation=1)
RAW = ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
WALL = ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)


@dataclass
class Host:
    """raw = UPTIME + true; the chip ticks every 1.25 ns, 20 ppm fast, from 10^15; the wall clock is 3 ppm slow and
    is set at times."""

    set_at: list[tuple[int, int]] = field(default_factory=list)
    """(true ns, ns added)."""
    resets: int = 0
    chip_number: int = 0

    def chip(self, true: int) -> int:
        return 10**15 + true * 4 * 1_000_020 // 5_000_000

    def wall(self, true: int) -> int:
        return EPOCH + true - true * 3 // 10**6 + sum(added for at, added in self.set_at if true >= at)

    @property
    def clock(self) -> ClockEpoch:
        return ClockEpoch(
            clock="gtc",
            device=f"chip-{self.chip_number}",
            period_num=5,
            period_den=4,
            width_bits=45,
            resets=self.resets,
        )

    def snapshots(self, true: int, width: int = 1_000) -> list[ClockSnapshot]:
        before = UPTIME + true - width // 3
        return [
            ClockSnapshot(clock=clock, ref=RAW, value=value, ref_before=before, ref_after=before + width)
            for clock, value in ((self.clock, self.chip(true)), (WALL, self.wall(true)))
        ]


def _seconds(state: ClockState, host: Host, first: int, last: int) -> list[Placement]:
    """Batches of one second each, the snapshot at its end with it."""
    placed = []
    for second in range(first, last):
        state.take(SOURCE, host.snapshots(second * SECOND))
        begin, end = host.chip((second - 1) * SECOND), host.chip(second * SECOND)
        placed.append(state.place(SOURCE, host.clock, begin, end, host.wall(second * SECOND), 5))
    return placed


def _holding(placement: Placement, tick: int) -> Segment:
    part = placement[0]
    for later in placement[1:]:
        if tick >= later.valid_from:
            part = later
    return part


def _at(placement: Placement, tick: int) -> tuple[int, int]:
    part = _holding(placement, tick)
    return part.at(tick), part.err_ns


def _check(host: Host, placement: Placement, second: int) -> None:
    for part in range(20):
        true = (second - 1) * SECOND + part * SECOND // 20
        held = _holding(placement, host.chip(true))
        # Before the first read of the wall clock nothing can be promised, and nothing is.
        assert (held.err_ns < 0) == bool(held.flags & SpanFlag.EXTRAPOLATED)
        assert held.err_ns < 0 or abs(held.at(host.chip(true)) - host.wall(true)) <= held.err_ns, (second, part)
    assert second == 1 or placement[-1].err_ns >= 0


@pytest.mark.unit
def test_a_chip_is_placed_on_the_wall_clock_within_its_bound() -> None:
    host, state = Host(), ClockState()
    last = 0
    for second, placement in enumerate(_seconds(state, host, 1, 60), 1):
        _check(host, placement, second)
        for part in range(20):
            now = _at(placement, host.chip((second - 1) * SECOND + part * SECOND // 20))[0]
            assert now > last
            last = now
        if second > 1:
            assert all(segment.flags == SpanFlag.UNSYNCED and segment.quality == "unsynced" for segment in placement)
    assert max(segment.err_ns for segment in placement) < 20_000


@pytest.mark.unit
@pytest.mark.parametrize("jump", [3 * SECOND, -4 * SECOND])
def test_a_wall_clock_that_is_set(jump: int) -> None:
    """The bound holds on both sides and in between; forward keeps order, back is counted."""
    host, state = Host([(29 * SECOND + 400_000_000, jump)]), ClockState()
    for second, placement in enumerate(_seconds(state, host, 1, 40), 1):
        _check(host, placement, second)
    assert state.counters["step_forward" if jump > 0 else "step_back"] == 1
    assert placement[-1].err_ns < 20_000


@pytest.mark.unit
@pytest.mark.parametrize("jump", [SECOND // 4, -15 * SECOND])
@pytest.mark.parametrize("steps", [1, 3, 9])
def test_batches_that_come_after_the_wall_clock_was_set_are_placed_as_it_stood(jump: int, steps: int) -> None:
    """A batch that was held back comes when its piece of the map is long forgotten: rows before a step must not be
    placed by the line after it. Of steps beyond those remembered the bound still tells."""
    host, state = Host([((20 + 5 * step) * SECOND + 400_000_000, jump) for step in range(steps)]), ClockState()
    _seconds(state, host, 1, 130)
    state = ClockState.load(json.loads(json.dumps(state.dump())))
    for second in (1, 5, *range(15, 75)):
        begin, end = host.chip((second - 1) * SECOND), host.chip(second * SECOND)
        placement = state.place(SOURCE, host.clock, begin, end, 0, 5)
        _check(host, placement, second)
        if second in (15, 23, 28, 50) and steps <= 3:
            assert all(segment.err_ns < 200_000_000 for segment in placement), "and not by a bound as wide as the step"


@pytest.mark.unit
def test_a_host_that_booted_in_1970_and_was_set_right() -> None:
    class Born(Host):
        def wall(self, true: int) -> int:
            return super().wall(true) - (EPOCH if true < 29 * SECOND + 400_000_000 else 0)

    host, state = Born(), ClockState()
    for second, placement in enumerate(_seconds(state, host, 1, 60), 1):
        if second in (30, 31):
            # It lies on either side of 55 years: no bound that says anything, and it says so.
            assert placement[0].err_ns < 0 or second == 30
            assert min(segment.err_ns for segment in placement) < 0
        else:
            _check(host, placement, second)
    assert state.counters["step_forward"] == 1
    assert 0 <= placement[-1].err_ns < 20_000


@dataclass
class _Shuffled:
    """A host of two chips whose wall clock is set up to three times, seldom enough that a read lies between; batches of
    both come out of order, some without snapshots, and a worker that may not wait for what follows places them."""

    seed: int
    wrong: list[tuple[int, int, int, int]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    settled: int = 0

    def run(self) -> None:
        rng = random.Random(self.seed)
        total = rng.choice([40, 60]) * SECOND
        sizes = [rng.choice([-1, 1]) * int(10 ** (5.3 + 5 * rng.random())) for _ in range(3)]
        moments = [[], [0.3], [0.2, 0.7], [0.15, 0.5, 0.85]][self.seed % 4]
        jumps = [(int((at + rng.random() * 0.1) * total), size) for at, size in zip(moments, sizes, strict=False)]
        hosts = [Host(jumps, chip_number=chip) for chip in (0, 1)]
        period = rng.choice([SECOND // 5, SECOND])
        walls = rng.choice([1.0, 0.5])
        batches = []
        for begin in range(0, total, period):
            for host in hosts:
                read = host.snapshots(begin + period + rng.randrange(2_000_000), rng.choice([500, 3_000, 50_000]))
                told = read if rng.random() < walls else read[:1]
                batches.append((host, begin, begin + period, told if rng.random() < 0.8 else []))
        delay = rng.choice([0, 2, 10, 60])
        order = sorted(range(len(batches)), key=lambda i: i + (rng.random() * delay if rng.random() < 0.5 else 0))
        queue = [batches[index] for index in order]
        share, patience = rng.choice([1, 3, 20]), rng.choice([0, 1, 5])
        state, held = ClockState(), []
        for epoch in range(len(queue) // share + 8):
            fresh = queue[epoch * share : (epoch + 1) * share]
            for _, _, _, told in fresh:
                state.take(SOURCE, told)
            todo, held = held + [(epoch, batch) for batch in fresh], []
            for since, batch in todo:
                host, begin, end, _ = batch
                followed = state.has_bracket_after(SOURCE, host.clock, host.chip(end))
                if not followed and epoch - since < patience:
                    held.append((since, batch))
                    continue
                self._compare(host, begin, end, state.place(SOURCE, host.clock, host.chip(begin), host.chip(end), 0))
            again = rng.random() < 0.3
            if self.seed % 3 == 0 and (again or epoch % 4 == 0):
                self._settled(hosts, state.take_maps(EPOCH).to_pylist(), total)
            if again:
                state = ClockState.load(json.loads(json.dumps(state.dump())))
        assert not held

    def _settled(self, hosts: list[Host], rows: list[dict[str, Any]], total: int) -> None:
        """What had no bound is placed again: what is told then holds, however the clock was set meanwhile."""
        raw, host = identity.epoch_id(SOURCE, RAW), hosts[0]
        for row in rows:
            if row["version"] == 1 or row["ref"]:
                continue
            assert (row["epoch"], row["version"], row["quality"]) == (raw, 2, "host-only")
            self.settled += 1
            for true in range(0, total, SECOND // 10):
                if row["valid_from"] <= UPTIME + true < row["valid_to"]:
                    off = row["y0"] + (UPTIME + true - row["x0"]) * row["n"] // row["d"] - host.wall(true)
                    if not abs(off) <= row["err_ns"]:
                        self.wrong.append((true, -1, off, row["err_ns"]))

    def _compare(self, host: Host, begin: int, end: int, placement: Placement) -> None:
        for part in range(10):
            true = begin + (end - begin) * part // 10
            tick = host.chip(true)
            segment = _holding(placement, tick)
            blind = bool(segment.flags & SpanFlag.EXTRAPOLATED)
            assert blind == (segment.quality == "extrapolated")
            assert segment.err_ns < 0 or not blind
            self.rows["blind" if blind else "unknown" if segment.err_ns < 0 else "stated"] += 1
            if segment.err_ns >= 0 and abs(segment.at(tick) - host.wall(true)) > segment.err_ns:
                self.wrong.append((true, host.chip_number, segment.at(tick) - host.wall(true), segment.err_ns))


@pytest.mark.property
def test_what_is_stated_holds_however_a_clock_is_set_and_batches_are_shuffled() -> None:
    rows, settled = Counter[str](), 0
    for seed in range(60):
        world = _Shuffled(seed)
        world.run()
        assert not world.wrong, (seed, len(world.wrong), world.wrong[:3])
        rows += world.rows
        settled += world.settled
    assert settled > 50
    # Most of it can be stated, though half of these workers do not wait for a read.
    assert rows["stated"] > 3 * rows["blind"] > 0


@pytest.mark.unit
def test_rows_wait_for_a_read_of_the_wall_clock_too() -> None:
    host, state = Host(), ClockState()
    state.take(SOURCE, host.snapshots(SECOND))
    chip_only = host.snapshots(2 * SECOND)[:1]
    state.take(SOURCE, chip_only)
    assert state.has_bracket_after(SOURCE, host.clock, host.chip(SECOND))
    assert not state.has_bracket_after(SOURCE, host.clock, host.chip(2 * SECOND))
    placement = state.place(SOURCE, host.clock, host.chip(SECOND // 2), host.chip(2 * SECOND), 0)
    assert [(segment.quality, segment.err_ns) for segment in placement] == [("extrapolated", -1)]
    state.take(SOURCE, host.snapshots(3 * SECOND))
    assert state.has_bracket_after(SOURCE, host.clock, host.chip(2 * SECOND))
    placement = state.place(SOURCE, host.clock, host.chip(SECOND) + 10_000, host.chip(2 * SECOND), 0)
    assert [segment.quality for segment in placement] == ["unsynced"]


@pytest.mark.unit
def test_a_wall_clock_that_is_slewed_by_500_ppm_stays_inside_the_bound() -> None:
    class Slewed(Host):
        def wall(self, true: int) -> int:
            begin, end = 20 * SECOND + 300_000_000, 35 * SECOND
            return super().wall(true) + max(min(true, end) - begin, 0) * 500 // 10**6

    host, state = Slewed(), ClockState()
    for second, placement in enumerate(_seconds(state, host, 1, 60), 1):
        _check(host, placement, second)
    assert state.counters["step_forward"] == 0


@pytest.mark.unit
def test_a_reset_is_another_epoch_and_the_old_one_keeps_its_map() -> None:
    host, state = Host(), ClockState()
    before = _seconds(state, host, 1, 20)[-1]
    host.resets = 1
    state.take(SOURCE, host.snapshots(30 * SECOND))
    after = state.place(SOURCE, host.clock, host.chip(29 * SECOND), host.chip(30 * SECOND), 0, 5)
    host.resets = 0
    again = state.place(SOURCE, host.clock, host.chip(18 * SECOND), host.chip(19 * SECOND), 0, 5)
    assert {segment.map for segment in again} & {segment.map for segment in before}
    assert not {segment.map for segment in after} & {segment.map for segment in before}


@pytest.mark.unit
def test_without_any_snapshot_rows_are_placed_by_when_they_were_sent_and_say_so() -> None:
    state, host = ClockState(), Host()
    placement = state.place(SOURCE, host.clock, 1000, 2000, EPOCH, 5)
    (segment,) = placement
    assert segment.at(2000) == EPOCH
    assert segment.at(1200) == EPOCH - 1000
    assert segment.err_ns == -1
    assert segment.flags == SpanFlag.UNSYNCED | SpanFlag.NO_DEVICE_CLOCK
    (later,) = ClockState.load(state.dump()).place(SOURCE, host.clock, 5000, 6000, EPOCH + 7 * SECOND, 5)
    assert later.at(5000) - segment.at(1000) == 5000
    assert not state.has_bracket_after(SOURCE, host.clock, 0)
    assert state.counters["without_clock"] == 1


@pytest.mark.unit
def test_a_chip_without_snapshots_on_a_host_with_them_is_flagged_too() -> None:
    state, host = ClockState(), Host()
    state.take(SOURCE, host.snapshots(SECOND)[1:])
    (segment,) = state.place(SOURCE, host.clock, 0, 10, EPOCH, 5)
    assert segment.flags & SpanFlag.NO_DEVICE_CLOCK


@pytest.mark.unit
def test_host_clocks() -> None:
    """Rows in wall time are the fleet's as they are; rows in the counter's ticks go through the wall line."""
    state, host = ClockState(), Host()
    for second in range(10):
        state.take(SOURCE, host.snapshots(second * SECOND))
    (wall,) = state.place(SOURCE, WALL, EPOCH, EPOCH + 10, 0)
    assert (wall.at(EPOCH + 5), wall.err_ns) == (EPOCH + 5, 0)
    raw = state.place(SOURCE, RAW, UPTIME + 8 * SECOND, UPTIME + 9 * SECOND, 0)
    stated, err = _at(raw, UPTIME + 8 * SECOND + 77)
    assert abs(stated - host.wall(8 * SECOND + 77)) <= err < 20_000
    assert state.has_bracket_after(SOURCE, RAW, UPTIME + 9 * SECOND)
    assert not state.has_bracket_after(SOURCE, RAW, UPTIME + 9 * SECOND + 501)


@pytest.mark.unit
def test_a_worker_that_restarts_goes_on_as_if_it_had_not() -> None:
    host, whole, parts = Host([(15 * SECOND, SECOND)]), ClockState(), ClockState()
    for second in range(1, 30):
        parts = ClockState.load(json.loads(json.dumps(parts.dump())))
        assert _seconds(whole, host, second, second + 1) == _seconds(parts, host, second, second + 1)
    assert whole.dump() == parts.dump()
    assert ClockState.load(None).dump() == ClockState().dump()


@pytest.mark.unit
def test_false_snapshots_are_counted() -> None:
    host, state = Host(), ClockState()
    flagged, turned, nameless = (host.snapshots(SECOND)[0] for _ in range(3))
    flagged.flags = ClockFlag.SUSPECT
    turned.ref_after = turned.ref_before - 1
    nameless.ref.clock = ""
    beyond = host.snapshots(2 * SECOND)[0]
    beyond.ref_after = (1 << 62) + 1
    refused = state.take(SOURCE, [flagged, turned, nameless, beyond])
    assert state.counters == {"flagged": 1, "inverted": 2, "impossible": 1}
    assert [(snapshot, why.split()[0]) for snapshot, why in refused] == [
        (turned, "the"), (nameless, "the"), (beyond, "a"),
    ]  # fmt: skip


@pytest.mark.unit
def test_a_counter_that_stands_still_or_runs_back_is_told_of_once() -> None:
    host, state = Host(), ClockState()
    _seconds(state, host, 1, 10)
    told = []
    for second in range(10, 20):
        (snapshot, _) = host.snapshots(second * SECOND)
        snapshot.value = host.chip(9 * SECOND) - (5 if second >= 15 else 0)
        state = ClockState.load(json.loads(json.dumps(state.dump())))
        told += [why for _, why in state.take(SOURCE, [snapshot])]
    assert [why.split()[2] for why in told] == ["shows", "ran"]
    assert (state.counters["stuck"], state.counters["backward"]) == (5, 5)
    assert state.take(SOURCE, host.snapshots(20 * SECOND)) == []


@pytest.mark.unit
def test_each_segment_is_told_once_and_places_rows_as_it_did() -> None:
    host, state = Host(), ClockState()
    placed = _seconds(state, host, 1, 30)
    table = state.take_maps(123)
    rows = {row["map"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    for placement in placed:
        for segment in placement:
            row = rows[segment.map]
            assert (row["x0"], row["y0"], row["n"], row["d"]) == (segment.x0, segment.y0, segment.n, segment.d)
            assert (row["err_ns"], row["device"], row["clock"], row["seen_ns"]) == (segment.err_ns, 5, "gtc", 123)
            assert row["epoch"] == identity.epoch_id(SOURCE, host.clock)
            assert row["host"] == identity.host_id("c", "h")
            assert 0 < row["n"] < 1 << 31
            assert 0 < row["d"] < 1 << 31
    assert state.take_maps(124).num_rows == 0


@pytest.mark.unit
def test_counters_have_maps_to_the_raw_clock_live_and_final() -> None:
    """What a row was written with goes to the wall clock; beside it the counter's own map goes to `monotonic_raw`,
    first as it is used, then for good, and holds whatever the wall clock did."""
    host, state = Host([(200 * SECOND, 7 * SECOND)]), ClockState()
    rows = []
    for second in range(1, 1_000):
        state = ClockState.load(json.loads(json.dumps(state.dump())))
        _seconds(state, host, second, second + 1)
        rows += [row for row in state.take_maps(EPOCH + second * SECOND).to_pylist() if row["clock"] == "gtc"]
    raw = identity.epoch_id(SOURCE, RAW)
    counter = [row for row in rows if row["ref"]]
    final = [row for row in counter if row["final"]]
    assert {row["ref"] for row in counter} == {raw}
    assert len({row["map"] for row in counter if not row["final"]}) < 12
    assert {row["quality"] for row in counter} == {"guaranteed"}
    assert {row["device"] for row in final} == {identity.device_id("chip-0")}
    assert {row["version"] for row in counter if not row["final"]} == {1}
    assert all(row["version"] >= EPOCH // (10 * SECOND) for row in final)
    assert 6 <= len(final) <= 9
    for before, after in itertools.pairwise(final):
        assert before["valid_to"] == after["valid_from"]
    for row in final:
        assert -row["lo_ns"] == row["hi_ns"] == row["err_ns"] < 10_000
    for true in range(2 * SECOND, 700 * SECOND, 333_333_333):
        tick = host.chip(true)
        (row,) = [row for row in final if row["valid_from"] <= tick < row["valid_to"]]
        assert abs(row["y0"] + (tick - row["x0"]) * row["n"] // row["d"] - UPTIME - true) <= row["err_ns"]


@pytest.mark.unit
def test_the_counter_the_kernel_keeps_time_by_is_bounded_to_the_width_of_its_reads() -> None:
    """monotonic_raw is computed from the TSC: no slew to allow for, so 1 Hz and 50 ns give 50 ns in between too."""
    state = ClockState()
    tsc = ClockEpoch(clock="tsc", period_num=200_000, period_den=489_080, width_bits=64)
    for second in range(1, 400):
        counter = second * 2_445_400_000 + second * 2_445
        before = second * SECOND - 20 - second % 7
        state.take(SOURCE, [ClockSnapshot(clock=tsc, ref=RAW, value=counter, ref_before=before, ref_after=before + 50)])
    final = [row for row in state.take_maps(EPOCH).to_pylist() if row["final"]]
    assert final
    assert all(row["err_ns"] <= 60 for row in final)


@pytest.mark.unit
def test_the_state_of_a_host_with_four_chips_is_small() -> None:
    """100 such hosts: ~120 kB, kept as an object of its own beside the manifest (inline up to 64 kB)."""
    state, host = ClockState(), Host()
    for second in range(1, 200):
        for chip in range(4):
            snapshot = host.snapshots(second * SECOND + chip * 1_000_003)
            snapshot[0].clock.device = f"chip-{chip}"
            state.take(SOURCE, snapshot)
            clock = snapshot[0].clock
            state.place(SOURCE, clock, host.chip((second - 1) * SECOND), host.chip(second * SECOND), 0, chip)
    assert len(json.dumps(state.dump())) < 5 * 300


def _false(host: Host, what: str, true: int) -> ClockSnapshot:
    """A snapshot nobody should have sent."""
    chip, wall = host.snapshots(true)
    day = 86_400 * SECOND
    if what == "wall, a counter of tomorrow":
        wall.ref_before, wall.ref_after = wall.ref_before + day, wall.ref_after + day
    elif what == "wall, a counter of the year 2116":
        wall.ref_before, wall.ref_after = 1 << 62, (1 << 62) + 1000
    elif what == "chip, a counter of tomorrow":
        chip.ref_before, chip.ref_after = chip.ref_before + day, chip.ref_after + day
    elif what == "chip, a tick of the year 2116":
        chip.value = 1 << 62
    return wall if what.startswith("wall") else chip


FALSE = (
    "wall, a counter of tomorrow", "wall, a counter of the year 2116", "chip, a counter of tomorrow",
    "chip, a tick of the year 2116",
)  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("what", FALSE)
@pytest.mark.parametrize("after", [0, 1, 40])
def test_one_false_snapshot_is_not_the_last_that_is_believed(what: str, after: int) -> None:
    host, state = Host(), ClockState()
    _seconds(state, host, 1, after)
    state.take(SOURCE, [_false(host, what, (after or 1) * SECOND)])
    for second in range(after + 1, after + 40):
        state.take(SOURCE, host.snapshots(second * SECOND))
        begin, end = host.chip((second - 1) * SECOND), host.chip(second * SECOND)
        placement = state.place(SOURCE, host.clock, begin, end, host.wall(second * SECOND), 5)
        if placement[0].err_ns >= 0:
            _check(host, placement, second)
    assert 0 <= placement[-1].err_ns < 30_000
    assert state.has_bracket_after(SOURCE, host.clock, end)


@pytest.mark.unit
@pytest.mark.parametrize("end", [86_400 * SECOND, 1 << 61])
@pytest.mark.parametrize("wall", [True, False])
def test_one_batch_of_a_range_to_come_does_not_fix_the_map_until_then(end: int, wall: bool) -> None:
    host, state = Host(), ClockState()
    _seconds(state, host, 1, 20)
    clock = RAW if wall else host.clock
    begin = UPTIME + 19 * SECOND if wall else host.chip(19 * SECOND)
    far = state.place(SOURCE, clock, begin, begin + end, host.wall(19 * SECOND), 5)
    assert far[-1].err_ns == -1 or far[-1].err_ns > SECOND // 10
    for second in range(20, 60):
        state.take(SOURCE, host.snapshots(second * SECOND))
        begin, last = host.chip((second - 1) * SECOND), host.chip(second * SECOND)
        placement = state.place(SOURCE, host.clock, begin, last, host.wall(second * SECOND), 5)
        _check(host, placement, second)
    assert 0 <= placement[-1].err_ns < 30_000
