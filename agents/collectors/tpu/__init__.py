"""TPUs: libtpu's monitoring SDK, the runtime's own metric server, the GKE device plugin's page; whichever answers."""

from fleetscope.agents.collectors.tpu.collector import TpuCollector

__all__ = ["TpuCollector"]
