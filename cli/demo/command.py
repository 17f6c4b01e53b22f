"""The command itself: start the cast, show it, stop it in order, sum up."""

import os
import shutil
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.roles import stopped_by_signals

if TYPE_CHECKING:
    from fleetscope.cli.demo.cast import Cast
    from fleetscope.cli.demo.live import View

REAL_RUN = "transformer"
REFRESH_S = 2.0
FIRST_S = 0.5
"""Between looks while there is nothing to see."""
SETTLE_ROUNDS = 8
GRACE_S = 60.0
"""How much longer than asked an unattended demo waits for the first device window of the real run: a machine with
other work may take a minute to import and compile."""


def demo(
    seconds: Annotated[float | None, typer.Option(min=5, help="stop by itself after so long")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="lines instead of a live table")] = False,
    kafka: Annotated[bool, typer.Option("--kafka", help="through a real Kafka broker (Java 17 and its jars)")] = False,
    folder: Annotated[Path | None, typer.Option(help="keep log and lake there; default a new temporary folder")] = None,
) -> None:
    """A node agent, a real JAX training run, a simulated fleet of 8 hosts x 4 chips, worker, coordinator, exporter.

    Ctrl-C stops it and sums up. Exit code 1 if a part failed, or if the summary of a whole run (--seconds) lacks
    something.
    """
    with reported(), ExitStack() as stack:
        from fleetscope.cli.demo.cast import EXAMPLE, Cast

        if not EXAMPLE.is_file():
            typer.echo("fleetscope demo: examples/ is not here; run it in a checkout", err=True)
            raise SystemExit(exits.UNAVAILABLE)
        root = (folder or Path(tempfile.mkdtemp(prefix="fleetscope-demo-"))).absolute()
        if (root / "lake").exists():
            typer.echo(f"fleetscope demo: {root} holds an earlier demo; name another folder", err=True)
            raise SystemExit(exits.USAGE)
        root.mkdir(parents=True, exist_ok=True)
        stop = stack.enter_context(stopped_by_signals())
        log_url = f"file://{root / 'log'}"
        if kafka:
            from fleetscope.transport.broker.broker import Broker

            print("starting a Kafka broker", flush=True)
            log_url = stack.enter_context(Broker(root / "kafka")).url
        cast = Cast(root, log_url, stack.enter_context(_shared_memory(root)))
        stack.callback(cast.kill)
        # What the screen needs is imported while the others start.
        cast.start_all(seconds)
        bad, by_hand = _watch(cast, stop, seconds, live=sys.stdout.isatty() and not plain)
        from fleetscope.cli.demo.summary import summarize

        missing = [f"{name} ended with code {cast.processes[name].returncode}, see {root}/{name}.log" for name in bad]
        unseen = summarize(cast.lake, REAL_RUN)
        for line in missing + ([] if by_hand else unseen):
            print(f"incomplete: {line}")
        print(f"ask on:    fleetscope runs --lake {cast.lake}", f"remove it: rm -r {root}", sep="\n")
        failed = bool(missing or (unseen and not by_hand))
    raise SystemExit(exits.FINDING if failed else exits.OK)


class _shared_memory:
    """A folder in memory for the rings of this demo, gone when it ends; on disk where there is no /dev/shm."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __enter__(self) -> Path:
        memory = Path("/dev/shm")  # noqa: S108 - mkdtemp names it
        parent = memory if os.access(memory, os.W_OK) else self._root
        self._made = Path(tempfile.mkdtemp(prefix="fleetscope-demo-", dir=parent))
        return self._made

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._made, ignore_errors=True)


def _watch(cast: "Cast", stop: threading.Event, seconds: float | None, *, live: bool) -> tuple[list[str], bool]:
    """Show it until it is stopped or over, then stop the cast; (parts that failed, whether a person stopped it)."""
    started = time.monotonic()
    print(f"metrics {cast.metrics_url} (fleet), {cast.agent_metrics_url} (agent)")
    print(f"lake    {cast.lake}", f"log     {cast.log_url}", f"output  {cast.folder}/*.log", sep="\n", flush=True)
    from rich.console import Console
    from rich.live import Live

    from fleetscope.cli.demo.live import View

    view = View(cast.lake, cast.metrics_url, REAL_RUN, started)
    bad: list[str] = []
    printed_s = float("-inf")
    with ExitStack() as stack:
        screen = stack.enter_context(Live(console=Console(), auto_refresh=False)) if live else None
        while not bad:
            view.refresh()
            if screen is not None:
                screen.update(view.render(screen.console.width), refresh=True)
            elif time.monotonic() - printed_s >= REFRESH_S:
                printed_s = time.monotonic()
                print(view.plain(), flush=True)
            if stop.wait(REFRESH_S if view.runs else FIRST_S):
                break
            bad = cast.ended()
            over_s = time.monotonic() - started - (seconds or float("inf"))
            if over_s >= (0 if view.windowed else GRACE_S):
                break
    by_hand = stop.is_set()
    if by_hand:
        print("stopping; what is on its way still arrives (Ctrl-C again ends at once)", flush=True)
    # In the order of the path.
    for names in (("train", "simulate"), ("agent",), ("up",)):
        if names[0] == "up":
            _settle(view)
        cast.stop(names)
    return bad, by_hand


def _settle(view: "View") -> None:
    """Wait until what the agents sent last has been stored: the count of events stands still."""
    for _ in range(SETTLE_ROUNDS):
        before = view.events
        time.sleep(REFRESH_S)
        view.refresh()
        if view.events == before:
            return
