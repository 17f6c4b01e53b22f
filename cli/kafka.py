"""`fleetscope kafka`: set up a Kafka cluster for a fleet; a real broker for a person."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.settings import ConfigFile, LogUrl, settings

app = typer.Typer(help="Kafka: topics and rights of a fleet; a broker to try it with", no_args_is_help=True)


@app.command()
def init(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and change nothing")] = False,
    principal: Annotated[
        list[str] | None,
        typer.Option(help="ROLE=NAME, instead of fleetscope-ROLE: whom a role's rights go to; more than once"),
    ] = None,
    rights: Annotated[bool, typer.Option("--rights/--no-rights", help="whether to grant rights by role")] = True,
    output: Output = Format.TABLE, log_url: LogUrl = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Make the topics and grant each role its rights, as configured. Done again, it finds nothing to do.

    What exists is changed only where nothing can be lost: longer retention, larger messages. Any other difference is
    told and left, and is exit code 1.
    """
    with reported():
        import pyarrow as pa

        from fleetscope.schema.errors import ConfigInvalid
        from fleetscope.transport.kafka.log import open_kafka
        from fleetscope.transport.kafka.provision import DIFFERS, plan, provision
        from fleetscope.transport.rights import Role, rights_of
        from fleetscope.transport.topics import Topics

        loaded = settings(config, log=log_url)
        if not loaded.log_url.startswith("kafka://"):
            raise ConfigInvalid("log.url names no Kafka cluster: a log in a folder needs no setting up")
        section = loaded.log
        topics = Topics(section.topic_prefix)
        specs = topics.specs(section.partitions, int(section.retention_hours * 3_600_000), section.retention_bytes)
        names = _names(principal or [], [role.value for role in Role])
        granted = {names[role]: rights_of(role, topics) for role in Role} if rights else {}
        if rights and len(granted) < len(Role):
            raise ConfigInvalid("--principal: two roles have one name; rights by role need a name each")
        with open_kafka(loaded.log_url, {}) as log:
            steps = (plan if dry_run else provision)(log, specs, granted)
        columns = ("action", "kind", "name", "detail")
        schema = pa.schema([(column, pa.string()) for column in columns])
        rows = [{column: getattr(step, column) for column in columns} for step in steps]
        show(pa.Table.from_pylist(rows, schema), output, columns=columns)
        sys.stdout.flush()
    raise SystemExit(exits.FINDING if any(step.action == DIFFERS for step in steps) else exits.OK)


def _names(given: list[str], roles: list[str]) -> dict[str, str]:
    """Role -> principal. ConfigInvalid for what is no ROLE=NAME."""
    from fleetscope.schema.errors import ConfigInvalid

    names = {role: f"User:fleetscope-{role}" for role in roles}
    for text in given:
        role, found, name = text.partition("=")
        if role not in names or not found or not name.removeprefix("User:"):
            raise ConfigInvalid(f"--principal {text!r}: ROLE=NAME is expected, ROLE one of {', '.join(roles)}")
        names[role] = name if name.startswith("User:") else f"User:{name}"
    return names


@app.command()
def serve(
    folder: Annotated[
        Path | None, typer.Option("--data", help="where it keeps its data; default <state_dir>/kafka")
    ] = None,
    jars: Annotated[
        Path | None, typer.Option("--jars", help="folder of the Kafka jars; default .components/kafka")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Start a broker on loopback and print its address, until Ctrl-C (needs Java 17 and `make components-kafka`)."""
    with reported():
        from fleetscope.transport.broker.broker import run_foreground

        raise SystemExit(run_foreground(folder or settings(config).state_dir / "kafka", jars))
