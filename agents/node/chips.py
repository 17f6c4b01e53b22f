"""What each chip of the inventory is just now, exactly one of busy, allocated_idle, free, unknown; and whose it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fleetscope.agents.collectors import Reading
from fleetscope.agents.collectors.plausible import SUSPECT_ZERO
from fleetscope.agents.node.owners import Holders, Owner, Pods
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.metrics import metric

STATES = tuple(metric("fleetscope_chip_state").values["state"])
OWNERS = 8
"""Shown of one chip that is shared: its part of the page must stay small."""
_UTILIZATION = "fleetscope_chip_utilization_ratio"


class Source(Protocol):
    """As much of a CollectorRunner as is asked here."""

    @property
    def current(self) -> Reading: ...
    def devices(self) -> list[wire.Device]: ...
    def quarantined(self) -> dict[str, str]: ...


def state(utilization: float | None, held: bool | None, claimed: bool | None) -> str:
    """Of one chip. `held`: whether a process has it open; `claimed`: whether a pod has it; None: nobody could say.

    A chip without a utilization that nobody has open cannot be computing: TPUs tell none while no runtime is up.
    """
    if utilization:
        return "busy"
    if utilization is None and held is not False:
        return "unknown"
    if held or claimed:
        return "allocated_idle"
    return "unknown" if claimed is None else "free"


@dataclass(frozen=True, slots=True)
class Chip:
    device: wire.Device
    state: str
    owners: tuple[Owner, ...]


class Chips:
    """All chips of a host. `greeted`: run and attempt of each process that said hello, by pid. `in_kubernetes`: whether
    there is a kubelet to be asked. Not thread-safe."""

    def __init__(
        self,
        sources: Sequence[Source],
        greeted: Callable[[], Mapping[int, Owner]] = dict,
        in_kubernetes: Callable[[], bool] = lambda: False,
        holders: Holders | None = None,
    ) -> None:
        self._sources = sources
        self._greeted = greeted
        self._in_kubernetes = in_kubernetes
        self.pods = Pods()
        self.holders = holders or Holders()

    def now(self) -> list[Chip]:
        """Each chip of the inventory once; partitions count for the chip they are of."""
        readings = [(source, source.current, source.devices()) for source in self._sources]
        devices = [device for _, _, found in readings for device in found]
        claims = [reading.claims for _, reading, _ in readings if reading.claims is not None]
        owned = self.pods.of([claim for each in claims for claim in each], devices)
        greeted = self._greeted()
        chips: list[Chip] = []
        alive: set[int] = set()
        told = bool(claims) if self._in_kubernetes() else None
        for source, reading, found in readings:
            used = {s.device: float(s.value) for s in reading.samples if s.series.name == _UTILIZATION}
            distrusted = {key for key, why in source.quarantined().items() if why != SUSPECT_ZERO}
            heard = {sample.device for sample in reading.samples} | reading.holders.keys()
            for whole in found:
                if whole.partition:
                    continue
                parts = [whole.key, *(d.key for d in found if d.partition.rpartition("/")[0] == whole.key)]
                chips.append(self._chip(whole, parts, reading, used, owned, greeted, told, alive, heard - distrusted))
        self.holders.forget(alive)
        return chips

    def _chip(
        self,
        whole: wire.Device,
        parts: list[str],
        reading: Reading,
        used: Mapping[str, float],
        owned: Mapping[str, list[Owner]],
        greeted: Mapping[int, Owner],
        told: bool | None,
        alive: set[int],
        heard: set[str],
    ) -> Chip:
        pods = [owner for key in parts for owner in owned.get(key, ())]
        pids = {pid for key in parts for pid in reading.holders.get(key, ())}
        alive |= pids
        processes = self.holders.of(pids, greeted)
        held = bool(pids) if whole.key in reading.holders else None
        # Outside Kubernetes there are no claims, and who has it open is all there is to know.
        claimed: bool | None = (bool(pods) if told else None) if told is not None else (None if held is None else False)
        utilization = max((used[key] for key in parts if key in used), default=None)
        owners = _together(pods, processes)
        if whole.key not in heard:
            # Lost, withheld, or its source hangs.
            return Chip(whole, "unknown", owners)
        return Chip(whole, state(utilization, held, claimed), owners)

    def values(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """As the page shows them: one of the states is 1; an owner is 1 as long as it has the chip."""
        for chip in self.now():
            who = {"device": chip.device.key, "sku": chip.device.sku}
            for name in STATES:
                yield "fleetscope_chip_state", {**who, "state": name}, int(name == chip.state)
            for owner in chip.owners[:OWNERS]:
                labels = {name: getattr(owner, name) for name in owner.__dataclass_fields__}
                yield "fleetscope_chip_owner_info", {**who, **labels}, 1
        for reason, count in (self.pods.odd + self.holders.odd).items():
            yield "fleetscope_agent_read_errors_total", {"collector": "owners", "reason": reason}, count


def _together(pods: list[Owner], processes: list[Owner]) -> tuple[Owner, ...]:
    """One pod and one process are one owner. Where there are several, nobody knows which belong to which."""
    processes = [owner for owner in processes if owner != Owner()]
    if len(pods) == 1 and len(processes) == 1:
        (process,) = processes
        return (replace(pods[0], run=process.run, attempt=process.attempt, slurm_job=process.slurm_job),)
    return tuple(sorted({*pods, *processes}))
