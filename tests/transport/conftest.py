"""The two back ends as the contract suite sees them, with what is legitimately different about each; and an authority
whose certificates the secured broker has."""

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

from fleetscope.transport import Log, TopicSpec, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.embedded.catalog import Catalog
from fleetscope.transport.embedded.maintain import expire
from fleetscope.transport.kafka.settings import cluster_of
from fleetscope.transport.log import Message

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
