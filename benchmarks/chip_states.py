"""What chips are and whose, while pods come and go: one hour of simulated time, 10 000 pods on 64 hosts of 8 chips.

    python benchmarks/chip_states.py [--pods 10000] [--hosts 64] [--seconds 3600]

Every 15 s each host's page values are made as the agent makes them (the NVIDIA collector over a built NVML, the judge,
the kubelet's answer in bytes, asked every 5 s). Pods take 1, 2, 4 or 8 chips for a minute on average; the next may have
a chip in the very second another gives it back; the kubelet goes on listing a pod that ended for up to 20 s. Kubelets
go silent, chips are lost, lie. Violations, all of which must be 0: a host whose four states do not add up to its
inventory, or a chip that is not exactly one; a chip of two pods; an owner shown more than two intervals after the
kubelet forgot its pod or another had its chip; a chip called free that a pod has had for an interval. The last line is
JSON; exit 1 otherwise.
"""

import argparse
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil
from report import report

from fleetscope.agents.collectors import Reading
from fleetscope.agents.collectors.kubelet import claims
from fleetscope.agents.collectors.nvidia import NvidiaCollector
from fleetscope.agents.collectors.plausible import Judge
from fleetscope.agents.node.chips import STATES, Chips
from fleetscope.agents.node.owners import Holders
from fleetscope.agents.simulated.vendors.nvml import FakeNvml
from fleetscope.schema import podresources_pb2 as pods
from fleetscope.schema import wire_pb2 as wire

CHIPS = 8
INTERVAL_S, KUBELET_S = 15, 5
LINGER_S = 20
SIZES = (1, 1, 1, 1, 2, 2, 4, 8)
LOAD = 0.8
GROWTH_MB = 8.0


@dataclass(slots=True)
class Pod:
    name: str
    chips: list[int]
    begin_s: int
    end_s: int
    forgotten_s: int
    """When the kubelet no longer lists it."""


@dataclass(slots=True)
class Host:
    """One host: its chips, its kubelet, and the agent's part that is measured."""

    number: int
    collector: NvidiaCollector = field(init=False)
    chips: Chips = field(init=False)
    gpus: list[dict[str, object]] = field(init=False)
    pods: list[Pod] = field(default_factory=list)
    deaf_until_s: int = 0
    answer: Reading = field(default_factory=Reading)
    judge: Judge = field(default_factory=Judge)
    reading: Reading = field(default_factory=Reading)
    found: list[wire.Device] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpus = [
            {"uuid": f"GPU-{self.number:04x}-4a-{n}", "utilization": 0, "used": 0, "temperature": 50, "pids": []}
            for n in range(CHIPS)
        ]
        self.collector = NvidiaCollector(FakeNvml(self.gpus))
        self.found = self.collector.inventory()
        holders = Holders(lambda pid: None, lambda pid: {}, lambda pid: 1)
        kubelet = Kubelet(self)
        self.chips = Chips([self, kubelet], dict, lambda: True, holders)

    @property
    def current(self) -> Reading:
        return self.reading

    def devices(self) -> list[wire.Device]:
        return self.found

    def quarantined(self) -> dict[str, str]:
        return self.judge.quarantined()

    def at(self, chip: int, now_s: int) -> Pod | None:
        """Who really has it."""
        return next((pod for pod in self.pods if chip in pod.chips and pod.begin_s <= now_s < pod.end_s), None)

    def ask_kubelet(self, now_s: int) -> None:
        if now_s < self.deaf_until_s:
            self.answer = Reading(errors={"deadline_exceeded": 1})
            return
        told = pods.ListPodResourcesResponse()
        for pod in self.pods:
            if pod.begin_s <= now_s < pod.forgotten_s:
                container = told.pod_resources.add(name=pod.name, namespace="team").containers.add(name="main")
                uuids = [str(self.gpus[chip]["uuid"]) for chip in pod.chips]
                container.devices.add(resource_name="nvidia.com/gpu", device_ids=uuids)
        self.answer = Reading(claims=claims(pods.ListPodResourcesResponse.FromString(told.SerializeToString())))

    def read(self, now_s: int) -> None:
        for chip, gpu in enumerate(self.gpus):
            pod = self.at(chip, now_s)
            # A pod computes after a fifth of its life; its process has the chip open from its third second on.
            works = pod is not None and now_s - pod.begin_s > (pod.end_s - pod.begin_s) / 5
            opened = pod is not None and now_s - pod.begin_s > 3
            gpu["utilization"] = 95 if works else 0
            gpu["pids"] = [self.number * 10_000 + chip] if opened else []
        self.reading = self.judge.judge(self.collector.read(time.monotonic() + 60))


@dataclass(slots=True)
class Kubelet:
    """The kubelet's collector beside the chips' own."""

    host: Host

    @property
    def current(self) -> Reading:
        return self.host.answer

    def devices(self) -> list[wire.Device]:
        return []

    def quarantined(self) -> dict[str, str]:
        return {}


class Fleet:
    """All hosts, and what was wrong with what they showed."""

    def __init__(self, hosts: int, wanted: int, seconds: int) -> None:
        self.hosts = [Host(number) for number in range(hosts)]
        self.wrong: Counter[str] = Counter()
        self.samples = self.agrees = self.series_peak = 0
        self.states: Counter[str] = Counter()
        self._random = random.Random(1)
        self._pods = 0
        self._wanted, self._seconds = wanted, seconds
        self._life_s = max(5.0, LOAD * hosts * CHIPS * seconds / (wanted * sum(SIZES) / len(SIZES)))

    @property
    def pods(self) -> int:
        return self._pods

    def second(self, now_s: int) -> None:
        """Pods begin as often as they must to be `wanted` at the end, on whatever host has room."""
        due = self._wanted * (now_s + 1) // self._seconds - self._pods
        for _ in range(due):
            size = self._random.choice(SIZES)
            for host in self._random.sample(self.hosts, len(self.hosts)):
                free = [chip for chip in range(CHIPS) if host.at(chip, now_s) is None]
                if len(free) >= size:
                    end_s = now_s + max(2, round(self._random.expovariate(1 / self._life_s)))
                    name = f"pod-{self._pods}"
                    forgotten_s = end_s + self._random.randrange(LINGER_S)
                    host.pods.append(Pod(name, free[:size], now_s, end_s, forgotten_s))
                    self._pods += 1
                    break
        if now_s % 60 == 0:
            self._break(now_s)
        for host in self.hosts:
            host.pods = [pod for pod in host.pods if now_s < pod.forgotten_s + 4 * INTERVAL_S]
            if now_s % KUBELET_S == host.number % KUBELET_S:
                host.ask_kubelet(now_s)

    def _break(self, now_s: int) -> None:
        """Each minute another kubelet goes silent for a minute; a chip is lost or lies, and those before are well."""
        for host in self.hosts:
            for gpu in host.gpus:
                gpu["temperature"] = 50
                for name in ("used", "temperature"):
                    gpu[name] = gpu.get(name, 0) if not isinstance(gpu.get(name), str) else 0
        self._random.choice(self.hosts).deaf_until_s = now_s + 60
        self._random.choice(self._random.choice(self.hosts).gpus)["temperature"] = 400
        lost = self._random.choice(self._random.choice(self.hosts).gpus)
        lost |= {"used": "NVMLError_GpuIsLost", "temperature": "NVMLError_GpuIsLost"}

    def look(self, now_s: int) -> None:
        """One scrape of every host."""
        for host in self.hosts:
            host.read(now_s)
            values = list(host.chips.values())
            self.series_peak = max(self.series_peak, len(values))
            shown: dict[str, list[str]] = {}
            owners: dict[str, list[str]] = {}
            count = 0.0
            for name, labels, value in values:
                if name == "fleetscope_chip_state":
                    count += value
                    if value:
                        shown.setdefault(labels["device"], []).append(labels["state"])
                elif name == "fleetscope_chip_owner_info" and labels["pod"]:
                    owners.setdefault(labels["device"], []).append(labels["pod"])
            self.wrong["sum"] += count != CHIPS
            for chip, gpu in enumerate(host.gpus):
                key = str(gpu["uuid"])
                self._judge(host, chip, shown.get(key, []), owners.get(key, []), now_s)

    def _judge(self, host: Host, chip: int, states: list[str], owners: list[str], now_s: int) -> None:
        self.samples += 1
        self.wrong["not_one_state"] += len(states) != 1
        self.wrong["two_pods"] += len(owners) > 1
        pod = host.at(chip, now_s)
        for state in states:
            self.states[state] += 1
            self.agrees += (state in ("busy", "allocated_idle")) == (pod is not None)
            if state == "free" and pod is not None and now_s - pod.begin_s > INTERVAL_S:
                self.wrong["free_with_a_pod"] += 1
        for name in owners:
            told = next((other for other in host.pods if other.name == name), None)
            if told is None or chip not in told.chips:
                self.wrong["owner_of_another_time_or_chip"] += 1
                continue
            if now_s < told.end_s:
                continue
            after = [other.begin_s for other in host.pods if chip in other.chips and other.begin_s >= told.end_s]
            gone_s = min([told.forgotten_s, *after])
            self.wrong["outlived"] += now_s - gone_s > 2 * INTERVAL_S


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=10_000)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=3600)
    options = parser.parse_args()
    fleet = Fleet(options.hosts, options.pods, options.seconds)
    process = psutil.Process()
    warm_mb = 0.0
    for now_s in range(options.seconds):
        fleet.second(now_s)
        if now_s % INTERVAL_S == INTERVAL_S - 1:
            fleet.look(now_s)
        if now_s == options.seconds // 3:
            warm_mb = process.memory_info().rss / 1e6
    grown_mb = process.memory_info().rss / 1e6 - warm_mb
    wrong = +fleet.wrong
    share = fleet.agrees / max(fleet.samples, 1)
    print(f"{fleet.pods} pods, {fleet.samples} chip samples: {dict(fleet.states)}, {share:.1%} as the truth is")
    print(f"at most {fleet.series_peak} series a host; {grown_mb:+.1f} MB in the last two thirds")
    failed = [f"{count} x {name}" for name, count in wrong.items()]
    if not set(STATES) <= fleet.states.keys():
        failed.append(f"only {sorted(fleet.states)} were met")
    if fleet.pods < options.pods * 0.99:
        failed.append(f"{fleet.pods} of {options.pods} pods found room")
    if grown_mb > GROWTH_MB:
        failed.append(f"{grown_mb:.1f} MB grown over {GROWTH_MB}")
    facts = {"pods": fleet.pods, "samples": fleet.samples, "agree": round(share, 4), "series": fleet.series_peak}
    facts["grown_mb"] = round(grown_mb, 1)
    return report("chip_states", wrong.total(), "violations", 0, failed=failed, **facts)


if __name__ == "__main__":
    sys.exit(main())
