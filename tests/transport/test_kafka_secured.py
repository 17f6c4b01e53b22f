"""A broker with TLS, SCRAM and ACLs: every reason that keeps us out by its own number, rights by role, `kafka init`."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)
from kafka.protocol.metadata import MetadataResponse
from typer.testing import CliRunner, Result

from fleetscope.cli import doctor
from fleetscope.cli.main import app
from fleetscope.schema.config import load
from fleetscope.transport import Log, Tail, Topics, TopicSpec, open_log
from fleetscope.transport import errors as e
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.errors import AccessDenied, FleetscopeError, LoginRefused, Retryable, UnknownTopic
from fleetscope.transport.kafka.preflight import reachable
from fleetscope.transport.kafka.probe import advertised, reach
from fleetscope.transport.kafka.settings import cluster_of
from fleetscope.transport.preflight import preflight
from fleetscope.transport.rights import WORKER_GROUP, Role, rights_of

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

PASSWORD = "s3cret, not to be shown"
USERS = {f"fleetscope-{role.value}": "SCRAM-SHA-512" for role in Role} | {"old=user,256": "SCRAM-SHA-256"}
PATIENT = "connect_timeout_s=30&request_timeout_s=30"
"""The verdict is what is tested; how soon it comes on an idle machine is a number in docs/design/0022."""


@dataclass(frozen=True)
class Secured:
    """The broker and its ports by listener."""

    broker: Broker
    ports: dict[str, int]
    authority: Any

    @property
    def folder(self) -> Path:
        return Path(self.authority.folder)

    def url(self, listener: str, host: str = "127.0.0.1", **settings: object) -> str:
        port = self.broker.address.rpartition(":")[2] if listener == "PLAINTEXT" else self.ports[listener]
        query = "&".join((PATIENT, *(f"{key}={value}" for key, value in settings.items())))
        return f"kafka://{host}:{port}?{query}"

    def login(self, user: str, **more: object) -> str:
        given = {
            "security_protocol": "SASL_SSL", "sasl_user": user.replace("=", "%3D"),
            "ssl_ca_file": self.folder / "ca.pem", "sasl_password_file": self.folder / "password",
        }  # fmt: skip
        return self.url("SECURED", **{**given, **more})

    def role(self, role: Role | str) -> str:
        return self.login(f"fleetscope-{role}")


@pytest.fixture(scope="module")
def secured(
    require: Callable[[str], Path], free_port: Callable[[], int], authority: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:  # fmt: skip
    """Its PLAINTEXT listener, on which everybody is a super user, is the door of this test's administrator."""
    ports = {name: free_port() for name in ("SECURED", "MUTUAL", "EXPIRED", "SHORT")}
    good, late = authority.sign("broker"), authority.sign("late", valid=-30)
    authority.sign("client")
    (authority.folder / "password").write_text(f"{PASSWORD}\n")
    properties = {
        "extra.listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map":
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL,EXPIRED:SSL,SHORT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(authority.file),
    }  # fmt: skip
    for name, file in (("secured", good), ("mutual", good), ("expired", late)):
        properties[f"listener.name.{name}.ssl.keystore.type"] = "PEM"
        properties[f"listener.name.{name}.ssl.keystore.location"] = str(file)
    jaas = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    for mechanism in ("scram-sha-512", "scram-sha-256"):
        for name in ("secured", "short"):
            properties[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = jaas
    # On SHORT a login is to be renewed within 1 s: a broker that takes the old password no longer hangs up.
    properties["listener.name.short.scram-sha-512.connections.max.reauth.ms"] = "1000"
    with Broker(tmp_path_factory.mktemp("secured"), require("kafka"), properties) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        made = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, mechanism, PASSWORD) for user, mechanism in USERS.items()]
        )
        assert set(made.values()) == {None}
        yield Secured(broker, ports, authority)
        admin.close()


@pytest.fixture
def admin(secured: Secured) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=secured.broker.address)
    yield client
    client.close()


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
    _shown(admin, lambda rules: rule in rules)
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
    _forget(admin)


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


# ---- init


@pytest.fixture
def command(secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`fleetscope ...` as the administrator, of a fleet of its own."""
    file = tmp_path / "fleetscope.yaml"
    prefix = tmp_path.name.replace("_", "-")
    file.write_text(f"log: {{url: '{secured.url('PLAINTEXT')}', partitions: 3, topic_prefix: {prefix}}}")
    monkeypatch.setenv("FLEETSCOPE_CONFIG", str(file))
    monkeypatch.setenv("FLEETSCOPE_STATE_DIR", str(tmp_path))
    return lambda *words: CliRunner().invoke(app, ["kafka", "init", *words], catch_exceptions=False)


def _rows(done: Result) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = json.loads(done.stdout)
    return rows


def _topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path.name.replace("_", "-"))


def test_init_plans_makes_and_finds_nothing_left_to_do(
    command: Callable[..., Result], secured: Secured, admin: KafkaAdminClient, tmp_path: Path
) -> None:
    topics = _topics(tmp_path)
    dry = command("--dry-run", "-o", "json")
    assert dry.exit_code == 0, dry.stderr
    planned = _rows(dry)
    made = {row["name"] for row in planned if row["kind"] == "topic"}
    assert made == {spec.name for spec in topics.specs()}
    assert {row["action"] for row in planned if row["kind"] == "topic"} == {"create"}
    assert {row["action"] for row in planned if row["kind"] == "rights"} == {"grant"}
    with open_log(secured.url("PLAINTEXT")) as log:
        assert not made & set(log.topics()), "a dry run changes nothing"
    done = command("-o", "json")
    assert (done.exit_code, _rows(done)) == (0, planned)
    with open_log(secured.url("PLAINTEXT")) as log:
        assert log.topic(topics.telemetry).partitions == 3
        assert log.topic(topics.metrics).partitions == 1
    said = admin.describe_configs([ConfigResource("topic", name) for name in made], config_filter="all")["topic"]
    value = {name: {key: entry["value"] for key, entry in found.items()} for name, found in said.items()}
    assert value[topics.telemetry]["retention.ms"] == str(24 * 3_600_000)
    assert value[topics.telemetry]["retention.bytes"] == str(8 << 30)
    assert value[topics.telemetry]["cleanup.policy"] == "delete"
    assert value[topics.control]["cleanup.policy"] == "compact"
    again = command("-o", "json")
    assert {row["action"] for row in _rows(again)} == {"keep"}
    assert again.exit_code == 0
    _forget(admin)


def test_init_changes_what_loses_nothing_and_tells_the_rest(
    command: Callable[..., Result], secured: Secured, admin: KafkaAdminClient, tmp_path: Path
) -> None:
    topics = _topics(tmp_path)
    with open_log(secured.url("PLAINTEXT")) as log:
        log.create_topics(
            [
                TopicSpec(topics.telemetry, 5, retention_ms=3_600_000, retention_bytes=1 << 40),
                TopicSpec(topics.clocks, 1, retention_ms=3_600_000, retention_bytes=1 << 30),
                TopicSpec(topics.control, 1, retention_ms=3_600_000),
            ]
        )
    pattern = ResourcePattern(ResourceType.TOPIC, topics.telemetry)
    allow, deny = ACLPermissionType.ALLOW, ACLPermissionType.DENY
    admin.create_acls(
        [
            ACL("User:fleetscope-agent", "*", ACLOperation.READ, allow, pattern),
            ACL("User:*", "*", ACLOperation.DELETE, allow, pattern),
            ACL("User:fleetscope-worker", "*", ACLOperation.READ, deny, pattern),
            ACL("User:*", "*", ACLOperation.READ, allow, ResourcePattern(ResourceType.TOPIC, "somebody.elses")),
        ]
    )
    _shown(admin, lambda rules: len(rules) == 4)
    try:
        done = command("-o", "json")
        rows = {(row["name"], row["detail"]): row["action"] for row in _rows(done)}
        said = {row["name"]: row for row in _rows(done) if row["kind"] == "topic"}
        assert done.exit_code == 1
        telemetry = said[topics.telemetry]
        assert telemetry["action"] == "change"
        assert "retention.ms 3600000 -> 86400000" in telemetry["detail"]
        assert f"retention.bytes={1 << 40}, configured is {8 << 30}: left" in telemetry["detail"]
        assert "5 partitions, configured are 3: left" in telemetry["detail"]
        assert said[topics.clocks]["action"] == "change"
        assert "cleanup.policy=delete, configured is compact: left" in said[topics.control]["detail"]
        assert rows[
            "User:fleetscope-agent", f"may READ topic {topics.telemetry}, more than User:fleetscope-agent needs: left"
        ]
        assert any("may DELETE" in detail for name, detail in rows if name == "User:*")
        assert rows["User:fleetscope-worker", f"is denied to READ topic {topics.telemetry}: left"] == "differs"
        assert not any("somebody" in detail for _, detail in rows)
        with open_log(secured.url("PLAINTEXT")) as log:
            assert log.topic(topics.telemetry).partitions == 5
        again = command("-o", "json")
        assert again.exit_code == 1
        assert not {row["action"] for row in _rows(again)} & {"create", "change", "grant"}
    finally:
        _forget(admin)


def _forget(admin: KafkaAdminClient) -> None:
    """No rule is left to the other tests."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    admin.delete_acls([ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)])
    _shown(admin, lambda rules: not rules)


def _shown(admin: KafkaAdminClient, wanted: Callable[[list[ACL]], bool]) -> None:
    """Changes reach the broker a little after its controller."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)
    until = time.monotonic() + 60
    while not wanted(admin.describe_acls(every)[0]):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_init_where_it_cannot(
    command: Callable[..., Result], secured: Secured, kafka_broker: Broker, tmp_path: Path
) -> None:
    for words in ((), ("--dry-run",)):
        barred = command("--log", secured.role(Role.AGENT), *words)
        assert (barred.exit_code, "FS2037" in barred.stderr) == (69, True), barred.stderr
    bare = command("--log", kafka_broker.url, "-o", "json")
    assert bare.exit_code == 1
    (told,) = [row for row in _rows(bare) if row["kind"] == "rights"]
    assert "no authorizer" in told["detail"]
    assert command("--log", kafka_broker.url, "--no-rights").exit_code == 0
    for words in (
        ("--principal", "clerk=x"),
        ("--principal", "agent"),
        ("--principal", "agent=User:fleetscope-worker"),
    ):
        assert command(*words).exit_code == 2
    assert command("--log", f"file://{tmp_path}").exit_code == 2


# ---- rights by role


@pytest.fixture
def fleet(command: Callable[..., Result], admin: KafkaAdminClient, tmp_path: Path) -> Iterator[Topics]:
    """Topics and rights as `kafka init` makes them."""
    done = command()
    assert done.exit_code == 0, done.stdout
    yield _topics(tmp_path)
    _forget(admin)


def _may(log: Log, topics: Topics) -> tuple[set[str], set[str]]:
    """What a principal can write to and read from, tried on every topic."""
    writes, reads = set(), set()
    for spec in topics.specs():
        try:
            log.append(spec.name, b"k", b"v").result(60)
            writes.add(spec.name)
        except AccessDenied:
            pass
        try:
            end = log.end_offsets(spec.name)[0]
            list(log.read(spec.name, 0, max(0, end - 1), end))
            tail = log.tail(spec.name)
            tail.poll(0.2)
            tail.close()
            if end:
                reads.add(spec.name)
        except AccessDenied:
            pass
    return writes, reads


def test_each_role_does_what_it_does_and_nothing_else(secured: Secured, fleet: Topics) -> None:
    with open_log(secured.url("PLAINTEXT")) as log:
        for spec in fleet.specs():
            for partition in range(spec.partitions if spec.name != fleet.telemetry else 3):
                log.append(spec.name, b"k", b"v", partition=partition).result(60)
    for role in Role:
        rights = rights_of(role, fleet)
        preflight(secured.role(role), [role], fleet)
        with open_log(secured.role(role)) as log:
            assert _may(log, fleet) == (set(rights.writes), set(rights.reads)), role
            with pytest.raises(AccessDenied):
                log.create_topics([TopicSpec(f"{fleet.prefix}.mine")])
            if rights.groups:
                _commit(log, fleet.telemetry)
                assert log.committed_advisory(WORKER_GROUP, fleet.telemetry) == {0: 1}
            else:
                with pytest.raises(AccessDenied):
                    log.commit_advisory(WORKER_GROUP, fleet.telemetry, {0: 1})
        for other in set(Role) - {role}:
            with pytest.raises(AccessDenied, match=rf"'fleetscope-{role}' may not .*{fleet.prefix}.*kafka init"):
                preflight(secured.role(role), [other], fleet)


def _commit(log: Log, topic: str) -> None:
    """The first of a group makes the brokers' own topic of offsets, which takes its time."""
    until = time.monotonic() + 60
    while True:
        try:
            log.commit_advisory(WORKER_GROUP, topic, {0: 1})
            return
        except Retryable:
            assert time.monotonic() < until


def test_a_missing_topic_and_a_missing_right_are_told_apart(
    secured: Secured, fleet: Topics, admin: KafkaAdminClient
) -> None:
    url = secured.role(Role.WORKER)
    admin.delete_topics([fleet.programs])
    with pytest.raises(UnknownTopic, match=rf"no topic {fleet.programs}, and user 'fleetscope-worker' may not make it"):
        _until_gone(lambda: preflight(url, [Role.WORKER], fleet))
    _forget(admin)
    with pytest.raises(AccessDenied, match=rf"may not see {fleet.metrics}, see {fleet.telemetry}"):
        preflight(url, [Role.WORKER], fleet)


def _until_gone(check: Callable[[], None]) -> None:
    """The deletion is on its way through the broker's metadata."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        check()
        time.sleep(0.1)


def test_a_fleet_runs_under_these_rights(secured: Secured, fleet: Topics, tmp_path: Path) -> None:
    """Simulated hosts, worker, coordinator and exporter, each as its own user: what was sent comes out at the end."""
    from fleetscope.agents.simulated import Simulation
    from fleetscope.pipelines.coordinate.rounds import Coordinator
    from fleetscope.pipelines.drivers.epoch import Worker
    from fleetscope.sinks.lake.objects import open_store
    from fleetscope.sinks.lake.read import Snapshot
    from fleetscope.sinks.prometheus.exporter import Exporter

    def config(role: Role) -> Any:
        section = {"url": secured.role(role), "partitions": 3, "topic_prefix": fleet.prefix}
        return load(state_dir=tmp_path / "state", log=section)

    with open_log(secured.role(Role.WORKER)) as log:
        _commit(log, fleet.telemetry)  # of one partition
    Simulation(config(Role.AGENT), hosts=2, chips=1, seconds=3, speed="max", ops=50).run(threading.Event())
    worker = Worker(config(Role.WORKER))
    worker.run_once()
    coordinator = Coordinator(config(Role.COORDINATOR))
    coordinator.round_once()
    coordinator._tell_round()
    coordinator._tell_cadences()
    coordinator._tell_clocks()
    assert coordinator._told
    assert coordinator._cadences is not None
    assert coordinator.solver is not None
    coordinator.close()
    snapshot = Snapshot.open(open_store(config(Role.WORKER).lake_url))
    assert snapshot.round is not None
    assert not snapshot.tail
    with open_log(secured.role(Role.EXPORTER)) as log:
        exporter = Exporter(config(Role.EXPORTER), log)
        tail = log.tail(fleet.metrics)
        taken = 0
        while not tail.caught_up():
            taken += exporter.poll(tail)
        tail.close()
        said = {family.metric.name: family for family in exporter.families()}
        assert taken > 1
        assert set(said["fleetscope_exporter_records_total"].samples.values()) == {float(taken)}
    with open_log(secured.role(Role.WORKER)) as log:
        assert set(log.committed_advisory(WORKER_GROUP, fleet.telemetry)) == {0, 1, 2}


# ---- commands


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


def test_doctor_says_who_it_is_and_for_which_roles_it_will_do(secured: Secured, fleet: Topics, tmp_path: Path) -> None:
    def said(url: str, **log: object) -> doctor.Finding:
        config = load(state_dir=tmp_path, log={"url": url, "topic_prefix": fleet.prefix, **log})
        return next(finding for finding in doctor.examine(config) if finding.check == "log")

    well = said(secured.role(Role.EXPORTER))
    assert well.ok, well
    assert well.detail.endswith("answers, 1 topics, rights of exporter alone")
    secret = said(secured.login("nobody"))
    assert (secret.ok, "FS2070" in secret.detail) == (False, True)
    none = said(secured.login("old=user,256", sasl_mechanism="SCRAM-SHA-256"))
    assert (none.ok, "is of use to no role: agent: FS2037" in none.detail) == (False, True)
