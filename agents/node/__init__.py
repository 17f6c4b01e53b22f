"""The node agent: the one process on a training host that reads, decodes, numbers and ships what was observed there."""

from fleetscope.agents.node.agent import NodeAgent

__all__ = ["NodeAgent"]
