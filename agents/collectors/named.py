"""Series by their entry in metrics.json: unit and kind are what it says, so that no vendor's module can differ."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from fleetscope.agents.collectors.collector import Series
from fleetscope.schema.metrics import metric


@lru_cache(maxsize=4096)
def named(name: str, **labels: str) -> Series:
    """The series of the metric `name`; `labels` beside host, device and sku. KeyError, ValueError: it has no such name,
    label or value of one."""
    entry = metric(name)
    for label, value in labels.items():
        if label not in entry.labels or value not in entry.values.get(label, (value,)):
            raise ValueError(f"{name} has no {label}={value!r}")
    return Series(name, entry.unit, entry.type == "counter", tuple(sorted(labels.items())))


def chip(name: str, **labels: str) -> Series:
    """A series of one chip: fleetscope_chip_`name`."""
    return named(f"fleetscope_chip_{name}", **labels)


def buckets(
    name: str, bounds: Sequence[float], counts: Sequence[int], total: float, **labels: str
) -> Iterator[tuple[Series, int | float]]:
    """The parts of a histogram as Prometheus has them: cumulative buckets (the last of `counts` has no bound), count
    and sum."""
    base = named(name, **labels)
    reached = 0
    for bound, count in zip([*bounds, float("inf")], counts, strict=True):
        reached += count
        text = "+Inf" if bound == float("inf") else f"{bound:.9g}"
        yield Series(f"{name}_bucket", "", True, tuple(sorted({**labels, "le": text}.items()))), reached
    yield Series(f"{name}_count", "", True, base.labels), reached
    yield Series(f"{name}_sum", base.unit, True, base.labels), total


THROTTLE_REASONS = tuple(metric("fleetscope_chip_throttled").values["reason"])
"""Why a chip runs slower than asked for, in words of no vendor."""


def throttled(reason: str, vendor_reason: str) -> Series:
    """1 while the chip is slowed down for this reason."""
    return chip("throttled", reason=reason, vendor_reason=vendor_reason)


def throttle_seconds(reason: str, vendor_reason: str) -> Series:
    """How long it has been."""
    return chip("throttle_seconds_total", reason=reason, vendor_reason=vendor_reason)
