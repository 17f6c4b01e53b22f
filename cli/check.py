"""`fleetscope config`: is a configuration good, and what may stand in it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.settings import ConfigFile, settings

app = typer.Typer(help="configuration", no_args_is_help=True)


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(help="YAML file; default the configured one")] = None,
    config: ConfigFile = None,
) -> None:
    """Print the configuration in force, secrets masked; exit code 2 and the key's name if it is not understood."""
    with reported():
        from fleetscope.schema.errors import ConfigInvalid
        from fleetscope.schema.secrets import masked, shown
        from fleetscope.sinks.lake.address import parse_address
        from fleetscope.transport.kafka.settings import cluster_of

        loaded = settings(file or config)
        if not loaded.log_url.startswith(("file://", "kafka://")):
            raise ConfigInvalid(f"log.url: {shown(loaded.log_url)!r} begins neither with file:// nor with kafka://")
        if loaded.log_url.startswith("kafka://"):
            cluster_of(loaded.log_url, {})  # the files it names are on the machines of the roles
        parse_address(loaded.lake_url, loaded.lake_options)
        dump = loaded.model_dump(mode="json")
        dump["log"]["url"] = shown(loaded.log.url)
        typer.echo(masked(json.dumps(dump, indent=1)))


@app.command()
def schema() -> None:
    """JSON Schema of the file, for editors (yaml-language-server) and CI."""
    from fleetscope.schema.config import Config

    typer.echo(json.dumps(Config.model_json_schema(), indent=1))
