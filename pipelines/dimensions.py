"""Announcements of a batch -> rows of dimension tables, and what the worker itself must remember of them.

A text over the limit refuses its announcement, never its batch: the events beside it are fine. Text is otherwise
kept as it came, markup and NUL included: it is data, and whoever shows it escapes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message as ProtoMessage

from fleetscope.pipelines.header import TEXT_LIMIT_BYTES, Origin
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema import identity
from fleetscope.schema.errors import FleetscopeError, NameTooLong
from fleetscope.schema.wire_pb2 import Announcement, Batch, Device, ProcessInfo

LABEL_LIMIT = 64
DEVICES_KEPT = 1 << 15
"""Of a partition, for the labels of its counters: a host has 4 to 64. Others are named by their number."""

PEAK_LABEL = "peak_flops_per_s"
"""Label of a process whose devices no data sheet describes (the CPU): peak measured when it started, FLOP/s."""

PRESUMED_SEEN_NS = 1
"""`seen_ns` of rows made of a header alone. Whatever a process says of itself is newer, also by a clock set back."""

Rows = dict[str, list[dict[str, Any]]]


@dataclass(slots=True)
class Announced:
    """Rows by table, and (serialized announcement, error) of those refused."""

    rows: Rows = field(default_factory=dict)
    refused: list[tuple[bytes, FleetscopeError]] = field(default_factory=list)

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.rows.setdefault(table, []).append(row)


def announced(batch: Batch, origin: Origin, now_ns: int, state: PartitionState, into: Announced) -> None:
    """Rows of everything the batch announces; `seen_ns` is when it was sent, never later than `now_ns`."""
    seen_ns = min(batch.sent_ns, now_ns)
    if batch.HasField("device"):
        _remember_device(batch.device, origin, state)
    if origin.run_name and origin.process not in state.processes and not _speaks_of_itself(batch, origin):
        _presume(batch, origin, state, into)
    for announcement in batch.announcements:
        kind = announcement.WhichOneof("info")
        if kind is None:
            continue
        info = getattr(announcement, kind)
        try:
            _check_texts(info, kind)
        except NameTooLong as error:
            into.refused.append((announcement.SerializeToString(), error))
            continue
        for table, row in _rows(kind, announcement, batch, origin, state):
            into.add(table, {**row, "seen_ns": seen_ns})


def _speaks_of_itself(batch: Batch, origin: Origin) -> bool:
    return any(
        announcement.HasField("process") and _process_of(batch, announcement.process) == origin.process
        for announcement in batch.announcements
    )


def _presume(batch: Batch, origin: Origin, state: PartitionState, into: Announced) -> None:
    """Rows of a process whose announcement was lost or refused, from the header's Source: it is announced again within
    minutes, but its spans want a run now, and a short run would never have one."""
    source = batch.source
    info = ProcessInfo(
        pid=source.pid, start_ticks=source.start_ticks, run=source.run, attempt=source.attempt, rank=source.rank
    )
    known = {**_known_of(info, batch, origin, {}), "presumed": True}
    state.processes[origin.process] = known
    for table, row in (("processes", _process(info, origin.process, batch, origin, 0)), ("runs", _run(known))):
        into.add(table, {**row, "seen_ns": PRESUMED_SEEN_NS})


def _check_texts(info: ProtoMessage, path: str) -> None:
    for descriptor, value in info.ListFields():
        where = f"{path}.{descriptor.name}"
        if isinstance(value, str):
            _check_text(value, where)
        elif isinstance(value, ProtoMessage):
            _check_texts(value, where)
        elif descriptor.message_type is not None:
            if len(value) > LABEL_LIMIT:
                raise NameTooLong(f"{where}: {len(value)} labels, at most {LABEL_LIMIT}")
            for key in value:
                _check_text(key, where)
                _check_text(value[key], where)


def _check_text(value: str, where: str) -> None:
    if len(value) > TEXT_LIMIT_BYTES or len(value.encode()) > TEXT_LIMIT_BYTES:
        raise NameTooLong(f"{where}: {len(value.encode())} bytes, at most {TEXT_LIMIT_BYTES}")


def _rows(
    kind: str, announcement: Announcement, batch: Batch, origin: Origin, state: PartitionState
) -> Iterator[tuple[str, dict[str, Any]]]:
    if kind == "host":
        yield "hosts", _host(announcement, origin)
    elif kind == "process":
        info = announcement.process
        process = _process_of(batch, info)
        known = _known_of(info, batch, origin, state.processes.get(process, {}))
        # A source speaks of others too, but only of itself is anything kept: else one message could fill the state.
        if process == origin.process:
            state.processes[process] = known
        yield "processes", _process(info, process, batch, origin, known["end_ns"])
        if known["run"] and not known["end_ns"]:
            yield "runs", _run(known)
    elif kind == "device":
        _remember_device(announcement.device.device, origin, state)
        yield "devices", _device(announcement.device.device, origin)
    elif kind == "series":
        series = announcement.series
        labels = sorted(series.labels.items())
        yield (
            "series",
            {
                "series": series.id,
                "name": series.name,
                "unit": series.unit,
                "monotonic": series.monotonic,
                "labels": labels,
            },
        )
    elif kind == "line":
        line = announcement.line
        yield (
            "lines",
            {
                "host": origin.host,
                "process": origin.process,
                "device": line.device,
                "line": line.line,
                "name": line.name,
            },
        )
    elif kind == "name":
        yield "names", {"program": announcement.name.program, "name": announcement.name.name}
    elif kind == "program_load":
        load = announcement.program_load
        yield (
            "program_loads",
            {
                "process": origin.process,
                "program_id": load.program_id,
                "program": load.program,
                "module": load.module,
                "at_ns": load.at_ns,
            },
        )
    elif kind == "run_event":
        yield from _run_event(announcement, origin, state)


def _host(announcement: Announcement, origin: Origin) -> dict[str, Any]:
    info = announcement.host
    return {
        "host": origin.host,
        "cluster": info.cluster or origin.cluster,
        "name": info.host or origin.host_name,
        "boot_id": info.boot_id,
        "os": info.os,
        "cpus": min(info.cpus, 2**31 - 1),
        "memory_bytes": min(info.memory_bytes, 2**63 - 1),
        "agent_version": info.agent_version,
        "labels": sorted(info.labels.items()),
    }


def _process_of(batch: Batch, info: ProcessInfo) -> int:
    source = batch.source
    return identity.key_hash("process", source.cluster, source.host, source.boot_id, info.pid, info.start_ticks)


def _process(info: ProcessInfo, process: int, batch: Batch, origin: Origin, end_ns: int) -> dict[str, Any]:
    run, attempt = info.run or batch.source.run, info.attempt or batch.source.attempt
    return {
        "process": process,
        "host": origin.host,
        "pid": info.pid,
        "run": identity.run_id(origin.cluster, run) if run else 0,
        "attempt": identity.attempt_id(origin.cluster, run, attempt) if run else 0,
        "run_name": run,
        "attempt_name": attempt,
        "rank": _int32(info.rank),
        "world_size": _int32(info.world_size),
        "command": info.command,
        "python": info.python,
        "jax": info.jax,
        "jaxlib": info.jaxlib,
        "start_ns": info.start_ns,
        "end_ns": end_ns,
        "tenant": info.tenant or batch.source.tenant,
        "labels": sorted(info.labels.items()),
    }


def _known_of(info: ProcessInfo, batch: Batch, origin: Origin, before: dict[str, Any]) -> dict[str, Any]:
    run, attempt = info.run or batch.source.run, info.attempt or batch.source.attempt
    try:
        peak = int(float(info.labels.get(PEAK_LABEL, "0")))
    except (ValueError, OverflowError):
        peak = 0
    return {
        "cluster": origin.cluster,
        "run": run,
        "attempt": attempt,
        "rank": _int32(info.rank),
        "tenant": info.tenant or batch.source.tenant,
        "mesh": info.mesh,
        "world_size": _int32(info.world_size),
        "start_ns": info.start_ns,
        "end_ns": before.get("end_ns", 0),
        "labels": sorted(info.labels.items()),
        "peak_flops": max(0, min(peak, 10**18)),
        "declared_flops": info.declared_flops_per_step,
    }


def _run(known: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": identity.run_id(known["cluster"], known["run"]),
        "attempt": identity.attempt_id(known["cluster"], known["run"], known["attempt"]),
        "cluster": known["cluster"],
        "name": known["run"],
        "attempt_name": known["attempt"],
        "start_ns": known["start_ns"],
        "end_ns": known["end_ns"],
        "tenant": known["tenant"],
        # Carried state is JSON, which turns pairs into lists; Arrow takes a map's pairs as tuples only.
        "labels": [(key, value) for key, value in known["labels"]],
        "mesh": known["mesh"],
        "declared_flops_per_step": known["declared_flops"],
    }


def _run_event(
    announcement: Announcement, origin: Origin, state: PartitionState
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A process does not begin again after its end (that is another process), and a run has not ended while one of its
    ranks runs: those of this partition are asked here, all of them by the coordinator (coordinate.runs)."""
    event = announcement.run_event
    known = state.processes.get(origin.process)
    if known is None or not known["run"]:
        return
    if event.event == "start":
        known["start_ns"] = event.at_ns
    elif event.event == "end":
        known["end_ns"] = event.at_ns
    if not known["end_ns"]:
        yield "runs", _run(known)
        return
    ranks = [
        other for other in state.processes.values() if all(other[k] == known[k] for k in ("cluster", "run", "attempt"))
    ]
    if any(rank.get("presumed") for rank in ranks):
        return  # a header does not say how many ranks there are
    if all(rank["end_ns"] for rank in ranks) and len(ranks) >= max(rank["world_size"] for rank in ranks):
        yield "runs", {**_run(known), "end_ns": max(rank["end_ns"] for rank in ranks)}


def _device(device: Device, origin: Origin) -> dict[str, Any]:
    return {
        "device": identity.device_id(device.key),
        "host": origin.host,
        "key": device.key,
        "platform": device.platform,
        "sku": device.sku,
        "local_name": device.local_name,
        "local_ordinal": device.local_ordinal,
        "partition": device.partition,
        "coords": device.coords,
    }


def _remember_device(device: Device, origin: Origin, state: PartitionState) -> None:
    name = identity.device_id(device.key)
    if name in state.devices or len(state.devices) < DEVICES_KEPT:
        known = {"key": device.key[:TEXT_LIMIT_BYTES], "sku": device.sku[:TEXT_LIMIT_BYTES], "host": origin.host_name}
        state.devices[name] = {**known, "host_id": origin.host}


def _int32(value: int) -> int:
    return min(value, 2**31 - 1)
