"""Settings of the Kafka log, and what kafka-python's clients are given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fleetscope.transport.errors import BadLogUrl
from fleetscope.transport.kafka.credentials import password_of, tls_context
from fleetscope.transport.log import MAX_MESSAGE_BYTES

MIB = 1024 * 1024

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """File names are of PEM files, but for the password's. No setting is a secret itself: a URL that holds all of them
    may be printed, and may travel in a pipeline's plan."""

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
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "SCRAM-SHA-512"
    sasl_user: str = ""
    sasl_password_file: str = ""
    """Empty: $FLEETSCOPE_LOG_PASSWORD."""
    ssl_ca_file: str = ""
    """Empty: what the system trusts."""
    ssl_cert_file: str = ""
    ssl_key_file: str = ""
    ssl_check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            raise BadLogUrl(f"log: security_protocol is one of {', '.join(PROTOCOLS)}")
        if self.logs_in:
            self._check_login()
        elif self.sasl_user or self.sasl_password_file:
            raise BadLogUrl(
                f"log: a user is given, and security_protocol is {self.security_protocol}: it would not log in"
            )
        files = self.ssl_ca_file or self.ssl_cert_file or self.ssl_key_file
        if files and not self.encrypted:
            raise BadLogUrl(f"log: {files} is given, and security_protocol is {self.security_protocol}: no TLS")
        if self.ssl_key_file and not self.ssl_cert_file:
            raise BadLogUrl("log: ssl_key_file without ssl_cert_file")

    def _check_login(self) -> None:
        if self.sasl_mechanism not in MECHANISMS:
            raise BadLogUrl(f"log: sasl_mechanism is one of {', '.join(MECHANISMS)}")
        if not self.sasl_user:
            raise BadLogUrl(f"log: security_protocol is {self.security_protocol}, and sasl_user names nobody")
        if self.sasl_mechanism == "PLAIN" and not self.encrypted:
            raise BadLogUrl("log: PLAIN sends the password itself, and SASL_PLAINTEXT would show it to the network")

    @property
    def encrypted(self) -> bool:
        """Whether it speaks TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def logs_in(self) -> bool:
        """Whether it names a user to the broker."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the brokers are and how to speak to them."""

    servers: tuple[str, ...]
    settings: KafkaSettings

    def __repr__(self) -> str:
        """Addresses alone: it is part of every error."""
        return f"Cluster({','.join(self.servers)})"

    def login(self) -> dict[str, Any]:
        """What kafka-python's SASL mechanisms are told; the password is read anew, for it may have been changed."""
        chosen = self.settings
        if not chosen.logs_in:
            return {}
        user = chosen.sasl_user
        if chosen.sasl_mechanism != "PLAIN":
            user = user.replace("=", "=3D").replace(",", "=2C")  # RFC 5802, 5.1; kafka-python 3.0.12 leaves it out
        return {
            "sasl_mechanism": chosen.sasl_mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password_of(chosen.sasl_password_file),
        }

    def client(self) -> dict[str, Any]:
        """Configuration all three clients share. CredentialUnreadable for files that cannot be used."""
        chosen = self.settings
        tls = tls_context(chosen.ssl_ca_file, chosen.ssl_cert_file, chosen.ssl_key_file) if chosen.encrypted else None
        if tls is not None:
            tls.check_hostname = chosen.ssl_check_hostname
        return {
            "bootstrap_servers": list(self.servers),
            "client_id": chosen.client_id,
            "bootstrap_timeout_ms": int(chosen.connect_timeout_s * 1000),
            "request_timeout_ms": int(chosen.request_timeout_s * 1000),
            # The default backs off up to 30 s: data would flow again only half a minute after an outage ends.
            "reconnect_backoff_max_ms": 1000,
            "security_protocol": chosen.security_protocol,
            "ssl_context": tls,
            **self.login(),
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
    """`kafka://host:port,host:port`. Messages never repeat the URL: somebody may have put a password into it."""
    from fleetscope.transport.settings import settings_from

    servers = tuple(server for server in urlsplit(url).netloc.split(",") if server)
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal() or "@" in host:
            raise BadLogUrl("a Kafka log is kafka://host:port[,host:port...]; credentials are settings, not part of it")
    if not servers:
        raise BadLogUrl("a Kafka log is kafka://host:port[,host:port...], and this one names no broker")
    return Cluster(servers, settings_from(kind, url, settings))
