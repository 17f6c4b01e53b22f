"""Offsets of all hosts from what pairs say: weighted robust least squares on a graph, by conjugate gradients.

Minimises sum_e w_e (z_e - (x_b - x_a))^2 + sum_h lambda_h x_h^2: a Laplacian and a weak prior, which keeps the axis
where it is and every component of the graph solvable. Peers drawn at random make an expander, whose condition number
hardly grows with the fleet: 13 rounds of O(edges) at 10 000 hosts, 15 at 100 000 (measured once, no command). Where
racks or cells are joined by few edges, a coarse level carries what is common to a cluster: clusters grow around hosts
by the graph itself, are solved as one host each (recursively), and correct the fine level (additive Schwarz): 48 and 76
rounds in cells of 64 with one edge in 80 outside. benchmarks/clock_cost.py has both kinds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

HUBER = 2.5
ROUNDS = 3
TOLERANCE_NS = 1.0
MOST_STEPS = 400
DENSE = 128
"""So many unknowns are solved directly."""


@dataclass(frozen=True, slots=True)
class Solution:
    """`x`: by how much each host is ahead, ns; `noise`, `lean`: one sigma of it, neighbours taken as known, of what is
    new in every hop and of what paths lean to one side and go on leaning; `residual` a pair: z - (x_b - x_a);
    `steps` of conjugate gradients, all rounds together."""

    x: Floats
    noise: Floats
    lean: Floats
    residual: Floats
    steps: int


def solve(hosts: int, a: Int64s, b: Int64s, z: Floats, sigma: Floats, prior: Floats, bias_ns: float) -> Solution:
    """`sigma`: of each z; `prior`: 1 / ns^2 of each host; `bias_ns`: what paths lean to one side, beyond sigma."""
    base = 1 / (sigma**2 + bias_ns**2)
    weight = base
    x = np.zeros(hosts)
    residual = z
    steps = 0
    for turn in range(ROUNDS):
        x, more = _gradients(_Level.of(hosts, a, b, weight, prior), _push(hosts, a, b, weight * z), x)
        steps += more
        residual = z - (x[b] - x[a])
        if turn < ROUNDS - 1:
            off = np.abs(residual) * np.sqrt(base)
            # Squared: what is far off must not be waited for.
            weight = base * np.minimum(1.0, (HUBER / np.maximum(off, 1e-9)) ** 2)
    degree = np.maximum(_sums(a, weight, hosts) + _sums(b, weight, hosts), 1e-30)
    noise, lean = (
        np.sqrt(_sums(a, weight**2 * part, hosts) + _sums(b, weight**2 * part, hosts)) / degree
        for part in (sigma**2, np.full(len(z), bias_ns**2))
    )
    return Solution(x, noise, lean, residual, steps)


def _sums(index: Int64s, values: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(index, values, count), np.float64)


def _push(hosts: int, a: Int64s, b: Int64s, flow: Floats) -> Floats:
    return np.asarray(np.bincount(b, flow, hosts) - np.bincount(a, flow, hosts), np.float64)


@dataclass(slots=True)
class _Level:
    """One level of the hierarchy: its graph, and the coarser one above it."""

    a: Int64s
    b: Int64s
    weight: Floats
    prior: Floats
    diagonal: Floats
    cluster: Int64s | None
    above: "_Level | None"
    inverse: Floats | None

    @classmethod
    def of(cls, hosts: int, a: Int64s, b: Int64s, weight: Floats, prior: Floats) -> "_Level":
        diagonal = np.bincount(a, weight, hosts) + np.bincount(b, weight, hosts) + prior
        diagonal = np.where(diagonal > 0, diagonal, 1.0)
        if hosts <= DENSE:
            matrix = np.diag(diagonal)
            np.add.at(matrix, (a, b), -weight)
            np.add.at(matrix, (b, a), -weight)
            return cls(
                a,
                b,
                weight,
                prior,
                diagonal,
                None,
                None,
                np.asarray(np.linalg.pinv(matrix, hermitian=True), np.float64),
            )
        cluster, count = clusters(hosts, a, b)
        if count > 0.7 * hosts:
            return cls(a, b, weight, prior, diagonal, None, None, None)
        ca, cb = cluster[a], cluster[b]
        between = ca != cb
        key = np.minimum(ca, cb)[between] * count + np.maximum(ca, cb)[between]
        names, index = np.unique(key, return_inverse=True)
        summed = _sums(index, weight[between], len(names))
        above = cls.of(count, names // count, names % count, summed, _sums(cluster, prior, count))
        return cls(a, b, weight, prior, diagonal, cluster, above, None)

    def apply(self, x: Floats) -> Floats:
        return _push(len(x), self.a, self.b, self.weight * (x[self.b] - x[self.a])) + self.prior * x

    def correct(self, rest: Floats) -> Floats:
        """An approximate solution for `rest`: symmetric and positive, as conjugate gradients need it."""
        if self.inverse is not None:
            return self.inverse @ rest
        near = rest / self.diagonal
        if self.cluster is None or self.above is None:
            return near
        coarse = self.above.correct(_sums(self.cluster, rest, len(self.above.diagonal)))
        return near + coarse[self.cluster]


def clusters(hosts: int, a: Int64s, b: Int64s) -> tuple[Int64s, int]:
    """(cluster of each host, how many): each joins the least-numbered host among itself and its neighbours, by a fixed
    scramble of numbers; a host nobody joined is its own."""
    rank = (np.arange(hosts, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    leader = rank.astype(np.int64)
    low = leader.copy()
    np.minimum.at(low, a, leader[b])
    np.minimum.at(low, b, leader[a])
    names, cluster = np.unique(low, return_inverse=True)
    return cluster.astype(np.int64), len(names)


def _gradients(level: _Level, right: Floats, x: Floats) -> tuple[Floats, int]:
    if level.inverse is not None:
        return level.inverse @ right, 1
    rest = right - level.apply(x)
    near = level.correct(rest)
    direction, product = near, float(rest @ near)
    steps = 0
    while steps < MOST_STEPS and np.max(np.abs(near), initial=0.0) > TOLERANCE_NS:
        image = level.apply(direction)
        length = product / float(direction @ image)
        x = x + length * direction
        rest = rest - length * image
        near = level.correct(rest)
        before, product = product, float(rest @ near)
        direction = near + product / before * direction
        steps += 1
    return x, steps
