"""When windows open and how long they stay, against DESIGN 5 worked out by hand."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetscope.agents.profiler import placement
from fleetscope.agents.profiler.placement import Length
from fleetscope.agents.profiler.protocol import Stretch
from fleetscope.agents.profiler.windows import MEASURED
from fleetscope.pipelines.coordinate import cadence
from fleetscope.schema import wire_pb2 as wire

MS = 1_000_000


def _fnv1a(data: bytes) -> int:
    """Checked below against the published value of "a"."""
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def _splitmix64(seed: int, count: int) -> list[int]:
    """The generator as a stream: state += golden ratio, then mix. Checked below against its published first outputs."""
    out = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((seed ^ seed >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) % 2**64
        out.append(mixed ^ mixed >> 31)
    return out


@pytest.mark.unit
def test_the_hash_is_splitmix64_seeded_by_fnv1a() -> None:
    assert _fnv1a(b"a") == 0xAF63DC4C8601EC8C
    assert _splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [placement.fingerprint("a", block) for block in range(5)] == _splitmix64(0xAF63DC4C8601EC8C, 5)


@pytest.mark.property
@given(run=st.text(max_size=20), power=st.integers(1, 14), block=st.integers(0, 1 << 40))
def test_a_block_has_one_opening_in_its_first_half(run: str, power: int, block: int) -> None:
    every = 2**power
    step, delay = placement.opening(run, every, block)
    assert block * every <= step < block * every + every // 2
    assert 0 <= delay < 1
    assert placement.next_opening(run, every, step - 1) == (step, delay)
    assert placement.next_opening(run, every, step)[0] == placement.opening(run, every, block + 1)[0]


@pytest.mark.property
@settings(max_examples=20)
@given(
    run=st.text(max_size=20), power=st.integers(3, 10), starts=st.lists(st.integers(0, 5_000), min_size=2, max_size=5)
)
def test_ranks_that_joined_at_different_steps_open_at_the_same_ones(run: str, power: int, starts: list[int]) -> None:
    def openings(step: int) -> set[tuple[int, float]]:
        found = set()
        while step < 10_000:
            step, delay = placement.next_opening(run, 2**power, step)
            if step >= 6_000:
                found.add((step, delay))
        return found

    assert len({frozenset(openings(start)) for start in starts}) == 1


@pytest.mark.unit
def test_delays_and_steps_are_spread_evenly() -> None:
    openings = [placement.opening("run", 256, block) for block in range(4_000)]
    for values in ([delay for _, delay in openings], [step % 256 / 128 for step, _ in openings]):
        quarters = [sum(low <= value * 4 < low + 1 for value in values) for low in range(4)]
        assert all(abs(count - 1_000) < 120 for count in quarters)  # 4.4 standard deviations of a fair draw


@pytest.mark.property
@given(
    run=st.text(max_size=20), power=st.integers(1, 14), group=st.integers(0, 1 << 30), strata=st.sampled_from((2, 8))
)
def test_successive_windows_visit_every_part_of_a_step_once(run: str, power: int, group: int, strata: int) -> None:
    openings = [placement.opening(run, 2**power, group * strata + part, strata) for part in range(strata)]
    assert sorted(int(delay * strata) for _, delay in openings) == list(range(strata))
    # The step is the plain rule's: only the phase within it is arranged.
    plain = [placement.opening(run, 2**power, group * strata + part) for part in range(strata)]
    assert [step for step, _ in openings] == [step for step, _ in plain]


@pytest.mark.unit
def test_stratified_phases_are_even_and_their_order_is_not_fixed() -> None:
    delays = [placement.opening("run", 16, block, 8)[1] for block in range(4_000)]
    quarters = [sum(low <= delay * 4 < low + 1 for delay in delays) for low in range(4)]
    assert quarters == [1_000] * 4
    orders = {tuple(int(delay * 8) for delay in delays[at : at + 8]) for at in range(0, 4_000, 8)}
    assert len(orders) > 20  # 4 multipliers x 8 offsets = 32 of the 40 320 there are
    # The mean of 8 phases of a step spreads as 1/sqrt(12 * 8 * 64): each is even within an eighth.
    means = [sum(delays[at : at + 8]) / 8 for at in range(0, 4_000, 8)]
    spread = (sum((mean - 0.5) ** 2 for mean in means) / len(means)) ** 0.5
    assert spread == pytest.approx((1 / (12 * 8 * 64)) ** 0.5, rel=0.15)


@pytest.mark.unit
def test_the_next_opening_of_several_stretches() -> None:
    stretches = (Stretch(128, 256, 64), Stretch(512, 1024, 128))
    wanted = [(*placement.opening("run", 64, block), 64) for block in (2, 3)]
    wanted += [(*placement.opening("run", 128, block), 128) for block in (4, 5, 6, 7)]
    found, after = [], 0
    while (opening := placement.next_in("run", stretches, after)) is not None:
        found.append(opening)
        after = opening.step
    assert found == wanted
    assert placement.next_in("run", (), 5) is None
    assert placement.next_in("run", stretches, 1023) is None


@pytest.mark.unit
@pytest.mark.parametrize(
    ("period_ms", "window_ms", "budget", "wanted"),
    [(1000, 0, 0.005, 64), (1000, 320, 0.005, 64), (1000, 321, 0.005, 128), (1000, 5_000, 0.005, 1024)],
)
def test_steps_between_windows_that_cost(period_ms: int, window_ms: int, budget: float, wanted: int) -> None:
    """64 steps of 1 s at 0.5 % may cost 320 ms a window."""
    assert placement.steps_between(60, period_ms * MS, window_ms * MS, budget) == wanted


@pytest.mark.unit
def test_the_coordinator_goes_by_the_same_rule() -> None:
    """Neither can import the other, so it stands twice: here for one rank, in the coordinator for several."""
    assert (cadence.LONG_STEP_NS, cadence.STRATA) == (placement.LONG_STEP_NS, placement.STRATA)
    assert cadence.STALLS_MEASURED == MEASURED
    for period_ms, stall_ms, window_s, budget in itertools.product(
        (1, 60, 300, 2_500), (0, 3, 320, 321, 5_000), (0.1, 5, 60), (0.001, 0.005)
    ):
        report = wire.RankReport(period_ns=period_ms * MS, stalls=MEASURED, stall_ns=stall_ms * MS)
        every = placement.steps_between(window_s, period_ms * MS, stall_ms * MS, budget)
        assert cadence.steps_between(window_s, budget, [cadence.Rank(report, 0.0)]) == every


@pytest.mark.unit
@pytest.mark.parametrize(
    ("window_s", "period_ms", "wanted"),
    [(60, 60, 1024), (5, 60, 128), (5, 80, 64), (5, 300, 32), (5, 2_500, 2), (5, 60_000, 2), (60, 0, 0)],
)
def test_steps_between_windows_of_a_single_rank(window_s: float, period_ms: int, wanted: int) -> None:
    assert placement.steps_between(window_s, period_ms * MS) == wanted


@pytest.mark.unit
@pytest.mark.parametrize(
    ("longest_ms", "megabytes_s", "wanted"),
    [
        (20, 1, Length(200 * MS, False)),
        (100, 1, Length(400 * MS, False)),
        (300, 1, Length(1_200 * MS, False)),
        (20_000, 0.01, Length(30_000 * MS, False)),
        (300, 16, Length(250 * MS, True)),
        (20, 40, Length(100 * MS, True)),
        (300, 0, Length(200 * MS, True)),
        (0, 1, Length(2_000 * MS, False)),
    ],
)
def test_length_of_a_window(longest_ms: int, megabytes_s: float, wanted: Length) -> None:
    assert placement.length(longest_ms * MS, megabytes_s * 2**20, 4 << 20) == wanted


@pytest.mark.unit
def test_which_platforms_have_windows() -> None:
    allow = ("gpu/570.86/0.10.2", "tpu/*/0.10.2", "NVIDIA-H200/580.95/0.10.2")
    assert placement.window_allowed("cpu", "", "", "0.1", ())
    assert placement.window_allowed("gpu", "", "570.86", "0.10.2", allow)
    assert placement.window_allowed("tpu", "TPU-v6", "v6", "0.10.2", allow)
    assert placement.window_allowed("gpu", "NVIDIA-H200", "580.95", "0.10.2", allow)
    assert not placement.window_allowed("gpu", "NVIDIA-A100", "580.95", "0.10.2", allow)
    assert not placement.window_allowed("gpu", "", "570.86", "0.10.3", allow)
    assert not placement.window_allowed("gpu", "", "", "0.10.2", ())
    assert not placement.window_allowed("rocm", "", "1", "1", ("*/*",))


@pytest.mark.unit
def test_words_of_an_entry() -> None:
    from fleetscope.agents.profiler.identity import word_of

    assert word_of("NVIDIA H200") == "NVIDIA-H200"
    assert word_of("\nTFRT TPU v6 lite\nBuilt on Mar 4/2026 cl/12") == "TFRT-TPU-v6-lite-Built-on-Mar-4-2026-cl-12"
    assert word_of("") == ""
