"""NVIDIA GPUs through NVML, and GPM where the chip has it. Nothing here takes a profiler's exclusive lock."""

from fleetscope.agents.collectors.nvidia.collector import NvidiaCollector

__all__ = ["NvidiaCollector"]
