"""Profiler windows of a device whose clock nobody reads: launches of the host, programs of the device, and the truth.

The device's ticks count from the window's begin. A program begins `launch_ns` and an exponential tail after it was
enqueued, or when the one before it has ended; its completion is told late likewise. `wrong`: share of pairs that are
one execution off, as a wrong match would have them.
"""

from dataclasses import dataclass, field

import numpy as np

from clocklab.oscillator import Int64s

UPTIME_NS = 400 * 86_400 * 1_000_000_000


@dataclass(slots=True)
class Window:
    """`pairs` programs every `step_ns`; each takes `busy` of it. `run_ahead`: launches in flight, if more than 1.
    `zero_ns`: the host's raw time of tick 0. Ticks are 1.25 ns, `ppm` fast."""

    seed: int
    pairs: int = 20
    step_ns: int = 50_000_000
    busy: float = 0.6
    run_ahead: int = 1
    ppm: float = 17.0
    launch_ns: int = 46_000
    tail_ns: int = 30_000
    told_ns: int = 25_000
    told_tail_ns: int = 40_000
    wrong: float = 0.0
    zero_ns: int = UPTIME_NS
    begin: Int64s = field(init=False)
    """Ticks at which programs began, and how long they took."""
    ticks: Int64s = field(init=False)
    enqueue: Int64s = field(init=False)
    """Host raw ns, as completion."""
    complete: Int64s = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        count, idle = self.pairs, 0
        length = np.rint(self.step_ns * self.busy * rng.lognormal(0, 0.02, count)).astype(np.int64)
        enqueued, began, done = [], [], []
        for i in range(count):
            at = i * self.step_ns + 3_000_000 + int(rng.exponential(200_000))
            if self.run_ahead > 1:
                # The host waits for the program `run_ahead` before: the device's queue is never empty.
                at = done[i - self.run_ahead] if i >= self.run_ahead else 3_000_000 + i * 100_000
            start = max(at + self.launch_ns + int(rng.exponential(self.tail_ns)), idle)
            idle = start + int(length[i])
            enqueued.append(at)
            began.append(start)
            done.append(idle + self.told_ns + int(rng.exponential(self.told_tail_ns)))
        true = np.array(began, np.int64)
        rate = 0.8 * (1 + self.ppm * 1e-6)
        self.begin = np.floor(true * rate).astype(np.int64)
        self.ticks = np.floor((true + length) * rate).astype(np.int64) - self.begin
        shift = np.where(rng.random(count) < self.wrong, rng.choice([-1, 1], count), 0)
        of = np.clip(np.arange(count) + shift, 0, count - 1)
        self.enqueue = self.zero_ns + np.array(enqueued, np.int64)[of]
        self.complete = self.zero_ns + np.array(done, np.int64)[of]

    def true_ns(self, tick: Int64s) -> Int64s:
        """Host raw time of ticks, to 1 ns."""
        return self.zero_ns + np.rint(tick / (0.8 * (1 + self.ppm * 1e-6))).astype(np.int64)
