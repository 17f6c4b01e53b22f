"""A fleet, hop by hop: what its agents would tell, and the truth beside it."""

from dataclasses import dataclass, field

import numpy as np

from clocklab.network import Exchanges, Network, Paths, Peers, exchange, requests
from clocklab.oscillator import SECOND, Crystals, Floats, Int64s, Wander

EPOCH_NS = 1_800_000_000 * SECOND
"""What UTC shows at true time 0."""


@dataclass(frozen=True, slots=True)
class Collectives:
    """One a period; every group of `size` hosts enters within `spread_us`, leaves `after_us` behind the last, each rank
    up to `skew_us` later, 1 % of them an operating system's hiccup later."""

    period_s: float = 1.0
    size: int = 32
    spread_us: float = 2_000.0
    after_us: float = 30.0
    skew_us: float = 3.0
    hiccup: float = 0.01


@dataclass(frozen=True, slots=True)
class Arrivals:
    """One row a rank of a collective, times by the host's own clock."""

    group: Int64s
    sequence: Int64s
    host: Int64s
    rank: Int64s
    start: Int64s
    end: Int64s


@dataclass(frozen=True, slots=True)
class Walls:
    """Wall clocks read: raw, REALTIME, and within what the host says UTC is of it (-1: not synchronized)."""

    host: Int64s
    raw: Int64s
    realtime: Int64s
    max_error: Int64s


@dataclass(slots=True)
class Fleet:
    """`hop_s` seconds at a time. Faults are set on `crystals`, `paths`, `present`, `lies` before hops are taken."""

    seed: int
    hosts: int
    seconds: float
    wander: Wander = field(default_factory=Wander)
    network: Network = field(default_factory=Network)
    collectives: Collectives | None = field(default_factory=Collectives)
    hop_s: int = 10
    days_up: float = 3.0
    max_error_ns: int = 2_000_000
    crystals: Crystals = field(init=False)
    paths: Paths = field(init=False)
    peers: Peers = field(init=False)
    present: Int64s = field(init=False)
    """[hosts, 2] true ns between which each takes part."""
    lies: list[tuple[int, int, int]] = field(default_factory=list)
    """(host, true ns, ns): from then on it adds so much to the stamps it answers with."""
    mistaken: tuple[int, int] = (0, 0)
    """True ns between which host 0 numbers its collectives one too low."""
    wall: Floats = field(init=False)
    _rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)
        self.crystals = Crystals(self._rng, self.hosts, self.seconds, self.wander, self.days_up)
        self.paths = Paths(self.seed, self.network)
        self.peers = Peers(self._rng, self.hosts, self.network)
        self.present = np.tile(np.array([[-(1 << 62), 1 << 62]]), (self.hosts, 1))
        self.wall = self._rng.normal(0, self.max_error_ns / 4, self.hosts).clip(-self.max_error_ns, self.max_error_ns)

    def hop(self, number: int) -> tuple[Exchanges, Arrivals, Walls]:
        """Of true time [number, number + 1) hops."""
        begin, end = (number * self.hop_s * SECOND, (number + 1) * self.hop_s * SECOND)
        self.peers.advance(self.hop_s)
        a, b, sent = requests(self._rng, self.peers.of, self.network, begin, end)
        there = self.here(a, sent) & self.here(b, sent) & (a != b)
        made = exchange(self._rng, self.crystals, self.paths, self.network, a[there], b[there], sent[there])
        for liar, since, size in self.lies:
            made.stamps[(made.b == liar) & (made.sent_ns >= since), 1:3] += size
        return made, self._arrivals(begin, end), self._walls(begin, end)

    def here(self, host: Int64s, true_ns: Int64s) -> np.ndarray:
        return (true_ns >= self.present[host, 0]) & (true_ns < self.present[host, 1])

    def _arrivals(self, begin: int, end: int) -> Arrivals:
        empty = np.empty(0, np.int64)
        how = self.collectives
        if how is None:
            return Arrivals(empty, empty, empty, empty, empty, empty)
        groups, count = self.hosts // how.size, max(1, round((end - begin) / SECOND / how.period_s))
        if not groups:
            return Arrivals(empty, empty, empty, empty, empty, empty)
        shape = (groups, count, how.size)
        at = begin + (np.arange(count)[None, :, None] + self._rng.random((groups, count, 1))) * (end - begin) / count
        start = at + self._rng.uniform(0, how.spread_us, shape) * 1e3
        left = start.max(axis=2, keepdims=True) + how.after_us * 1e3 + self._rng.uniform(0, how.skew_us, shape) * 1e3
        left += np.where(self._rng.random(shape) < how.hiccup, self._rng.exponential(2e5, shape), 0.0)
        host = np.broadcast_to(np.arange(groups * how.size).reshape(groups, 1, how.size), shape).ravel()
        true_start, true_end = start.astype(np.int64).ravel(), left.astype(np.int64).ravel()
        group = np.broadcast_to(np.arange(groups)[:, None, None], shape).ravel() + 1
        sequence = np.broadcast_to(begin // SECOND * 1000 + np.arange(count)[None, :, None], shape).ravel()
        wrong = (host == 0) & (true_start >= self.mistaken[0]) & (true_start < self.mistaken[1])
        sequence = sequence - wrong
        rank = np.broadcast_to(np.arange(how.size)[None, None, :], shape).ravel()
        kept = self.here(host, true_start)
        columns = (group, sequence, host, rank)
        read = (self.crystals.read(host, true_start), self.crystals.read(host, true_end))
        return Arrivals(*(column[kept].copy() for column in (*columns, *read)))

    def _walls(self, begin: int, end: int) -> Walls:
        host = np.arange(self.hosts)
        true_ns = np.full(self.hosts, (begin + end) // 2)
        host = host[self.here(host, true_ns)]
        true_ns = true_ns[: len(host)]
        realtime = EPOCH_NS + true_ns + self.wall[host].astype(np.int64)
        return Walls(host, self.crystals.read(host, true_ns), realtime, np.full(len(host), self.max_error_ns))

    def true(self, host: Int64s, raw: Int64s) -> Int64s:
        """True time of a reading of a host's clock."""
        return self.crystals.true(host, raw)
