"""When a device window opens and how long it stays: DESIGN 5. Pure: no jax, no clock, no socket.

All ranks of a run compute the same step and the same delay from (run, K), so a step one rank spends in a window is a
step all do: at 2 000 hosts unsynchronised 20 ms stalls cost 20 %, stalls in the same step 3 % (simulated).
"""

from collections.abc import Iterable
from typing import NamedTuple

from fleetscope.agents.profiler.protocol import Stretch

_MASK = (1 << 64) - 1

MIN_NS = 200_000_000
MAX_NS = 30_000_000_000
EXECUTIONS = 4
"""Executions of the longest program in a window: with 2, 40-60 % of windows held no complete one."""

UNKNOWN_NS = 2_000_000_000
"""W while nothing is known of the program's period: a 290 ms program fits several times."""

SETTLE_STEPS = 10
SETTLE_NS = 10_000_000_000
"""Distance of a window from the last compile, in steps or, without steps, in time: compilation is not training.

A compile is known when it ends, and a large one takes seconds: with 2 s the first windows of the example fell into it
and saw an idle device.
"""


def fingerprint(run: str, block: int) -> int:
    """64 bits from the run's name and a block of steps: FNV-1a of the name, then the splitmix64 finaliser.

    Written out, because it must be the same in every process of a run, whatever its Python or PYTHONHASHSEED.
    """
    value = 0xCBF29CE484222325
    for byte in run.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * 0x100000001B3) & _MASK
    value = (value + (block + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


FOREVER = (1 << 62) - 1

LONG_STEP_NS = MAX_NS // EXECUTIONS
"""From 7.5 s on a window of 30 s holds less than four steps, so where in a step it begins decides what it sees."""

STRATA = 8
"""Parts of a long step that eight successive windows visit once each, in an order drawn anew every time."""


def opening(run: str, every: int, block: int, strata: int = 1) -> tuple[int, float]:
    """(step, delay as a fraction of a step) of block `block` of `every` = K steps: s mod K = hash mod K/2.

    With `strata` (a power of two) > 1 the delays of blocks [g * strata, (g + 1) * strata) lie in one stratum of a step
    each: stratum = (a * i + c) mod strata with odd a, a permutation, from the group's own hash. Each delay alone stays
    uniform on [0, 1).
    """
    bits = fingerprint(run, block)
    step, fraction = block * every + (bits & 0xFFFFFFFF) % max(1, every // 2), (bits >> 32) / 2**32
    if strata > 1:
        group = fingerprint(f"{run}/strata", block // strata)
        stratum = ((group >> 32 | 1) * (block % strata) + group) % strata
        fraction = (stratum + fraction) / strata
    return step, fraction


def next_opening(run: str, every: int, after: int, strata: int = 1) -> tuple[int, float]:
    """The first opening at a step > `after`."""
    block = max(after, 0) // every
    step, delay = opening(run, every, block, strata)
    return (step, delay) if step > after else opening(run, every, block + 1, strata)


class Opening(NamedTuple):
    step: int
    delay: float
    """Of a step, 0..1."""
    every: int


def next_in(run: str, stretches: Iterable[Stretch], after: int) -> Opening | None:
    """The first opening at a step > `after` that a stretch holds; None when none does."""
    for stretch in stretches:
        if stretch.until_step - 1 <= after or stretch.every < 1:
            continue
        step, delay = next_opening(run, stretch.every, max(after, stretch.from_step - 1), stretch.strata)
        if step < stretch.until_step:
            return Opening(step, delay, stretch.every)
    return None


def steps_between(window_s: float, period_ns: int, window_ns: int = 0, budget: float = 1.0) -> int:
    """K: the smallest power of two, from 2 on, whose steps take at least `window_s` and in which a window that costs
    `window_ns` stays within `budget` (a share of time). 0 while the period is unknown."""
    if period_ns <= 0:
        return 0
    wanted_ns = max(window_s * 1e9, window_ns / budget)
    every = 2
    while every * period_ns < wanted_ns:
        every *= 2
    return every


def strata_for(longest_ns: int) -> int:
    """How many strata the phases of windows need, by the longest step."""
    return STRATA if longest_ns > LONG_STEP_NS else 1


class Length(NamedTuple):
    ns: int
    capped: bool
    """The byte cap made it shorter than the rule wants."""


def length(longest_ns: int, bytes_per_s: float, max_bytes: int) -> Length:
    """W = clamp(4 executions of the longest program, 0.2 s, 30 s), or what the byte cap allows at the rate seen so far.

    `longest_ns` 0: unknown. `bytes_per_s` 0: no window was taken yet, and the first, of unknown density, is a short
    one: at 12 MB/s (measured, a small model) 2 s would take 1.3 s to stop.
    """
    wanted = min(max(EXECUTIONS * longest_ns if longest_ns else UNKNOWN_NS, MIN_NS), MAX_NS)
    allowed = int(max_bytes / bytes_per_s * 1e9) if bytes_per_s else MIN_NS
    return Length(min(wanted, allowed), allowed < wanted)


def window_allowed(platform: str, chip: str, driver: str, jaxlib: str, allow: tuple[str, ...]) -> bool:
    """CPU always; others only when (chip or platform, driver, jaxlib) matches an entry of the allow-list.

    "*" matches all. `fleetscope soak-windows` prints the entry of the machine it ran on.
    """
    if platform == "cpu":
        return True
    for entry in allow:
        parts = tuple(entry.split("/"))
        known = ((chip, platform), (driver,), (jaxlib,))
        if len(parts) == 3 and all(part == "*" or part in those for part, those in zip(parts, known, strict=True)):
            return True
    return False
