"""`fleetscope kafka`: a real Apache Kafka broker for a person, on loopback and free ports, until Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.settings import ConfigFile, settings


def kafka(
    folder: Annotated[
        Path | None, typer.Option("--data", help="where it keeps its data; default <state_dir>/kafka")
    ] = None,
    jars: Annotated[
        Path | None, typer.Option("--jars", help="folder of the Kafka jars; default .components/kafka")
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Start a broker and print its address (needs Java 17 and the jars: `make components-kafka`)."""
    with reported():
        from fleetscope.transport.broker.broker import run_foreground

        raise SystemExit(run_foreground(folder or settings(config).state_dir / "kafka", jars))
