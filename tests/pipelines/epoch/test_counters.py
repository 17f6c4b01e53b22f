"""Counters of runs as records: large runs in parts, each sample once, each record small enough to be sent."""

from __future__ import annotations

from typing import Any

import pytest

from fleetscope.pipelines import counters
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.identity import device_id

pytestmark = pytest.mark.unit

MESSAGE_LIMIT = 8 << 20


@pytest.mark.parametrize("devices", [1, 256, 257, 12_000])
def test_a_run_of_any_size_can_be_published(devices: int, series_of: Any) -> None:
    state = PartitionState()
    run = {"event_ns": 5, "events": [devices, 0, 0, 0, 0], "steps": [7, 1], "unknown": {}, "devices": {}}
    for index in range(devices):
        key = f"cluster-a/host-{index // 8:05d}.rack-7.example/tpu-0000:{index % 8:02x}:00.0"
        state.devices[device_id(key)] = {"key": key, "sku": "TPU v6e", "host": f"host-{index // 8}", "host_id": 1}
        run["devices"][str(device_id(key))] = [index] * len(counters.DEVICE_COUNTERS)  # type: ignore[index]
    state.counters["a/1"] = run
    records = counters.records(3, 9, 10**18, [state])
    assert max(len(record.SerializeToString()) for record in records) < MESSAGE_LIMIT
    keys = [counters.key_of(record) for record in records]
    assert len(set(keys)) == len(keys)
    seconds = [
        (labels["device"], value)
        for record in records
        for name, labels, value in series_of(record)
        if name == "fleetscope_device_busy_seconds_total"
    ]
    assert len({device for device, _ in seconds}) == len(seconds) == devices
    assert sum(value for _, value in seconds) == pytest.approx(sum(range(devices)) * 1e-9)
    stored = [s.int_value for r in records for s in r.samples if s.labels.get("outcome") == "stored"]
    assert stored == [devices]
    again = counters.records(3, 10, 10**18, [state])
    assert {counters.key_of(record) for record in again} == set(keys), "a device stays in its part"


def test_what_a_run_is_called_cannot_make_two_keys_one() -> None:
    names = ["a", "1/a", ".1/a", "a/1", "0.1/a", ""]
    states = PartitionState()
    for name in names[:-1]:
        states.counters[name] = {"event_ns": 1, "events": [0] * 5, "steps": [0, 0], "unknown": {}, "devices": {}}
    records = counters.records(0, 1, 2, [states])
    parts = [type(record).FromString(record.SerializeToString()) for record in records]
    for part in parts:
        part.part = 1
    keys = [counters.key_of(record) for record in [*records, *parts]]
    assert len(set(keys)) == len(keys)
