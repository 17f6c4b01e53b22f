"""What a host and its devices can be asked: one module a source, one small protocol."""

from fleetscope.agents.collectors.collector import Claim, Collector, Reading, Sample, Series
from fleetscope.agents.collectors.sentinels import Accumulator, clean

__all__ = ["Accumulator", "Claim", "Collector", "Reading", "Sample", "Series", "clean"]
