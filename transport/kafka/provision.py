"""Bring a Kafka cluster to what fleetscope needs: topics with their configuration, rights by role.

A plan is made first and then carried out: `plan` asks and changes nothing, so that it can be looked at. What exists is
only changed where no data and no order can be lost by it; every other difference is told and left to a person.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors
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
)

from fleetscope.transport.errors import BrokerRefused, LogTimeout, UnknownTopic
from fleetscope.transport.kafka.faults import translate, translated
from fleetscope.transport.kafka.log import KafkaLog, configs_of
from fleetscope.transport.kafka.preflight import READER, WRITER
from fleetscope.transport.log import TopicSpec
from fleetscope.transport.rights import Rights

CREATE, CHANGE, GRANT, KEEP, DIFFERS = "create", "change", "grant", "keep", "differs"

_EVERYBODY = "User:*"
_UNBOUNDED = 2**63 - 1
_GROWING = ("retention.ms", "retention.bytes", "max.message.bytes")
"""More of these loses nothing; less of them deletes, or refuses what is on its way."""
_FREE = ("segment.bytes",)
"""Of segments to come alone."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the plan: what is or will be done to a topic, or to a principal's rights on something."""

    kind: str
    name: str
    action: str
    detail: str
    topic: TopicSpec | None = None
    configs: tuple[tuple[str, str], ...] = ()
    acls: tuple[ACL, ...] = ()


def plan(log: KafkaLog, specs: Sequence[TopicSpec], principals: Mapping[str, Rights]) -> list[Step]:
    """Topics first, then rights. `principals`: "User:name" -> what it does; empty: rights are nobody's business here.

    AccessDenied where the caller may not look. A cluster without an authorizer has one step that says so.
    """
    topics = [step for spec in specs for step in _topic_steps(log, spec)]
    return topics + list(_rights_steps(log.admin, principals))


def provision(log: KafkaLog, specs: Sequence[TopicSpec], principals: Mapping[str, Rights]) -> list[Step]:
    """Carry out a plan and return it, once the broker shows that nothing of it is left to do: changes reach it a little
    after the controller. Stops at the first step that is refused; LogTimeout if it is not shown in time."""
    steps = plan(log, specs, principals)
    _carry_out(log, steps)
    deadline = time.monotonic() + log.settings.request_timeout_s
    while left := [step for step in plan(log, specs, principals) if step.action in (CREATE, CHANGE, GRANT)]:
        if time.monotonic() > deadline:
            raise LogTimeout(f"the broker took it and does not show it yet: {left[0].action} {left[0].name}")
        time.sleep(0.1)
    return steps


def _carry_out(log: KafkaLog, steps: Sequence[Step]) -> None:
    new = [step.topic for step in steps if step.action == CREATE and step.topic is not None]
    if new:
        log.create_topics(new)
    for step in steps:
        if step.action == CHANGE:
            _alter(log.admin, step)
    wanted = [acl for step in steps if step.action == GRANT for acl in step.acls]
    if wanted:
        with translated("grant rights"):
            refused = log.admin.create_acls(wanted)["failed"]
        if refused:
            raise translate(refused[0](), f"grant rights ({len(refused)} of {len(wanted)})")


# ---- topics


def _topic_steps(log: KafkaLog, spec: TopicSpec) -> Iterator[Step]:
    """What is changed and what is left are steps of their own: both are to be told."""
    configs = configs_of(spec)
    try:
        partitions = log.topic(spec.name).partitions
    except UnknownTopic:
        told = ", ".join(f"{name}={value}" for name, value in sorted(configs.items()))
        yield Step("topic", spec.name, CREATE, f"{_counted(spec.partitions, 'partition')}, {told}", topic=spec)
        return
    resource = ConfigResource("topic", spec.name, dict.fromkeys(configs))
    with translated(spec.name):
        found = log.admin.describe_configs([resource], config_filter="all")["topic"][spec.name]
    safe, unsafe = [], []
    if partitions != spec.partitions:
        # A host's partition is its key's hash modulo their number: another number breaks its order, and the numbering
        # that workers keep of it.
        unsafe.append(f"{_counted(partitions, 'partition')}, configured are {spec.partitions}: left, hosts would move")
    for name, value in sorted(configs.items()):
        there = found[name]["value"] if name in found else None
        if there == value:
            continue
        if there is not None and _is_safe(name, there, value):
            safe.append((name, value, f"{name} {there} -> {value}"))
        else:
            unsafe.append(f"{name}={there}, configured is {value}: left")
    if safe:
        changes = tuple((name, value) for name, value, _ in safe)
        yield Step("topic", spec.name, CHANGE, "; ".join(text for *_, text in safe), configs=changes)
    if unsafe:
        yield Step("topic", spec.name, DIFFERS, "; ".join(unsafe))
    if not safe and not unsafe:
        yield Step("topic", spec.name, KEEP, f"{_counted(partitions, 'partition')}, as configured")


def _is_safe(name: str, there: str, wanted: str) -> bool:
    if name in _FREE:
        return True
    return name in _GROWING and _amount(wanted) > _amount(there)


def _amount(value: str) -> int:
    return _UNBOUNDED if value == "-1" else int(value)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _alter(admin: Any, step: Step) -> None:
    with translated(step.name):
        answer = admin.alter_configs([ConfigResource("topic", step.name, dict(step.configs))])["topic"][step.name]
    if answer != "OK":
        raise BrokerRefused(f"{step.name}: {answer}")


# ---- rights


def _rights_steps(admin: Any, principals: Mapping[str, Rights]) -> Iterator[Step]:
    for principal, rights in principals.items():
        wanted = list(_wanted(principal, rights))
        try:
            there = _present(admin, principal)
        except kafka_errors.SecurityDisabledError:
            yield Step("rights", principal, DIFFERS, "the brokers have no authorizer: everybody may do everything")
            return
        for pattern in dict.fromkeys(acl.resource_pattern for acl in wanted):
            yield _rights_step(principal, pattern, [acl for acl in wanted if acl.resource_pattern == pattern], there)
        for acl in there:
            if acl.permission_type == ACLPermissionType.DENY and any(_covers(acl, each) for each in wanted):
                yield Step("rights", acl.principal, DIFFERS, f"is denied to {_told(acl)}: left")
            elif acl.permission_type == ACLPermissionType.ALLOW and _is_more(acl, wanted):
                yield Step("rights", acl.principal, DIFFERS, f"may {_told(acl)}, more than {principal} needs: left")


def _rights_step(principal: str, pattern: ResourcePattern, wanted: list[ACL], there: list[ACL]) -> Step:
    operations = ", ".join(acl.operation.name for acl in wanted)
    words = f"{operations} {pattern.resource_type.name.lower()} {pattern.resource_name}"
    missing = tuple(acl for acl in wanted if not any(_grants(have, acl) for have in there))
    return Step("rights", principal, GRANT if missing else KEEP, words, acls=missing)


def _wanted(principal: str, rights: Rights) -> Iterator[ACL]:
    """READ and WRITE imply DESCRIBE."""
    for name in rights.topics:
        operations = {*(WRITER if name in rights.writes else ()), *(READER if name in rights.reads else ())}
        for operation in sorted(operations - {ACLOperation.DESCRIBE}):
            yield _allow(principal, operation, ResourcePattern(ResourceType.TOPIC, name))
    for name in rights.looks:
        yield _allow(principal, ACLOperation.DESCRIBE, ResourcePattern(ResourceType.TOPIC, name))
    for name in rights.groups:
        yield _allow(principal, ACLOperation.READ, ResourcePattern(ResourceType.GROUP, name))


def _allow(principal: str, operation: ACLOperation, pattern: ResourcePattern) -> ACL:
    return ACL(principal, "*", operation, ACLPermissionType.ALLOW, pattern)


def _present(admin: Any, principal: str) -> list[ACL]:
    """All rules of the principal, and those of everybody."""
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    found: list[ACL] = []
    for whose in (principal, _EVERYBODY):
        wanted = ACLFilter(whose, None, ACLOperation.ANY, ACLPermissionType.ANY, anything)
        try:
            found += admin.describe_acls(wanted)[0]
        except kafka_errors.SecurityDisabledError:
            raise
        except kafka_errors.KafkaError as error:
            raise translate(error, f"rights of {whose}") from error
    return found


def _grants(have: ACL, wanted: ACL) -> bool:
    return bool(
        have.permission_type == ACLPermissionType.ALLOW
        and have.host == "*"
        and have.operation in (wanted.operation, ACLOperation.ALL)
        and _covers(have, wanted)
    )


def _covers(have: ACL, wanted: ACL) -> bool:
    """Whether a rule is about what another is about, whatever it says of it."""
    mine, name = have.resource_pattern, wanted.resource_pattern.resource_name
    if mine.resource_type != wanted.resource_pattern.resource_type:
        return False
    if mine.pattern_type == ACLResourcePatternType.PREFIXED:
        return bool(name.startswith(mine.resource_name))
    return mine.resource_name in (name, "*")


def _is_more(acl: ACL, wanted: Sequence[ACL]) -> bool:
    """A right that is none of those wanted nor follows from one; of everybody's, where it touches what is ours."""
    if acl in wanted:
        return False
    ours = any(_covers(acl, each) for each in wanted)
    if acl.principal == _EVERYBODY:
        return ours
    return not (ours and acl.operation == ACLOperation.DESCRIBE)


def _told(acl: ACL) -> str:
    pattern = acl.resource_pattern
    more = "*" if pattern.pattern_type == ACLResourcePatternType.PREFIXED else ""
    host = "" if acl.host == "*" else f" from {acl.host}"
    return f"{acl.operation.name} {pattern.resource_type.name.lower()} {pattern.resource_name}{more}{host}"
