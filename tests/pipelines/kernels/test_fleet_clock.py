"""The mathematics of the fleet's clock against other ways to the same numbers, and whole fleets against their truth."""

import importlib
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetscope.pipelines.align import constraints, edges, graph, kalman, steps, utc
from fleetscope.pipelines.align.fleet import FleetClock, Settings
from fleetscope.pipelines.align.observed import Wall
from fleetscope.pipelines.align.pairs import Pairs
from fleetscope.pipelines.align.steps import Kind

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SECOND = 1_000_000_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


# ---- edges


@pytest.mark.unit
def test_an_exchange_measures_and_bounds_the_offset_whatever_direction_it_was_asked_in() -> None:
    """b is 1000 ahead, 40 there and 60 back: midpoint off by (40 - 60) / 2 = -10, bounds 1000 + 40 and 1000 - 60."""
    there = np.array([[0.0, 1_040.0, 1_050.0, 110.0]])
    found = edges.samples(np.array([3]), np.array([7]), there)
    assert (found.z[0], found.upper[0], found.lower[0], found.round_trip[0]) == (990.0, 1_040.0, 940.0, 100.0)
    # The same path asked by the other one: 60 from 7 to 3, 40 back.
    turned = edges.samples(np.array([7]), np.array([3]), np.array([[1_000.0, 60.0, 70.0, 1_110.0]]))
    assert (turned.a[0], turned.b[0]) == (3, 7)
    assert (turned.z[0], turned.upper[0], turned.lower[0]) == (990.0, 1_040.0, 940.0)


@pytest.mark.unit
def test_a_line_is_drawn_by_the_quick_exchanges() -> None:
    """Offset 5 us, 200 ppb; half of the exchanges waited 1 ms one way."""
    rng = np.random.default_rng(1)
    t = np.sort(rng.uniform(-5, 5, 40)) * 1e9
    wait = np.where(np.arange(40) % 2, 1e6, rng.exponential(500, 40))
    ahead = 5_000 + 200e-9 * t
    p = np.stack([t, t + 20_000 + ahead + wait, t + 21_000 + ahead + wait, t + 41_000 + wait], axis=1)
    found = edges.samples(np.zeros(40, int), np.ones(40, int), p)
    made = edges.fit(found, np.array([1e5]), np.array([np.inf]))
    assert abs(made.offset[0] - 5_000) < 300
    assert abs(made.slope[0] - 200) < 150
    assert made.sigma[0] < 300


@pytest.mark.property
@given(st.integers(0, 10_000))
def test_what_is_proved_of_a_pair_holds_at_every_moment_of_the_hop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    t = np.sort(rng.uniform(-5e9, 5e9, count))
    rate, offset = rng.uniform(-2e-6, 2e-6), rng.uniform(-1e5, 1e5)
    there, back = rng.exponential(3e4, (2, count))
    turn = 1_000.0
    at = offset + rate * t
    p = np.stack([t, t + there + at, t + there + turn + at, t + there + back + turn], axis=1)
    # The offset moves a little while an exchange is under way: stamps as the clocks show them.
    p[:, 1] = t + there + offset + rate * (t + there)
    p[:, 2] = t + there + turn + offset + rate * (t + there + turn)
    found = edges.samples(np.zeros(count, int), np.ones(count, int), p)
    upper, lower = edges.envelopes(found, 10 * SECOND, np.array([2e-6]))
    moments = edges.grid(10 * SECOND)
    for shift in (-0.5e9, 0.0, 0.5e9):
        truth = offset + rate * (moments + shift)
        assert (lower[:, 0] - 1 <= truth).all()
        assert (truth <= upper[:, 0] + 1).all()


# ---- graph


def random_graph(seed: int, hosts: int, cell: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = np.repeat(np.arange(hosts), 3)
    b = (a + rng.integers(1, hosts, len(a))) % hosts
    if cell:
        inside = a // cell * cell + rng.integers(0, cell, len(a))
        b = np.where(np.arange(len(a)) % 48, inside, b)
    kept = (a != b) & (a < hosts) & (b < hosts)
    return a[kept], b[kept]


@pytest.mark.unit
@pytest.mark.parametrize(("hosts", "cell"), [(20, 0), (600, 0), (640, 32)])
def test_offsets_are_those_of_least_squares(hosts: int, cell: int) -> None:
    """Against numpy's dense solver. Residuals stay below the Huber limit, so all weights are as given."""
    rng = np.random.default_rng(hosts)
    a, b = random_graph(hosts, hosts, cell)
    truth = rng.normal(0, 1e6, hosts)
    sigma = rng.uniform(100, 1_000, len(a))
    z = truth[b] - truth[a] + rng.uniform(-1, 1, len(a)) * sigma * 0.5
    prior = np.full(hosts, 1e-12)
    made = graph.solve(hosts, a, b, z, sigma, prior, 1e-3)
    rows = np.zeros((len(a) + hosts, hosts))
    rows[np.arange(len(a)), b] += 1 / sigma
    rows[np.arange(len(a)), a] -= 1 / sigma
    rows[len(a) :] = np.eye(hosts) * 1e-6
    expected = np.linalg.lstsq(rows, np.concatenate([z / sigma, np.zeros(hosts)]), rcond=None)[0]
    assert np.abs((made.x - made.x.mean()) - (expected - expected.mean())).max() < 60
    assert made.steps < 400


@pytest.mark.unit
def test_a_pair_that_is_far_off_the_others_moves_nobody() -> None:
    a, b = random_graph(1, 30)
    z = np.zeros(len(a))
    z[5] = 1e6
    made = graph.solve(30, a, b, z, np.full(len(a), 100.0), np.full(30, 1e-9), 1_000.0)
    assert np.abs(made.x).max() < 3_000
    assert made.residual[5] > 9e5


# ---- constraints


@pytest.mark.property
@given(st.integers(0, 10_000), st.booleans())
def test_bounds_are_shortest_paths_and_contradictions_are_negative_cycles(seed: int, contradicts: bool) -> None:
    """Against Floyd and Warshall."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 9))
    a, b = random_graph(seed, nodes)
    truth = rng.uniform(-100, 100, nodes)
    slack = rng.uniform(0, 50, (2, 2, len(a)))
    apart = truth[b] - truth[a]
    upper, lower = apart + slack[0], apart - slack[1]
    if contradicts and len(a):
        upper[1, 0] = lower[1, 0] - 500
    facts = constraints.between(a, b, upper, lower)
    paths = np.full((2, nodes, nodes), np.inf)
    paths[:, np.arange(nodes), np.arange(nodes)] = 0
    for edge, (one, two) in enumerate(zip(facts.source, facts.target, strict=True)):
        paths[:, one, two] = np.minimum(paths[:, one, two], facts.width[:, edge])
    for middle in range(nodes):
        paths = np.minimum(paths, paths[:, :, [middle]] + paths[:, [middle], :])
    found = constraints.bounds(nodes, facts, 0)
    reachable = np.isfinite(paths[0, 0])
    if (np.diagonal(paths, axis1=1, axis2=2)[:, reachable] < -1).any():
        assert isinstance(found, constraints.Cycle)
        assert found.short_ns > 1
        costs = facts.width[found.grid]
        length = sum(
            costs[(facts.source == one) & (facts.target == two)].min()
            for one, two in itertools.pairwise((*found.nodes, found.nodes[0]))
        )
        assert length == pytest.approx(-found.short_ns)
    else:
        assert isinstance(found, constraints.Bounds)
        assert np.allclose(found.hi, paths[:, 0, :])
        assert np.allclose(found.lo, -paths[:, :, 0])


@pytest.mark.unit
def test_a_collective_ties_its_ranks_by_one_node() -> None:
    """Ranks enter at 0, 10 and 90 and leave at 100, 105, 130, in times that are true: nobody is ahead by more than its
    leaving lies behind the last to enter."""
    entries = constraints.Entries(np.zeros(3, int), np.arange(3), np.array([0.0, 10, 90]), np.array([100.0, 105, 130]))
    made = constraints.through_collectives(entries, 3, np.zeros(1), 0.0, np.zeros(3))
    found = constraints.bounds(4, made, 2)
    assert isinstance(found, constraints.Bounds)
    assert found.hi[0, :3].tolist() == [10, 15, 0]
    assert found.lo[0, :3].tolist() == [-130, -120, 0]
    wide = np.full(3, 1e3)
    assert constraints.impossible_by(entries, 1, -wide, wide)[0] < 0
    # The third rank is of another one: it entered a second later.
    wrong = constraints.Entries(entries.which, entries.host, np.array([0.0, 10, 1e9]), np.array([100.0, 105, 1e9 + 9]))
    # It left by 105 + 1000 at the latest, and another entered at 1e9 - 1000 at the earliest; 1 is for rounding.
    assert constraints.impossible_by(wrong, 1, -wide, wide)[0] == 1e9 - 1_000 - (100 + 1_000) - 1


# ---- kalman


@pytest.mark.unit
def test_filter_and_smoother_are_the_least_squares_of_the_same_model() -> None:
    """States of six hops of one host by one dense solution of all measurements and all dynamics."""
    rng = np.random.default_rng(4)
    hop, q, sigma, dt = 10 * SECOND, np.array([150.0]), np.array([300.0]), 10.0
    knot = kalman.Knot(np.array([5]), *(np.array([v]) for v in (0.0, 40.0, 1e10, 0.0, 1e8)))
    filtered, predicted, off = [], [], rng.normal(0, 300, 6)
    for number in range(6):
        if number:
            knot = kalman.predict(knot, hop, q)
        predicted.append(knot)
        knot = kalman.update(knot, off[number : number + 1], sigma, np.array([True]))
        filtered.append(knot)
    smooth = [knot]
    for number in range(4, -1, -1):
        smooth.insert(0, kalman.smooth(filtered[number], predicted[number + 1], smooth[0], hop))
    # Unknowns: (y, r) at each hop, taken from the predicted lines.
    rows, right = [], []

    def fact(coefficients: dict[int, float], value: float, weight: float) -> None:
        row = np.zeros(12)
        for index, factor in coefficients.items():
            row[index] = factor
        rows.append(row / weight)
        right.append(value / weight)

    fact({0: 1.0}, 0.0, 1e5)
    fact({1: 1.0}, 40.0, 1e4)
    root = np.linalg.inv(np.linalg.cholesky(q[0] * np.array([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]])))
    for number in range(6):
        fact({2 * number: 1.0}, float(predicted[number].y[0] - off[number]), 300.0)
    for number in range(5):
        before, after = filtered[number], predicted[number + 1]
        # y of the next hop is predicted y plus what y and r were off: x was chosen by the filtered state.
        for row in range(2):
            step = {
                2 * number: -root[row, 0],
                2 * number + 1: -root[row, 0] * dt - root[row, 1],
                2 * number + 2: root[row, 0],
                2 * number + 3: root[row, 1],
            }
            shift = float(after.y[0] - before.y[0] - dt * before.rate[0])
            fact(step, root[row, 0] * shift, 1.0)
    best = np.linalg.lstsq(np.array(rows), np.array(right), rcond=None)[0]
    assert [float(k.y[0]) for k in smooth] == pytest.approx(best[0::2].tolist(), abs=0.5)
    assert [float(k.rate[0]) for k in smooth] == pytest.approx(best[1::2].tolist(), abs=0.5)
    assert smooth[2].p00[0] < filtered[2].p00[0]


# ---- utc


@pytest.mark.unit
def test_utc_is_where_most_wall_clocks_overlap_and_the_others_are_outvoted() -> None:
    low, high = np.array([-10.0, -5, 0, 1_000]), np.array([10.0, 8, 20, 2_000])
    found = utc.agree(low, high)
    assert found is not None
    assert (found.lo_ns, found.hi_ns, found.agreeing) == (0, 8, (0, 1, 2))
    assert utc.agree(np.array([0.0, 100]), np.array([1.0, 101])) is None
    assert utc.agree(np.empty(0), np.empty(0)) is None
    assert utc.slew(utc.Offset(-5, 5, (0,)), 0.0, 1_000) == 0.0
    assert utc.slew(utc.Offset(2e5, 3e5, (0,)), 0.0, 1_000) == -200.0
    assert utc.slew(utc.Offset(-1e12, -1e11, (0,)), 0.0, 1_000) == 1_000.0


# ---- steps and pairs


@pytest.mark.unit
def test_the_fewest_hosts_that_explain_all_contradictions() -> None:
    a, b = np.array([0, 1, 2, 3, 0]), np.array([4, 4, 4, 4, 1])
    nobody = np.zeros(5, bool)
    assert steps.culprits(a, b, np.array([True, True, True, True, False]), nobody) == [4]
    assert steps.culprits(a, b, np.zeros(5, bool), nobody) == []
    # One pair alone: whoever leapt, else both.
    alone = np.array([False, False, False, False, True])
    assert steps.culprits(a, b, alone, nobody) == [0, 1]
    assert steps.culprits(a, b, alone, np.arange(5) == 1) == [1]


@pytest.mark.unit
def test_a_pair_remembers_what_its_path_leans_and_its_quickest_round_trip() -> None:
    pairs = Pairs()
    a, b = np.array([1, 2]), np.array([5, 3])
    for number in range(40):
        pairs.see(a, b, number)
        pairs.learn(a, b, np.array([2_000.0, -500.0]), np.array([90_000.0, 60_000.0 + number]))
    known = pairs.asymmetry()
    assert dict(zip(zip(known.a, known.b, strict=True), known.ns, strict=True)) == {(1, 5): 4_000.0, (2, 3): -1_000.0}
    assert pairs.quickest(a, b)[0] == 90_000.0
    assert [(worst.a.tolist(), worst.ns.tolist()) for worst in (known.worst(1), known.worst(9))] == [
        ([1], [4_000.0]),
        ([1, 2], [4_000.0, -1_000.0]),
    ]
    for number in range(40, 45):
        pairs.see(np.array([3]), np.array([4]), number)
        pairs.learn(np.array([3]), np.array([4]), np.array([9_000.0]), np.array([50_000.0]))
    assert pairs.asymmetry().worst(9).a.tolist() == [1, 2]  # met five times, it says nothing yet
    pairs.see(np.array([7]), np.array([8]), 200)
    assert len(pairs) == 1


# ---- fleets


@pytest.mark.unit
def test_hosts_of_a_fleet_agree_as_far_as_the_numbers_say(bench: Any) -> None:
    """benchmarks/clock_fleet.py, 7 minutes of 16 hosts: the budgets, and baselines that miss them by far."""
    module = bench("clock_fleet")
    facts, _ = module.measure(2, 420, 16)
    assert all(facts[name] <= budget for name, budget in module.BUDGETS.items()), facts
    assert facts["backwards"] == 0
    assert facts["single_anchor_max"] > 1_000
    assert facts["mean_of_midpoints_max"] > 1_000
    assert facts["first_and_last_max"] > 10


@pytest.mark.property
def test_the_truth_lies_in_every_guaranteed_interval(bench: Any) -> None:
    """benchmarks/clock_bounds.py, two runs of each fault; 10^3 and 10^4 are that command's."""
    module = bench("clock_bounds")
    for seed in range(2 * len(module.FAULTS)):
        fleet, fault, unjudged = module.any_fleet(seed)
        wrong, total = module.outside(fleet, unjudged)
        assert (wrong, fault) == (0, fault)
        assert total > 0


@pytest.mark.property
def test_steps_are_flagged_on_the_host_that_stepped(bench: Any) -> None:
    module = bench("clock_steps")
    assert [module.flagged(seed, size) for size in (50, 1_000) for seed in range(2)] == [(True, False)] * 4
    assert module.alarms(5, 300) == 0


def alike(runs: ModuleType, one: Any, two: Any) -> bool:
    return all(
        np.array_equal(getattr(one.provisional, name), getattr(two.provisional, name))
        for name in ("x0", "y0", "x1", "y1")
    )


@pytest.mark.fault
def test_order_and_lateness_of_what_is_told(bench: Any) -> None:
    """The same exchanges in another order are the same maps; what is an hour late is counted and changes nothing."""
    runs = bench("clock_runs")
    fleets = [runs.Fleet(4, 6, 60, collectives=None) for _ in range(2)]
    clocks = [FleetClock() for _ in fleets]
    first, old = runs.first_hop(fleets[0]), None
    for hop in range(6):
        results = []
        for turn, (fleet, clock) in enumerate(zip(fleets, clocks, strict=True)):
            runs.feed(clock, fleet, hop)
            a, b, stamps = clock.observed.exchanges()
            if hop == 0:
                old = (a, b, stamps)
            if turn:
                order = np.random.default_rng(hop).permutation(len(a))
                clock.observed.keep(np.zeros(len(a), bool))
                clock.observed.take_exchanges(a[order], b[order], stamps[order])
                if hop == 4:
                    clock.observed.take_exchanges(*old)
            results.append(clock.solve(first + hop))
        assert alike(runs, *results)
    assert clocks[0].counters["late"] < 5
    assert clocks[1].counters["late"] >= len(old[0])


@pytest.mark.fault
def test_a_host_without_peers_follows_its_wall_clock_and_promises_nothing(bench: Any) -> None:
    runs = bench("clock_runs")
    fleet = runs.Fleet(6, 5, 120, collectives=None)
    clock = FleetClock()
    alone, lost = clock.node(77), clock.node(78)
    for hop in range(10):
        runs.feed(clock, fleet, hop)
        raw = 5_000 * SECOND + (hop * 10 + 5) * SECOND
        realtime = runs.EPOCH_NS + (hop * 10 + 5) * SECOND + 123_456
        clock.observed.take_wall(Wall(alone, raw, realtime, 50, 1_000_000))
        clock.observed.take_wall(Wall(lost, raw, realtime, 50, -1))
        result = clock.solve(runs.first_hop(fleet) + hop)
    pieces = result.provisional
    # One that has no peers and is not synchronized has no map at all.
    assert lost not in pieces.node
    at = pieces.node.tolist().index(alone)
    assert not result.proved.guaranteed[result.proved.node.tolist().index(alone)]
    assert result.proved.guaranteed.sum() == 5
    assert pieces.sigma[at] > 100_000
    raw = int(pieces.x0[at])
    assert abs(int(pieces.y0[at]) - (runs.EPOCH_NS + raw - 5_000 * SECOND + 123_456)) < 1_000_000


@pytest.mark.fault
def test_collectives_of_hops_in_which_nothing_is_proved_do_not_pile_up() -> None:
    """One host, or probes that are blocked: no exchange ever, a collective a second."""
    clock = FleetClock()
    alone, unheard = clock.node(1), clock.node(2)
    hop_ns = clock.settings.hop_ns
    for hop in range(8):
        middle = clock.middle(180_000_000 + hop)
        for second in range(-5, 5):
            raw = middle + second * SECOND
            clock.observed.take_collective(3, hop * 10 + second, alone, raw, raw + 1_000, 100)
        clock.observed.take_wall(Wall(alone, middle, middle, 50, 1_000))
        clock.solve(180_000_000 + hop)
    held = clock.observed.entries(clock.knot, 1_000 * hop_ns)[0]
    assert len(held.host) <= 10
    late = clock.node(3)
    assert clock.stated_all({unheard: 5, alone: middle, late: 5}) == [clock.stated(alone, middle)]
    assert clock.stated(alone, middle) == pytest.approx(middle, abs=1_000)


@pytest.mark.fault
@pytest.mark.parametrize(
    "wrong", [64 * SECOND, -64 * SECOND, -runs_epoch if (runs_epoch := 1_800_000_000 * SECOND) else 0]
)
def test_a_wall_clock_that_is_set_moves_nobody(bench: Any, wrong: int) -> None:
    """One host's REALTIME steps by 64 s, or to 1970, and it goes on calling it synchronized: it is outvoted."""
    runs = bench("clock_runs")
    quiet, disturbed = (runs.Fleet(8, 6, 100, collectives=None) for _ in range(2))
    clocks = FleetClock(), FleetClock()
    for hop in range(8):
        results = []
        for clock, fleet in zip(clocks, (quiet, disturbed), strict=True):
            runs.feed(clock, fleet, hop)
            if clock is clocks[1] and hop >= 4:
                wall = clock.observed.walls[2]
                clock.observed.walls[2] = Wall(2, wall.raw_ns, wall.realtime_ns + wrong, 0, wall.max_error_ns)
            results.append(clock.solve(runs.first_hop(fleet) + hop))
        assert alike(runs, *results)
    assert sorted(results[1].utc.agreeing) == [0, 1, 3, 4, 5]
    assert not results[1].verdicts


@pytest.mark.fault
def test_a_leap_second_is_led_back_slowly_and_alike_for_all(bench: Any) -> None:
    """All wall clocks are set back by 1 s: fleet time goes on, at most 1 ppm slower, and hosts stay together."""
    runs = bench("clock_runs")
    fleet = runs.Fleet(9, 6, 120, collectives=None)
    clock = FleetClock(Settings(utc_slew_ppb=1_000))
    for hop in range(11):
        runs.feed(clock, fleet, hop)
        if hop >= 5:
            for node, wall in list(clock.observed.walls.items()):
                clock.observed.walls[node] = Wall(node, wall.raw_ns, wall.realtime_ns - SECOND, 0, wall.max_error_ns)
        result = clock.solve(runs.first_hop(fleet) + hop)
    assert result.utc.lo_ns > 0.9e9
    assert not [v for v in result.verdicts if v.kind is Kind.STEP]
    judged = runs.judge(fleet, result.provisional, 0.5)
    assert np.ptp(judged.error) < 10_000
    # 5 hops of 10 s at 1 ppm are 50 us, not a second.
    assert -80_000 < judged.error.mean() - fleet.wall.mean() < 2 * fleet.max_error_ns
    assert result.proved.guaranteed.all()


@pytest.mark.fault
def test_a_machine_that_was_up_for_400_days_loses_no_nanosecond(bench: Any) -> None:
    runs = bench("clock_runs")
    fleet = runs.Fleet(10, 4, 90, collectives=None, days_up=400.0)
    fleet.crystals.start += 300 * 86_400 * SECOND
    *_, (_, _, result) = runs.run(fleet)
    pieces = result.provisional
    assert (pieces.x0 > 300 * 86_400 * SECOND).all()
    assert np.ptp(runs.judge(fleet, pieces, 0.3).error) < 10_000
    for index in range(len(pieces.node)):
        n, d = pieces.slope(index)
        end = int(pieces.y0[index]) + int(pieces.x1[index] - pieces.x0[index]) * n // d
        assert 0 <= int(pieces.y1[index]) - end <= 2
