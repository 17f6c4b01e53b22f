"""A first connection that fails soon and says why."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import ACLOperation
from kafka.protocol.admin import CreateTopicsRequest

from fleetscope.transport.errors import AccessDenied, BrokerUnavailable, UnknownTopic
from fleetscope.transport.kafka.client import connect
from fleetscope.transport.kafka.conversation import Conversation
from fleetscope.transport.kafka.faults import translate, translated
from fleetscope.transport.kafka.probe import advertised, reach
from fleetscope.transport.kafka.settings import Cluster
from fleetscope.transport.rights import Rights

# A writer also asks for the topic's limits: `KafkaLog.append` says why.
WRITER = (ACLOperation.WRITE, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS)
READER = (ACLOperation.READ, ACLOperation.DESCRIBE)


def reachable(cluster: Cluster) -> None:
    """Return when a broker answers these credentials, and so does one that clients are sent on to; else raise why not,
    one error a reason (FS2001, FS207x), after at most about `connect_timeout_s`."""
    with reach(cluster) as spoken, translated(str(cluster)):
        advertised(cluster, spoken, [])


def check_rights(cluster: Cluster, rights: Sequence[Rights]) -> None:
    """`reachable`, and the topics are there, or can be made, and may be used. UnknownTopic, AccessDenied.

    The broker is asked for what we may do (Kafka 2.3), so nothing is written to find out. Groups are left out: all
    that fails without them is a display of progress.
    """
    needed: dict[str, set[ACLOperation]] = {}
    for each in rights:
        for names, operations in ((each.writes, WRITER), (each.reads, READER)):
            for name in names:
                needed.setdefault(name, set()).update(operations)
    with reach(cluster) as spoken, translated(str(cluster)):
        answer = advertised(cluster, spoken, list(needed))
        lacking = []
        missing = []
        for topic in answer.topics:
            kind = kafka_errors.for_code(topic.error_code)
            if kind is kafka_errors.UnknownTopicOrPartitionError:
                missing.append(topic.name)
            elif kind is kafka_errors.TopicAuthorizationFailedError:
                lacking.append(f"see {topic.name}")
            elif kind is not kafka_errors.NoError:
                raise translate(kind(), topic.name)
            elif may := set(topic.authorized_operations or ()):
                lacking += [f"{each.name} {topic.name}" for each in sorted(needed[topic.name] - may)]
        if lacking:
            raise AccessDenied(
                f"{spoken.place}: {who(cluster)} may not {', '.join(lacking)}: `fleetscope kafka init` grants it"
            )
        if missing and not _may_make(spoken, missing):
            text = f"no topic {', '.join(missing)}, and {who(cluster)} may not make it: `fleetscope kafka init` does"
            raise UnknownTopic(f"{spoken.place}: {text}")


def who(cluster: Cluster) -> str:
    """Whom the broker takes us for, as far as we know."""
    chosen = cluster.settings
    if chosen.logs_in:
        return f"user {chosen.sasl_user!r}"
    return f"the holder of {chosen.ssl_cert_file}" if chosen.ssl_cert_file else "a client without a name"


def _may_make(spoken: Conversation, names: Sequence[str]) -> bool:
    topic = CreateTopicsRequest.CreatableTopic
    wanted = [topic(name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=[]) for name in names]
    answer = spoken.ask(CreateTopicsRequest(topics=wanted, timeout_ms=2000, validate_only=True))
    denied = (kafka_errors.TopicAuthorizationFailedError, kafka_errors.ClusterAuthorizationFailedError)
    return not any(kafka_errors.for_code(each.error_code) in denied for each in answer.topics)


def connect_admin(cluster: Cluster) -> Any:
    """A connected admin client; raises as `reachable` does.

    kafka-python tries again for as long as it may, whatever the reason: a wrong password blocked it for 30 s and ended
    in a timeout that does not mention it.
    """
    reachable(cluster)
    try:
        return connect(KafkaAdminClient, cluster.client())
    except kafka_errors.KafkaTimeoutError as error:
        raise BrokerUnavailable(f"{cluster}: answered once, and not the client that came after it") from error
    except (kafka_errors.KafkaError, ssl.SSLError) as error:
        raise translate(error, str(cluster)) from error
