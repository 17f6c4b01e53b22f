"""Natural keys of the devices that captures and the PJRT shim name: one key a device, whoever names it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleetscope.agents.collectors.tpu.chips import opened
from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.owners import environment
from fleetscope.agents.node.pjrt import Seen
from fleetscope.agents.xspace import DeviceSpans
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.hardware import find_sku

if TYPE_CHECKING:
    from fleetscope.agents.node.process import Process

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""The first that names devices counts; NVIDIA's container runtime names the container's, by UUID, in the last."""


def _files(pid: int) -> frozenset[str]:
    """Files a process has open; none if that may not be looked at."""
    try:
        return opened(Path(f"/proc/{pid}"))
    except OSError:
        return frozenset()


@dataclass(frozen=True, slots=True)
class Devices:
    """A chip of the inventory is known by the key its collector reports. A runtime counts the chips its process can see
    from 0, in the order of the bus: those whose `paths` (device key -> file in /dev) it has open, as its variable of
    visible devices picks them. A chip that cannot be told so, and everything else, is (host, platform, rank of its
    process, ordinal in it): a rank keeps its chips over restarts, and two processes on one host never share one.
    """

    host: Host
    inventory: Callable[[], list[wire.Device]]
    paths: Callable[[], Mapping[str, str]] = dict

    def seen(self, process: "Process", seen: Seen) -> wire.Device:
        """The device that a runtime names so."""
        found = self._chip(process.os_pid, seen) if seen.platform in ("gpu", "tpu") else None
        return found or wire.Device(
            key=f"{self.host.name}/{seen.platform}/{process.hello.rank}/{seen.ordinal}",
            platform=seen.platform,
            sku=seen.sku,
            local_name=seen.name,
            local_ordinal=seen.ordinal,
            coords=seen.coords,
        )

    def _chip(self, pid: int, seen: Seen) -> wire.Device | None:
        known = [device for device in self.inventory() if device.platform == seen.platform]
        chips = sorted((d for d in known if not d.partition), key=lambda device: device.local_ordinal)
        if not chips:
            return None
        paths, files = self.paths(), _files(pid)
        held = [chip for chip in chips if paths.get(chip.key) in files]
        if seen.platform == "tpu":
            sku = find_sku(chips[0].sku)
            # A runtime that counts cores tells no chip; and until it has them open, all could be its own.
            visible = held if sku is not None and sku.devices_per_chip == 1 else []
        else:
            visible = _picked(pid, held or chips, {device.key: device for device in known})
        return visible[seen.ordinal] if seen.ordinal < len(visible) else None

    def __call__(self, process: "Process", spans: DeviceSpans) -> wire.Device:
        """The device of a capture's spans; as the runtime named it where the shim has told: one device, one name."""
        coords = str(spans.stats.get("coords", ""))
        found = self.seen(process, Seen(spans.platform, spans.ordinal, spans.sku, spans.name, coords))
        return found if process.pjrt is None else process.pjrt.known(found)


def _picked(pid: int, chips: list[wire.Device], known: Mapping[str, wire.Device]) -> list[wire.Device]:
    """GPUs in the order the process counts them. A name that is no device of this host makes the rest invisible, as
    CUDA has it; without a variable that names any they are all."""
    try:
        variables: Mapping[str, str] = environment(pid)
    except OSError:
        variables = {}
    words = next((told for name in _VISIBLE if (told := _words(variables.get(name, "")))), None)
    if words is None:
        return chips
    found: list[wire.Device] = []
    for word in words:
        if word.isdecimal():
            device = chips[int(word)] if len(word) < 5 and int(word) < len(chips) else None
        else:  # a UUID, or enough of its beginning
            device = next((device for key, device in known.items() if key.startswith(word)), None)
        if device is None:
            break
        found.append(device)
    return found


def _words(text: str) -> list[str]:
    """Of a visible-devices variable; [] for what names no device ("all", "void", "none")."""
    words = [word.strip() for word in text.split(",")]
    return words if all(word.isdecimal() or word.startswith(("GPU-", "MIG-")) for word in words) else []
