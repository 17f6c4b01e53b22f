"""Natural keys of the devices that captures and the PJRT shim name: one key a device, whoever names it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.pjrt import Seen
from fleetscope.agents.xspace import DeviceSpans
from fleetscope.schema import wire_pb2 as wire

if TYPE_CHECKING:
    from fleetscope.agents.node.process import Process


@dataclass(frozen=True, slots=True)
class Devices:
    """A GPU is known by the UUID its collector reports, where the process sees all of the host's GPUs. Everything else
    is (host, platform, rank of its process, ordinal in it): a rank keeps its chips over restarts, and two processes on
    one host never share one.
    """

    host: Host
    inventory: Callable[[], list[wire.Device]]

    def seen(self, process: "Process", seen: Seen) -> wire.Device:
        """The device that a runtime names so."""
        if seen.platform == "gpu":
            whole = [device for device in self.inventory() if device.platform == "gpu" and not device.partition]
            visible = process.hello.labels.get("visible_devices", "")
            if not visible:
                for device in whole:
                    if device.local_ordinal == seen.ordinal:
                        return device
        return wire.Device(
            key=f"{self.host.name}/{seen.platform}/{process.hello.rank}/{seen.ordinal}",
            platform=seen.platform,
            sku=seen.sku,
            local_name=seen.name,
            local_ordinal=seen.ordinal,
            coords=seen.coords,
        )

    def __call__(self, process: "Process", spans: DeviceSpans) -> wire.Device:
        """The device of a capture's spans; as the runtime named it where the shim has told: one device, one name."""
        coords = str(spans.stats.get("coords", ""))
        found = self.seen(process, Seen(spans.platform, spans.ordinal, spans.sku, spans.name, coords))
        return found if process.pjrt is None else process.pjrt.known(found)
