"""What keeps us from a broker, told apart: a connection by hand, and where it fails a second one that asks why.

Each verdict rests on an answer, not on a guess: a port is called plaintext when it answered Kafka's first request, TLS
when it shook hands, a listener with users when it offered mechanisms.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, NoReturn

from kafka import errors as kafka_errors
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from fleetscope.transport.errors import (
    BrokerUnavailable,
    CertificateExpired,
    CertificateUntrusted,
    ClientCertificateRefused,
    FleetscopeError,
    HostnameMismatch,
    LoginRefused,
    LoginRequired,
    LoginUnexpected,
    MechanismRefused,
    TlsRequired,
    TlsUnexpected,
)
from fleetscope.transport.kafka.conversation import Conversation
from fleetscope.transport.kafka.credentials import tls_context
from fleetscope.transport.kafka.settings import Cluster

_BROKEN = (OSError, kafka_errors.KafkaProtocolError, ValueError)
"""What a connection ends with when the other side speaks something else (ssl.SSLError is an OSError)."""

# X509_V_ERR_* of OpenSSL.
_TIME = (9, 10)
_NAME = (62, 64)
_NO_CHECK_TIME = 0x200000
_UNASKED_S = 1.0


def reach(cluster: Cluster) -> Conversation:
    """A conversation with one of the brokers, logged in, after at most `connect_timeout_s`.

    Servers are asked in turn, each in an equal share of what time is left. When none answers, the most telling
    reason is raised: any other before BrokerUnavailable.
    """
    config = cluster.client()
    deadline = time.monotonic() + cluster.settings.connect_timeout_s
    failures: list[FleetscopeError] = []
    for number, server in enumerate(cluster.servers):
        host, _, port = server.rpartition(":")
        now = time.monotonic()
        share_s = max(0.05, (deadline - now) / (len(cluster.servers) - number))
        try:
            return _Probe(cluster, config, host.strip("[]"), int(port), now + share_s).speak()
        except FleetscopeError as error:
            failures.append(error)
    for failure in failures:
        if not isinstance(failure, BrokerUnavailable):
            raise failure
    raise BrokerUnavailable("no Kafka broker can be reached: " + "; ".join(str(each.args[0]) for each in failures))


def advertised(cluster: Cluster, spoken: Conversation, topics: Sequence[str]) -> Any:
    """The cluster's metadata of `topics`. Clients go on to the addresses in it, whatever they were told first: one
    that was not asked yet is tried too. BrokerUnavailable, HostnameMismatch, ... of that address."""
    request = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False, include_topic_authorized_operations=True,
        include_cluster_authorized_operations=False,
    )  # fmt: skip
    answer = spoken.ask(request)
    places = [f"{broker.host}:{broker.port}" for broker in answer.brokers]
    if places and not {spoken.place, *cluster.servers} & set(places):
        broker = answer.brokers[0]
        told = f"{spoken.place} names {', '.join(places)} as brokers (advertised.listeners)"
        try:
            _Probe(cluster, cluster.client(), broker.host, broker.port, spoken.deadline).speak().close()
        except FleetscopeError as error:
            raise type(error)(f"{told}: {error.args[0]}") from error
    return answer


class _Probe:
    """One server, one attempt."""

    def __init__(self, cluster: Cluster, config: dict[str, Any], host: str, port: int, deadline: float) -> None:
        self._settings = cluster.settings
        self._config = config
        self._address = host, port, deadline
        self._place = f"{host}:{port}"
        self._started = time.monotonic()

    def speak(self) -> Conversation:
        spoken = self._connected()
        try:
            if self._settings.encrypted:
                self._encrypt(spoken)
            self._greet(spoken)
            if self._settings.logs_in:
                self._log_in(spoken)
            else:
                self._be_nobody(spoken)
        except BaseException:
            spoken.close()
            raise
        return spoken

    def _connected(self) -> Conversation:
        try:
            return Conversation(*self._address, self._settings.client_id)
        except OSError as error:
            raise BrokerUnavailable(f"{self._place}: {error}") from error

    # ---- TLS

    def _encrypt(self, spoken: Conversation) -> None:
        try:
            spoken.encrypt(self._config["ssl_context"])
        except ssl.SSLCertVerificationError as error:
            self._distrusted(error)
        except ssl.SSLError as error:
            self._refused_by_alert(error)
            self._no_tls(error)
        except OSError as error:
            self._no_tls(error)

    def _distrusted(self, error: ssl.SSLCertVerificationError) -> NoReturn:
        reason = error.verify_message or str(error)
        if error.verify_code in _TIME:
            raise CertificateExpired(f"{self._place}: {reason}{self._validity()}") from error
        if error.verify_code in _NAME:
            names = [name for _, name in self._certificate().get("subjectAltName", ())]
            text = f"the broker's certificate is for {', '.join(names) or 'no name'}, not for {self._address[0]}"
            raise HostnameMismatch(f"{self._place}: {text}") from error
        ca = self._settings.ssl_ca_file or "the system's authorities"
        raise CertificateUntrusted(f"{self._place}: {reason}; trusted are {ca}") from error

    def _validity(self) -> str:
        """Whose certificate it is that the time is over of: OpenSSL tells no more than that it is over."""
        found = self._certificate()
        if not found:
            return ""
        begin, end = (ssl.cert_time_to_seconds(found[key]) for key in ("notBefore", "notAfter"))
        if begin <= time.time() <= end:
            return ": an authority's above the broker's own"
        now = formatdate(usegmt=True)
        return f": the broker's is valid from {found['notBefore']} to {found['notAfter']}, and here it is {now}"

    def _certificate(self) -> dict[str, Any]:
        """The broker's certificate, its chain checked but neither name nor time."""
        chosen = self._settings
        context = tls_context(chosen.ssl_ca_file, chosen.ssl_cert_file, chosen.ssl_key_file)
        context.check_hostname = False
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
        try:
            with self._connected() as again:
                return again.encrypt(context).getpeercert() or {}
        except (OSError, BrokerUnavailable):
            return {}

    def _no_tls(self, error: OSError) -> NoReturn:
        try:
            with self._connected() as plain:
                plain.greet()
        except _BROKEN:
            raise self._silence(error) from error
        raise TlsUnexpected(
            f"{self._place} answers Kafka without TLS, security_protocol is {self._protocol}"
        ) from error

    def _refused_by_alert(self, error: ssl.SSLError) -> None:
        """An alert is what the broker says before it hangs up."""
        reason = error.reason or ""
        if "ALERT" not in reason:
            return
        if "EXPIRED" in reason:
            raise CertificateExpired(f"{self._place}: the broker says that ours, {self._ours}, has expired") from error
        if "CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason:
            raise ClientCertificateRefused(f"{self._place} says {reason}; ours: {self._ours}") from error
        raise BrokerUnavailable(f"{self._place}: TLS failed: {reason}") from error

    # ---- Kafka

    def _greet(self, spoken: Conversation) -> None:
        try:
            spoken.greet()
        except ssl.SSLError as error:
            self._refused_by_alert(error)
            raise self._silence(error) from error
        except _BROKEN as error:
            if self._settings.encrypted:
                self._hung_up_after_the_handshake()
            else:
                self._perhaps_tls(error)
            raise self._silence(error) from error

    def _hung_up_after_the_handshake(self) -> None:
        """What we send makes the system drop the alert that came before: so this time nothing is sent."""
        try:
            with self._connected() as again:
                again.encrypt(self._config["ssl_context"])
                again.listen(_UNASKED_S)
        except ssl.SSLError as error:
            self._refused_by_alert(error)
        except (OSError, BrokerUnavailable):
            return

    def _perhaps_tls(self, error: Exception) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # only to learn whether it is TLS; nothing is said over it
        try:
            with self._connected() as again:
                again.encrypt(context)
        except ssl.SSLError as answer:
            if "ALERT" not in (answer.reason or ""):
                return
        except (OSError, BrokerUnavailable):
            return
        raise TlsRequired(f"{self._place} speaks TLS, security_protocol is {self._protocol}") from error

    def _log_in(self, spoken: Conversation) -> None:
        chosen = self._settings
        try:
            offered = spoken.ask(SaslHandshakeRequest(mechanism=chosen.sasl_mechanism, version=1))
            kind = kafka_errors.for_code(offered.error_code)
            if kind is kafka_errors.IllegalSaslStateError:
                raise LoginUnexpected(f"{self._place} knows no users, security_protocol is {self._protocol}")
            if kind is not kafka_errors.NoError:
                there = ", ".join(offered.mechanisms) or "none"
                raise MechanismRefused(f"{self._place}: no {chosen.sasl_mechanism} here, the listener offers {there}")
            self._authenticate(spoken)
        except _BROKEN as error:
            raise self._silence(error) from error

    def _authenticate(self, spoken: Conversation) -> None:
        chosen = self._settings
        who = f"{self._place}: user {chosen.sasl_user!r} by {chosen.sasl_mechanism}"
        mechanism = get_sasl_mechanism(chosen.sasl_mechanism)(
            host=self._address[0], security_protocol=chosen.security_protocol, **_sasl(self._config)
        )
        while not mechanism.is_done():
            answer = spoken.ask(SaslAuthenticateRequest(mechanism.auth_bytes(), version=1))
            if answer.error_code:
                raise LoginRefused(
                    f"{who}: {answer.error_message or kafka_errors.for_code(answer.error_code).__name__}"
                )
            try:
                mechanism.receive(answer.auth_bytes)
            except ValueError as error:
                raise LoginRefused(f"{who}: the broker does not prove that it knows the password") from error

    def _be_nobody(self, spoken: Conversation) -> None:
        """A listener with users answers the first request of anybody, and hangs up at the second."""
        try:
            spoken.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False))
        except _BROKEN as error:
            try:
                with self._connected() as again:
                    if self._settings.encrypted:
                        again.encrypt(self._config["ssl_context"])
                    again.greet()
                    offered = again.ask(SaslHandshakeRequest(mechanism="", version=1))
            except (*_BROKEN, BrokerUnavailable):
                raise self._silence(error) from error
            there = ", ".join(offered.mechanisms)
            raise LoginRequired(
                f"{self._place} wants a user ({there}), security_protocol is {self._protocol}"
            ) from error

    @property
    def _protocol(self) -> str:
        return self._settings.security_protocol

    @property
    def _ours(self) -> str:
        return self._settings.ssl_cert_file or "none"

    def _silence(self, error: Exception) -> FleetscopeError:
        spent_s = time.monotonic() - self._started
        said = "nothing" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return BrokerUnavailable(f"{self._place}: the port is open, but no broker answered in {spent_s:.0f} s ({said})")


def _sasl(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key.startswith("sasl_")}
