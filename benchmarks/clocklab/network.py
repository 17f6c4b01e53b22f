"""Peers, paths and exchanges: who asks whom, and when what is stamped.

A path's delays belong to the pair of hosts (a hash of seed and pair), so a pair that is drawn again has its old path.
`asymmetry_us` is forward minus backward delay, uniform within +-: the midpoint of an exchange is off by half of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clocklab.oscillator import SECOND, Crystals, Floats, Int64s


@dataclass(frozen=True, slots=True)
class Network:
    """Microseconds. Queues are exponential, `tail` of the packets wait for a Pareto(1.2) time up to 5 ms."""

    base_us: tuple[float, float] = (15.0, 60.0)
    asymmetry_us: float = 5.0
    queue_us: float = 10.0
    tail: float = 0.02
    tail_us: float = 100.0
    loss: float = 0.0
    turn_us: float = 20.0
    rate_hz: float = 2.0
    peers: int = 5
    redraw_s: float = 300.0
    """How long a host keeps a peer, on average."""


def uniform(seed: int, low: Int64s, high: Int64s, salt: int) -> Floats:
    """A number in [0, 1) of a pair of hosts: splitmix64 of all that."""
    with np.errstate(over="ignore"):
        mixed = low.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + high.astype(np.uint64)
        mixed = mixed * np.uint64(0xD1342543DE82EF95) + np.uint64(seed * 1000 + salt)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)


class Paths:
    """Delays of pairs, and routes that flip."""

    def __init__(self, seed: int, network: Network) -> None:
        self._seed, self._network = seed, network
        self.flips: list[tuple[int, int, int, float]] = []
        """(host, host, true ns, us): from then on that much more from the first to the second."""

    def one_way_us(self, source: Int64s, target: Int64s, true_ns: Int64s) -> Floats:
        """Without queues."""
        low, high = np.minimum(source, target), np.maximum(source, target)
        network = self._network
        base = network.base_us[0] + uniform(self._seed, low, high, 1) * (network.base_us[1] - network.base_us[0])
        lean = (uniform(self._seed, low, high, 2) - 0.5) * network.asymmetry_us
        delay = base + np.where(source < target, lean, -lean)
        for a, b, at, more in self.flips:
            delay = delay + np.where((source == a) & (target == b) & (true_ns >= at), more, 0.0)
        return np.maximum(delay, 0.5)

    def asymmetry_us(self, low: Int64s, high: Int64s) -> Floats:
        """Forward (lower to higher host) minus backward."""
        return (uniform(self._seed, low, high, 2) - 0.5) * 2 * self._network.asymmetry_us


class Peers:
    """Each host asks `peers` others, drawn at random and one by one drawn anew."""

    def __init__(self, rng: np.random.Generator, hosts: int, network: Network) -> None:
        self._rng, self._network, self._hosts = rng, network, hosts
        count = min(network.peers, hosts - 1)
        self.of: Int64s = (np.arange(hosts)[:, None] + self._offsets((hosts, count))) % hosts

    def _offsets(self, shape: tuple[int, ...]) -> Int64s:
        return self._rng.integers(1, self._hosts, shape)

    def advance(self, seconds: float) -> None:
        anew = self._rng.random(self.of.shape) < seconds / self._network.redraw_s
        drawn = (np.arange(self._hosts)[:, None] + self._offsets(self.of.shape)) % self._hosts
        self.of = np.where(anew, drawn, self.of)


@dataclass(frozen=True, slots=True)
class Exchanges:
    """Host `a` asked `b`; stamps int64[n, 4]: t1, t4 by a's clock, t2, t3 by b's."""

    a: Int64s
    b: Int64s
    stamps: Int64s
    sent_ns: Int64s
    """True time."""


def exchange(
    rng: np.random.Generator, crystals: Crystals, paths: Paths, network: Network, a: Int64s, b: Int64s, sent_ns: Int64s
) -> Exchanges:
    """What became of requests sent at true times; lost ones are not there."""
    kept = rng.random(len(a)) >= 1 - (1 - network.loss) ** 2
    a, b, sent_ns = a[kept], b[kept], sent_ns[kept]
    there = paths.one_way_us(a, b, sent_ns) + _queue(rng, network, len(a))
    arrived = sent_ns + (there * 1e3).astype(np.int64)
    left = arrived + (rng.exponential(network.turn_us, len(a)) * 1e3).astype(np.int64) + 2_000
    back = paths.one_way_us(b, a, sent_ns) + _queue(rng, network, len(a))
    heard = left + (back * 1e3).astype(np.int64)
    stamps = np.stack(
        [crystals.read(a, sent_ns), crystals.read(b, arrived), crystals.read(b, left), crystals.read(a, heard)], axis=1
    )
    return Exchanges(a, b, stamps, sent_ns)


def _queue(rng: np.random.Generator, network: Network, count: int) -> Floats:
    queue = rng.exponential(network.queue_us, count)
    slow = rng.random(count) < network.tail
    tail = np.minimum(network.tail_us * (rng.random(count) ** (-1 / 1.2)), 5_000.0)
    return queue + np.where(slow, tail, 0.0)


def requests(
    rng: np.random.Generator, peers: NDArray[np.int64], network: Network, begin_ns: int, end_ns: int
) -> tuple[Int64s, Int64s, Int64s]:
    """(a, b, sent) of all hosts in [begin, end): each peer is asked `rate_hz` times a second, with jitter."""
    hosts, count = peers.shape
    each = max(1, round((end_ns - begin_ns) / SECOND * network.rate_hz))
    slots = (np.arange(each) + rng.random((hosts, count, each))) * ((end_ns - begin_ns) / each) + begin_ns
    a = np.repeat(np.arange(hosts), count * each)
    return a, np.repeat(peers.ravel(), each), slots.ravel().astype(np.int64)
