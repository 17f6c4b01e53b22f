"""Settings of the Kafka log, and what kafka-python's clients are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fleetscope.transport.errors import BadLogUrl
from fleetscope.transport.log import MAX_MESSAGE_BYTES

MIB = 1024 * 1024

_SECURITY = (
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Empty security settings are not passed on. File names are of PEM files."""

    append_block_s: float = 0.5
    # kafka-python 3 has no bound of its own on what waits to be sent (it dropped buffer_memory).
    buffer_bytes: int = 32 * MIB
    delivery_timeout_s: float = 30.0
    request_timeout_s: float = 10.0
    connect_timeout_s: float = 5.0
    read_timeout_s: float = 10.0
    linger_ms: int = 5
    batch_bytes: int = MIB
    fetch_bytes: int = 4 * MIB
    fetch_wait_ms: int = 500
    replication_factor: int = -1
    client_id: str = "fleetscope"
    security_protocol: str = ""
    sasl_mechanism: str = ""
    sasl_plain_username: str = ""
    sasl_plain_password: str = ""
    ssl_cafile: str = ""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the brokers are and how to speak to them."""

    servers: tuple[str, ...]
    settings: KafkaSettings

    def __repr__(self) -> str:
        """Without the settings, which hold a password."""
        return f"Cluster({','.join(self.servers)})"

    def client(self) -> dict[str, Any]:
        """Configuration all three clients share."""
        chosen = self.settings
        return {
            "bootstrap_servers": list(self.servers),
            "client_id": chosen.client_id,
            "bootstrap_timeout_ms": int(chosen.connect_timeout_s * 1000),
            "request_timeout_ms": int(chosen.request_timeout_s * 1000),
            # The default backs off up to 30 s: data would flow again only half a minute after an outage ends.
            "reconnect_backoff_max_ms": 1000,
            "ssl_check_hostname": chosen.ssl_check_hostname,
            **{name: getattr(chosen, name) for name in _SECURITY if getattr(chosen, name)},
        }

    def producer(self) -> dict[str, Any]:
        chosen = self.settings
        return {
            **self.client(),
            "acks": "all",
            "enable_idempotence": True,
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "linger_ms": chosen.linger_ms,
            "batch_size": chosen.batch_bytes,
            "max_request_size": MAX_MESSAGE_BYTES,
            "max_block_ms": max(1, int(chosen.append_block_s * 1000)),
            # Out of reach: `produce._Client` says why, and gives up itself.
            "delivery_timeout_ms": 24 * 3_600_000,
        }

    def consumer(self, wait_ms: int) -> dict[str, Any]:
        """No group: assigned partitions, explicit offsets, and an error instead of any reset.

        `wait_ms`: how long the broker holds back the answer to a fetch at the end of a partition.
        """
        chosen = self.settings
        return {
            **self.client(),
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
            "check_crcs": True,
            "fetch_max_wait_ms": wait_ms,
            "fetch_max_bytes": chosen.fetch_bytes,
            "max_partition_fetch_bytes": chosen.fetch_bytes,
        }


def cluster_of(url: str, settings: Mapping[str, Any], kind: type[KafkaSettings] = KafkaSettings) -> Cluster:
    """`kafka://host:port,host:port`. Messages never repeat the URL: its query may hold a password."""
    from fleetscope.transport.settings import settings_from

    servers = tuple(server for server in urlsplit(url).netloc.split(",") if server)
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or "@" in host:
            raise BadLogUrl("a Kafka log is kafka://host:port[,host:port...]; credentials are settings, not part of it")
    if not servers:
        raise BadLogUrl("a Kafka log is kafka://host:port[,host:port...], and this one names no broker")
    return Cluster(servers, settings_from(kind, url, settings))
