"""What can go wrong in the log, as a caller must tell it apart (numbers FS2xxx)."""

from __future__ import annotations


class FleetscopeError(Exception):
    """Root until schema.errors lands."""

    number = "FS2000"


class Retryable(FleetscopeError):
    """The same call may succeed later."""


class Permanent(FleetscopeError):
    """The same call will fail again."""


class StateUnknown(FleetscopeError):
    """It may or may not have happened."""


class Backpressure(FleetscopeError):
    """Nothing was taken; slow down and offer it again."""


class BrokerUnavailable(Retryable):
    number = "FS2001"


class LogTimeout(Retryable):
    number = "FS2002"


class NotTheLeader(Retryable):
    number = "FS2003"


class BufferFull(Backpressure):
    number = "FS2010"


class LockBusy(Backpressure):
    number = "FS2011"


class DiskFull(Backpressure):
    number = "FS2012"


class DeliveryUnknown(StateUnknown):
    number = "FS2020"


class UnknownTopic(Permanent):
    number = "FS2030"


class TopicConflict(Permanent):
    number = "FS2031"


class TopicRecreated(Permanent):
    number = "FS2032"


class OffsetOutOfRange(Permanent):
    number = "FS2033"


class MessageTooLarge(Permanent):
    number = "FS2034"


class UnreadableRecord(Permanent):
    """A stored record fails its checksum; `raw` are the bytes as found (what can be told of them)."""

    number = "FS2035"
    raw: bytes = b""


class LogClosed(Permanent):
    number = "FS2036"


class AccessDenied(Permanent):
    number = "FS2037"


class BadLogUrl(Permanent):
    number = "FS2040"


class ComponentMissing(Permanent):
    number = "FS2041"


class LogDamaged(Permanent):
    number = "FS2042"
