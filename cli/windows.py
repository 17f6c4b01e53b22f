"""`fleetscope windows off RUN`: the job-wide switch for device windows."""

from typing import TYPE_CHECKING, Annotated

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.settings import ConfigFile, LogUrl, existing_lake, settings
from fleetscope.schema.errors import FleetscopeError

if TYPE_CHECKING:
    from fleetscope.schema.config import Config

app = typer.Typer(help="Device windows of a run: switched off, and on again.", no_args_is_help=True)

Run = Annotated[str, typer.Argument(help="name of the run")]
Attempt = Annotated[str, typer.Option(help="one attempt of it; default: every one")]


@app.command()
def off(
    run: Run, attempt: Attempt = "",
    reason: Annotated[str, typer.Option(help="shown to whoever asks why")] = "operator",
    log_url: LogUrl = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """No rank of the run opens a device window any more; those that run now hear of it within seconds."""
    _switch(run, attempt, True, reason, log_url, config)


@app.command()
def on(run: Run, attempt: Attempt = "", log_url: LogUrl = None, config: ConfigFile = None) -> None:
    """Windows again, where the breaker of the process itself has not switched them off."""
    _switch(run, attempt, False, "", log_url, config)


def _unheard_of(loaded: "Config", run: str) -> str:
    """A sentence where there is a lake that does not know the run. What is wrong with a lake is no matter here."""
    from fleetscope.analysis.names import unknown_names
    from fleetscope.analysis.scope import Scope
    from fleetscope.sinks.lake.read import Snapshot

    try:
        store = existing_lake(loaded)
        return "" if store is None else "".join(unknown_names(Snapshot.open(store), Scope(run=run)))
    except (FleetscopeError, OSError):
        return ""


def _switch(run: str, attempt: str, is_off: bool, reason: str, log_url: str | None, config: ConfigFile) -> None:
    with reported():
        from fleetscope.pipelines.coordinate.cadence import control_key, switch
        from fleetscope.transport import Topics, open_log

        loaded = settings(config, log=log_url)
        topics = Topics(loaded.log.topic_prefix)
        with open_log(loaded.log_url) as log:
            log.create_topics([spec for spec in topics.specs() if spec.name == topics.control])
            key = (run, attempt)
            log.append(topics.control, control_key("switch", key), switch(key, reason, is_off).SerializeToString())
            log.flush()
        if unheard := _unheard_of(loaded, run):
            typer.echo(f"fleetscope windows: warning: {unheard}; it counts for a run of that name to come", err=True)
        print(f"windows of {run} {attempt}".rstrip() + (f" off: {reason}" if is_off else " on"))
