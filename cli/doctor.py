"""`fleetscope doctor`: is everything there and does it answer. One line a check; exit code 1 if something is wrong."""

import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from fleetscope.cli import exits
from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.settings import ConfigFile, LakePath, LogUrl, settings
from fleetscope.schema.config import Config
from fleetscope.schema.errors import FleetscopeError

DISK_FLOOR_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. ok None: does not apply here."""

    check: str
    ok: bool | None
    detail: str


def doctor(
    output: Output = Format.TABLE, log_url: LogUrl = None, lake: LakePath = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Check this machine, the log, the lake and the roles that should be running."""
    with reported():
        findings = list(examine(settings(config, log=log_url, lake=lake)))
    words = {True: "ok", False: "WRONG", None: "-"}
    rows = [{"check": f.check, "result": words[f.ok], "detail": f.detail} for f in findings]
    schema = pa.schema([("check", pa.string()), ("result", pa.string()), ("detail", pa.string())])
    show(pa.Table.from_pylist(rows, schema), output)
    raise SystemExit(exits.FINDING if any(f.ok is False for f in findings) else exits.OK)


def examine(config: Config) -> Iterator[Finding]:
    """All checks. A check that fails itself is a finding, never an exception."""
    checks: list[tuple[str, Callable[[Config], tuple[bool | None, str]]]] = [
        ("python", _python),
        ("native code", _native),
        ("clock source", _clock),
        ("shared memory", _shared_memory),
        ("disk", _disk),
        ("agent", _agent),
        ("log", _log),
        ("lake", _lake),
    ]
    for name, check in checks:
        try:
            ok, detail = check(config)
        except FleetscopeError as error:
            ok, detail = False, str(error)
        except OSError as error:
            ok, detail = False, f"{error.strerror}: {error.filename}"
        yield Finding(name, ok, detail)


def _python(_: Config) -> tuple[bool, str]:
    return sys.version_info >= (3, 11), sys.version.split()[0]


def _native(_: Config) -> tuple[bool, str]:
    missing = []
    for module in ("_xspace", "_recorder"):
        try:
            importlib.import_module(f"fleetscope.native.{module}")
        except ImportError as error:
            missing.append(f"{module}: {error}")
    return not missing, "; ".join(missing) or "recorder and decoder load"


def _clock(_: Config) -> tuple[bool | None, str]:
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as file:
            source = file.read().strip()
    except OSError:
        return None, "the kernel does not say"
    fast = source == "tsc" or source.startswith("arch_sys")
    return True, source if fast else f"{source}: reading it is a system call, spans cost about ten times as much"


def _shared_memory(config: Config) -> tuple[bool, str]:
    free = shutil.disk_usage(config.agent.shm_dir).free
    writable = os.access(config.agent.shm_dir, os.W_OK)
    return writable and free > (64 << 20), f"{config.agent.shm_dir}: {free >> 20} MiB free"


def _disk(config: Config) -> tuple[bool, str]:
    folder = config.state_dir
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    return free > DISK_FLOOR_BYTES, f"{folder}: {free >> 30} GiB free"


def _agent(config: Config) -> tuple[bool | None, str]:
    import socket

    path = config.agent_socket
    if not path.exists():
        return None, f"none on this host ({path})"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(str(path))
    return True, str(path)


def _log(config: Config) -> tuple[bool, str]:
    from fleetscope.transport import Topics, open_log

    with open_log(config.log_url) as log:
        names = set(log.topics())
        wanted = {spec.name for spec in Topics(config.log.topic_prefix).specs(config.log.partitions)}
        missing = sorted(wanted - names)
    if len(missing) == len(wanted):
        return True, f"{config.log_url}: reachable, no topics yet"
    return not missing, f"{config.log_url}: {len(wanted) - len(missing)} topics" + (
        f", missing {missing}" if missing else ""
    )


def _lake(config: Config) -> tuple[bool | None, str]:
    from fleetscope.sinks.lake.objects import open_store
    from fleetscope.sinks.lake.read import Snapshot

    path = config.lake_path
    if not path.is_dir():
        return None, f"none yet ({path})"
    snapshot = Snapshot.open(open_store(path))
    if not snapshot.now_ns:
        return True, f"{path}: empty"
    age_s = (time.time_ns() - snapshot.now_ns) / 1e9
    unfolded = len(snapshot.tail)
    return unfolded < 1000, f"{path}: newest epoch {age_s:.0f} s ago, {unfolded} epochs not folded yet"
