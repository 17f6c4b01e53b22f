"""The two back ends as the contract suite sees them, with what is legitimately different about each; and a broker with
TLS, SCRAM and ACLs, whose certificates are of an authority of the tests."""

from __future__ import annotations

import datetime
import fcntl
import importlib.util
import ipaddress
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePatternFilter,
    ResourceType,
    UserScramCredentialUpsertion,
)

from fleetscope.transport import Log, TopicSpec, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.embedded.catalog import Catalog
from fleetscope.transport.embedded.maintain import expire
from fleetscope.transport.kafka.settings import cluster_of
from fleetscope.transport.log import Message
from fleetscope.transport.rights import Role

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Quirks(ABC):
    """A back end under test."""

    def __init__(self) -> None:
        self._opened: list[Log] = []

    @property
    @abstractmethod
    def url(self) -> str: ...

    def open(self, **settings: Any) -> Log:
        log = open_log(self.url, **settings)
        self._opened.append(log)
        return log

    def topic(self, log: Log, partitions: int = 1, **spec: Any) -> str:
        """A new topic nobody else uses."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        log.create_topics([TopicSpec(name, partitions, **spec)])
        return name

    @abstractmethod
    def drop_before(self, topic: str, offset: int) -> None:
        """Remove messages below `offset` as retention would (at least one of them)."""

    @abstractmethod
    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        """While this lasts the log cannot take a message into partition 0."""

    @abstractmethod
    def backpressure_settings(self) -> dict[str, Any]: ...

    def close(self) -> None:
        for log in self._opened:
            log.close()


class EmbeddedQuirks(Quirks):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    @property
    def url(self) -> str:
        return f"file://{self.folder}"

    def drop_before(self, topic: str, offset: int) -> None:
        stored = Catalog(self.folder).load(topic)
        files = stored.partition(0)
        bases = files.bases()
        assert any(0 < base <= offset for base in bases), "the test must have rolled a segment"
        size_bytes = sum(files.path(base).stat().st_size for base in bases if base >= offset)
        expire(files, None, size_bytes, time.time_ns() // 1_000_000)

    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        fd = os.open(self.folder / "topics" / topic / "0" / "append.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(fd)

    def backpressure_settings(self) -> dict[str, Any]:
        return {}


class KafkaQuirks(Quirks):
    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self.broker = broker

    @property
    def url(self) -> str:
        return self.broker.url

    def drop_before(self, topic: str, offset: int) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.broker.address)
        admin.delete_records({TopicPartition(topic, 0): offset})
        admin.close()

    @contextmanager
    def taking_nothing(self, topic: str) -> Iterator[None]:
        self.broker.pause()
        try:
            yield
        finally:
            self.broker.resume()

    def backpressure_settings(self) -> dict[str, Any]:
        return {"buffer_bytes": 100_000}


class ConfluentQuirks(KafkaQuirks):
    """Not one of ours: `benchmarks/kafka_clients.py` holds it to the same page before it compares."""

    def open(self, **settings: Any) -> Log:
        spec = importlib.util.spec_from_file_location("confluent_log", BENCHMARKS / "confluent_log.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        log: Log = module.ConfluentLog(cluster_of(self.url, settings))
        self._opened.append(log)
        return log


BACKENDS = ["embedded", "kafka", *os.environ.get("FLEETSCOPE_MORE_BACKENDS", "").split()]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Quirks]:
    if request.param == "embedded":
        quirks: Quirks = EmbeddedQuirks(tmp_path / "log")
    elif request.param == "confluent":
        quirks = ConfluentQuirks(request.getfixturevalue("kafka_broker"))
    else:
        quirks = KafkaQuirks(request.getfixturevalue("kafka_broker"))
    yield quirks
    quirks.close()


@pytest.fixture
def read_all() -> Callable[..., list[Message]]:
    def read(log: Log, topic: str, partition: int = 0) -> list[Message]:
        start, end = log.start_offsets(topic)[partition], log.end_offsets(topic)[partition]
        return list(log.read(topic, partition, start, end))

    return read


NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
BOTH_SIDES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


@dataclass(frozen=True, slots=True)
class Authority:
    """`file` holds its certificate; `sign` writes a key and a certificate, together and apart."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path, valid: int = 90) -> Authority:
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        certificate = (
            x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(NOW - 90 * DAY)
            .not_valid_after(NOW + valid * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
        )  # fmt: skip
        (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, certificate)

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str, address: str = "127.0.0.1", valid: int = 30) -> Path:
        """`<name>.pem` with key and certificate (`<name>.key`, `<name>.crt`: each alone), for an IP address, from 60
        days ago until `valid` days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        certificate = (
            x509.CertificateBuilder().subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.certificate.subject).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(NOW - 60 * DAY)
            .not_valid_after(NOW + valid * DAY).add_extension(names, critical=False)
            .add_extension(x509.ExtendedKeyUsage(BOTH_SIDES), critical=False)
            .sign(self.key, hashes.SHA256())
        )  # fmt: skip
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = certificate.public_bytes(serialization.Encoding.PEM)
        (self.folder / f"{name}.key").write_bytes(private)
        (self.folder / f"{name}.crt").write_bytes(public)
        (self.folder / f"{name}.pem").write_bytes(private + public)
        return self.folder / f"{name}.pem"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("certificates") / "ours")


PASSWORD = "s3cret, not to be shown"
USERS = {f"fleetscope-{role.value}": "SCRAM-SHA-512" for role in Role} | {"old=user,256": "SCRAM-SHA-256"}
PATIENT = "connect_timeout_s=30&request_timeout_s=30"
"""The verdict is what is tested; how soon it comes on an idle machine is a number in docs/design/0022."""


@dataclass(frozen=True)
class Secured:
    """The broker and its ports by listener."""

    broker: Broker
    ports: dict[str, int]
    authority: Authority

    @property
    def folder(self) -> Path:
        return self.authority.folder

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


@pytest.fixture(scope="session")
def secured(
    require: Callable[[str], Path], free_port: Callable[[], int], authority: Authority,
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
    """The administrator; no rule is left to the other tests."""
    client = KafkaAdminClient(bootstrap_servers=secured.broker.address)
    yield client
    forget(client)
    client.close()


def forget(admin: KafkaAdminClient) -> None:
    """Take all rules back."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    admin.delete_acls([ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)])
    shown(admin, lambda rules: not rules)


def shown(admin: KafkaAdminClient, wanted: Callable[[list[ACL]], bool]) -> None:
    """Changes reach the broker a little after its controller."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    every = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)
    until = time.monotonic() + 60
    while not wanted(admin.describe_acls(every)[0]):
        assert time.monotonic() < until
        time.sleep(0.05)
