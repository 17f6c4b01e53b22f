"""The collector of TPUs: which there are, and for each value the first source and alias that answers."""

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fleetscope.agents.clocks import DeviceClock
from fleetscope.agents.collectors.collector import Reading, Sample, Series
from fleetscope.agents.collectors.named import buckets, chip, throttled
from fleetscope.agents.collectors.sentinels import scaled
from fleetscope.agents.collectors.tpu.answers import Source, Unreadable, by_chip
from fleetscope.agents.collectors.tpu.chips import TpuChip, find, holders
from fleetscope.agents.collectors.tpu.plugin import PluginPage
from fleetscope.agents.collectors.tpu.runtime import RuntimeServer
from fleetscope.agents.collectors.tpu.sdk import Sdk
from fleetscope.schema import wire_pb2 as wire

HOLDERS_S = 15.0
"""Who has a chip open is looked up as often as a scrape comes: it means reading every process' open files."""
HISTOGRAMS_S = 10.0
US = 1e-6


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A value of each chip: (source, its name there) to be tried in order; `combine` of the cores of a chip."""

    series: Series
    factor: float
    combine: Callable[[Iterable[float]], float]
    aliases: tuple[tuple[str, str], ...]


_WANTED = (
    _Wanted(chip("utilization_ratio"), 0.01, max, (
        ("sdk", "duty_cycle_pct"), ("runtime", "tpu.runtime.tensorcore.dutycycle.percent"), ("plugin", "duty_cycle"),
    )),
    _Wanted(chip("unit_active_ratio", unit="tensor"), 0.01, max, (
        ("sdk", "tensorcore_util"), ("sdk", "tensorcore_utilization"), ("plugin", "tensorcore_utilization"),
    )),
    _Wanted(chip("unit_active_ratio", unit="memory"), 0.01, max, (("plugin", "memory_bandwidth_utilization"),)),
    _Wanted(chip("memory_used_bytes"), 1, sum, (
        ("sdk", "hbm_capacity_usage"), ("runtime", "tpu.runtime.hbm.memory.usage.bytes"), ("plugin", "memory_used"),
    )),
    _Wanted(chip("memory_total_bytes"), 1, sum, (
        ("sdk", "hbm_capacity_total"), ("runtime", "tpu.runtime.hbm.memory.total.bytes"), ("plugin", "memory_total"),
    )),
    _Wanted(chip("queued_programs"), 1, sum, (("sdk", "hlo_queue_size"), ("runtime", "hlo.queue.size.gauge"))),
)  # fmt: skip
_OPERATIONS = {
    "dcn_transfer": "megascale.dcn_transfer_latencies.microsecond.cumulative.distribution",
    "dcn_inbound": "megascale.dcn_inbound_transfer_latencies.microsecond.cumulative.distribution",
    "host_to_device": "megascale.host_to_device_transfer_latencies.microsecond.cumulative.distribution",
    "device_to_host": "megascale.device_to_host_transfer_latencies.microsecond.cumulative.distribution",
    "collective": "megascale.collective_end_to_end_latencies.microsecond.cumulative.distribution",
    "host_compute": "megascale.mxla_compute_latencies.microsecond.cumulative.distribution",
    "tcp_round_trip": "megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution",
    "program": "hlo.execution.timing.distribution.microseconds",
}
_THROTTLED = throttled("other", "tpu_throttle_score")
"""A score without a cause. 0 is not throttled; how much the numbers above mean was not seen, so 1 stands for all."""
_LINKS = {state: chip("links", link="ici", state=state) for state in ("up", "degraded", "down")}
UNUSABLE = 10


class TpuCollector:
    """TPU chips by PCI address. Without any on the bus nothing is asked, imported or connected to."""

    name = "tpu"
    period_s = 0.0

    def __init__(
        self, host: str = "", runtime: str = "127.0.0.1:8431", plugin: str = "http://127.0.0.1:2112/metrics",
        root: Path = Path("/"), sdk: Sdk | None = None,
    ) -> None:  # fmt: skip
        self._host = host or socket.gethostname()
        self._root = root
        self._sdk = sdk or Sdk()
        self._runtime = RuntimeServer(runtime)
        self._plugin = PluginPage(plugin)
        self._sources: dict[str, Source] = {source.name: source for source in (self._sdk, self._runtime, self._plugin)}
        self._chips: list[TpuChip] = []
        self._answers: dict[Series, tuple[str, str]] = {}
        """The alias that answered last: asked first."""
        self._holders: Mapping[str, frozenset[int]] = {}
        self._holders_at_s = self._histograms_at_s = float("-inf")
        self._standing: list[Sample] = []

    def inventory(self) -> list[wire.Device]:
        self._chips = find(self._root, self._host)
        return [chip.device for chip in self._chips]

    def read(self, deadline_s: float) -> Reading:
        if not self._chips:
            return Reading()
        errors: Counter[str] = Counter()
        refused: Counter[str] = Counter()
        now_s = time.monotonic()
        if now_s - self._holders_at_s >= HOLDERS_S:
            self._holders, self._holders_at_s = holders(self._root, self._chips), now_s
        served = self._served()
        down = {} if served else {"sdk": "shared_port", "runtime": "shared_port"}
        if not served:
            # Port 8431 is the host's: of two runtimes one answers, and nobody can tell for which chips.
            errors["shared_port"] += 1
        try:
            self._plugin.refresh(max(0.05, deadline_s - now_s))
        except Unreadable as why:
            down["plugin"] = str(why)
        samples: list[Sample] = []
        for wanted in _WANTED:
            samples += self._one(wanted, served, deadline_s, down, errors, refused)
        if served:
            samples += self._state(served, down, errors)
            fresh = self._distributions(deadline_s, down)
            samples += fresh
        else:
            fresh, self._standing = [], []
        asked = self._sources.keys() - (set() if self._sdk.there else {"sdk"})
        if asked <= down.keys() and any(self._holders.values()):
            # Where nobody has a chip open no runtime is up, and that is no error.
            for source, reason in down.items():
                errors[f"{source}_{reason}"] += 1
        paths = {chip.device.key: chip.path for chip in self._chips if chip.path}
        return Reading(samples, refused, errors, () if fresh else self._standing, self._holders, paths=paths)

    def _served(self) -> list[TpuChip]:
        """The chips that the one runtime's answer is about: those of the one process that has any open, all if nobody
        can tell; none if several processes do."""
        pids = {pid for held in self._holders.values() for pid in held}
        if not pids:
            return self._chips
        if len(pids) > 1:
            return []
        return [chip for chip in self._chips if self._holders.get(chip.device.key)]

    def _one(
        self, wanted: _Wanted, served: list[TpuChip], deadline_s: float, down: dict[str, str],
        errors: Counter[str], refused: Counter[str],
    ) -> list[Sample]:  # fmt: skip
        known = self._answers.get(wanted.series)
        for alias in dict.fromkeys([*([known] if known else []), *wanted.aliases]):
            source, name = alias
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                errors["deadline"] += 1
                return []
            if source in down:
                continue
            try:
                numbers = self._sources[source].numbers(name, left_s)
            except Unreadable as why:
                down[source] = str(why)
                continue
            if not numbers:
                continue  # the name is there in some releases, and empty
            found = by_chip(numbers, self._chips if source == "plugin" else served, wanted.combine)
            if found is None:
                refused["unmapped"] += len(numbers)
                continue
            self._answers[wanted.series] = alias
            samples: list[Sample] = []
            for key, raw in found.items():
                value, why_not = scaled(raw, wanted.factor)
                if value is None:
                    refused[why_not] += 1
                else:
                    samples.append(Sample(wanted.series, value, key))
            return samples
        return []

    def _state(self, served: list[TpuChip], down: dict[str, str], errors: Counter[str]) -> list[Sample]:
        """Throttling and links: of the SDK alone."""
        if "sdk" in down or not self._sdk.there:
            return []
        try:
            scores = by_chip(self._sdk.numbers("tpu_throttle_score", 1.0), served, max)
            links = self._sdk.links()
        except Unreadable as why:
            errors[f"sdk_{why}"] += 1
            return []
        samples = [Sample(_THROTTLED, int(score > 0), key) for key, score in (scores or {}).items()]
        numbered = sorted({number for number, _, _ in links})
        if len(numbered) != len(served):
            if links:
                errors["unmapped_links"] += 1
            return samples
        for number, one in zip(numbered, served, strict=True):
            states = [_link_state(score) for which, _, score in links if which == number]
            samples += [Sample(series, states.count(state), one.device.key) for state, series in _LINKS.items()]
        return samples

    def _distributions(self, deadline_s: float, down: dict[str, str]) -> list[Sample]:
        """Of the host: bucket counts that can be added up over hosts and time."""
        now_s = time.monotonic()
        if "runtime" in down:
            self._standing = []  # of a run that has ended
            return []
        if now_s - self._histograms_at_s < HISTOGRAMS_S:
            return []
        self._histograms_at_s = now_s
        found: list[Sample] = []
        for operation, name in _OPERATIONS.items():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                told = self._runtime.histograms(name, left_s)
            except Unreadable as why:
                down["runtime"] = str(why)
                break
            sizes: dict[str, tuple[tuple[float, ...], list[int], float]] = {}
            for histogram in told:
                size = histogram.labels[0][1] if histogram.labels else ""
                total = histogram.mean * sum(histogram.counts) * US
                bounds, counts, seconds = sizes.get(size, (histogram.bounds, [0] * len(histogram.counts), 0.0))
                if bounds == histogram.bounds:
                    counts = [one + more for one, more in zip(counts, histogram.counts, strict=True)]
                    sizes[size] = bounds, counts, seconds + total
            for size, (bounds, counts, seconds) in sizes.items():
                found += [
                    Sample(series, value)
                    for series, value in buckets(
                        "fleetscope_tpu_operation_seconds", [bound * US for bound in bounds], counts, seconds,
                        operation=operation, size=size,
                    )
                ]  # fmt: skip
        self._standing = found
        return found

    def clocks(self) -> list[DeviceClock]:
        """No public read of a TPU's counter."""
        return []

    def close(self) -> None:
        self._runtime.close()


def _link_state(score: int) -> str:
    return "up" if score <= 0 else "down" if score >= UNUSABLE else "degraded"
