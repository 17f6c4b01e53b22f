"""The files a single KRaft node starts from."""

from __future__ import annotations

from collections.abc import Mapping

from fleetscope.transport.log import MAX_MESSAGE_BYTES

# Every *.replication.factor and min.isr defaults to 3 and 2: with one node the first group or transaction would wait
# for ever for brokers that will not come.
_SINGLE_NODE = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A mistyped name must be an error, not an empty topic with other settings than ours.
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "2",
    "num.io.threads": "2",
}

LOGGING = """status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def server_properties(data: str, broker_port: int, controller_port: int, extra: Mapping[str, str]) -> str:
    """Everything on 127.0.0.1; `extra` wins. Its `extra.listeners` (NAME://host:port) are added to ours."""
    extra = dict(extra)
    listeners = ",".join(filter(None, (f"PLAINTEXT://127.0.0.1:{broker_port}", extra.pop("extra.listeners", ""))))
    properties = {
        **_SINGLE_NODE,
        "log.dirs": data,
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        **extra,
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())
