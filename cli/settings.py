"""Options every command shares: the configuration file, and where the lake is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fleetscope.schema.config import Config
    from fleetscope.sinks.lake.read import Snapshot

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; default $FLEETSCOPE_CONFIG", show_default=False)
]
LakePath = Annotated[Path | None, typer.Option("--lake", help="folder of the lake, instead of the configured one")]
LogUrl = Annotated[
    str | None, typer.Option("--log", help="file:///folder or kafka://host:port, instead of the configured")
]


def settings(
    file: Path | None, lake: Path | None = None, log: str | None = None, sections: dict[str, Any] | None = None
) -> "Config":
    """Configuration with the flags that were given; `sections`: values by section and key."""
    # pydantic takes half of the start of a command that needs no configuration (--help, demo)
    from fleetscope.schema.config import load

    sections = dict(sections or {})
    if lake is not None:
        sections["lake"] = {**sections.get("lake", {}), "path": lake}
    if log is not None:
        sections["log"] = {**sections.get("log", {}), "url": log}
    return load(file, **sections)


def lake_snapshot(file: Path | None, lake: Path | None) -> "Snapshot":
    """The lake as it stands, committed epochs included. LakeMissing if there is none at that place."""
    from fleetscope.schema.errors import LakeMissing
    from fleetscope.sinks.lake.objects import open_store
    from fleetscope.sinks.lake.read import Snapshot

    path = settings(file, lake=lake).lake_path
    if not path.is_dir():
        raise LakeMissing(f"no lake at {path}; `fleetscope up` makes one, --lake names another")
    return Snapshot.open(open_store(path))
