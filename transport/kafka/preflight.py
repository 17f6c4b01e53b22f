"""A first connection that fails soon and says why."""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors

from fleetscope.transport.errors import AccessDenied, BrokerUnavailable
from fleetscope.transport.kafka.client import connect
from fleetscope.transport.kafka.faults import translate
from fleetscope.transport.kafka.settings import Cluster


def connect_admin(cluster: Cluster) -> Any:
    """A connected admin client. BrokerUnavailable or AccessDenied after at most about `connect_timeout_s`.

    kafka-python tries again for as long as it may, whatever the reason: a wrong password blocked it for 30 s and ended
    in a timeout that does not mention it. So a plain socket finds refused connections first (at once), and a timeout
    behind an open port is told as what it most likely is.
    """
    some_port_is_open(cluster)
    started = time.monotonic()
    try:
        return connect(KafkaAdminClient, cluster.client())
    except kafka_errors.KafkaTimeoutError as error:
        spent_s = time.monotonic() - started
        if cluster.settings.security_protocol:
            raise AccessDenied(
                f"{cluster}: the port is open, but no handshake succeeded in {spent_s:.0f} s: "
                "check user, password, mechanism and certificates"
            ) from error
        raise BrokerUnavailable(f"{cluster}: the port is open, but no broker answered in {spent_s:.0f} s") from error
    except kafka_errors.KafkaError as error:
        raise translate(error, str(cluster)) from error
    except ssl.SSLError as error:
        raise AccessDenied(f"{cluster}: {error}") from error


def some_port_is_open(cluster: Cluster) -> None:
    """One refused round is enough, except for a name that does not resolve or a port that does not answer."""
    reasons = []
    for server in cluster.servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=cluster.settings.connect_timeout_s).close()
            return
        except OSError as error:
            reasons.append(f"{server}: {error}")
    raise BrokerUnavailable("no Kafka broker can be reached: " + "; ".join(reasons))
