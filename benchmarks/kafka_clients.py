"""kafka-python against confluent-kafka (librdkafka), both as the log: the same contract, CPU, throughput, failures.

    python benchmarks/kafka_clients.py [--rounds 7] [--no-contract] [--no-failures]

Each round writes and reads 48 MB through both, in turn, in messages of 6 kB (what a real host sends a second) and of
60 kB, in the clear and by TLS. `value` is the CPU time of a megabyte in and out by kafka-python over that by
confluent-kafka, where confluent-kafka does best: above 2 it would be offered as an extra (issue 6). Then a broker is
killed, and paused, under an appender; and what keeps a client out is told by our preflight and by the bare clients.
"""

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
from confluent_log import ConfluentLog
from kafka.admin import UserScramCredentialUpsertion
from report import report

from fleetscope.transport import Log, TopicSpec
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.errors import Backpressure, FleetscopeError, Retryable, StateUnknown
from fleetscope.transport.kafka.log import KafkaLog
from fleetscope.transport.kafka.preflight import reachable
from fleetscope.transport.kafka.settings import Cluster, KafkaSettings, cluster_of
from fleetscope.transport.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
SIZES = (6_000, 60_000)
ROUND_BYTES = 48_000_000
WIN = 2.0
KINDS: dict[str, Callable[[Cluster], Log]] = {"kafka_python": KafkaLog, "confluent": ConfluentLog}
PASSWORD = "right"


def contract() -> dict[str, int]:
    """The contract suite of the transport on both: tests passed and failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "kafka or confluent", "tests/transport/test_contract.py"],
        env={**os.environ, "FLEETSCOPE_MORE_BACKENDS": "confluent"}, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    print(done.stdout[-200:])
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return {"passed": counts.get("passed", 0), "failed": counts.get("failed", 0) + counts.get("error", 0)}


# ---- throughput


def one_round(log: Log, size: int) -> dict[str, tuple[float, float]]:
    """(CPU s, wall s) of a megabyte, in and out."""
    topic, value = f"t-{uuid.uuid4().hex}", os.urandom(size)
    log.create_topics([TopicSpec(topic)])
    log.append(topic, b"host", value).result(60)
    count = ROUND_BYTES // size
    megabytes = count * size / 1e6

    def write() -> None:
        for _ in range(count):
            while True:
                try:
                    log.append(topic, b"host", value)
                    break
                except Backpressure:
                    continue
        log.flush(60)

    def read() -> None:
        end = log.end_offsets(topic)[0]
        assert sum(1 for _ in log.read(topic, 0, 0, end)) == count + 1

    spent = {}
    for name, work in (("in", write), ("out", read)):
        cpu_s, wall_s = time.process_time(), time.monotonic()
        work()
        spent[name] = ((time.process_time() - cpu_s) / megabytes, (time.monotonic() - wall_s) / megabytes)
    log.delete_topics([topic])
    return spent


def throughput(url: str, rounds: int) -> dict[str, Any]:
    """By size: MB per CPU second and per second of each, and the ratio of CPU time a megabyte, of each round's pair."""
    results: dict[str, Any] = {}
    for size in SIZES:
        seen: dict[str, list[dict[str, tuple[float, float]]]] = {name: [] for name in KINDS}
        for _ in range(rounds):
            for name, kind in KINDS.items():
                with kind(cluster_of(url, {})) as log:
                    seen[name].append(one_round(log, size))
        facts: dict[str, Any] = {}
        for way in ("in", "out"):
            for name, found in seen.items():
                facts[f"{name}_{way}_mb_per_cpu_s"] = round(1 / statistics.median(each[way][0] for each in found))
                facts[f"{name}_{way}_mb_per_s"] = round(1 / statistics.median(each[way][1] for each in found))
        pairs = list(zip(seen["kafka_python"], seen["confluent"], strict=True))
        for way in ("in", "out"):
            facts[f"cpu_ratio_{way}"] = round(statistics.median(a[way][0] / b[way][0] for a, b in pairs), 2)
        both = [(a["in"][0] + a["out"][0]) / (b["in"][0] + b["out"][0]) for a, b in pairs]
        facts["cpu_ratio"] = round(statistics.median(both), 2)
        results[f"{size // 1000}_kb"] = facts
        print(size, facts)
    return results


# ---- failures


def outage(broker: Broker, kind: Callable[[Cluster], Log], strike: Callable[[], None]) -> dict[str, Any]:
    """An appender of 100 messages a second; after a second `strike` takes the broker away and brings it back."""
    topic = f"t-{uuid.uuid4().hex}"
    settings = {"delivery_timeout_s": 3, "append_block_s": 0.3, "request_timeout_s": 2, "connect_timeout_s": 2}
    acknowledged: dict[int, float] = {}
    unknown: set[int] = set()
    slowest_s = 0.0
    with kind(cluster_of(broker.url, settings)) as log:
        log.create_topics([TopicSpec(topic)])
        log.append(topic, b"k", b"-1").result(60)
        back_at: list[float] = []

        def hit() -> None:
            strike()
            back_at.append(time.monotonic())

        striker = threading.Timer(1.0, hit)
        striker.start()
        pending: list[tuple[int, Any]] = []
        number, until = 0, time.monotonic() + 120
        while time.monotonic() < until and (not back_at or not any(at > back_at[0] for at in acknowledged.values())):
            started = time.monotonic()
            with suppress(Retryable, StateUnknown):
                pending.append((number, log.append(topic, b"k", b"%d" % number)))
            slowest_s = max(slowest_s, time.monotonic() - started)
            number += 1
            pending = _settled(pending, acknowledged, unknown)
            time.sleep(0.01)
        striker.join()
        deadline = time.monotonic() + 30
        while pending and time.monotonic() < deadline:
            pending = _settled(pending, acknowledged, unknown)
            time.sleep(0.05)
        end = log.end_offsets(topic)[0]
        read = [int(message.value) for message in log.read(topic, 0, 0, end)]
    first = min((at for at in acknowledged.values() if back_at and at > back_at[0]), default=float("inf"))
    return {
        "acknowledged": len(acknowledged),
        "lost": len(set(acknowledged) - set(read)),
        "twice": len(read) - len(set(read)),
        "unknown": len(unknown),
        "unknown_but_there": len(unknown & set(read)),
        "out_of_order": sum(a > b for a, b in itertools.pairwise(read)),
        "never_answered": len(pending),
        "slowest_append_s": round(slowest_s, 2),
        "recovered_after_s": round(first - back_at[0], 1) if back_at else None,
    }


def _settled(pending: list[Any], acknowledged: dict[int, float], unknown: set[int]) -> list[Any]:
    left = []
    for number, each in pending:
        if not each.done():
            left.append((number, each))
            continue
        try:
            each.result(0)
            acknowledged[number] = time.monotonic()
        except FleetscopeError:
            unknown.add(number)
    return left


def verdicts(broker: Broker, port: int) -> dict[str, dict[str, str]]:
    """What each says, after how many seconds, of what keeps us out."""
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_user": "u"}
    os.environ["FLEETSCOPE_LOG_PASSWORD"] = "wrong"
    reasons = {
        "wrong password": Cluster((f"127.0.0.1:{port}",), KafkaSettings(**login)),
        "unknown mechanism": Cluster((f"127.0.0.1:{port}",), KafkaSettings(**login, sasl_mechanism="SCRAM-SHA-256")),
        "nobody there": Cluster((f"127.0.0.1:{free_port()}",), KafkaSettings()),
        "a user to a port without": Cluster((broker.address,), KafkaSettings(**login)),
    }
    said: dict[str, dict[str, str]] = {}
    for what, cluster in reasons.items():
        said[what] = {"preflight": _told(lambda: reachable(cluster))}  # noqa: B023
        if what in ("wrong password", "nobody there"):
            said[what]["kafka_python"] = _told(lambda: kafka.KafkaAdminClient(**_bare(cluster)))  # noqa: B023
            said[what]["confluent"] = _told(lambda: _list_topics(cluster))  # noqa: B023
        print(what, said[what])
    return said


def _bare(cluster: Cluster) -> dict[str, Any]:
    """kafka-python as it comes."""
    kept = ("bootstrap_servers", "security_protocol")
    return {**{key: value for key, value in cluster.client().items() if key in kept}, **cluster.login()}


def _list_topics(cluster: Cluster) -> None:
    config = {"bootstrap.servers": cluster.servers[0], "security.protocol": cluster.settings.security_protocol}
    if login := cluster.login():
        config |= {"sasl.mechanism": login["sasl_mechanism"], "sasl.username": "u", "sasl.password": "wrong"}
    client = confluent_kafka.Producer({**config, "log_level": 0, "error_cb": lambda error: None})
    client.list_topics(timeout=30)


def _told(attempt: Callable[[], Any]) -> str:
    started = time.monotonic()
    try:
        attempt()
        text = "nothing"
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return f"{time.monotonic() - started:.1f} s, {text[:160]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-contract", action="store_true")
    parser.add_argument("--no-failures", action="store_true")
    options = parser.parse_args()
    facts: dict[str, Any] = {"versions": [kafka.__version__, str(confluent_kafka.version())]}
    failed = []
    if not options.no_contract:
        facts["contract"] = contract()
        failed += ["the contract suite"] * bool(facts["contract"]["failed"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        users, tls = free_port(), free_port()
        broker = stack.enter_context(Broker(folder / "kafka", properties=_listeners(folder, users, tls)))
        encrypted = f"kafka://127.0.0.1:{tls}?security_protocol=SSL&ssl_ca_file={folder}/broker.crt"
        facts["clear"] = throughput(broker.url, options.rounds)
        facts["tls"] = throughput(encrypted, options.rounds)
        if not options.no_failures:
            admin = kafka.KafkaAdminClient(bootstrap_servers=broker.address)
            admin.alter_user_scram_credentials([UserScramCredentialUpsertion("u", "SCRAM-SHA-512", PASSWORD)])
            admin.close()
            facts["told"] = verdicts(broker, users)

            def kill() -> None:
                broker.kill()
                broker.start()

            def pause() -> None:
                broker.pause()
                time.sleep(5)
                broker.resume()

            for name, kind in KINDS.items():
                for strike in (kill, pause):
                    found = facts[f"{name}_{strike.__name__}"] = outage(broker, kind, strike)
                    print(name, strike.__name__, found)
                    failed += [f"{name}: {strike.__name__} lost acknowledged messages"] * bool(found["lost"])
    ratio = max(found["cpu_ratio"] for way in ("clear", "tls") for found in facts[way].values())
    failed += [f"confluent-kafka wins by {ratio}: it is due as an extra"] * (ratio >= WIN)
    return report("kafka_clients", ratio, "CPU of kafka-python / of confluent-kafka", WIN, failed=failed, **facts)


def _listeners(folder: Path, users: int, tls: int) -> dict[str, str]:
    key, certificate = folder / "broker.key", folder / "broker.crt"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=broker"
    more = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
    (folder / "broker.pem").write_bytes(key.read_bytes() + certificate.read_bytes())
    return {
        "extra.listeners": f"USERS://127.0.0.1:{users},TLS://127.0.0.1:{tls}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT,TLS:SSL",
        "listener.name.tls.ssl.keystore.type": "PEM",
        "listener.name.tls.ssl.keystore.location": str(folder / "broker.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.users.scram-sha-512.sasl.jaas.config":
            "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
