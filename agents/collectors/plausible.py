"""What no chip can be. A device that says so is not believed in that value; one that goes on saying so, in none.

Sources: DCGM issues 199 (utilisation above 1), 303 and 169 (profiling counters of 0 while the chip is fully busy).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleetscope.agents.collectors.collector import Reading, Sample

STRIKES = 3
"""Reads in a row with a lie, after which nothing of the device is believed: one may be a race with a reset."""
AMENDS = 30
"""Reads in a row without one, after which it is believed again."""
FULL = 1.0 + 1e-6
"""A share computed in floating point may be as much above 1."""
BUSY = 0.9
"""The driver's utilization from which units that all read 0 cannot be true; it looks back up to a second."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "fleetscope_chip_power_watts": (0, 10_000),
    "fleetscope_chip_power_limit_watts": (0, 10_000),
    "fleetscope_chip_temperature_celsius": (-50, 200),
    "fleetscope_chip_temperature_margin_celsius": (-150, 250),
    "fleetscope_chip_clock_hertz": (0, 2e10),
    "fleetscope_chip_memory_used_bytes": (0, 1 << 44),
    "fleetscope_chip_memory_total_bytes": (0, 1 << 44),
    "fleetscope_chip_utilization_ratio": (0, FULL),
    "fleetscope_chip_unit_active_ratio": (0, FULL),
}
"""Least and greatest that a chip of any vendor can be, with room: 10 kW, 200 degrees, 20 GHz, 16 TiB."""
_USED, _TOTAL = "fleetscope_chip_memory_used_bytes", "fleetscope_chip_memory_total_bytes"
_UTILIZATION, _UNITS = "fleetscope_chip_utilization_ratio", "fleetscope_chip_unit_active_ratio"
SUSPECT_ZERO = "suspect_zero"


@dataclass(slots=True)
class _Record:
    """`why`: why the device is not believed, "" while it is; `units`: how often in a row its units read 0."""

    strikes: int = 0
    honest: int = 0
    why: str = ""
    units: int = 0


class Judge:
    """Remembers what each device of one source has said. Not thread-safe."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def judge(self, reading: Reading) -> Reading:
        """The reading without what is not believed; how much that was is in `refused`, by reason."""
        by_device: dict[str, list[Sample]] = {}
        for sample in reading.samples:
            by_device.setdefault(sample.device, []).append(sample)
        refused: Counter[str] = Counter(reading.refused)
        kept: list[Sample] = []
        for device, samples in by_device.items():
            kept += self._believed(device, samples, refused) if device else samples
        standing = [s for s in reading.standing if not self._distrusted(s.device) and _lie(s) == ""]
        return replace(reading, samples=kept, standing=standing, refused=refused)

    def quarantined(self) -> dict[str, str]:
        """Device -> why its values are withheld, all of them or (suspect_zero) those of its units."""
        found = {device: record.why for device, record in self._records.items() if record.why}
        zeros = {device: SUSPECT_ZERO for device, record in self._records.items() if record.units >= STRIKES}
        return {**zeros, **found}

    def forget(self, devices: Sequence[str]) -> None:
        """Only these are still there."""
        for device in self._records.keys() - set(devices):
            del self._records[device]

    def _distrusted(self, device: str) -> bool:
        record = self._records.get(device)
        return record is not None and bool(record.why)

    def _believed(self, device: str, samples: list[Sample], refused: Counter[str]) -> list[Sample]:
        record = self._records.setdefault(device, _Record())
        lies = [_lie(sample) for sample in samples]
        kept = [sample for sample, lie in zip(samples, lies, strict=True) if not lie]
        values = {sample.series.name: sample.value for sample in kept}
        if values.get(_USED, 0) > values.get(_TOTAL, float("inf")):
            lies.append("memory_used")
            kept = [sample for sample in kept if sample.series.name not in (_USED, _TOTAL)]
        told = [lie for lie in lies if lie]
        for lie in told:
            refused[f"implausible_{lie}"] += 1
        record.strikes = record.strikes + 1 if told else 0
        record.honest = 0 if told else record.honest + 1
        if record.strikes >= STRIKES:
            record.why = told[0]
        elif record.honest >= AMENDS:
            record.why = ""
        if record.why:
            refused["quarantined"] += len(kept)
            return []
        return self._without_zeros(record, kept, values, refused)

    def _without_zeros(
        self, record: _Record, kept: list[Sample], values: dict[str, int | float], refused: Counter[str]
    ) -> list[Sample]:
        units = [sample for sample in kept if sample.series.name == _UNITS]
        asleep = len(units) > 1 and not any(sample.value for sample in units)
        if not asleep or values.get(_UTILIZATION, 0) < BUSY:
            record.units = 0
            return kept
        record.units += 1
        if record.units == 1:
            return kept  # work may have ended between the two reads
        refused[SUSPECT_ZERO] += len(units)
        return [sample for sample in kept if sample.series.name != _UNITS]


def _lie(sample: Sample) -> str:
    """What of the chip the value is, if no chip can have it, else ""."""
    least, most = _BOUNDS.get(sample.series.name, (float("-inf"), float("inf")))
    if least <= sample.value <= most:
        return ""
    return sample.series.name.removeprefix("fleetscope_chip_").rpartition("_")[0]
