"""A fleet with known truth: seeded hosts and chips that send what real ones would, by the same batches and spool."""

from fleetscope.agents.simulated.simulation import Simulation

__all__ = ["Simulation"]
