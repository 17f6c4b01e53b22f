"""A broker with TLS and SCRAM: every reason that keeps us out by its own number, passwords that change."""

from __future__ import annotations

import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
    UserScramCredentialUpsertion,
)
from kafka.protocol.metadata import MetadataResponse
from typer.testing import CliRunner

from fleetscope.cli.main import app
from fleetscope.transport import Log, Tail, TopicSpec, open_log
from fleetscope.transport import errors as e
from fleetscope.transport.errors import FleetscopeError, LoginRefused
from fleetscope.transport.kafka.preflight import reachable
from fleetscope.transport.kafka.probe import advertised, reach
from fleetscope.transport.kafka.settings import cluster_of
from fleetscope.transport.rights import Role

from .conftest import PASSWORD, PATIENT, Secured, shown

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


# ---- what keeps us out


def _stranger(secured: Secured, tmp_path: Path) -> Path:
    """Another authority, of the same name."""
    from_elsewhere = type(secured.authority).make(tmp_path / "theirs")
    from_elsewhere.sign("client")
    return Path(from_elsewhere.file)


TLS = {"security_protocol": "SSL"}

REASONS: dict[str, tuple[Callable[[Secured, Path], str], type[FleetscopeError], str]] = {
    "wrong password": (
        lambda s, tmp: s.login("fleetscope-agent", sasl_password_file=_file(tmp, "wrong")),
        e.LoginRefused, r"user 'fleetscope-agent' by SCRAM-SHA-512: .*invalid credentials",
    ),
    "no such user": (lambda s, tmp: s.login("nobody"), e.LoginRefused, r"user 'nobody' by SCRAM-SHA-512"),
    "no credential of that mechanism": (
        lambda s, tmp: s.login("fleetscope-agent", sasl_mechanism="SCRAM-SHA-256"), e.LoginRefused, "SCRAM-SHA-256",
    ),
    "unknown mechanism": (
        lambda s, tmp: s.login("fleetscope-agent", sasl_mechanism="PLAIN"),
        e.MechanismRefused, r"no PLAIN here, the listener offers SCRAM-SHA-(512|256), SCRAM-SHA-(512|256)",
    ),
    "wrong CA": (
        lambda s, tmp: s.login("fleetscope-agent", ssl_ca_file=_stranger(s, tmp)),
        e.CertificateUntrusted, r"trusted are .*theirs/ca\.pem",
    ),
    "another host name": (
        lambda s, tmp: s.url("SECURED", "localhost", ssl_ca_file=s.folder / "ca.pem", **TLS),
        e.HostnameMismatch, r"is for 127\.0\.0\.1, not for localhost",
    ),
    "expired certificate": (
        lambda s, tmp: s.url("EXPIRED", ssl_ca_file=s.folder / "ca.pem", **TLS),
        e.CertificateExpired, r"the broker's is valid from .* to .*, and here it is ",
    ),
    "no certificate of ours": (
        lambda s, tmp: s.url("MUTUAL", ssl_ca_file=s.folder / "ca.pem", **TLS),
        e.ClientCertificateRefused, "ours: none",
    ),
    "a certificate of ours that they do not know": (
        lambda s, tmp: s.url(
            "MUTUAL", ssl_ca_file=s.folder / "ca.pem", ssl_cert_file=_stranger(s, tmp).with_name("client.pem"), **TLS
        ),
        e.ClientCertificateRefused, r"ours: .*theirs/client\.pem",
    ),
    "TLS to a plaintext port": (
        lambda s, tmp: s.url("PLAINTEXT", **TLS),
        e.TlsUnexpected, "answers Kafka without TLS, security_protocol is SSL",
    ),
    "plaintext to a TLS port": (
        lambda s, tmp: s.url("SECURED"), e.TlsRequired, "speaks TLS, security_protocol is PLAINTEXT",
    ),
    "no user to a port with users": (
        lambda s, tmp: s.url("SECURED", ssl_ca_file=s.folder / "ca.pem", **TLS),
        e.LoginRequired, r"wants a user \(SCRAM-SHA-.*security_protocol is SSL",
    ),
    "a user to a port without": (
        lambda s, tmp: s.url(
            "PLAINTEXT", security_protocol="SASL_PLAINTEXT", sasl_user="x", sasl_password_file=s.folder / "password"
        ),
        e.LoginUnexpected, "knows no users, security_protocol is SASL_PLAINTEXT",
    ),
}  # fmt: skip


def _file(tmp: Path, password: str) -> Path:
    (tmp / "password").write_text(password)
    return tmp / "password"


@pytest.mark.parametrize("what", REASONS)
def test_every_reason_has_its_own_number(secured: Secured, tmp_path: Path, what: str) -> None:
    make, kind, text = REASONS[what]
    url = make(secured, tmp_path)
    with pytest.raises(FleetscopeError, match=text) as caught:
        reachable(cluster_of(url, {}))
    assert type(caught.value) is kind, caught.value
    assert PASSWORD not in str(caught.value)


def test_an_expired_authority_is_not_taken_for_the_broker(secured: Secured, tmp_path: Path) -> None:
    """No broker is needed to shake hands, and Kafka would not start with such a certificate."""
    old = type(secured.authority).make(tmp_path / "old", valid=-1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(old.sign("broker"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection = server.accept()[0]
                    with suppress(OSError), context.wrap_socket(connection, server_side=True) as spoken:
                        spoken.recv(1)

        threading.Thread(target=serve, daemon=True).start()
        url = f"kafka://127.0.0.1:{server.getsockname()[1]}?{PATIENT}&security_protocol=SSL&ssl_ca_file={old.file}"
        with pytest.raises(e.CertificateExpired, match="an authority's above the broker's own"):
            reachable(cluster_of(url, {}))
        server.shutdown(socket.SHUT_RDWR)


def test_both_mechanisms_a_certificate_of_ours_and_a_password_from_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, own = secured.folder / "ca.pem", secured.folder / "client"
    for url in (
        secured.login("fleetscope-agent"),
        secured.login("old=user,256", sasl_mechanism="SCRAM-SHA-256"),
        secured.url("MUTUAL", ssl_ca_file=ca, ssl_cert_file=f"{own}.crt", ssl_key_file=f"{own}.key", **TLS),
        secured.url("SECURED", "localhost", security_protocol="SASL_SSL", sasl_user="fleetscope-agent",
                    ssl_ca_file=ca, ssl_check_hostname="false", sasl_password_file=secured.folder / "password"),
    ):  # fmt: skip
        with open_log(url) as log:
            assert isinstance(log.topics(), tuple)
    monkeypatch.setenv("FLEETSCOPE_LOG_PASSWORD", PASSWORD)
    reachable(cluster_of(secured.login("fleetscope-agent", sasl_password_file=""), {}))


def test_a_changed_password_needs_no_restart(
    secured: Secured, admin: KafkaAdminClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's password is changed while a log is open, and its connections are ended by the broker."""
    monkeypatch.setattr("fleetscope.transport.kafka.tail._SILENCE_S", 0.5)

    def change(password: str) -> None:
        (tmp_path / "next").write_text(password)
        assert admin.alter_user_scram_credentials([UserScramCredentialUpsertion("changing", "SCRAM-SHA-512", password)])
        (tmp_path / "next").rename(tmp_path / "password")

    topic = f"changing-{uuid.uuid4().hex}"
    with open_log(secured.url("PLAINTEXT")) as log:
        log.create_topics([TopicSpec(topic)])
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    rule = ACL("User:changing", "*", ACLOperation.ALL, ACLPermissionType.ALLOW, pattern)
    admin.create_acls([rule])
    shown(admin, lambda rules: rule in rules)
    change("first")
    url = secured.url(
        "SHORT", security_protocol="SASL_PLAINTEXT", sasl_user="changing", sasl_password_file=tmp_path / "password"
    )
    with open_log(url, delivery_timeout_s=1) as log:
        until = time.monotonic() + 120
        while not _works(log, topic):
            assert time.monotonic() < until
        tail = log.tail(topic)
        assert tail.poll(60)
        change("second")
        refused = 0
        while not (refused and _works(log, topic)):
            refused += not _works(log, topic)
            assert time.monotonic() < until
            time.sleep(0.2)
        with pytest.raises(LoginRefused):
            _follow(tail, until)
        tail.close()
        again = log.tail(topic, {0: log.end_offsets(topic)[0] - 1})
        assert [m.value for m in again.poll(60)] == [b"1"]
        again.close()


def _follow(tail: Tail, until: float) -> None:
    while time.monotonic() < until:
        tail.poll(0.2)


def _works(log: Log, topic: str) -> bool:
    """Whether producer, consumer and questions all get through."""
    try:
        log.append(topic, b"k", b"1").result(60)
        end = log.end_offsets(topic)[0]
        return [m.value for m in log.read(topic, 0, end - 1, end)] == [b"1"]
    except FleetscopeError:
        return False


def test_the_address_that_brokers_name_is_tried_too(secured: Secured, free_port: Callable[[], int]) -> None:
    """The usual trap: the first address answers, and what it names cannot be reached from here."""
    cluster = cluster_of(secured.role(Role.AGENT), {})
    elsewhere = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=free_port(), rack=None)
    with reach(cluster) as spoken:
        spoken.ask = lambda request: type("Answer", (), {"brokers": [elsewhere], "topics": []})  # type: ignore[method-assign]
        with pytest.raises(
            e.BrokerUnavailable, match=rf"advertised\.listeners\): 127\.0\.0\.1:{elsewhere.port}: .*refused"
        ):
            advertised(cluster, spoken, [])


def test_one_of_two_brokers_is_enough_and_the_telling_reason_wins(
    secured: Secured, free_port: Callable[[], int], tmp_path: Path
) -> None:
    closed = f"127.0.0.1:{free_port()}"
    good = secured.role(Role.AGENT)
    reachable(cluster_of(good.replace("kafka://", f"kafka://{closed},"), {}))
    bad = secured.login("nobody").replace("kafka://", f"kafka://{closed},")
    with pytest.raises(LoginRefused):
        reachable(cluster_of(bad, {}))


def test_a_role_that_is_not_let_in_says_so_and_ends(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", str(tmp_path / "state"))
    wrong = secured.login("fleetscope-worker", sasl_password_file=_file(tmp_path, "wrong"))
    for role in ("worker", "coordinator", "exporter", "up"):
        done = CliRunner().invoke(app, [role, "--log", wrong])
        assert done.exit_code == 69
        assert done.stderr.count("\n") == 1
        assert "FS2070" in done.stderr
    (tmp_path / "ca.pem").write_text("no certificate")
    done = CliRunner().invoke(app, ["agent", "--log", secured.login("x", ssl_ca_file=tmp_path / "ca.pem")])
    assert done.exit_code == 2
    assert "FS2080" in done.stderr
    assert f"{tmp_path}/ca.pem: no CERTIFICATE in it" in done.stderr
