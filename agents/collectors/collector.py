"""The protocol of a source of counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from fleetscope.agents.clocks import DeviceClock
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire


@dataclass(frozen=True, slots=True)
class Series:
    """What a value is of. `name` is a metric of schema/metrics.json, in base units; `labels` beside host and device."""

    name: str
    unit: str = ""
    monotonic: bool = False
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> int:
        return _series_id(self)

    def info(self) -> wire.SeriesInfo:
        return wire.SeriesInfo(
            id=self.id, name=self.name, unit=self.unit, monotonic=self.monotonic, labels=dict(self.labels)
        )


@lru_cache(maxsize=4096)
def _series_id(series: Series) -> int:
    return identity.series_id(series.name, dict(series.labels))


@dataclass(frozen=True, slots=True)
class Sample:
    """One value. `device` is the natural key of a device of the inventory, "" for the host."""

    series: Series
    value: int | float
    device: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A device of a container, as its device plugin or driver names it."""

    resource: str
    device_id: str
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read gave. `standing`: values of an earlier read that still hold, shown and not shipped again.
    `refused`: values dropped (sentinels), `errors`: calls that failed; both counts by reason. `holders`: processes, as
    the agent numbers them, that have a device open, by its natural key; a device that is not in it was not asked.
    `claims`: of all pods, None where nobody told. `paths`: the file in /dev that a process opens to use a device, by
    the device's natural key, where that is known.
    """

    samples: Sequence[Sample] = ()
    refused: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    standing: Sequence[Sample] = ()
    holders: Mapping[str, frozenset[int]] = field(default_factory=dict)
    claims: Sequence[Claim] | None = None
    paths: Mapping[str, str] = field(default_factory=dict)


class Collector(Protocol):
    """One source. Called from a thread of its own, so a call that hangs hangs nobody else.

    Hardware, drivers or libraries that are not there are absence: an empty inventory and an empty reading, no error.
    """

    name: str
    period_s: float
    """Least time between two reads; 0: as often as the agent samples."""

    def inventory(self) -> list[wire.Device]:
        """Devices there now, each once, by natural key. Asked before the first read and every minute: a read looks for
        none, so that a host without them pays nothing in between."""

    def read(self, deadline_s: float) -> Reading:
        """Values now; those not read when time.monotonic() passes `deadline_s` are left out."""

    def clocks(self) -> list[DeviceClock]:
        """Device counters that can be bracketed; most sources have none."""

    def close(self) -> None: ...
