"""`fleetscope doctor`: is everything there and does it answer. One line a check; exit code 1 if something is wrong."""

import importlib
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleetscope.cli import exits
from fleetscope.cli.cells import duration, scaled
from fleetscope.cli.exits import reported
from fleetscope.cli.output import Format, Output, show
from fleetscope.cli.settings import ConfigFile, LakePath, LogUrl, existing_lake, settings
from fleetscope.schema.errors import FleetscopeError
from fleetscope.schema.secrets import masked, shown

if TYPE_CHECKING:
    from fleetscope.schema.config import Config

DISK_FLOOR_BYTES = 1 << 30
SHM_FLOOR_BYTES = 64 << 20
UNFOLDED_LIMIT = 1000
"""Epochs behind the newest round; a coordinator folds every 15 s, so that is over half an hour without one."""
BEHIND_LIMIT_NS = 60 * 10**9
"""Messages that wait longer for a worker are no hiccup."""

_IN_THE_LAKE = ("worker", "coordinator")
"""Checks that read what these roles left in the lake."""

Result = tuple[bool | None, str]


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check. ok None: does not apply here, or nothing to say yet."""

    check: str
    ok: bool | None
    detail: str


def doctor(
    output: Output = Format.TABLE, log_url: LogUrl = None, lake: LakePath = None, config: ConfigFile = None,
) -> None:  # fmt: skip
    """Check this machine, the log, the lake and the roles that should be running. Changes nothing.

    ok: fine. -: not here, or nothing yet. WRONG: needs you; exit code 1.
    """
    with reported():
        import pyarrow as pa

        findings = list(examine(settings(config, log=log_url, lake=lake)))
        words = {True: "ok", False: "WRONG", None: "-"}
        rows = [{"check": f.check, "result": words[f.ok], "detail": f.detail} for f in findings]
        schema = pa.schema([("check", pa.string()), ("result", pa.string()), ("detail", pa.string())])
        show(pa.Table.from_pylist(rows, schema), output, columns=("result", "check", "detail"))
        sys.stdout.flush()
    raise SystemExit(exits.FINDING if any(f.ok is False for f in findings) else exits.OK)


def examine(config: "Config") -> Iterator[Finding]:
    """All checks. A check that fails itself is a finding, never an exception."""
    checks: list[tuple[str, Callable[[Config], Result]]] = [
        ("python", _python),
        ("native code", _native),
        ("clock source", _clock),
        ("shared memory", _shared_memory),
        ("state folder", _state_folder),
        ("agent", _agent),
        ("log", _log),
        ("lake", _lake),
        ("worker", _worker),
        ("coordinator", _coordinator),
        ("exporter", _exporter),
    ]
    silent: set[str] = set()
    for name, check in checks:
        if name in _IN_THE_LAKE and "lake" in silent:
            # each would wait for a store that is away once more
            yield Finding(name, None, "not known without the lake")
            continue
        try:
            ok, detail = check(config)
        except FleetscopeError as error:
            ok, detail = False, masked(str(error))
            silent.add(name)
        except OSError as error:
            ok, detail = False, f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        except ImportError as error:
            ok, detail = None, f"not installed here: {error.name}"
        yield Finding(name, ok, detail)


def _python(_: "Config") -> Result:
    return sys.version_info >= (3, 11), sys.version.split()[0]


def _native(_: "Config") -> Result:
    missing = []
    for module in ("_xspace", "_recorder", "_pjrt_shim"):
        try:
            importlib.import_module(f"fleetscope.native.{module}")
        except ImportError as error:
            missing.append(f"{module}: {error}")
    import fleetscope.native

    tags = {tag for folder in fleetscope.native.__path__ for path in Path(folder).glob("_recorder.cpython-3*")
            if (tag := path.name.split("-")[1]).isdecimal()}  # fmt: skip
    pythons = ", ".join(f"3.{tag[1:]}" for tag in sorted(tags))
    return not missing, "; ".join(missing) or f"decoder, recorder, PJRT shim load; profiler for CPython {pythons}"


def _clock(_: "Config") -> Result:
    try:
        with open("/sys/devices/system/clocksource/clocksource0/current_clocksource") as file:
            source = file.read().strip()
    except OSError:
        return None, "the kernel does not say"
    fast = source == "tsc" or source.startswith("arch_sys")
    return True, source if fast else f"{source}: reading it is a system call, spans cost about ten times as much"


def _shared_memory(config: "Config") -> Result:
    return _roomy(config.agent.shm_dir, SHM_FLOOR_BYTES)


def _state_folder(config: "Config") -> Result:
    folder = config.state_dir
    while not folder.exists():
        folder = folder.parent
    return _roomy(folder, DISK_FLOOR_BYTES)


def _roomy(folder: Path, floor_bytes: int) -> Result:
    free = shutil.disk_usage(folder).free
    # Trying is the only proof: root may write anywhere but on a read-only or full file system.
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0" * 4096)
    except OSError as error:
        return False, f"{folder} cannot be written: {error.strerror}"
    detail = f"{folder}: {scaled(free, 'B')} free"
    return free > floor_bytes, detail if free > floor_bytes else f"{detail}, less than {scaled(floor_bytes, 'B')}"


def _agent(config: "Config") -> Result:
    path = config.agent_socket
    if not path.exists():
        return None, f"none on this host ({path})"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        try:
            connection.connect(str(path))
        except OSError as error:
            return False, f"nobody answers at {path}: {error.strerror or error}"
    return True, f"answers at {path}"


def _log(config: "Config") -> Result:
    from fleetscope.transport import Topics, open_log
    from fleetscope.transport.rights import Role, rights_of

    url = shown(config.log_url)
    if _absent(url):
        return None, f"none yet ({url})"
    place = url.partition("?")[0]
    if config.log_url.startswith("kafka://"):
        from fleetscope.transport.kafka.settings import cluster_of

        chosen = cluster_of(config.log_url, {}).settings
        place += f" ({chosen.security_protocol}{f' as {chosen.sasl_user}' if chosen.sasl_user else ''})"
    topics = Topics(config.log.topic_prefix)
    with open_log(config.log_url) as log:
        names = set(log.topics())
    able, reasons = _roles_that_may(config)
    if not able:
        return False, f"{place}: answers, and is of use to no role: {'; '.join(reasons)}"
    wanted = {name for role in able for name in rights_of(Role(role), topics).topics}
    missing = sorted(wanted - names)
    if len(missing) == len(wanted):
        return True, f"{place}: answers, no topics yet"
    lack = f", lacks {', '.join(missing)}" if missing else ""
    of_some = f", rights of {', '.join(able)} alone" if reasons else ""
    return not missing, f"{place}: answers, {len(wanted) - len(missing)} topics{lack}{of_some}"


def _roles_that_may(config: "Config") -> tuple[list[str], list[str]]:
    """Roles that could work with these credentials, and why the others could not."""
    from fleetscope.transport.errors import AccessDenied, UnknownTopic
    from fleetscope.transport.preflight import preflight
    from fleetscope.transport.rights import Role
    from fleetscope.transport.topics import Topics

    able, reasons = [], []
    for role in Role:
        try:
            preflight(config.log_url, [role], Topics(config.log.topic_prefix))
            able.append(role.value)
        except (AccessDenied, UnknownTopic) as error:
            reasons.append(f"{role.value}: {error}")
    return able, reasons


def _absent(url: str) -> bool:
    """A log on disk that is not there: opening it would make it."""
    from fleetscope.transport.embedded.log import folder_of

    return url.startswith("file://") and not folder_of(url).exists()


def _lake(config: "Config") -> Result:
    from fleetscope.sinks.lake.address import parse_address
    from fleetscope.sinks.lake.read import Snapshot

    address = parse_address(config.lake_url, config.lake_options)
    ok: bool | None
    if address.folder is None:
        from fleetscope.sinks.lake.remote_store import probe

        probe(address)
        ok, room = True, f"{address.url} answers"
    elif not address.folder.exists():
        return None, f"none yet ({address.folder})"
    elif not address.folder.is_dir():
        return False, f"{address.folder} is no folder"
    else:
        ok, room = _roomy(address.folder, DISK_FLOOR_BYTES)
    store = existing_lake(config)
    if store is None:
        return None, "none yet"
    snapshot = Snapshot.open(store)
    if not snapshot.now_ns:
        return ok, f"{room}, empty"
    return ok, f"{room}, newest epoch {duration(max(0, time.time_ns() - snapshot.now_ns))} ago"


def _worker(config: "Config") -> Result:
    from fleetscope.sinks.lake.chain import Chain
    from fleetscope.sinks.lake.generation import current_generation, spread
    from fleetscope.transport import open_log
    from fleetscope.transport.errors import AccessDenied

    store = existing_lake(config)
    if store is None:
        return None, "no lake: none has run"
    generation = current_generation(store)
    if generation is None:
        return None, "none has run"
    done = dict(generation.starts)
    newest_ns = 0
    fenced = False
    for chain in generation.chains:
        manifest = Chain(store, chain).latest()
        if manifest is not None:
            newest_ns = max(newest_ns, manifest.now_ns)
            fenced |= manifest.generation > generation.number
            done.update({item.partition: item.end for item in manifest.offsets})
    if _absent(config.log_url):
        return False, f"the lake was read from a log, and {shown(config.log_url)} is not there"
    try:
        with open_log(config.log_url) as log:
            ends = log.end_offsets(generation.topic)
    except AccessDenied:
        return None, f"generation {generation.number}: whether it keeps up a worker's user alone may look"
    behind = {partition: end - done.get(partition, 0) for partition, end in ends.items()}
    waiting = sum(behind.values())
    era = f"generation {generation.number} (chains: {len(generation.chains)}), {waiting:,} messages wait"
    if fenced:
        return False, f"{era} for other chains, which wait for the coordinator: is one running?"
    if len(generation.chains) != len(spread(sorted(generation.starts), config.worker.chain_count)):
        return False, f"{era}, but worker.chain_count is {config.worker.chain_count}: the next worker deals them anew"
    if len(ends) > len(generation.starts):
        return (
            False,
            f"{era}, but of {len(ends)} partitions of {generation.topic} only {len(generation.starts)} are read",
        )
    if min(behind.values(), default=0) < 0:
        url = shown(config.log_url)
        return False, f"{url} ends before what the lake has read from it: another log, or one that lost data"
    late_ns = time.time_ns() - newest_ns
    if waiting and late_ns > BEHIND_LIMIT_NS:
        return False, f"{era}, the last epoch was {duration(late_ns)} ago: is one running?"
    return True, era


def _coordinator(config: "Config") -> Result:
    from fleetscope.sinks.lake.read import Snapshot

    store = existing_lake(config)
    if store is None:
        return None, "no lake: none has run"
    snapshot = Snapshot.open(store)
    number = snapshot.round.number if snapshot.round is not None else 0
    detail = f"round {number}, {len(snapshot.tail)} epochs not folded yet"
    return len(snapshot.tail) < UNFOLDED_LIMIT, detail


def _exporter(config: "Config") -> Result:
    address = config.exporter.address
    if address.endswith(":0"):
        return None, "on a port it chose itself: see its output"
    url = f"http://{address}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            page = answer.read()
    except OSError:
        return None, f"none at {url}"
    ours = b"fleetscope_exporter_records_total" in page
    return ours, f"{url} answers" + ("" if ours else ", but it is something else")
