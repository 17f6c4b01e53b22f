"""Windows of a device nobody reads, against simulated launches whose truth is known; and through a host's clocks."""

import base64
import importlib
import json
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from fleetscope.pipelines.align.clocks import CLOCKS_A_HOST, ClockState
from fleetscope.pipelines.align.enqueue import place_window, shared
from fleetscope.pipelines.align.piece import Bracket, widen
from fleetscope.schema import identity
from fleetscope.schema.vocabulary import ClockFlag, SpanFlag
from fleetscope.schema.wire_pb2 import ClockEpoch, ClockSnapshot, Source

SECOND = 10**9
BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
NOMINAL = widen((1, 1), 200_000)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """benchmarks/clock_device.py."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("clock_device")


@pytest.mark.property
def test_the_interval_holds_the_truth(device: ModuleType) -> None:
    """20 pairs, launches of 46 us and more: in at least 95 of 100 windows the truth is inside all along."""
    for name, given in device.WINDOWS.items():
        found = device.windows(60, **given)
        assert found["inside"] >= 0.95, (name, found)
        assert found["unplaced"] <= 3, (name, found)
        assert found["error_p50_us"] < found["interval_p50_us"] < 250, (name, found)


def _pairs(offset: int, delays: list[tuple[int, int]]) -> list[Bracket]:
    """Programs a millisecond apart; (enqueued so long before, told complete so long after)."""
    return [Bracket(x * 10**6, x * 10**6 + offset - a, x * 10**6 + offset + b) for x, (a, b) in enumerate(delays)]


@pytest.mark.unit
def test_the_line_lies_in_the_middle_of_what_the_tightest_pairs_leave() -> None:
    placed = place_window(_pairs(5_000, [(900, 300), (50, 800), (700, 70)]), NOMINAL, 0, 2_000_000)
    assert placed is not None
    # Offset in [4 950, 5 070]; 200 ppm over 2 ms are 400 ns.
    assert abs(placed.piece.floor_at(1_000_000) - 1_005_010) <= 210
    assert 60 <= placed.piece.err <= 60 + 2 * 400


@pytest.mark.unit
def test_pairs_that_contradict_the_others_are_left_out_and_a_tie_places_nothing() -> None:
    right = [(50, 60), (80, 90), (40, 70)]
    wrong = Bracket(3_000_000, 3_700_000, 3_700_100)
    placed = place_window([*_pairs(0, right), wrong], NOMINAL, 0, 4_000_000)
    assert placed is not None
    assert abs(placed.piece.floor_at(0)) < 2_000
    assert place_window([*_pairs(0, right[:1]), wrong], NOMINAL, 0, 4_000_000) is None
    assert place_window([], NOMINAL, 0, 1) is None
    (inverted,) = _pairs(0, [(-10, -10)])
    assert place_window([inverted], NOMINAL, 0, 1) is None


@pytest.mark.unit
def test_what_windows_of_a_slice_allow_is_shared_until_they_contradict() -> None:
    ppm = 10**6
    one, two = ((ppm + 10, ppm), (ppm + 30, ppm)), ((ppm + 20, ppm), (ppm + 90, ppm))
    low, high = shared([one, two], NOMINAL)
    assert low[0] / low[1] == pytest.approx(1 + 20e-6 - 1e-6, abs=1e-8)
    assert high[0] / high[1] == pytest.approx(1 + 30e-6 + 1e-6, abs=1e-8)
    assert shared([one, ((ppm + 40, ppm), (ppm + 50, ppm))], NOMINAL) == NOMINAL
    assert shared([], NOMINAL)[0][0] / shared([], NOMINAL)[0][1] == pytest.approx(1 - 200e-6)


SOURCE = Source(cluster="c", host="h", boot_id="b", pid=7, start_ticks=9, incarnation=1)
RAW = ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
WALL = ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)
UNIX = 1_753_000_000 * SECOND


def _wall(raw: int) -> ClockSnapshot:
    return ClockSnapshot(clock=WALL, ref=RAW, value=UNIX + raw, ref_before=raw - 20, ref_after=raw + 20)


def _told(clock: ClockEpoch, zero: int) -> list[ClockSnapshot]:
    return [
        ClockSnapshot(
            clock=clock, ref=RAW, value=x * 8_000_000, flags=ClockFlag.PAIRED,
            ref_before=zero + x * 10_000_000 - 50_000 - x * 100, ref_after=zero + x * 10_000_000 + 60_000 + x * 100,
        )
        for x in range(20)
    ]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("late", [False, True])
def test_a_tpu_window_is_placed_by_its_pairs_statistically(late: bool) -> None:
    """Its pairs may come behind its rows: what was placed without them is placed again."""
    clock = ClockEpoch(clock="tpu_raw", device="chip", period_num=5, period_den=4, width_bits=64, resets=3)
    state, zero = ClockState(), 900 * SECOND
    state.take(SOURCE, [_wall(raw) for raw in range(890 * SECOND, 900 * SECOND, SECOND)])
    if late:
        (blind,) = state.place(SOURCE, clock, 0, 160_000_000, UNIX + 905 * SECOND, 5)
        assert blind.err_ns == -1
        assert blind.flags & SpanFlag.NO_DEVICE_CLOCK
        assert all(row["version"] == 1 for row in state.take_maps(1).to_pylist())
    state = ClockState.load(json.loads(json.dumps(state.dump())))
    state.take(SOURCE, _told(clock, zero))
    assert not state.has_bracket_after(SOURCE, clock, 160_000_000), "the wall clock was not read behind it yet"
    state.take(SOURCE, [_wall(raw) for raw in range(901 * SECOND, 905 * SECOND, SECOND)])
    assert state.has_bracket_after(SOURCE, clock, 160_000_000)
    if not late:
        placement = state.place(SOURCE, clock, 0, 160_000_000, 0, 5)
        assert {segment.flags for segment in placement} == {SpanFlag.UNSYNCED}
        for segment in placement:
            assert abs(segment.at(80_000_000) - UNIX - zero - 100_000_000) <= segment.err_ns < 150_000
    rows = [row for row in state.take_maps(905 * SECOND).to_pylist() if row["version"] > 1]
    (counter,) = [row for row in rows if row["clock"] == "tpu_raw"]
    assert (counter["quality"], counter["method"], counter["ref"]) == (
        "statistical", "enqueue", identity.epoch_id(SOURCE, RAW),
    )  # fmt: skip
    assert (counter["lo_ns"], counter["hi_ns"]) == (0, 0), "proved is nothing"
    assert 0 < counter["sigma_ns"] < counter["err_ns"] < 150_000
    raw = counter["y0"] + (80_000_000 - counter["x0"]) * counter["n"] // counter["d"]
    assert abs(raw - zero - 100_000_000) <= counter["err_ns"]
    again = [row for row in rows if not row["ref"]]
    assert bool(again) is late, "the wall clock as it was then, for rows placed before it was known"
    for row in again:
        assert (row["epoch"], row["quality"]) == (identity.epoch_id(SOURCE, RAW), "host-only")
        assert row["valid_from"] <= zero
        assert abs(row["y0"] + (raw - row["x0"]) * row["n"] // row["d"] - UNIX - raw) <= row["err_ns"] < 10_000


def _rates(state: ClockState) -> list[tuple[str, list[object]]]:
    """As they travel."""
    *_, rates = json.loads(zlib.decompress(base64.b64decode(state.dump()["z"])))
    return [(name, windows) for name, windows in rates]


@pytest.mark.unit
def test_rates_are_remembered_of_clocks_that_are_known_alone() -> None:
    """A host whose clocks change their names all the time carries no more of them than CLOCKS_A_HOST."""
    state, zero = ClockState(), 900 * SECOND
    state.take(SOURCE, [_wall(raw) for raw in range(890 * SECOND, 905 * SECOND, SECOND)])
    for number in range(CLOCKS_A_HOST + 6):
        clock = ClockEpoch(clock=f"raw{number}", device="chip", period_num=5, period_den=4, width_bits=64)
        state.take(SOURCE, _told(clock, zero))
        state.place(SOURCE, clock, 0, 160_000_000, 0, 5)
    assert state.counters["window_placed"] == CLOCKS_A_HOST + 6
    # One of them is the host's own.
    assert sorted(name for name, _ in _rates(state)) == sorted(f"raw{n} 5/4" for n in range(7, CLOCKS_A_HOST + 6))


@pytest.mark.unit
def test_a_window_that_contradicts_itself_leaves_nothing_behind() -> None:
    clock = ClockEpoch(clock="tpu_raw", device="chip", period_num=1, period_den=1, width_bits=64)
    state = ClockState()
    state.take(SOURCE, [_wall(raw) for raw in range(SECOND, 9 * SECOND, SECOND)])
    state.take(
        SOURCE,
        [
            ClockSnapshot(clock=clock, ref=RAW, value=x, flags=ClockFlag.PAIRED, ref_before=at, ref_after=at + 50)
            for x, at in ((0, 3 * SECOND), (1_000_000, 4 * SECOND))
        ],
    )
    (blind,) = state.place(SOURCE, clock, 0, 2_000_000, UNIX, 5)
    assert (blind.err_ns, state.counters["window_contradicted"]) == (-1, 1)
    assert _rates(state) == []


@pytest.mark.unit
def test_what_a_capture_says_of_its_clock_is_never_called_guaranteed() -> None:
    clock = ClockEpoch(clock="tpu_raw", device="chip", period_num=5, period_den=4, width_bits=64)
    state = ClockState()
    state.take(SOURCE, [_wall(raw) for raw in range(10 * SECOND, 200 * SECOND, SECOND)])
    for second in range(190):
        at = (10 + second) * SECOND
        told = {"value": second * 800_000_000, "ref_before": at, "ref_after": at, "flags": ClockFlag.ESTIMATED}
        state.take(SOURCE, [ClockSnapshot(clock=clock, ref=RAW, **told)])
    state.place(SOURCE, clock, 0, 180 * 800_000_000, 0, 5)
    rows = [row for row in state.take_maps(1).to_pylist() if row["clock"] == "tpu_raw" and row["ref"]]
    assert {(row["quality"], row["lo_ns"], row["final"]) for row in rows} == {("statistical", 0, False)}
