"""Before a role starts: can it do on the log what it is going to do? One numbered error a reason, within seconds."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from fleetscope.transport.rights import Role, rights_of
from fleetscope.transport.topics import Topics


def check_settings(url: str) -> None:
    """Read what the URL names (certificates, key, password) and connect to nothing. BadLogUrl, CredentialUnreadable."""
    if urlsplit(url).scheme == "kafka":
        from fleetscope.transport.kafka.settings import cluster_of

        cluster_of(url, {}).client()


def preflight(url: str, roles: Iterable[Role], topics: Topics) -> None:
    """Return if a broker answers, takes us, has the topics of `roles` or lets us make them, and lets us write and read
    them as they do. An embedded log has nothing to ask: its folder is its owner's.

    Raises within about `connect_timeout_s` (5 s): BrokerUnavailable, TlsRequired, TlsUnexpected, CertificateUntrusted,
    CertificateExpired, HostnameMismatch, ClientCertificateRefused, LoginRequired, LoginUnexpected, MechanismRefused,
    LoginRefused, UnknownTopic, AccessDenied; and as `check_settings`.
    """
    if urlsplit(url).scheme != "kafka":
        return
    from fleetscope.transport.kafka.preflight import check_rights
    from fleetscope.transport.kafka.settings import cluster_of

    check_rights(cluster_of(url, {}), [rights_of(role, topics) for role in roles])
