"""What needs the whole fleet and one leader: rounds of folding, replacing small files, sweeping, symbols, runs."""

from fleetscope.pipelines.coordinate.rounds import Coordinator

__all__ = ["Coordinator"]
