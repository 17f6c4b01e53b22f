"""One GPU as the collector knows it, and what all modules that read one share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fleetscope.agents.batches import clean_text
from fleetscope.agents.collectors.collector import Sample, Series
from fleetscope.agents.collectors.sentinels import Counters
from fleetscope.schema import wire_pb2 as wire

Values = Iterator[tuple[Series, tuple[int | float | None, str]]]
"""(series, (value, "")) or (series, (None, why))"""
Call = Callable[[Any, "Gpu"], Values]
"""Reads some values of one GPU: (the pynvml module, the GPU). Raises NVMLError."""


@dataclass(slots=True)
class Gpu:
    """One GPU or MIG instance. `unsupported`: calls its driver does not know are not tried again.

    `whole`: the chip an instance is a part of; the chip itself.
    """

    device: wire.Device
    handle: Any
    parent: Any
    whole: bool
    path: str = ""
    """What a process opens to use it: numbered by the driver's minor number, which is not the index."""
    unsupported: set[str] = field(default_factory=set)
    counters: Counters = field(default_factory=Counters)
    sums: dict[str, float] = field(default_factory=dict)
    """Rates added up over the time they held."""
    standing: list[Sample] = field(default_factory=list)
    """What changes slowly, as last read."""
    standing_at_s: float = float("-inf")
    gpm: list[Any] = field(default_factory=list)
    """The earlier and the later GPM sample; their memory belongs to the driver and is used again."""
    gpm_at_s: float = 0.0


TEXT_BYTES = 128
UNSUPPORTED = ("NotSupported", "FunctionNotFound", "NoPermission")
"""Ends of names of NVML errors that will not go away."""


def is_unsupported(error: Exception) -> bool:
    return type(error).__name__.endswith(UNSUPPORTED)


def text(value: bytes | str) -> str:
    """Older pynvml answers in bytes; neither is trusted to be text a terminal may see."""
    return clean_text(value, TEXT_BYTES)
