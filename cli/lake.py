"""`fleetscope lake`: what is in the lake, and where."""

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.settings import ConfigFile, LakePath, lake_snapshot

app = typer.Typer(help="the lake itself", no_args_is_help=True)


@app.command()
def info(output: Output = Format.TABLE, config: ConfigFile = None, lake: LakePath = None) -> None:
    """Tables with their files, rows, bytes and time range, the generation of chains, and the round a reader sees."""
    from fleetscope.analysis.inventory import inventory
    from fleetscope.sinks.lake.generation import current_generation

    with reported():
        snapshot = lake_snapshot(config, lake)
        number = snapshot.round.number if snapshot.round is not None else 0
        chains = current_generation(snapshot.store)
        era = f"generation {chains.number} (chains: {len(chains.chains)}), " if chains is not None else ""
        title = f"{snapshot.store.url}: {era}round {number}, {len(snapshot.tail)} epochs committed since"
        show(inventory(snapshot), output, title)
