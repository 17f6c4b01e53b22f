"""The four roles as commands, and `up`: worker, coordinator and exporter in one process (the embedded shape)."""

import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fleetscope.cli.exits import OK, reported
from fleetscope.cli.settings import ConfigFile, LakePath, LogUrl, settings
from fleetscope.schema.secrets import MaskingFormatter, shown

if TYPE_CHECKING:
    from fleetscope.schema.config import Config

log = logging.getLogger("fleetscope")

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="more on stderr")]


FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start_logging(verbose: bool = False) -> None:
    """Logs go to stderr: stdout is for data."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        stream=sys.stderr,
        force=True,
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(MaskingFormatter(FORMAT))
    if verbose:
        logging.getLogger("kafka").setLevel(logging.DEBUG)
        return
    # Not "kafka": transport keeps it still where no level is set. An outage gave nine lines a second.
    for noisy in ("apache_beam", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_of_somebody)


def _of_somebody(record: logging.LogRecord) -> bool:
    """Beam warns through the root logger, at every import, that Google's client libraries are not installed."""
    return record.name != "root" or record.levelno >= logging.ERROR


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """An event that SIGINT, SIGTERM and a hang-up set; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, _: object) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        log.info("stopping (signal %d); once more ends at once", number)
        stop.set()

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # nohup ignores it, and means that
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _checked(config: "Config", *roles: str) -> None:
    """What keeps a role from its log is told before the role begins, where its client would only wait.

    A broker that is away does not keep a coordinator from folding what is in the lake.
    """
    from fleetscope.schema.errors import BrokerUnavailable
    from fleetscope.transport.preflight import preflight
    from fleetscope.transport.rights import Role
    from fleetscope.transport.topics import Topics

    try:
        preflight(config.log_url, [Role(role) for role in roles], Topics(config.log.topic_prefix))
    except BrokerUnavailable as error:
        if roles != ("coordinator",):
            raise
        log.warning("%s", error)


def agent(
    context: typer.Context,
    host: Annotated[str | None, typer.Option("--host", help="name of this host, instead of the machine's")] = None,
    log_url: LogUrl = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """The node agent: one on every training host, outside the training process."""
    if context.invoked_subcommand is not None:
        return
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.agents.node import NodeAgent
        from fleetscope.transport.preflight import check_settings

        sections = {"agent": {"host": host}} if host else {}
        loaded = settings(config, None, log_url, sections)
        # Nothing more: what keeps the broker from taking it the sender tells, and the spool keeps what is recorded.
        check_settings(loaded.log_url)
        NodeAgent(loaded).run(stop)


def worker(
    once: Annotated[bool, typer.Option("--once", help="drain what the log holds and stop")] = False,
    log_url: LogUrl = None, lake: LakePath = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """A worker: its chains' partitions from the log into the lake, epoch by epoch."""
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.pipelines.drivers.epoch import Worker

        loaded = settings(config, log=log_url, lake=lake)
        _checked(loaded, "worker")
        role = Worker(loaded)
        if once:
            role.run_once()
        else:
            role.run(stop)


def coordinator(
    once: Annotated[bool, typer.Option("--once", help="one round and stop")] = False,
    log_url: LogUrl = None, lake: LakePath = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """The coordinator: folds what workers committed into tables readers see, replaces small files, sweeps."""
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.pipelines.coordinate.rounds import Coordinator

        loaded = settings(config, log=log_url, lake=lake)
        _checked(loaded, "coordinator")
        role = Coordinator(loaded)
        if once:
            role.round_once()
        else:
            role.run(stop)


def exporter(
    address: Annotated[str | None, typer.Option("--address", help="host:port of /metrics; port 0: a free one")] = None,
    log_url: LogUrl = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """The exporter: /metrics of fleet and runs for Prometheus."""
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.sinks.prometheus.exporter import Exporter

        sections = {"exporter": {"address": address}} if address else {}
        loaded = settings(config, None, log_url, sections)
        _checked(loaded, "exporter")
        role = Exporter(loaded)
        role.start()
        log.info("metrics at %s", role.address)
        role.run(stop)


def up(
    log_url: LogUrl = None, lake: LakePath = None, config: ConfigFile = None, verbose: Verbose = False,
) -> None:  # fmt: skip
    """Worker, coordinator and exporter in one process, until Ctrl-C."""
    start_logging(verbose)
    with reported(), stopped_by_signals() as stop:
        from fleetscope.pipelines.coordinate.rounds import Coordinator
        from fleetscope.pipelines.drivers.epoch import Worker
        from fleetscope.sinks.prometheus.exporter import Exporter

        loaded = settings(config, log=log_url, lake=lake)
        _checked(loaded, "worker", "coordinator", "exporter")
        exporter_role = Exporter(loaded)
        exporter_role.start()
        log.info("log %s, lake %s, metrics %s", shown(loaded.log_url), loaded.lake_url, exporter_role.address)
        roles: dict[str, Callable[[threading.Event], None]] = {
            "worker": Worker(loaded).run,
            "coordinator": Coordinator(loaded).run,
            "exporter": exporter_role.run,
        }
        run_together(roles, stop)
    raise SystemExit(OK)


def run_together(roles: dict[str, Callable[[threading.Event], None]], stop: threading.Event) -> None:
    """Run roles in threads until `stop`; the first that fails stops all, and its error is raised."""
    failures: list[BaseException] = []

    def body(role: Callable[[threading.Event], None]) -> None:
        try:
            role(stop)
        except BaseException as error:  # raised again by the main thread
            failures.append(error)
        finally:
            stop.set()

    threads = [threading.Thread(target=body, args=(role,), name=name) for name, role in roles.items()]
    for thread in threads:
        thread.start()
    # Signals reach the main thread only while it runs Python: wait in slices.
    while not stop.wait(0.5):
        pass
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
