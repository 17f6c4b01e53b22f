"""Frames of processes at the door of the agent: what is behind it never sees a name that may not be told."""

from fleetscope.agents.batches import clean_text
from fleetscope.agents.profiler import protocol
from fleetscope.agents.redaction.policy import DROPPED, Redaction

RUN_BYTES = 256
"""A run's name counts so far, wherever it comes from: digests are of the same text."""


def admitted(message: protocol.Message, redaction: Redaction) -> protocol.Message:
    """The message with its names as the policy has them. Bodies (XSpace, HLO) stay: they are decoded here."""
    if not redaction.active:
        return message
    if isinstance(message, protocol.Hello):
        return _hello(message, redaction)
    if isinstance(message, protocol.Cost):
        return _cost(message, redaction)
    if isinstance(message, protocol.Window):
        return message._replace(program=redaction.of("programs", message.program))
    if isinstance(message, protocol.Program):
        return message._replace(module=redaction.of("programs", message.module))
    return message


def _hello(hello: protocol.Hello, redaction: Redaction) -> protocol.Hello:
    def run(text: str) -> str:
        return redaction.of("runs", clean_text(text, RUN_BYTES))

    command = redaction.of("commands", clean_text(hello.command))
    return hello._replace(
        run=run(hello.run),
        attempt=run(hello.attempt),
        tenant=run(hello.tenant),
        command="" if command == DROPPED else command,
        labels={key: run(value) for key, value in hello.labels.items()},
    )


def _cost(cost: protocol.Cost, redaction: Redaction) -> protocol.Cost:
    """Programs that share one word in place of a name cannot stand for steps: they are left out."""
    told = [ran._replace(program=redaction.of("programs", ran.program)) for ran in cost.ran]
    followed = cost.followed._replace(program=redaction.of("programs", cost.followed.program))
    return cost._replace(
        ran=tuple(ran for ran in told if ran.program != DROPPED),
        followed=protocol.Followed() if followed.program == DROPPED else followed,
    )


def answered(schedule: protocol.Schedule | None, redaction: Redaction) -> protocol.Schedule | None:
    """What the coordinator decided, in the words of the process it is for."""
    if schedule is None or not redaction.active:
        return schedule
    return schedule._replace(
        attempt=redaction.original("runs", schedule.attempt), program=redaction.original("programs", schedule.program)
    )
