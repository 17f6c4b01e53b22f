"""What one source said of one metric, and to which chips its numbers belong."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from fleetscope.agents.collectors.tpu.chips import TpuChip


class Unreadable(Exception):
    """A source that does not answer now; the text is the reason, one word."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative since the runtime began. `bounds`: upper ends of all buckets but the last, in the vendor's unit."""

    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float


class Source(Protocol):
    """One way to ask. Both are empty where it has no such metric, and raise Unreadable where it cannot be asked."""

    name: str

    def numbers(self, metric: str, timeout_s: float) -> list[tuple[int, float]]:
        """(the vendor's number of the chip or core, value)"""

    def histograms(self, metric: str, timeout_s: float) -> list[Histogram]: ...


def by_chip(
    numbers: Iterable[tuple[int, float]], chips: list[TpuChip], combine: Callable[[Iterable[float]], float]
) -> dict[str, float] | None:
    """Device key -> value, or None if it cannot be known whose the numbers are.

    Sources number differently: from 0 on the host, by the place in the slice, by core. So it is the order that counts,
    and only where there are as many numbers as chips, or as cores; of a chip's cores `combine` makes one value.
    """
    values: dict[int, list[float]] = {}
    for number, value in numbers:
        values.setdefault(number, []).append(value)
    cores = chips[0].cores if chips else 1
    if len(values) == len(chips):
        cores = 1
    elif len(values) != len(chips) * cores:
        return None
    found: dict[str, float] = {}
    ordered = sorted(values)
    for place, chip in enumerate(chips):
        mine = ordered[place * cores : (place + 1) * cores]
        found[chip.device.key] = combine([value for number in mine for value in values[number]])
    return found
