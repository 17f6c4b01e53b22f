"""Pages of simulated hosts: what a real agent's would say, from the faults that were asked for."""

import json
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fleetscope.agents.simulated import Simulation
from fleetscope.schema import config
from fleetscope.schema.metrics import metric_of_sample, metrics

Series = dict[tuple[str, str, str], float]
"""(metric, host, number of the chip or "") -> value"""


def _read(address: str) -> Series:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            known = metric_of_sample(sample.name)
            assert known is not None
            assert set(sample.labels) - {"le"} == set(known.labels)
            series = sample.name + sample.labels.get("state", "")
            found[series, sample.labels["host"], sample.labels.get("device", "")[-6:-5]] = sample.value
    return found


@pytest.mark.unit
@pytest.mark.timeout(120)
def test_a_throttled_chip_and_a_silent_host_show_on_their_own_page_only(tmp_path: Path) -> None:
    targets = tmp_path / "targets.json"
    simulation = Simulation(
        config.load(state_dir=tmp_path), hosts=2, chips=2, seconds=600, ops=10, step_ms=500, busy=0.6, pages=targets,
        speed="8", faults=["throttle:host=1,chip=1,at=2,slowdown=1.5,for=900", "silent:host=0,at=30,for=900"],
    )  # fmt: skip
    stop = threading.Event()
    thread = threading.Thread(target=simulation.run, args=(stop,))
    thread.start()
    try:
        (group,) = json.loads(targets.read_text())
        assert group["labels"] == {"job": "fleetscope-agent"}
        quiet, hot = group["targets"]
        until = time.monotonic() + 60
        last: Series = {}
        while time.monotonic() < until:
            try:
                last = _read(quiet)
            except OSError:
                break
            time.sleep(0.2)
        other = _read(hot)
    finally:
        stop.set()
        thread.join()
    name = "fleetscope_chip_throttle_seconds_total"
    assert {chip: last[name, "sim-000", chip] for chip in "01"} == {"0": 0.0, "1": 0.0}
    assert other[name, "sim-001", "0"] == 0.0
    assert 10 < other[name, "sim-001", "1"] < other["fleetscope_profiler_steps_total", "sim-001", ""]
    assert other["fleetscope_chip_statebusy", "sim-001", "1"] == 1
    assert other["fleetscope_chip_statefree", "sim-001", "1"] == 0
    assert other["fleetscope_chip_owner_info", "sim-001", "1"] == 1
    hardware = {name for name in metrics() if name.startswith(("fleetscope_chip_", "fleetscope_host_"))}
    absent = {name for name in hardware if not any(series.startswith(name) for series, *_ in other)}
    assert absent == {"fleetscope_chip_faults_total", "fleetscope_chip_quarantined"}, "which are events"
    assert other["fleetscope_chip_energy_joules_total", "sim-001", "0"] > 60 * 20
