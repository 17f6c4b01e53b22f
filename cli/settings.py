"""Options every command shares: the configuration file, and where the lake is."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fleetscope.schema.config import Config
    from fleetscope.sinks.lake.objects import ObjectStore
    from fleetscope.sinks.lake.read import Snapshot

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file; default $FLEETSCOPE_CONFIG", show_default=False)
]
LakePath = Annotated[
    str | None, typer.Option("--lake", help="folder or s3://bucket/prefix of the lake, instead of the configured one")
]
LogUrl = Annotated[
    str | None, typer.Option("--log", help="file:///folder or kafka://host:port, instead of the configured")
]
ClockVersion = Annotated[
    int | None,
    typer.Option(
        "--clock-version", min=0, help="rows by the maps of the fleet's clock up to this version; 0: as written",
    ),
]  # fmt: skip


def settings(
    file: Path | None, lake: str | None = None, log: str | None = None, sections: dict[str, Any] | None = None
) -> "Config":
    """Configuration with the flags that were given; `sections`: values by section and key."""
    # pydantic takes half of the start of a command that needs no configuration (--help, demo)
    from fleetscope.schema.config import load
    from fleetscope.schema.errors import ConfigInvalid
    from fleetscope.schema.secrets import of_url

    sections = dict(sections or {})
    if lake is not None:
        place = {"url": lake, "path": None} if "://" in lake else {"url": "", "path": Path(lake)}
        sections["lake"] = {**sections.get("lake", {}), **place}
    if log is not None:
        if of_url(log):
            raise ConfigInvalid(
                "--log holds a secret, and everybody on this machine reads command lines: "
                "give the URL as FLEETSCOPE_LOG__URL or in the configuration file"
            )
        sections["log"] = {**sections.get("log", {}), "url": log}
    return load(file, **sections)


def lake_snapshot(file: Path | None, lake: str | None, clock_version: int | None = None) -> "Snapshot":
    """The lake as it stands, committed epochs included. LakeMissing if there is none at that place."""
    from fleetscope.schema.errors import LakeMissing
    from fleetscope.sinks.lake.read import Snapshot

    config = settings(file, lake=lake)
    store = existing_lake(config)
    snapshot = Snapshot.open(store, clock_version=clock_version) if store is not None else None
    # a bucket is there whether or not a lake is in it
    if snapshot is None or not (snapshot.now_ns or snapshot.store.is_local):
        raise LakeMissing(f"no lake at {config.lake_url}; `fleetscope up` makes one, --lake names another")
    return snapshot


def existing_lake(config: "Config") -> "ObjectStore | None":
    """The store of the configured lake; None for a folder that is not there, which opening would make."""
    from fleetscope.sinks.lake.address import parse_address
    from fleetscope.sinks.lake.objects import open_store

    folder = parse_address(config.lake_url, config.lake_options).folder
    return open_store(config.lake_url, config.lake_options) if folder is None or folder.is_dir() else None
