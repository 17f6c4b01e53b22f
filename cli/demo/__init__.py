"""`fleetscope demo`: the whole path on one machine, live: a real training run beside a simulated fleet."""

from fleetscope.cli.demo.command import demo

__all__ = ["demo"]
