"""The log that carries batches from hosts to workers: one protocol, an embedded and a Kafka implementation."""

from fleetscope.transport.log import Log, Message, Pending, Tail, TopicInfo, TopicSpec
from fleetscope.transport.open import open_log, shared_log
from fleetscope.transport.partition import partition_of
from fleetscope.transport.topics import Topics

__all__ = [
    "Log",
    "Message",
    "Pending",
    "Tail",
    "TopicInfo",
    "TopicSpec",
    "Topics",
    "open_log",
    "partition_of",
    "shared_log",
]
