"""Values that mean "no value", and counters that wrap. Dropped and counted once, for all vendors.

Sources: DCGM headers (blank values of each type), DCGM issue 199 (utilisation 4294967295), slurm-job-exporter issues 30
and 53 (1.4e14 exported), dynolog PR 595 (48-bit wrap), kineto issue 109 (zero time stamps).
"""

import math
from dataclasses import dataclass

_DCGM_INT32 = range(0x7FFFFFF0, 0x7FFFFFF4)
_DCGM_INT64 = range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4)
_DCGM_FP64 = (1 << 47, (1 << 47) + 1, (1 << 47) + 2, (1 << 47) + 3)
_ALL_ONES = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF, (1 << 48) - 1)


def clean(value: object) -> tuple[int | float | None, str]:
    """(value, "") or (None, why it is none): not_a_number, infinite, blank, all_ones, missing."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None, "missing"
    if isinstance(value, float):
        if math.isnan(value):
            return None, "not_a_number"
        if math.isinf(value):
            return None, "infinite"
    if value in _ALL_ONES:
        return None, "all_ones"
    if value in _DCGM_FP64 or (float(value).is_integer() and (value in _DCGM_INT32 or value in _DCGM_INT64)):
        return None, "blank"
    return value, ""


def scaled(value: object, factor: float) -> tuple[float | None, str]:
    """`value` x `factor`, or None and why."""
    found, why = clean(value)
    return (None, why) if found is None else (found * factor, "")


def clean_time(ns: object) -> tuple[int | None, str]:
    """A stamp of 0 means that nothing was collected, not 1970."""
    found, why = clean(ns)
    if found is None:
        return None, why
    return (int(found), "") if found > 0 else (None, "zero_timestamp")


@dataclass(slots=True)
class Accumulator:
    """A counter of `modulus` values as one that never falls.

    A fall by more than half the modulus is a wrap; any other is a reset, after which the counter's own value is what
    was counted since.
    """

    modulus: int
    total: int = 0
    resets: int = 0
    _last: int | None = None

    def add(self, raw: int) -> int:
        """The total with this reading, from the first reading's value on."""
        last, self._last = self._last, raw
        if last is None:
            self.total = raw
        elif raw >= last:
            self.total += raw - last
        elif last - raw > self.modulus // 2:
            self.total += raw + self.modulus - last
        else:
            self.total += raw
            self.resets += 1
        return self.total


class Counters(dict[str, Accumulator]):
    """Counters of one device, by name."""

    def counted(
        self, name: str, raw: object, factor: float = 1, modulus: int = 1 << 64
    ) -> tuple[int | float | None, str]:
        """A counter that never falls, from one that wraps or is reset."""
        value, why = clean(raw)
        if value is None:
            return None, why
        return self.setdefault(name, Accumulator(modulus)).add(int(value)) * factor, ""
