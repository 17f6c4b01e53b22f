"""What reading the counters of a host with 8 chips costs: CPU time of a read of each collector, at one a second.

    python benchmarks/collectors_cost.py [--reads 200]

Each collector reads as the agent's thread has it do: the read, then the judge over it. NVIDIA and AMD over built
libraries (their answers cost what a dict costs; what a driver's calls cost was not seen), the TPU over a real gRPC
server and the kubelet over a real socket, both served by another process; the host is this one. A host has chips of
one vendor: the value is the host's collector, the kubelet's and the dearest vendor's. CPU time of this process over
batches of reads, the tenth percentile of the batches; what is read more seldom than once a second counts with its
share. Budget: 0.5 % of a core. The last line is JSON.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from report import report
from vendor_host import CHIPS, VendorHost

from fleetscope.agents.collectors import Collector
from fleetscope.agents.collectors.amd import AmdCollector
from fleetscope.agents.collectors.host import HostCollector
from fleetscope.agents.collectors.kubelet import KubeletCollector
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.collectors.nvidia import collector as nvidia_module
from fleetscope.agents.collectors.plausible import Judge
from fleetscope.agents.collectors.tpu import TpuCollector
from fleetscope.agents.collectors.tpu import collector as tpu_module
from fleetscope.agents.simulated.vendors import amdsmi, nvml

BUDGET = 0.005
BATCH = 10


def cost_s(collector: Collector, reads: int) -> tuple[float, int]:
    """(CPU seconds of a read, samples of it)"""
    judge = Judge()
    collector.inventory()
    found = 0

    def once() -> None:
        nonlocal found
        reading = judge.judge(collector.read(time.monotonic() + 5))
        found = len(reading.samples) + len(reading.standing)

    for _ in range(3):
        once()
    return _percentile(once, reads), found


def _percentile(once: Callable[[], None], reads: int) -> float:
    batches: list[float] = []
    for _ in range(max(reads // BATCH, 1)):
        begin = time.process_time()
        for _ in range(BATCH):
            once()
        batches.append((time.process_time() - begin) / BATCH)
    return float(np.percentile(batches, 10))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reads", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fs-chips-") as name:
        host = VendorHost(Path(name))
        try:
            gpus = [nvml.busy_gpu(number + 1) for number in range(CHIPS)]
            others = [amdsmi.busy_gpu(number + 1) for number in range(CHIPS)]
            makers: dict[str, Callable[[], Collector]] = {
                "host": HostCollector,
                "kubelet": lambda: KubeletCollector(host.kubelet),
                "nvidia": lambda: NvidiaCollector(nvml.FakeNvml(gpus)),
                "amd": lambda: AmdCollector(amdsmi.FakeAmdSmi(others)),
                "tpu": lambda: TpuCollector("h", host.runtime, "http://127.0.0.1:1/metrics", host.root),
            }
            spent: dict[str, float] = {}
            for which, make in makers.items():
                collector = make()
                each, samples = cost_s(collector, options.reads)
                spent[which] = each / max(1.0, collector.period_s) + _seldom_s(which, make)
                collector.close()
                print(f"{which:8} {spent[which] * 1e3:7.3f} ms a second, {samples} values")
        finally:
            host.close()
    vendors = ("nvidia", "amd", "tpu")
    dearest = max(vendors, key=lambda vendor: spent[vendor])
    share = spent["host"] + spent["kubelet"] + spent[dearest]
    facts = {f"{which}_ms": round(each * 1e3, 3) for which, each in spent.items()}
    return report("collectors_cost", round(share, 5), "core", BUDGET, dearest=dearest, **facts)


def _seldom_s(which: str, make: Callable[[], Collector]) -> float:
    """CPU seconds a second of what a read does only every so often: the first read of a new collector does it all."""
    periods = {"nvidia": nvidia_module.STANDING_S, "tpu": min(tpu_module.HOLDERS_S, tpu_module.HISTOGRAMS_S)}
    if which not in periods:
        return 0.0
    collector = make()
    collector.inventory()
    firsts: list[float] = []
    for _ in range(9):
        for attribute in ("_holders_at_s", "_histograms_at_s"):
            if hasattr(collector, attribute):
                setattr(collector, attribute, float("-inf"))
        for gpu in getattr(collector, "_gpus", {}).values():
            gpu.standing_at_s = float("-inf")
        begin = time.process_time()
        collector.read(time.monotonic() + 5)
        firsts.append(time.process_time() - begin)
    collector.close()
    return float(np.percentile(firsts, 10)) / periods[which]


if __name__ == "__main__":
    sys.exit(main())
