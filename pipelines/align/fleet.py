"""The clock of the fleet, hop by hop: what hosts say of each other in, where every host's clock stands out.

Of each hop: exchanges -> a robust line a pair (edges) -> offsets of all hosts (graph) -> offset and rate carried on
(kalman) -> who stepped or lies (steps) -> what is proved (constraints) -> UTC beside it (utc). Nothing here reads a
clock or a log; the same input in the same order gives the same maps. docs/design/0021-one-clock.md.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align import edges, graph, kalman, newcomers, steps, utc, walls
from fleetscope.pipelines.align.constraints import NEGATIVE_NS
from fleetscope.pipelines.align.kalman import UNKNOWN_NS2, Knot
from fleetscope.pipelines.align.observed import Observed, Wall
from fleetscope.pipelines.align.pairs import Pairs
from fleetscope.pipelines.align.polyline import Hop, Pieces, beyond, pieces_between
from fleetscope.pipelines.align.proof import RATE_SIGMAS, Proof
from fleetscope.pipelines.align.steps import Kind, Verdict

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SETTLED_PPB = 500.0
"""A host whose rate is known to this is judged; before, it is being learned."""
AXIS = 0.02
"""Of what is known of a host enters the next solution as a prior: enough to hold the axis, not to hold a host."""
LEAN_NS, LEAN_MOST_NS, LEAN_GROWS = 2_000.0, 50_000.0, 1.5
"""What paths lean to one side: before it is learned; at most, beyond which it is no path; and when it is more by so
much than was known, it is taken at once."""
SLOPE_LEAN_PPB = 5.0
"""How much more than noise the slopes of pairs differ from those of their hosts."""
DISTRUST_HOPS = 30
RELEARN_PPB = 20_000.0
"""One sigma of the rate of a host that contradicted what was predicted of it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`slew_ppb`: assumption of all proofs: within a hop the rate between two hosts leaves the stated one by no more.
    `step_ns`: less is taken for noise however quiet the host is."""

    hop_ns: int = 10_000_000_000
    final_hops: int = 6
    slew_ppb: float = 2_000.0
    step_ns: float = 12_000.0
    utc_slew_ppb: float = 1_000.0


@dataclass(frozen=True, slots=True)
class HopResult:
    """Of hop `number`. `provisional`: from the middle of the hop before to its middle; `proved`: the stretch before
    that one, now with what is proved of it; `live`: on from there; `final`: the stretch that no later hop changes,
    from the middle of hop number - final_hops - 1 to that of the next."""

    number: int
    provisional: Pieces
    proved: Pieces
    live: Pieces
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
        self._proof = Proof(self.settings.hop_ns, self.settings.slew_ppb)
        self._lean = LEAN_NS
        self._slew_ppb = 0.0
        self._hops: deque[Hop] = deque(maxlen=self.settings.final_hops + 2)
        self._ended: Knot | None = None
        """Final knot of the hop whose stretch begins the next final piece."""
        self._stepped: Bools = np.empty(0, bool)
        self._left_out: Bools = np.empty(0, bool)
        """Hosts that had stepped, or contradicted, in the hop before."""
        self._named: dict[int, list[int]] = {}
        """Hosts that contradicted -> the hops, of late, in which they did."""
        self._barred: list[int] = []
        """Hosts that contradicted in the hop before: nothing is proved of them before a hop without a contradiction. A
        step is over with the hop it was seen in."""

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
        every = list(self.observed.walls.values())
        told = [wall for wall in every if wall.max_error_ns >= 0] or every
        if not told:
            return None
        return int(np.median([wall.realtime_ns // self.settings.hop_ns for wall in told]))

    def stated(self, node: int, raw_ns: int) -> int | None:
        """Fleet time of a host's reading by the newest hop; None where nothing is known of it."""
        return next(iter(self.stated_all({node: raw_ns})), None)

    def stated_all(self, readings: Mapping[int, int]) -> list[int]:
        """Fleet times of raw ns by node, without the hosts of which nothing is known."""
        if self.number is None:
            return []
        nodes, raws = np.array(list(readings), np.int64), np.array(list(readings.values()), np.int64)
        known = self.knot.grow(len(self.epochs)).p00[nodes] < UNKNOWN_NS2
        middle = self.middle(self.number)
        return [middle + round(ahead) for ahead in self.knot.stated(nodes[known], raws[known]).tolist()]

    def middle(self, number: int) -> int:
        """Of a hop, in fleet ns."""
        return number * self.settings.hop_ns + self.settings.hop_ns // 2

    # -- a hop -----------------------------------------------------------------------------------------------------

    def solve(self, number: int) -> HopResult:
        """Hop `number` with all that was observed so far. Numbers rise; hops that are left out are predicted over."""
        self._grow()
        known = self.knot.p00 < UNKNOWN_NS2
        if self.number is not None and known.any():
            # In one go: what is left out may be years, where a counter is absurd.
            self.knot = kalman.predict(self.knot, (number - self.number) * self.settings.hop_ns, self.q)
        self.number = number
        middle = self.middle(number)
        settled = self.knot.p11 < SETTLED_PPB**2
        rate = float(np.median(self.knot.rate[settled])) if settled.any() else 0.0
        newcomers.place(self.knot, self.observed, middle, rate)
        found, late = self._samples()
        self.counters["late"] += late
        verdicts: list[Verdict] = []
        predicted = self.knot.copy()
        hop = self._measure(number, found, predicted, verdicts)
        self._hops.append(hop)
        offset = self._beside(middle, hop)
        result = self._result(hop, verdicts, offset)
        self.counters["proofs"] = self._proof.contradictions
        self._barred = [verdict.node for verdict in verdicts if verdict.node >= 0 and verdict.kind is not Kind.STEP]
        return result

    def _grow(self) -> None:
        hosts = len(self.epochs)
        self.knot = self.knot.grow(hosts)
        self.q = np.concatenate([self.q, np.full(hosts - len(self.q), kalman.WALK)])
        self._stepped, self._left_out = (
            np.concatenate([was, np.zeros(hosts - len(was), bool)]) for was in (self._stepped, self._left_out)
        )

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

    def _measure(self, number: int, found: edges.Samples, predicted: Knot, verdicts: list[Verdict]) -> Hop:
        hosts, settings = len(self.epochs), self.settings
        known = predicted.p00 < UNKNOWN_NS2
        settled = known & (predicted.p11 < SETTLED_PPB**2)
        rate_sigma = np.sqrt(predicted.p11[found.a] + predicted.p11[found.b])
        self.pairs.see(found.a, found.b, number)
        fits = edges.fit(found, rate_sigma, self.pairs.quickest(found.a, found.b))
        upper, lower = self._proof.envelopes(found, predicted)
        contradicts = np.asarray((upper < lower - NEGATIVE_NS).any(axis=0), bool)
        leaps = steps.leaps(found.a, found.b, fits.offset, hosts, settings.step_ns)
        prior = AXIS / (predicted.p00 + 4 * leaps**2)
        barred = self._among(self._barred)
        liars = steps.culprits(found.a, found.b, contradicts, leaps != 0)
        trusted = ~self._touch(found, liars)
        solution = self._solve(found, fits, trusted, prior)
        lean = max(self._lean, _typical(solution.residual[trusted]))
        if lean > LEAN_GROWS * self._lean:
            # Weights by too small a scale choose among pairs instead of weighing them.
            self._lean = lean = min(lean, LEAN_MOST_NS)
            solution = self._solve(found, fits, trusted, prior)
        strange = steps.inconsistent(
            found.a[trusted], found.b[trusted], solution.residual[trusted], lean, hosts, settings.step_ns
        )
        if strange.any():
            liars += np.flatnonzero(strange).tolist()
            trusted &= ~self._touch(found, liars)
            solution = self._solve(found, fits, trusted, prior)
        degree = np.bincount(found.a[trusted], minlength=hosts) + np.bincount(found.b[trusted], minlength=hosts)
        solution, degree = self._apart(found, fits, solution, liars, degree, predicted)
        # Peers come and go, and a host with them, by what their paths lean.
        sigma = np.sqrt(predicted.p00 + solution.noise**2 + solution.lean**2)
        jumped = steps.stepped(solution.x, sigma, degree, settled & ~self._among(liars), settings.step_ns)
        if jumped.any():
            again = self._solve(found, fits, trusted & ~self._touch(found, np.flatnonzero(jumped)), prior)
            solution = replace(again, x=np.where(jumped, solution.x, again.x), noise=solution.noise)
        self._tell(number, jumped, solution.x, liars, strange, found, upper, lower, verdicts)
        filtered = self._update(predicted, solution, jumped, degree > 0, settled, found, fits, trusted)
        self._learn(found, fits, solution, trusted & ~self._touch(found, np.flatnonzero(jumped)))
        doubted = self._doubted(predicted, solution, known & (degree > 0))
        barred |= jumped | doubted | self._repeatedly(liars, number)
        barred[liars] = True
        lo, hi = self._proof.prove(number, found, upper, lower, barred, predicted, self.observed, verdicts)
        heard = np.zeros(hosts, bool)
        heard[found.a] = heard[found.b] = True
        # A wall clock that is not synchronized says nothing of the fleet's time.
        heard[[wall.node for wall in self._walls() if wall.max_error_ns >= 0]] = True
        moved = jumped | self._left_out | doubted
        return Hop(
            number, predicted, filtered, lo, hi, self._proof.reference, solution.lean, known & heard, moved
        )  # fmt: skip

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

    def _doubted(self, predicted: Knot, solution: graph.Solution, measured: Bools) -> Bools:
        """Hosts that left their predicted lines by more than proofs assume that they can: whatever it was."""
        if not measured.any():
            return measured
        apart = np.abs(solution.x - np.median(solution.x[measured]))
        rate = self.settings.slew_ppb + RATE_SIGMAS * np.sqrt(predicted.p11)
        return np.asarray(measured & (apart > rate * 1e-9 * self.settings.hop_ns / 2 + 3 * solution.noise), bool)

    def _repeatedly(self, liars: list[int], number: int) -> Bools:
        """Hosts that contradicted more than once of late: what they say is not taken for proof for some time, also in
        hops in which it could be true."""
        for node in liars:
            self._named.setdefault(node, []).append(number)
        self._named = {
            node: kept
            for node, hops in self._named.items()
            if (kept := [h for h in hops if number - h < DISTRUST_HOPS])
        }
        return self._among([node for node, hops in self._named.items() if len(hops) > 1])

    def _walls(self) -> list[Wall]:
        """Read in this hop, or shortly before or after."""
        return walls.fresh(self.knot, list(self.observed.walls.values()), self.settings.hop_ns)

    def _beside(self, middle: int, hop: Hop) -> utc.Offset | None:
        """UTC, and hosts that nothing ties to the reference: they follow their wall clocks, where those are
        synchronized."""
        told = [wall for wall in self._walls() if wall.max_error_ns >= 0 and hop.known[wall.node]]
        lo, hi = hop.lo.min(axis=0), hop.hi.max(axis=0)
        tied = np.isfinite(hi)
        alone = [wall for wall in told if not tied[wall.node] and hop.predicted.p11[wall.node] >= SETTLED_PPB**2]
        hop.filtered = walls.follow(self.knot, middle, alone)
        offset = walls.offset(hop.filtered, middle, [wall for wall in told if tied[wall.node]], lo, hi)
        wanted = utc.slew(offset, self._slew_ppb, self.settings.utc_slew_ppb)
        self.knot = replace(hop.filtered, rate=hop.filtered.rate + (wanted - self._slew_ppb))
        self._slew_ppb = wanted
        return offset

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
        self.pairs.learn(found.a[trusted], found.b[trusted], solution.residual[trusted], fits.quickest[trusted])
        if trusted.any():
            self._lean += 0.2 * (min(max(_typical(solution.residual[trusted]), 50.0), LEAN_MOST_NS) - self._lean)

    def _tell(
        self, number: int, jumped: Bools, off: Floats, liars: list[int], strange: Bools, found: edges.Samples,
        upper: Floats, lower: Floats, verdicts: list[Verdict],
    ) -> None:  # fmt: skip
        begin = number * self.settings.hop_ns
        end = begin + self.settings.hop_ns
        for node in np.flatnonzero(jumped).tolist():
            # It may have stepped late in the hop before.
            verdicts.append(Verdict(node, Kind.STEP, -float(off[node]), begin - self.settings.hop_ns // 2, end))
        for node in liars:
            touching = (found.a == node) | (found.b == node)
            short = (lower - upper)[:, touching].max(axis=0)
            worst = int(np.argmax(short))
            other = int((found.a + found.b)[touching][worst]) - node
            if strange[node]:
                verdicts.append(Verdict(node, Kind.INCONSISTENT, float(short[worst]), begin, end))
            else:
                verdicts.append(Verdict(node, Kind.CONTRADICTION, float(short[worst]), begin, end, (node, other)))

    # -- output ----------------------------------------------------------------------------------------------------

    def _result(self, hop: Hop, verdicts: list[Verdict], offset: utc.Offset | None) -> HopResult:
        before = self._hops[-2] if len(self._hops) > 1 else None
        provisional = Pieces.none()
        if before is not None and before.number == hop.number - 1:
            provisional = pieces_between(before, hop, before.filtered, hop.filtered, self.settings.hop_ns)
        proved = Pieces.none()
        if len(self._hops) > 2 and self._hops[-3].number == hop.number - 2:
            begin, end = self._hops[-3], self._hops[-2]
            proved = pieces_between(begin, end, begin.filtered, end.filtered, self.settings.hop_ns, hop)
        live = beyond(hop, self.settings.hop_ns)
        final = self._final(len(self.epochs))
        return HopResult(hop.number, provisional, proved, live, final, tuple(verdicts), offset, hop.reference)

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
        return pieces_between(
            hops[index - 1], hops[index], ended.grow(hosts), later, self.settings.hop_ns, hops[index + 1]
        )


def _typical(residual: Floats) -> float:
    """One sigma, were they normal, whatever the few largest are."""
    return 1.48 * float(np.median(np.abs(residual))) if len(residual) else 0.0
