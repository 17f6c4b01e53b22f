"""`kafka init` on a broker with ACLs, rights by role, and a fleet that runs under them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ResourcePattern,
    ResourceType,
)
from typer.testing import CliRunner, Result

from fleetscope.cli import doctor
from fleetscope.cli.main import app
from fleetscope.schema.config import load
from fleetscope.transport import Log, Topics, TopicSpec, open_log
from fleetscope.transport.broker.broker import Broker
from fleetscope.transport.errors import AccessDenied, Retryable, UnknownTopic
from fleetscope.transport.preflight import preflight
from fleetscope.transport.rights import WORKER_GROUP, Role, rights_of

from .conftest import Secured, forget, shown

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]


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
    shown(admin, lambda rules: len(rules) == 4)
    done = command("-o", "json")
    rows = {(row["name"], row["detail"]): row["action"] for row in _rows(done)}
    said = {(row["name"], row["action"]): row["detail"] for row in _rows(done) if row["kind"] == "topic"}
    assert done.exit_code == 1
    assert said[topics.telemetry, "change"] == "retention.ms 3600000 -> 86400000"
    left = said[topics.telemetry, "differs"]
    assert f"retention.bytes={1 << 40}, configured is {8 << 30}: left" in left
    assert "5 partitions, configured are 3: left" in left
    assert (topics.clocks, "change") in said
    assert "cleanup.policy=delete, configured is compact: left" in said[topics.control, "differs"]
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
def fleet(command: Callable[..., Result], admin: KafkaAdminClient, tmp_path: Path) -> Topics:
    """Topics and rights as `kafka init` makes them."""
    done = command()
    assert done.exit_code == 0, done.stdout
    return _topics(tmp_path)


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
    forget(admin)
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


def test_doctor_says_who_it_is_and_for_which_roles_it_will_do(secured: Secured, fleet: Topics, tmp_path: Path) -> None:
    def said(url: str, **log: object) -> doctor.Finding:
        config = load(state_dir=tmp_path, log={"url": url, "topic_prefix": fleet.prefix, **log})
        return next(finding for finding in doctor.examine(config) if finding.check == "log")

    well = said(secured.role(Role.EXPORTER))
    assert well.ok, well
    assert well.detail.endswith("(SASL_SSL as fleetscope-exporter): answers, 1 topics, rights of exporter alone")
    secret = said(secured.login("nobody"))
    assert (secret.ok, "FS2070" in secret.detail) == (False, True)
    none = said(secured.login("old=user,256", sasl_mechanism="SCRAM-SHA-256"))
    assert (none.ok, "is of use to no role: agent: FS2037" in none.detail) == (False, True)
