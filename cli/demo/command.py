"""The command itself: start the cast, show it, stop it in order, sum up."""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.roles import stopped_by_signals

if TYPE_CHECKING:
    from fleetscope.cli.demo.live import View

REFRESH_S = 2.0
SETTLE_ROUNDS = 8


def demo(
    seconds: Annotated[float | None, typer.Option(min=5, help="stop by itself after so long")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="through a real Kafka broker (Java 17 and its jars)")] = False,
    folder: Annotated[Path | None, typer.Option(help="keep log and lake there; default a new temporary folder")] = None,
) -> None:
    """A node agent, a real JAX training run, a simulated fleet of 8 hosts x 4 chips, worker, coordinator, exporter.

    Ctrl-C stops it and sums up. Exit code 1 if the summary lacks something a complete run shows.
    """
    with reported(), ExitStack() as stack:
        from fleetscope.cli.demo.cast import EXAMPLE, Cast
        from fleetscope.cli.demo.live import View
        from fleetscope.cli.demo.summary import summarize

        if not EXAMPLE.is_file():
            typer.echo("fleetscope demo: examples/ is not here; run it in a checkout", err=True)
            raise SystemExit(exits.UNAVAILABLE)
        root = folder or Path(tempfile.mkdtemp(prefix="fleetscope-demo-"))
        root.mkdir(parents=True, exist_ok=True)
        log_url = f"file://{root / 'log'}"
        if kafka:
            from fleetscope.transport.broker.broker import Broker

            log_url = stack.enter_context(Broker(root / "kafka")).url
        live = sys.stdout.isatty() and not plain
        console = Console(width=None if sys.stdout.isatty() else 160)
        cast = Cast(root, log_url)
        stop = stack.enter_context(stopped_by_signals())
        started = time.monotonic()
        cast.start_all(seconds)
        view = View(cast.lake, cast.metrics_url)
        console.print(f"metrics {cast.metrics_url}   agent {cast.agent_metrics_url}")
        console.print(f"lake    {cast.lake}   log {log_url}   output of each role in {root}/*.log")
        screen = stack.enter_context(Live(console=console, auto_refresh=False)) if live else None
        bad: list[str] = []
        while not stop.wait(REFRESH_S) and not bad:
            bad = cast.ended()
            view.refresh()
            if screen is not None:
                screen.update(view.render(), refresh=True)
            else:
                console.print(view.plain())
            if seconds is not None and time.monotonic() - started >= seconds:
                break
        # In the order of the path, so that what is in flight still arrives.
        for names in (("train", "simulate"), ("agent",), ("up",)):
            if names[0] == "up":
                _settle(view)
            cast.stop(names)
        if screen is not None:
            screen.stop()
        missing = [f"{name} ended with code {cast.processes[name].returncode}, see {root}/{name}.log" for name in bad]
        missing += summarize(console, cast.lake, "transformer")
        for line in missing:
            console.print(f"incomplete: {line}")
        if folder is None and not missing:
            console.print(f"remove it with: rm -r {root}" if live else f"kept: {root}")
    raise SystemExit(exits.FINDING if missing else exits.OK)


def _settle(view: "View") -> None:
    """Wait until what the agents sent last has been stored: the count of events stands still."""
    for _ in range(SETTLE_ROUNDS):
        before = view.events
        time.sleep(REFRESH_S)
        view.refresh()
        if view.events == before:
            return
