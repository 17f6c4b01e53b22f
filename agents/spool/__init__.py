"""The disk spool of an agent and the thread that empties it into the log."""

from fleetscope.agents.spool.record import Topic
from fleetscope.agents.spool.sender import Sender
from fleetscope.agents.spool.spool import Delivery, DroppedRange, Spool, SpoolStats

__all__ = ["Delivery", "DroppedRange", "Sender", "Spool", "SpoolStats", "Topic"]
