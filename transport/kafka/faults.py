"""kafka-python's exceptions as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka import errors as kafka_errors

from fleetscope.transport import errors

_NO_LOGIN = (kafka_errors.SaslAuthenticationFailedError, kafka_errors.IllegalSaslStateError)
_TOO_LARGE = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
_NO_TOPIC = (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.UnknownTopicIdError)
_OUT_OF_RANGE = (
    kafka_errors.OffsetOutOfRangeError,
    kafka_errors.NoOffsetForPartitionError,
    kafka_errors.LogTruncationError,
)


def translate(error: Exception, what: str) -> errors.FleetscopeError:
    """For requests that change nothing or may be repeated (reads, metadata, topic creation, commits)."""
    text = f"{what}: {type(error).__name__}: {error}"
    if isinstance(error, kafka_errors.AuthorizationError):
        return errors.AccessDenied(text)
    if isinstance(error, _NO_LOGIN):
        return errors.LoginRefused(text)
    if isinstance(error, kafka_errors.UnsupportedSaslMechanismError):
        return errors.MechanismRefused(text)
    if isinstance(error, _TOO_LARGE):
        return errors.MessageTooLarge(text)
    if isinstance(error, _NO_TOPIC):
        return errors.UnknownTopic(text)
    if isinstance(error, _OUT_OF_RANGE):
        return errors.OffsetOutOfRange(text)
    if isinstance(error, kafka_errors.KafkaConnectionError | kafka_errors.NodeNotReadyError):
        return errors.BrokerUnavailable(text)
    if isinstance(error, kafka_errors.KafkaError) and error.retriable:
        return errors.LogTimeout(text)
    return errors.BrokerRefused(text)


def translate_delivery(error: Exception, what: str) -> errors.FleetscopeError:
    """For a message that was handed over: only a broker that says no has surely not kept it."""
    known = translate(error, what)
    surely_not = (errors.AccessDenied, errors.LoginRefused, errors.MessageTooLarge)
    return known if isinstance(known, surely_not) else errors.DeliveryUnknown(str(error) and f"{what}: {error!r}")


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Raise kafka-python's errors as ours."""
    try:
        yield
    except (kafka_errors.KafkaError, OSError) as error:
        raise translate(error, what) from error
