"""Natural keys of the devices that captures name."""

from collections.abc import Callable

from fleetscope.agents.node.facts import Host
from fleetscope.agents.node.process import Process
from fleetscope.agents.xspace import DeviceSpans
from fleetscope.schema import wire_pb2 as wire


def device_of(host: Host, inventory: Callable[[], list[wire.Device]]) -> Callable[[Process, DeviceSpans], wire.Device]:
    """(process, spans) -> device.

    A GPU is known by the UUID its collector reports, where the process sees all of the host's GPUs. Everything else is
    (host, platform, rank of its process, ordinal in it): a rank keeps its chips over restarts, and two processes on one
    host never share one.
    """

    def find(process: Process, spans: DeviceSpans) -> wire.Device:
        if spans.platform == "gpu":
            whole = [device for device in inventory() if device.platform == "gpu" and not device.partition]
            visible = process.hello.labels.get("visible_devices", "")
            if not visible:
                for device in whole:
                    if device.local_ordinal == spans.ordinal:
                        return device
        key = f"{host.name}/{spans.platform}/{process.hello.rank}/{spans.ordinal}"
        return wire.Device(
            key=key,
            platform=spans.platform,
            sku=spans.sku,
            local_name=spans.name,
            local_ordinal=spans.ordinal,
            coords=str(spans.stats.get("coords", "")),
        )

    return find
