"""Devices that tell what cannot be: the value goes, then the device; it is named, and comes back."""

from typing import Any

import pytest

from fleetscope.agents.collectors import Reading, Sample
from fleetscope.agents.collectors.named import chip
from fleetscope.agents.collectors.plausible import AMENDS, STRIKES, Judge

POWER, HEAT = chip("power_watts"), chip("temperature_celsius", sensor="gpu")
SM, TENSOR = (chip("unit_active_ratio", unit=unit) for unit in ("sm", "tensor"))
UTILIZATION = chip("utilization_ratio")


def reading(device: str = "a", **values: Any) -> Reading:
    """power, heat, sm, tensor, utilization of one device beside an honest one."""
    series = {"power": POWER, "heat": HEAT, "sm": SM, "tensor": TENSOR, "utilization": UTILIZATION}
    told = [Sample(series[name], value, device) for name, value in values.items()]
    return Reading([*told, Sample(POWER, 300, "honest")])


def told(judged: Reading, device: str = "a") -> list[str]:
    return sorted(sample.series.name for sample in judged.samples if sample.device == device)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("lie", "what"), [({"heat": 400}, "temperature"), ({"utilization": 1.5}, "utilization"), ({"power": -3}, "power")]
)
def test_one_lie_costs_the_value_and_three_in_a_row_the_device(lie: dict[str, float], what: str) -> None:
    judge = Judge()
    honest = {"power": 100, "heat": 60, "utilization": 0.5} | lie
    for strike in range(STRIKES):
        assert judge.quarantined() == {}
        judged = judge.judge(reading(**honest))
        assert len(told(judged)) == (2 if strike < STRIKES - 1 else 0)
        assert judged.refused[f"implausible_{what}"] == 1
        assert told(judged, "honest")
    assert judge.quarantined() == {"a": what}
    for _ in range(AMENDS):
        assert judge.quarantined() == {"a": what}
        judged = judge.judge(reading(power=100, heat=60))
    assert judge.quarantined() == {}
    assert len(told(judged)) == 2


@pytest.mark.fault
def test_lies_that_are_not_in_a_row_quarantine_nothing_and_a_chip_that_left_is_forgotten() -> None:
    judge = Judge()
    for _ in range(5):
        judge.judge(reading(heat=400))
        judge.judge(reading(heat=60))
    assert judge.quarantined() == {}
    for _ in range(3):
        judge.judge(reading(heat=400))
    judge.forget(["honest"])
    assert judge.quarantined() == {}


@pytest.mark.fault
def test_more_memory_used_than_there_is() -> None:
    judge = Judge()
    samples = [Sample(chip("memory_used_bytes"), 9, "a"), Sample(chip("memory_total_bytes"), 8, "a")]
    judged = judge.judge(Reading(samples))
    assert (list(judged.samples), judged.refused) == ([], {"implausible_memory_used": 1})


@pytest.mark.fault
def test_units_that_read_zero_while_the_chip_is_busy_are_suspect() -> None:
    """DCGM 303, 169 (RT-13): profiling counters 0 while the utilization is 100 %. The chip itself is believed."""
    judge = Judge()
    for number in range(4):
        judged = judge.judge(reading(utilization=1.0, sm=0, tensor=0, power=500))
        names = {name.removeprefix("fleetscope_chip_") for name in told(judged)}
        # Once may be work that ended between two reads.
        assert ("unit_active_ratio" in names) == (number == 0)
        assert {"utilization_ratio", "power_watts"} <= names
    assert judge.quarantined() == {"a": "suspect_zero"}
    idle = judge.judge(reading(utilization=0.0, sm=0, tensor=0))
    assert "fleetscope_chip_unit_active_ratio" in told(idle)
    assert judge.quarantined() == {}
    memory_bound = judge.judge(reading(utilization=1.0, sm=0.9, tensor=0))
    assert "fleetscope_chip_unit_active_ratio" in told(memory_bound)
