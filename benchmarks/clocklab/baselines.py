"""What other tools do with the same exchanges, given a direct path from host 0 to every other host.

Each returns, for every host, what it takes host 0 to have shown when the host showed x: error() compares that with what
it did show.
"""

from collections.abc import Callable

import numpy as np

from clocklab.fleet import Fleet
from clocklab.network import exchange
from clocklab.oscillator import SECOND, Floats, Int64s

Line = tuple[Int64s, Int64s, Floats]
"""(x0, y0, rate) of each host but 0: y = y0 + (x - x0) * (1 + rate)."""


def star(fleet: Fleet, seed: int, rate_hz: float = 2.0) -> tuple[Int64s, Int64s]:
    """(host, stamps) of exchanges in which host 0 asks every other one all the time, by host and time."""
    rng = np.random.default_rng(seed)
    each = int(fleet.seconds * rate_hz)
    sent = ((np.arange(each) + rng.random((fleet.hosts - 1, each))) / rate_hz * SECOND).astype(np.int64)
    host = np.repeat(np.arange(1, fleet.hosts), each)
    made = exchange(rng, fleet.crystals, fleet.paths, fleet.network, np.zeros_like(host), host, sent.ravel())
    return made.b, made.stamps


def _points(stamps: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """(the host's reading, host 0's reading then, round trip)."""
    there, back = stamps[:, 1] - stamps[:, 0], stamps[:, 3] - stamps[:, 2]
    middle = (stamps[:, 1] + stamps[:, 2]) // 2
    return middle, (stamps[:, 0] + stamps[:, 3]) // 2, there + back


def single_anchor(stamps: Int64s) -> tuple[int, int, float]:
    """One pair at the start, and nominal rates (XLA's GPU tracer)."""
    x, y, _ = _points(stamps[:1])
    return int(x[0]), int(y[0]), 0.0


def mean_of_midpoints(stamps: Int64s) -> tuple[int, int, float]:
    """One constant for all of it (Perfetto's remote clock sync)."""
    x, y, _ = _points(stamps)
    return 0, round(float(np.mean((y - x - (y[0] - x[0])).astype(np.float64)))) + int(y[0] - x[0]), 0.0


def first_and_last(stamps: Int64s) -> tuple[int, int, float]:
    """The quickest exchange of the first and of the last half minute, and the line through both."""
    x, y, round_trip = _points(stamps)
    one = int(np.argmin(np.where(y < y[0] + 30 * SECOND, round_trip, 1 << 60)))
    two = int(np.argmin(np.where(y > y[-1] - 30 * SECOND, round_trip, 1 << 60)))
    return int(x[one]), int(y[one]), float((y[two] - y[one]) - (x[two] - x[one])) / float(x[two] - x[one])


BASELINES: dict[str, Callable[[Int64s], tuple[int, int, float]]] = {
    "single_anchor": single_anchor,
    "mean_of_midpoints": mean_of_midpoints,
    "first_and_last": first_and_last,
}


def errors(fleet: Fleet, seed: int) -> dict[str, Floats]:
    """ns between each host and host 0, at 200 moments, by each of the tools."""
    host, stamps = star(fleet, seed)
    moments = (np.linspace(0.02, 0.98, 200) * fleet.seconds * SECOND).astype(np.int64)
    of_zero = fleet.crystals.read(np.zeros(200, np.int64), moments)
    found: dict[str, list[Floats]] = {name: [] for name in BASELINES}
    for number in range(1, fleet.hosts):
        mine = stamps[host == number]
        x = fleet.crystals.read(np.full(200, number), moments)
        for name, line in BASELINES.items():
            x0, y0, rate = line(mine)
            stated = y0 + (x - x0) + np.rint((x - x0) * rate).astype(np.int64)
            found[name].append(np.abs((stated - of_zero).astype(np.float64)))
    return {name: np.concatenate(parts) for name, parts in found.items()}
