"""The clock of the fleet, hop by hop: what hosts say of each other in, where every host's clock stands out.

Of each hop: exchanges -> a robust line a pair (edges) -> offsets of all hosts (graph) -> offset and rate carried on
(kalman) -> who stepped or lies (steps) -> what is proved (constraints) -> UTC beside it (utc). Nothing here reads a
clock or a log; the same input in the same order gives the same maps. docs/design/0021-one-clock.md.
"""

from collections import Counter, deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align import constraints as proofs
from fleetscope.pipelines.align import edges, graph, kalman, steps, utc
from fleetscope.pipelines.align.kalman import Knot
from fleetscope.pipelines.align.observed import Observed, Wall
from fleetscope.pipelines.align.pairs import Pairs
from fleetscope.pipelines.align.polyline import Pieces, beyond, pieces_between
from fleetscope.pipelines.align.steps import Kind, Verdict

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

UNKNOWN_NS2 = 1e29
SETTLED_PPB = 500.0
"""A host whose rate is known to this is judged; before, it is being learned."""
AXIS = 0.02
"""Of what is known of a host enters the next solution as a prior: enough to hold the axis, not to hold a host."""
LEAN_NS = 2_000.0
"""What paths lean to one side, before it is learned."""
SLOPE_LEAN_PPB = 5.0
"""How much more than noise the slopes of pairs differ from those of their hosts."""
RATE_SIGMAS = 5.0
"""Of the stated rates are added to the slew that proofs assume."""
RELEARN_PPB = 20_000.0
"""One sigma of the rate of a host that contradicted what was predicted of it."""
PROOF_TRIES = 8
ELECT_HOPS, CANDIDATES = 30, 16
"""How often the reference of bounds is looked for, and among how many."""
WALL_HOPS = 3
"""A wall clock read longer ago says nothing of now."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`slew_ppb`: assumption of all proofs: within a hop the rate between two hosts leaves the stated one by no more.
    `step_ns`: less is taken for noise however quiet the host is."""

    hop_ns: int = 10_000_000_000
    final_hops: int = 6
    slew_ppb: float = 2_000.0
    step_ns: float = 12_000.0
    utc_slew_ppb: float = 1_000.0


@dataclass(slots=True)
class _Hop:
    """What is kept of a hop until it is final."""

    number: int
    predicted: Knot
    filtered: Knot
    lo: Floats
    hi: Floats
    reference: int
    lean: Floats
    known: Bools
    stepped: Bools


@dataclass(frozen=True, slots=True)
class HopResult:
    """Of hop `number`. `provisional`: from the middle of the hop before to its middle; `live`: on from there to the end
    of the hop, and beyond; `final`: the stretch that no later hop changes, from the middle of hop number - final_hops -
    1 to that of the next."""

    number: int
    provisional: Pieces
    live: tuple[Pieces, Pieces]
    final: Pieces
    verdicts: tuple[Verdict, ...]
    utc: utc.Offset | None
    reference: int


class FleetClock:
    """Nodes are small numbers in the order they were first heard of; `epochs[node]` is the clock epoch."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.epochs: list[int] = []
        self._index: dict[int, int] = {}
        self.number: int | None = None
        """Of the hop solved last."""
        self.knot: Knot = kalman.empty()
        self.q: Floats = np.empty(0)
        self.pairs = Pairs()
        self.observed = Observed()
        self.counters: Counter[str] = Counter()
        self.reference = -1
        self._elected = 0
        self._lean = LEAN_NS
        self._slew_ppb = 0.0
        self._hops: deque[_Hop] = deque(maxlen=self.settings.final_hops + 2)
        self._ended: Knot | None = None
        """Final knot of the hop whose stretch begins the next final piece."""
        self._stepped: Bools = np.empty(0, bool)
        self._left_out: Bools = np.empty(0, bool)
        """Hosts that had stepped, or contradicted, in the hop before."""
        self._barred: dict[int, int] = {}
        """Node -> hop until which nothing is proved of it."""

    # -- input -----------------------------------------------------------------------------------------------------

    def node(self, epoch: int) -> int:
        """Number of a host's clock epoch; a new one if it was never heard of."""
        found = self._index.get(epoch)
        if found is None:
            found = self._index[epoch] = len(self.epochs)
            self.epochs.append(epoch)
        return found

    def adopt(self, epoch: int, number: int, x0: int, y0: int, rate_ppb: float) -> None:
        """A map that another solver published: fleet time y0 at reading x0, hop `number` the newest it solved. Before
        the first hop is solved."""
        node = self.node(epoch)
        self._grow()
        middle = self.middle(number)
        self.number = number
        passed = middle - y0
        x = x0 + round(passed / (1 + rate_ppb * 1e-9))
        knot = self.knot
        knot.x[node] = x
        knot.y[node] = (y0 - middle) + (x - x0) + (x - x0) * rate_ppb * 1e-9
        knot.rate[node] = rate_ppb
        knot.p00[node], knot.p01[node], knot.p11[node] = 10_000.0**2, 0.0, 200.0**2

    def first_number(self) -> int | None:
        """The hop that wall clocks say it is, while no hop was solved; None before one is known."""
        walls = list(self.observed.walls.values())
        told = [wall for wall in walls if wall.max_error_ns >= 0] or walls
        if not told:
            return None
        return int(np.median([wall.realtime_ns // self.settings.hop_ns for wall in told]))

    def stated(self, node: int, raw_ns: int) -> int | None:
        """Fleet time of a host's reading by the newest hop; None where nothing is known of it."""
        if self.number is None or node >= len(self.knot.x) or self.knot.p00[node] >= UNKNOWN_NS2:
            return None
        found = self.knot.stated(np.array([node]), np.array([raw_ns], np.int64))
        return self.middle(self.number) + round(float(found[0]))

    def middle(self, number: int) -> int:
        """Of a hop, in fleet ns."""
        return number * self.settings.hop_ns + self.settings.hop_ns // 2

    # -- a hop -----------------------------------------------------------------------------------------------------

    def solve(self, number: int) -> HopResult:
        """Hop `number` with all that was observed so far. Numbers rise; hops that are left out are predicted over."""
        self._grow()
        walls = self.observed.walls
        known = self.knot.p00 < UNKNOWN_NS2
        if self.number is not None and known.any():
            for _ in range(number - self.number):
                self.knot = kalman.predict(self.knot, self.settings.hop_ns, self.q)
        self.number = number
        middle = self.middle(number)
        self._place_new(middle)
        found, late = self._samples()
        self.counters["late"] += late
        verdicts: list[Verdict] = []
        predicted = self.knot.copy()
        hop = self._measure(number, found, predicted, verdicts)
        self._hops.append(hop)
        self._by_wall(middle, walls, hop)
        offset = self._utc(middle, walls, hop)
        result = self._result(hop, verdicts, offset)
        self._bar(verdicts, number)
        return result

    def _grow(self) -> None:
        hosts = len(self.epochs)
        self.knot = self.knot.grow(hosts)
        self.q = np.concatenate([self.q, np.full(hosts - len(self.q), kalman.WALK)])
        self._stepped, self._left_out = (
            np.concatenate([was, np.zeros(hosts - len(was), bool)]) for was in (self._stepped, self._left_out)
        )

    def _place_new(self, middle: int) -> None:
        """Hosts of which nothing is known, by the quickest exchange with one that is known; the first one by its wall
        clock, and all of them then by what most wall clocks say."""
        unknown = self.knot.p00 >= UNKNOWN_NS2
        if not unknown.any():
            return
        first = bool(unknown.all())
        a, b, stamps = self.observed.exchanges()
        walls = self.observed.walls
        while unknown.any():
            placed = self._by_peers(a, b, stamps, unknown)
            if not placed:
                counts = (
                    np.bincount(np.concatenate([a, b]), minlength=len(unknown)) if len(a) else np.zeros(len(unknown))
                )
                roots = [node for node in walls if unknown[node]]
                if not roots:
                    break
                # Without peers, or the first of its component.
                root = max(roots, key=lambda node: (counts[node], walls[node].max_error_ns >= 0, -node))
                self._set(
                    root, walls[root].raw_ns - (walls[root].realtime_ns - middle), max(walls[root].max_error_ns, 10**7)
                )
                unknown[root] = False
        if first:
            self._begin_axis(middle, walls)

    def _begin_axis(self, middle: int, walls: dict[int, Wall]) -> None:
        synchronized = [wall for wall in walls.values() if wall.max_error_ns >= 0] or list(walls.values())
        if not synchronized:
            return
        nodes = np.array([wall.node for wall in synchronized])
        raws = np.array([wall.raw_ns for wall in synchronized])
        ahead = self.knot.stated(nodes, raws) - np.array([wall.realtime_ns - middle for wall in synchronized], float)
        self.knot.x += round(float(np.median(ahead[self.knot.p00[nodes] < UNKNOWN_NS2])))

    def _by_peers(self, a: Int64s, b: Int64s, stamps: Int64s, unknown: Bools) -> bool:
        one = unknown[a] != unknown[b]
        if not one.any():
            return False
        a, b, stamps = a[one], b[one], stamps[one]
        at_a, at_b = (stamps[:, 0] + stamps[:, 3]) // 2, (stamps[:, 1] + stamps[:, 2]) // 2
        round_trip = (stamps[:, 3] - stamps[:, 0]) - (stamps[:, 2] - stamps[:, 1])
        new = np.where(unknown[a], a, b)
        order = np.lexsort((round_trip, new))
        names, first = np.unique(new[order], return_index=True)
        chosen = order[first]
        old = np.where(unknown[a], b, a)[chosen]
        old_raw, new_raw = (np.where(unknown[a], two, one_)[chosen] for one_, two in ((at_a, at_b), (at_b, at_a)))
        fleet = self.knot.stated(old, old_raw)
        for name, raw, at, width in zip(names, new_raw, fleet, round_trip[chosen], strict=True):
            self._set(int(name), int(raw) - round(float(at)), int(width) + 1_000_000)
        unknown[names] = False
        return True

    def _set(self, node: int, x: int, sigma_ns: int) -> None:
        knot = self.knot
        knot.x[node], knot.y[node], knot.rate[node] = x, 0.0, self._common_rate()
        knot.p00[node], knot.p01[node], knot.p11[node] = float(sigma_ns) ** 2, 0.0, kalman.RATE_UNKNOWN_PPB**2

    def _common_rate(self) -> float:
        settled = self.knot.p11 < SETTLED_PPB**2
        return float(np.median(self.knot.rate[settled])) if settled.any() else 0.0

    def _samples(self) -> tuple[edges.Samples, int]:
        """Exchanges of this hop in stated times; later ones wait, earlier ones are counted."""
        a, b, stamps = self.observed.exchanges()
        half = self.settings.hop_ns / 2
        p = np.stack([self.knot.stated(who, stamps[:, i]) for i, who in enumerate((a, b, b, a))], axis=1)
        usable = (self.knot.p00[a] < UNKNOWN_NS2) & (self.knot.p00[b] < UNKNOWN_NS2)
        inside = (((p[:, 0] >= -half) & (p[:, 0] < half)) | ((p[:, 1] >= -half) & (p[:, 1] < half))) & usable
        later = ((p[:, 0] >= half) & (p[:, 1] >= half) & usable) & ~inside
        self.observed.keep(later | ~usable)
        return edges.samples(a[inside], b[inside], p[inside]), int((~inside & ~later & usable).sum())

    def _measure(self, number: int, found: edges.Samples, predicted: Knot, verdicts: list[Verdict]) -> _Hop:
        hosts, settings = len(self.epochs), self.settings
        known = predicted.p00 < UNKNOWN_NS2
        settled = known & (predicted.p11 < SETTLED_PPB**2)
        rate_sigma = np.sqrt(predicted.p11[found.a] + predicted.p11[found.b])
        self.pairs.see(found.a, found.b, number)
        fits = edges.fit(found, rate_sigma, self.pairs.quickest(found.a, found.b))
        upper, lower = edges.envelopes(
            found, settings.hop_ns, settings.slew_ppb * 1e-9 + RATE_SIGMAS * rate_sigma * 1e-9
        )
        contradicts = np.asarray((upper < lower - proofs.NEGATIVE_NS).any(axis=0), bool)
        leaps = steps.leaps(found.a, found.b, fits.offset, hosts, settings.step_ns)
        prior = AXIS / (predicted.p00 + 4 * leaps**2)
        barred = np.zeros(hosts, bool)
        barred[[node for node, until in self._barred.items() if until >= number]] = True
        liars = steps.culprits(found.a, found.b, contradicts, hosts)
        trusted = ~self._touch(found, liars)
        solution = self._solve(found, fits, trusted, prior)
        lean = max(self._lean, _typical(solution.residual[trusted]))
        strange = steps.inconsistent(
            found.a[trusted], found.b[trusted], solution.residual[trusted], lean, hosts, settings.step_ns
        )
        if strange.any():
            liars += np.flatnonzero(strange).tolist()
            trusted &= ~self._touch(found, liars)
            solution = self._solve(found, fits, trusted, prior)
        degree = np.bincount(found.a[trusted], minlength=hosts) + np.bincount(found.b[trusted], minlength=hosts)
        solution, degree = self._apart(found, fits, solution, liars, degree, predicted)
        sigma = np.sqrt(predicted.p00 + solution.noise**2)
        jumped = steps.stepped(solution.x, sigma, degree, settled & ~self._among(liars), settings.step_ns)
        if jumped.any():
            again = self._solve(found, fits, trusted & ~self._touch(found, np.flatnonzero(jumped)), prior)
            solution = replace(again, x=np.where(jumped, solution.x, again.x), noise=solution.noise)
        self._tell(number, jumped, solution.x, liars, strange, found, upper, lower, verdicts)
        filtered = self._update(predicted, solution, jumped, degree > 0, settled, found, fits, trusted)
        self._learn(found, fits, solution, trusted)
        barred |= jumped
        barred[liars] = True
        lo, hi = self._prove(number, found, upper, lower, barred, predicted, verdicts)
        heard = np.zeros(hosts, bool)
        heard[found.a] = heard[found.b] = True
        heard[[node for node, wall in self.observed.walls.items() if self._fresh(wall)]] = True
        return _Hop(number, predicted, filtered, lo, hi, self.reference, solution.lean, known & heard, jumped)

    def _apart(
        self, found: edges.Samples, fits: edges.Fits, solution: graph.Solution, liars: list[int], degree: Int64s,
        predicted: Knot,
    ) -> tuple[graph.Solution, Int64s]:  # fmt: skip
        """Hosts that were left out are placed by the median of what their pairs say, and change nobody else. Of one
        that contradicts twice in a row not even the rate is taken for known: the prediction may be what is false."""
        hosts = len(degree)
        out = self._among(liars)
        again, self._left_out = out & self._left_out, out
        if not liars:
            return solution, degree
        ends, others = np.concatenate([found.b, found.a]), np.concatenate([found.a, found.b])
        says = np.concatenate([fits.offset, -fits.offset]) + solution.x[others]
        usable = out[ends] & ~out[others]
        says = steps.medians(ends[usable], says[usable], hosts)
        counted = np.bincount(ends[usable], minlength=hosts)
        placed = out & (counted > 0)
        predicted.p00 = np.where(placed, predicted.p00 + says**2, predicted.p00)
        predicted.p01 = np.where(placed, 0.0, predicted.p01)
        predicted.p11 = np.where(placed & again, np.maximum(predicted.p11, RELEARN_PPB**2), predicted.p11)
        noise = np.where(placed, LEAN_NS, solution.noise)
        return replace(solution, x=np.where(placed, says, solution.x), noise=noise), np.where(placed, counted, degree)

    def _fresh(self, wall: Wall) -> bool:
        away = self.knot.stated(np.array([wall.node]), np.array([wall.raw_ns]))[0]
        return bool(abs(away) < WALL_HOPS * self.settings.hop_ns)

    def _solve(self, found: edges.Samples, fits: edges.Fits, used: Bools, prior: Floats) -> graph.Solution:
        made = graph.solve(
            len(prior), found.a[used], found.b[used], fits.offset[used], fits.sigma[used], prior, self._lean
        )
        residual = fits.offset - (made.x[found.b] - made.x[found.a])
        return replace(made, residual=residual)

    def _among(self, nodes: Int64s | list[int]) -> Bools:
        mask = np.zeros(len(self.epochs), bool)
        mask[nodes] = True
        return mask

    def _touch(self, found: edges.Samples, nodes: Int64s | list[int]) -> Bools:
        mask = self._among(nodes)
        return mask[found.a] | mask[found.b]

    def _update(
        self, predicted: Knot, solution: graph.Solution, jumped: Bools, measured: Bools, settled: Bools,
        found: edges.Samples, fits: edges.Fits, trusted: Bools,
    ) -> Knot:  # fmt: skip
        # A host that stepped is where it is now; how fast it goes is what it was.
        predicted.p00 = np.where(jumped, np.maximum(predicted.p00, 4 * solution.x**2), predicted.p00)
        predicted.p01 = np.where(jumped, 0.0, predicted.p01)
        # Off again by as much: it is the rate that changed.
        again = jumped & self._stepped
        predicted.p11 = np.where(
            again, np.maximum(predicted.p11, (solution.x / self.settings.hop_ns * 1e9) ** 2), predicted.p11
        )
        self._stepped = jumped
        filtered = kalman.update(predicted, solution.x, solution.noise, measured)
        learning = measured & ~settled
        if learning.any():
            slopes = graph.solve(
                len(measured), found.a[trusted], found.b[trusted], fits.slope[trusted], fits.slope_sigma[trusted],
                AXIS / predicted.p11, SLOPE_LEAN_PPB,
            )  # fmt: skip
            # What was measured is by how much the predicted rate is off; the offset has told of it already.
            off = slopes.x + (filtered.rate - predicted.rate)
            filtered = kalman.update_rate(filtered, off, slopes.noise, learning)
        self.q = kalman.adapt(self.q, predicted, solution.x, solution.noise, measured & settled & ~jumped)
        self.knot = filtered
        return filtered

    def _learn(self, found: edges.Samples, fits: edges.Fits, solution: graph.Solution, trusted: Bools) -> None:
        """What paths lean to one side, pair by pair, and how much they do by and large."""
        self.pairs.learn(found.a, found.b, solution.residual, fits.quickest)
        if trusted.any():
            self._lean += 0.2 * (min(max(_typical(solution.residual[trusted]), 50.0), 50_000.0) - self._lean)

    def _tell(
        self, number: int, jumped: Bools, off: Floats, liars: list[int], strange: Bools, found: edges.Samples,
        upper: Floats, lower: Floats, verdicts: list[Verdict],
    ) -> None:  # fmt: skip
        begin = number * self.settings.hop_ns
        end = begin + self.settings.hop_ns
        named = set()
        for node in np.flatnonzero(jumped).tolist():
            # It may have stepped late in the hop before.
            verdicts.append(Verdict(node, Kind.STEP, -float(off[node]), begin - self.settings.hop_ns // 2, end))
            named.add(node)
        for node in liars:
            if node in named:
                continue
            touching = (found.a == node) | (found.b == node)
            short = (lower - upper)[:, touching].max(axis=0)
            worst = int(np.argmax(short))
            other = int((found.a + found.b)[touching][worst]) - node
            if strange[node]:
                verdicts.append(Verdict(node, Kind.INCONSISTENT, float(short[worst]), begin, end))
            else:
                verdicts.append(Verdict(node, Kind.CONTRADICTION, float(short[worst]), begin, end, (node, other)))

    def _prove(
        self, number: int, found: edges.Samples, upper: Floats, lower: Floats, barred: Bools, predicted: Knot,
        verdicts: list[Verdict],
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """[grid, host] bounds of how much each map, as it was predicted, is ahead of the reference's."""
        hosts = len(barred)
        moments = edges.grid(self.settings.hop_ns)
        nothing = np.full((len(moments), hosts), np.inf)
        for _ in range(PROOF_TRIES):
            usable = ~(barred[found.a] | barred[found.b])
            if not usable.any():
                break
            facts = proofs.between(found.a[usable], found.b[usable], upper[:, usable], lower[:, usable])
            self._choose_reference(number, facts, hosts)
            bounds = proofs.bounds(hosts, facts, self.reference)
            if isinstance(bounds, proofs.Cycle):
                self.counters["proofs"] += 1
                self._contradicted(number, bounds, barred, verdicts)
                continue
            tighter = self._with_collectives(number, facts, bounds, barred, predicted, moments, verdicts)
            return tighter.lo, tighter.hi
        return -nothing, nothing

    def _contradicted(self, number: int, cycle: proofs.Cycle, barred: Bools, verdicts: list[Verdict]) -> None:
        begin = number * self.settings.hop_ns
        for node in cycle.nodes or (self.reference,):
            barred[node] = True
            verdicts.append(
                Verdict(node, Kind.CONTRADICTION, cycle.short_ns, begin, begin + self.settings.hop_ns, cycle.nodes)
            )

    def _choose_reference(self, number: int, facts: proofs.Constraints, hosts: int) -> None:
        """Stays as long as it takes part; else the host in the middle: paths to it are the shortest. Looked for among
        those with the most pairs and now and then anew, since peers change; a change costs one stretch its bounds."""
        degree = np.bincount(facts.source, minlength=hosts)
        taking_part = 0 <= self.reference < hosts and degree[self.reference] > 0
        if taking_part and number - self._elected < ELECT_HOPS:
            return
        candidates = np.argsort(-degree, kind="stable")[:CANDIDATES]
        chosen = proofs.central(hosts, facts, candidates[degree[candidates] > 0].tolist())
        self._elected = number
        if chosen >= 0:
            self.reference = chosen
        elif not taking_part:
            self.reference = int(np.argmax(degree))

    def _with_collectives(
        self, number: int, facts: proofs.Constraints, bounds: proofs.Bounds, barred: Bools, predicted: Knot,
        moments: Floats, verdicts: list[Verdict],
    ) -> proofs.Bounds:  # fmt: skip
        hosts = len(barred)
        entries, names, late = self.observed.entries(predicted, self.settings.hop_ns)
        self.counters["late"] += late
        entries = entries.only(~barred[entries.host])
        if not len(entries.host):
            return bounds
        lo, hi = bounds.lo.min(axis=0), bounds.hi.max(axis=0)
        false = proofs.false_collectives(entries, len(names), lo, hi)
        begin = number * self.settings.hop_ns
        for which in np.flatnonzero(false).tolist():
            members = entries.host[entries.which == which]
            verdicts.append(
                Verdict(-1, Kind.COLLECTIVE, 0.0, begin, begin + self.settings.hop_ns, tuple(members.tolist()))
            )
        entries = entries.only(~false[entries.which])
        reach = self.settings.hop_ns / len(moments) / 2
        apart = self.settings.slew_ppb * 0.5e-9 + RATE_SIGMAS * np.sqrt(predicted.p11[entries.host]) * 1e-9
        through = proofs.through_collectives(entries, hosts, moments, reach, apart)
        tighter = proofs.bounds(hosts + len(names), facts.plus(through), self.reference)
        if isinstance(tighter, proofs.Cycle):
            # One of them is false, and probes alone do not say which: none of this hop is believed.
            self.counters["proofs"] += 1
            verdicts.append(
                Verdict(
                    -1, Kind.COLLECTIVE, tighter.short_ns, begin, begin + self.settings.hop_ns,
                    tuple(node for node in tighter.nodes if node < hosts),
                )
            )  # fmt: skip
            return bounds
        return proofs.Bounds(tighter.lo[:, :hosts], tighter.hi[:, :hosts])

    def _bar(self, verdicts: list[Verdict], number: int) -> None:
        """A step is over with the hop it was seen in, a contradiction with the first hop without one."""
        self._barred = {node: until for node, until in self._barred.items() if until > number}
        for verdict in verdicts:
            if verdict.node >= 0:
                self.counters[verdict.kind.value] += 1
                self._barred[verdict.node] = number + (verdict.kind is not Kind.STEP)

    # -- walls -----------------------------------------------------------------------------------------------------

    def _by_wall(self, middle: int, walls: dict[int, Wall], hop: _Hop) -> None:
        """Hosts that nothing ties to the reference follow their wall clocks, if those are synchronized."""
        tied = np.isfinite(hop.hi).all(axis=0) | (hop.predicted.p11 < SETTLED_PPB**2)
        for node, wall in walls.items():
            if tied[node] or wall.max_error_ns < 0 or not hop.known[node]:
                continue
            off = np.zeros(len(tied))
            off[node] = float(self.knot.stated(np.array([node]), np.array([wall.raw_ns]))[0]) - (
                wall.realtime_ns - middle
            )
            only = np.zeros(len(tied), bool)
            only[node] = True
            self.knot = kalman.update(self.knot, off, np.full(len(tied), max(wall.max_error_ns, 1_000) / 2), only)
        hop.filtered = self.knot

    def _utc(self, middle: int, walls: dict[int, Wall], hop: _Hop) -> utc.Offset | None:
        telling = [
            wall for wall in walls.values() if wall.max_error_ns >= 0 and np.isfinite(hop.hi[:, wall.node]).all()
        ]
        if not telling:
            return None
        nodes = np.array([wall.node for wall in telling])
        ahead = self.knot.stated(nodes, np.array([wall.raw_ns for wall in telling]))
        fresh = np.abs(ahead) < WALL_HOPS * self.settings.hop_ns
        ahead -= np.array([wall.realtime_ns - middle for wall in telling], float)
        within = np.array([wall.max_error_ns + wall.half_ns for wall in telling], float)
        lo, hi = hop.lo.min(axis=0)[nodes], hop.hi.max(axis=0)[nodes]
        found = utc.agree((ahead - within - hi)[fresh], (ahead + within - lo)[fresh])
        wanted = utc.slew(found, self._slew_ppb, self.settings.utc_slew_ppb)
        self.knot = replace(self.knot, rate=self.knot.rate + (wanted - self._slew_ppb))
        self._slew_ppb = wanted
        if found is None:
            return None
        name = nodes[fresh].tolist()
        return utc.Offset(
            found.lo_ns, found.hi_ns, tuple(name[i] for i in found.agreeing), tuple(name[i] for i in found.other)
        )

    # -- output ----------------------------------------------------------------------------------------------------

    def _result(self, hop: _Hop, verdicts: list[Verdict], offset: utc.Offset | None) -> HopResult:
        before = self._hops[-2] if len(self._hops) > 1 else None
        provisional = Pieces.none()
        if before is not None and before.number == hop.number - 1:
            provisional = pieces_between(before, hop, before.filtered, hop.filtered, self.settings.hop_ns)
        live = beyond(hop, hop.filtered, self.settings.hop_ns)
        final = self._final(len(self.epochs))
        return HopResult(hop.number, provisional, live, final, tuple(verdicts), offset, self.reference)

    def _final(self, hosts: int) -> Pieces:
        """The stretch that ends at the middle of the hop `final_hops` ago, by what all hops since say."""
        hops = list(self._hops)
        if len(hops) <= self.settings.final_hops:
            return Pieces.none()
        number = hops[-1].number - self.settings.final_hops
        index = next((i for i, hop in enumerate(hops) if hop.number == number), -1)
        if index < 0:
            self._ended = None
            return Pieces.none()
        later = hops[-1].filtered.grow(hosts)
        for i in range(len(hops) - 2, index - 1, -1):
            if hops[i + 1].number != hops[i].number + 1:
                later = hops[i].filtered.grow(hosts)
                continue
            later = kalman.smooth(
                hops[i].filtered.grow(hosts), hops[i + 1].predicted.grow(hosts), later, self.settings.hop_ns
            )
        ended, self._ended = self._ended, later
        if ended is None or index == 0 or hops[index - 1].number != number - 1:
            return Pieces.none()
        return pieces_between(hops[index - 1], hops[index], ended.grow(hosts), later, self.settings.hop_ns)


def _typical(residual: Floats) -> float:
    """One sigma, were they normal, whatever the few largest are."""
    return 1.48 * float(np.median(np.abs(residual))) if len(residual) else 0.0
