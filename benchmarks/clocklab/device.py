"""One device's counter read against the host's raw clock for a while: what an agent would tell, and the truth."""

from dataclasses import dataclass, field

import numpy as np

from clocklab.brackets import Widths
from clocklab.counters import GTC, Counter, Shape, rates
from clocklab.oscillator import SECOND, Int64s, Wander

UPTIME_NS = 400 * 86_400 * SECOND
"""What the host's raw clock shows at true time 0: sums of so many ns have overflowed int64 in others' profilers."""
ROOM = Wander(walk=1e-9, swing_ppm=0.2, period_s=(300.0, 3600.0))


@dataclass(slots=True)
class DeviceRun:
    """`every_ns`: between reads, of which `loss` fail. `step_ppm`: of the rate, half way. `late`: share of reads told
    up to `late_ns` later, so that they change places; `twice`: of those told again then."""

    seed: int
    seconds: int = 3600
    drift_ppm: float = 17.0
    wander: Wander = ROOM
    widths: Widths = field(default_factory=Widths)
    shape: Shape = GTC
    every_ns: int = SECOND
    loss: float = 0.0
    step_ppm: float = 0.0
    late: float = 0.0
    late_ns: int = 3_600 * SECOND
    twice: float = 0.0
    counter: Counter = field(init=False)
    at: Int64s = field(init=False)
    """True times of the reads."""
    tick: Int64s = field(init=False)
    before: Int64s = field(init=False)
    after: Int64s = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        rate = rates(rng, self.seconds + 2, self.drift_ppm, self.wander)
        half = len(rate) // 2
        rate[half:] = [value + round(self.step_ppm * 1e3) for value in rate[half:]]
        self.counter = Counter(self.shape, rate)
        at = np.arange(0, self.seconds * SECOND, self.every_ns, dtype=np.int64)
        self.at = at[(rng.random(len(at)) >= self.loss) | (at == 0)]
        self.tick = self.counter.moved(self.at)
        before, after = self.widths.around(rng, self.at)
        self.before, self.after = before + UPTIME_NS, after + UPTIME_NS

    def told(self) -> list[tuple[int, int]]:
        """(true time it is told, number of the read), in the order told."""
        rng = np.random.default_rng(self.seed + 1_000_003)
        found = []
        for number, at in enumerate(self.at.tolist()):
            later = at + int(rng.random() * self.late_ns)
            late = rng.random() < self.late
            found.append((later if late else at, number))
            if rng.random() < self.twice:
                found.append((later, number))
        return sorted(found)

    def probes(self, times_a_second: int) -> tuple[Int64s, Int64s]:
        """(raw ns, tick) of moments evenly spread over the run, between its first read and its last."""
        step = SECOND // times_a_second
        true = np.arange(step // 3, int(self.at[-1]), step, dtype=np.int64)
        return UPTIME_NS + true, self.counter.moved(true)
