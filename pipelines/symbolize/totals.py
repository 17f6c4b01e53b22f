"""What a piece of a program costs: bounds of its FLOPs, and the opcodes that keep them from being one number.

`low` is what is known to be executed, `high` None where no bound is known. Both are one where the cost is known. Sums
beyond any machine's reach become unknown, so that no trip count of 2^60 overflows a column or a sum of columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

MOST_FLOPS = 1 << 58
"""Of one occurrence: 2.9e17, a minute of a chip of 5e15 FLOP/s. 32 of them still fit an int64."""

UNKNOWN_LISTED = 16
"""Opcodes named of one op; a program that needs more is not understood at all."""


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of one occurrence of a leaf (None: unknown), the formula they come from, the element type whose peak
    applies, `model` without what it computes again inside (None: all of them), transcendental functions."""

    flops: int | None
    source: str
    dtype: str = ""
    model: int | None = None
    transcendentals: int = 0


@dataclass(frozen=True, slots=True)
class Total:
    """FLOPs in [low, high], `model_*` without recomputation; `wire`: bytes sent by collectives (None: unknown);
    `dtype` is that of the costliest part; `unknown`: opcodes whose cost is not known, custom calls with target."""

    low: int = 0
    high: int | None = 0
    model_low: int = 0
    model_high: int | None = 0
    source: str = "move"
    dtype: str = ""
    transcendentals: int = 0
    wire: int | None = 0
    unknown: frozenset[str] = frozenset()

    @property
    def flops(self) -> int | None:
        return self.low if self.low == self.high else None

    @property
    def model_flops(self) -> int | None:
        return self.model_low if self.model_low == self.model_high else None


def unknown(label: str, dtype: str = "") -> Total:
    return Total(0, None, 0, None, "unknown", dtype, 0, None, frozenset((label,)))


def known(flops: int, model: int, source: str, dtype: str, transcendentals: int = 0, wire: int | None = 0) -> Total:
    """Negative counts, which only damage makes, are unknown."""
    if not 0 <= model <= flops <= MOST_FLOPS or transcendentals < 0:
        return unknown(f"{source} out of range", dtype)
    return Total(flops, flops, model, model, source, dtype, min(transcendentals, MOST_FLOPS), _sent(wire))


def added(parts: Iterable[Total], source: str) -> Total:
    """All of them, one after another."""
    low = model_low = transcendentals = 0
    high: int | None = 0
    model_high: int | None = 0
    wire: int | None = 0
    labels: set[str] = set()
    dtype, most = "", -1
    for part in parts:
        low += part.low
        model_low += part.model_low
        high = None if high is None or part.high is None else high + part.high
        model_high = None if model_high is None or part.model_high is None else model_high + part.model_high
        wire = None if wire is None or part.wire is None else wire + part.wire
        transcendentals += part.transcendentals
        labels |= part.unknown
        if part.low > most:
            dtype, most = part.dtype, part.low
    total = Total(low, high, model_low, model_high, source, dtype, transcendentals, wire, frozenset(labels))
    return _bounded(total)


def repeated(part: Total, times: int | None) -> Total:
    """`part` run `times` times; None: nobody knows how often, maybe never."""
    if times is None:
        if part.high == 0 and part.wire == 0:
            return replace(part, source="loop")
        label = frozenset((*part.unknown, "while without a trip count"))
        return Total(0, None, 0, None, "unknown", part.dtype, 0, 0 if part.wire == 0 else None, label)
    total = Total(
        part.low * times,
        None if part.high is None else part.high * times,
        part.model_low * times,
        None if part.model_high is None else part.model_high * times,
        "loop",
        part.dtype,
        part.transcendentals * times,
        None if part.wire is None else part.wire * times,
        part.unknown,
    )
    return _bounded(total)


def one_of(branches: Sequence[Total]) -> Total:
    """One of them, nobody knows which: the bounds of all, and known only where they agree."""
    if not branches:
        return unknown("conditional")
    high = None if any(b.high is None for b in branches) else max(b.high or 0 for b in branches)
    model_high = None if any(b.model_high is None for b in branches) else max(b.model_high or 0 for b in branches)
    labels = frozenset().union(*(b.unknown for b in branches))
    low, model_low = min(b.low for b in branches), min(b.model_low for b in branches)
    if low != high and not labels:
        labels = frozenset(("conditional",))
    wires = {b.wire for b in branches}
    costliest = max(branches, key=lambda b: b.low)
    return Total(
        low, high, model_low, model_high, "conditional", costliest.dtype, max(b.transcendentals for b in branches),
        wires.pop() if len(wires) == 1 else None, labels,
    )  # fmt: skip


def _sent(wire: int | None) -> int | None:
    return wire if wire is None or 0 <= wire <= MOST_FLOPS else None


def _bounded(total: Total) -> Total:
    labels = total.unknown
    high = total.high
    if total.low > MOST_FLOPS or (high is not None and high > MOST_FLOPS):
        labels, high = labels | {"more FLOPs than any machine could do"}, None
    if len(labels) > UNKNOWN_LISTED:
        labels = frozenset(sorted(labels)[:UNKNOWN_LISTED])
    return replace(
        total,
        low=min(total.low, MOST_FLOPS),
        high=high,
        model_low=min(total.model_low, MOST_FLOPS),
        model_high=None if high is None else total.model_high,
        transcendentals=min(total.transcendentals, MOST_FLOPS),
        wire=_sent(total.wire),
        unknown=labels,
    )
