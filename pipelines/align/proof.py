"""What is proved of every host in a hop, relative to one of them: by exchanges, and tighter by collectives.

Hosts of a contradiction are left out and the rest is proved again; a collective that cannot have been is left out
alone.
"""

import numpy as np
from numpy.typing import NDArray

from fleetscope.pipelines.align import constraints as proofs
from fleetscope.pipelines.align import edges
from fleetscope.pipelines.align.kalman import Knot
from fleetscope.pipelines.align.observed import Observed
from fleetscope.pipelines.align.steps import Kind, Verdict

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RATE_SIGMAS = 5.0
"""Of the stated rates are added to the slew that proofs assume."""
PROOF_TRIES = 8
MISTAKEN_NS = 1_000_000
"""A collective that is off by more has ranks of another one; by less, it may be probes that are false: then nothing is
proved of its ranks."""
ELECT_HOPS, CANDIDATES = 30, 16
"""How often the reference of bounds is looked for, and among how many."""


class Proof:
    """Keeps the reference from hop to hop. `slew_ppb`: the assumption of all of it (fleet.Settings)."""

    def __init__(self, hop_ns: int, slew_ppb: float) -> None:
        self._hop_ns, self._slew_ppb = hop_ns, slew_ppb
        self.reference = -1
        self._elected = 0
        self.contradictions = 0
        """Negative cycles met so far."""

    def envelopes(self, found: edges.Samples, predicted: Knot) -> tuple[Floats, Floats]:
        """(upper, lower)[grid, pair] of what pairs prove under the assumption."""
        rates = np.sqrt(predicted.p11[found.a] + predicted.p11[found.b])
        return edges.envelopes(found, self._hop_ns, (self._slew_ppb + RATE_SIGMAS * rates) * 1e-9)

    def prove(
        self, number: int, found: edges.Samples, upper: Floats, lower: Floats, barred: Bools, predicted: Knot,
        observed: Observed, verdicts: list[Verdict],
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """[grid, host] bounds of how much each map, as it was predicted, is ahead of the reference's."""
        hosts = len(barred)
        # Taken also where nothing is proved: they are this hop's, and would pile up.
        entries, count = observed.entries(predicted, self._hop_ns)
        moments = edges.grid(self._hop_ns)
        nothing = np.full((len(moments), hosts), np.inf)
        for _ in range(PROOF_TRIES):
            usable = ~(barred[found.a] | barred[found.b])
            if not usable.any():
                break
            facts = proofs.between(found.a[usable], found.b[usable], upper[:, usable], lower[:, usable])
            self._choose_reference(number, facts, hosts)
            bounds = proofs.bounds(hosts, facts, self.reference)
            if isinstance(bounds, proofs.Cycle):
                self.contradictions += 1
                self._contradicted(number, bounds, barred, verdicts)
                continue
            tighter = self._with_collectives(
                number, facts, bounds, barred, predicted, entries, count, moments, verdicts
            )
            return tighter.lo, tighter.hi
        return -nothing, nothing

    def _contradicted(self, number: int, cycle: proofs.Cycle, barred: Bools, verdicts: list[Verdict]) -> None:
        begin = number * self._hop_ns
        for node in cycle.nodes or (self.reference,):
            barred[node] = True
            verdicts.append(Verdict(node, Kind.CONTRADICTION, cycle.short_ns, begin, begin + self._hop_ns, cycle.nodes))

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
        entries: proofs.Entries, count: int, moments: Floats, verdicts: list[Verdict],
    ) -> proofs.Bounds:  # fmt: skip
        """`count`: how many collectives `entries` are of."""
        hosts = len(barred)
        entries = entries.only(~barred[entries.host])
        if not len(entries.host):
            return bounds
        lo, hi = bounds.lo.min(axis=0), bounds.hi.max(axis=0)
        short = proofs.impossible_by(entries, count, lo, hi)
        false = short > 0
        begin = number * self._hop_ns
        doubted = np.zeros(hosts, bool)
        for which in np.flatnonzero(false).tolist():
            members = entries.host[entries.which == which]
            doubted[members] |= short[which] < MISTAKEN_NS
            verdicts.append(
                Verdict(-1, Kind.COLLECTIVE, float(short[which]), begin, begin + self._hop_ns, tuple(members.tolist()))
            )
        entries = entries.only(~false[entries.which])
        reach = self._hop_ns / len(moments) / 2
        apart = self._slew_ppb * 0.5e-9 + RATE_SIGMAS * np.sqrt(predicted.p11[entries.host]) * 1e-9
        through = proofs.through_collectives(entries, hosts, moments, reach, apart)
        tighter = proofs.bounds(hosts + count, facts.plus(through), self.reference)
        if isinstance(tighter, proofs.Cycle):
            # Probes or collectives are false, and nothing says which.
            self.contradictions += 1
            verdicts.append(
                Verdict(
                    -1, Kind.COLLECTIVE, tighter.short_ns, begin, begin + self._hop_ns,
                    tuple(node for node in tighter.nodes if node < hosts),
                )
            )  # fmt: skip
            nothing = np.full_like(bounds.hi, np.inf)
            return proofs.Bounds(-nothing, nothing)
        return proofs.Bounds(
            np.where(doubted, -np.inf, tighter.lo[:, :hosts]), np.where(doubted, np.inf, tighter.hi[:, :hosts])
        )
