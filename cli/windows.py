"""`fleetscope windows off RUN`: the job-wide switch for device windows."""

from typing import Annotated

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.settings import ConfigFile, LogUrl, settings

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
        print(f"windows of {run} {attempt}".rstrip() + (f" off: {reason}" if is_off else " on"))
