"""Offset and rate of every host, carried from hop to hop, and smoothed backwards.

State (y, r) a host: at the raw reading x its map states y ns beyond the middle of the hop, and gains r ns a second
(ppb) on its own clock. F = [[1, dt], [0, 1]], Q = q [[dt^3/3, dt^2/2], [dt^2/2, dt]] (native-clock.md B3): a rate that
walks at random. x is chosen so that y is within a nanosecond of 0 when predicted: floats only ever hold what is small.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

RATE_UNKNOWN_PPB = 100_000.0
UNKNOWN_NS2 = 1e29
"""A host with a larger p00 has no state."""
LEAPT_NS2 = 1e13
"""p00 of a prediction that says nothing any more: 3 ms."""
WALK = 150.0
"""q, ppb^2 / s: a swing of 0.5 ppm in 600 s changes a rate by 50 ppb in 10 s."""
WALK_LEAST, WALK_MOST = 10.0, 20_000.0
"""The latter: a random walk of 1e-7 / sqrt(s), twice over."""
ADAPT = 0.05
"""How fast a host's q follows what its predictions miss by: 20 hops."""


@dataclass(slots=True)
class Knot:
    """All hosts at the middle of one hop; arrays over hosts. p00, p01, p11: covariance (ns^2, ns ppb, ppb^2)."""

    x: Int64s
    y: Floats
    rate: Floats
    p00: Floats
    p01: Floats
    p11: Floats

    def copy(self) -> "Knot":
        return Knot(*(getattr(self, name).copy() for name in self.__slots__))

    def grow(self, hosts: int) -> "Knot":
        """With room for new hosts, whose state says nothing."""
        more = hosts - len(self.x)
        if not more:
            return self
        fill = {"p00": 1e30, "p11": RATE_UNKNOWN_PPB**2}
        return Knot(
            *(
                np.concatenate([values, np.full(more, fill.get(name, 0), values.dtype)])
                for name, values in ((name, getattr(self, name)) for name in self.__slots__)
            )
        )

    def stated(self, host: Int64s, raw: Int64s) -> Floats:
        """Fleet ns, from the middle of the hop, of readings."""
        passed = (raw - self.x[host]).astype(np.float64)
        return self.y[host] + passed + passed * (self.rate[host] * 1e-9)


def empty() -> Knot:
    none = np.empty(0)
    return Knot(np.empty(0, np.int64), none, none, none, none, none)


def predict(knot: Knot, hop_ns: int, q: Floats) -> Knot:
    """At the middle of the next hop. y is within 1 ns of 0, x whole."""
    rate = knot.rate * 1e-9
    dx = np.rint((hop_ns - knot.y) / (1 + rate))
    dt = hop_ns / 1e9
    p01 = knot.p01 + dt * knot.p11 + q * dt**2 / 2
    p00 = knot.p00 + 2 * dt * knot.p01 + dt**2 * knot.p11 + q * dt**3 / 3
    y = knot.y + (dx - hop_ns) + dx * rate
    return Knot(knot.x + dx.astype(np.int64), y, knot.rate.copy(), p00, p01, knot.p11 + q * dt)


def update(knot: Knot, off: Floats, sigma: Floats, measured: NDArray[np.bool_]) -> Knot:
    """With hosts found `off` ns ahead of what they should state; those not `measured` stay predicted."""
    total = knot.p00 + sigma**2
    k0 = np.where(measured, knot.p00 / total, 0.0)
    k1 = np.where(measured, knot.p01 / total, 0.0)
    return Knot(
        knot.x,
        knot.y - k0 * off,
        knot.rate - k1 * off,
        np.maximum((1 - k0) * knot.p00, 1e-3),
        (1 - k0) * knot.p01,
        np.maximum(knot.p11 - k1 * knot.p01, 1e-6),
    )


def update_rate(knot: Knot, off: Floats, sigma: Floats, measured: NDArray[np.bool_]) -> Knot:
    """The same for rates that gain `off` ppb too much."""
    total = knot.p11 + sigma**2
    k0 = np.where(measured, knot.p01 / total, 0.0)
    k1 = np.where(measured, knot.p11 / total, 0.0)
    return Knot(
        knot.x,
        knot.y - k0 * off,
        knot.rate - k1 * off,
        np.maximum(knot.p00 - k0 * knot.p01, 1e-3),
        (1 - k1) * knot.p01,
        np.maximum((1 - k1) * knot.p11, 1e-6),
    )


def smooth(filtered: Knot, predicted: Knot, later: Knot, hop_ns: int) -> Knot:
    """Rauch, Tung, Striebel: `filtered` at k with `predicted` and smoothed (`later`) at k + 1. Arrays of one length."""
    dt = hop_ns / 1e9
    # C = P_f F' P_p^-1, by hand for 2 x 2.
    a00, a01 = filtered.p00 + dt * filtered.p01, filtered.p01
    a10, a11 = filtered.p01 + dt * filtered.p11, filtered.p11
    determinant = np.maximum(predicted.p00 * predicted.p11 - predicted.p01**2, 1e-12)
    i00, i01, i11 = predicted.p11 / determinant, -predicted.p01 / determinant, predicted.p00 / determinant
    c00, c01 = a00 * i00 + a01 * i01, a00 * i01 + a01 * i11
    c10, c11 = a10 * i00 + a11 * i01, a10 * i01 + a11 * i11
    dy, dr = later.y - predicted.y, later.rate - predicted.rate
    d00, d01, d11 = later.p00 - predicted.p00, later.p01 - predicted.p01, later.p11 - predicted.p11
    # P_s = P_f + C D C'
    e00, e01 = c00 * d00 + c01 * d01, c00 * d01 + c01 * d11
    e10, e11 = c10 * d00 + c11 * d01, c10 * d01 + c11 * d11
    # Across a leap nothing is learned backwards, and of numbers so far apart floats keep nothing.
    tied = predicted.p00 < LEAPT_NS2
    return Knot(
        filtered.x,
        np.where(tied, filtered.y + c00 * dy + c01 * dr, filtered.y),
        np.where(tied, filtered.rate + c10 * dy + c11 * dr, filtered.rate),
        np.where(tied, np.maximum(filtered.p00 + e00 * c00 + e01 * c01, 1e-3), filtered.p00),
        np.where(tied, filtered.p01 + e00 * c10 + e01 * c11, filtered.p01),
        np.where(tied, np.maximum(filtered.p11 + e10 * c10 + e11 * c11, 1e-6), filtered.p11),
    )


def adapt(q: Floats, knot: Knot, off: Floats, sigma: Floats, measured: NDArray[np.bool_]) -> Floats:
    """q that makes what predictions miss by as large as expected: up where they miss by more, slowly down."""
    surprise = np.minimum(off**2 / (knot.p00 + sigma**2), 9.0)
    factor = np.exp(ADAPT * (surprise - 1))
    return np.where(measured, np.clip(q * factor, WALK_LEAST, WALK_MOST), q)
