"""`fleetscope stacks` and `fleetscope agent status`: what the agent of this host knows now, asked over its socket."""

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show, show_records
from fleetscope.cli.settings import ConfigFile, settings

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 5.0
PAGES = 4096
"""An agent that always says there is more is not believed for ever."""

Pid = Annotated[int, typer.Option("--pid", help="one process, by the pid it has itself", min=0)]
OnHost = Annotated[str, typer.Option("--host", help="refuse unless this is the host asked; agents answer locally")]

_STACK_COLUMNS = ("pid", "rank", "thread", "region", "open_ns")
_PROCESS_COLUMNS = (
    "pid", "run", "rank", "state", "step", "open_ns", "events", "windows", "windows_off", "stall_ns", "thread_cpu_ns",
)  # fmt: skip
_COST_COLUMNS = (
    "pid", "rank", "level", "window_level", "recorder_ratio", "windows_ratio", "agent_ratio", "records",
)  # fmt: skip
_DECISION_COLUMNS = (
    "at_ns", "pid", "rank", "lever", "was", "now", "reason", "recorder_ratio", "windows_ratio", "agent_ratio", "text",
)  # fmt: skip
SHOWN_DECISIONS = 10


def stacks(
    host: OnHost = "", pid: Pid = 0, output: Output = Format.TABLE, config: ConfigFile = None
) -> None:  # fmt: skip
    """What each thread of the processes of this host is in now, and for how long."""
    with reported():
        agent = settings(config).agent_socket
        _same_host(agent, host)
        rows = list(ask(agent, "stacks", pid))
        if output is Format.TABLE:
            for row in rows:
                row["region"] = "  " * int(row["depth"]) + str(row["region"])
        show(_table(rows), output, columns=_STACK_COLUMNS, notes=() if rows else ("no thread is in a region",))


def status(host: OnHost = "", output: Output = Format.TABLE, config: ConfigFile = None) -> None:
    """The agent of this host: what it holds, loses and costs, what it records of each process, and what its governor
    decided last."""
    with reported():
        agent = settings(config).agent_socket
        about = _same_host(agent, host)
        processes, decisions = list(ask(agent, "processes")), list(ask(agent, "decisions"))
        if output is Format.JSON:
            print(json.dumps({"agent": about, "processes": processes, "decisions": decisions}, indent=1))
            return
        show_records(_table([about]), output)
        if processes:
            show(_table(processes), output, columns=_PROCESS_COLUMNS)
            show(_table(processes), output, title="cost and level", columns=_COST_COLUMNS)
        if decisions:
            last = decisions[: -SHOWN_DECISIONS - 1 : -1]
            show(_table(last), output, title="last decisions of the governor", columns=_DECISION_COLUMNS)


def _same_host(agent: "Path", host: str) -> dict[str, Any]:
    from fleetscope.schema.errors import AgentSilent

    (about,) = ask(agent, "agent")
    if host and host != about.get("host"):
        raise AgentSilent(f"{agent} is of host {about.get('host')!r}, not {host!r}: ask there")
    return about


def ask(path: "Path", what: str, pid: int = 0) -> Iterator[dict[str, Any]]:
    """Rows of the agent's answer. AgentSilent (FS3102) when nobody answers in time."""
    from fleetscope.agents.profiler import protocol
    from fleetscope.schema.errors import AgentSilent

    query = protocol.Query(what, pid)
    reader = protocol.Reader(max_body_bytes=0)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(path))
            for _ in range(PAGES):
                connection.sendall(protocol.encode(query))
                said = _answer(connection, reader)
                yield from json.loads(said.rows)
                if not said.more:
                    return
                query = query._replace(process=said.process, row=said.row)
        except (OSError, ValueError) as error:
            raise AgentSilent(f"{path}: {error}") from error
    raise AgentSilent(f"{path}: an answer without end")


def _answer(connection: socket.socket, reader: "Any") -> "Any":
    from fleetscope.agents.profiler import protocol

    while data := connection.recv(1 << 16):
        for message, _ in reader.feed(data):
            if isinstance(message, protocol.Answer):
                return message
    raise ConnectionError("the connection was closed")


def _table(rows: list[dict[str, Any]]) -> "Any":
    import pyarrow as pa

    return pa.Table.from_pylist(rows)
