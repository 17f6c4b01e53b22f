"""`fleetscope import`: a capture file through the log, by the way live data goes, and a table of what it holds.

Everything is numbered by the file's content: importing a file twice gives the pipeline the same batches, which it
drops as duplicates and counts, so device time is never taken twice.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from fleetscope.agents.batches import Draft, Numberer, clean_text, pack
from fleetscope.agents.programs.chunks import chunks
from fleetscope.agents.programs.optable import Program
from fleetscope.agents.xspace.capture import Capture, convert, read_xspace
from fleetscope.agents.xspace.declared import programs_of
from fleetscope.agents.xspace.device import DeviceSpans
from fleetscope.agents.xspace.drafts import announcement_drafts, capture_drafts
from fleetscope.agents.xspace.optables import OpTables
from fleetscope.agents.xspace.planes import plane_stats
from fleetscope.agents.xspace.report import CaptureReport, capture_report
from fleetscope.native.xspace import XSpace
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.config import Config
from fleetscope.schema.errors import Backpressure, XSpaceUnreadable
from fleetscope.transport import Log, Pending, Topics, open_log
from fleetscope.transport.rights import Role, of_role

log = logging.getLogger(__name__)

_PATIENCE_S = 60.0
"""A person waits for an import: how long the log may be full before it is an error."""

REPORT = pa.schema(
    [
        ("file", pa.string()),
        ("device", pa.string()),
        ("sku", pa.string()),
        ("ops", pa.int64()),
        ("executions", pa.int64()),
        ("busy_ns", pa.int64()),
        ("flops", pa.int64()),
        ("bytes_accessed", pa.int64()),
        ("bytes_hbm", pa.int64()),
        ("peak_flops", pa.float64()),
        ("peak_hbm_bytes_per_s", pa.float64()),
        ("own_duty_ratio", pa.float64()),
        ("drift_ppm", pa.float64()),
        ("displaced", pa.int64()),
        ("notes", pa.string()),
    ]
)
"""One row a device, the last one the whole file. `own_duty_ratio`, `drift_ppm` and `displaced` are of the capture's
own view.
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """A capture file, decoded, converted and judged. `digest` is the XXH3-64 of its bytes."""

    name: str
    size_bytes: int
    digest: int
    space: XSpace
    capture: Capture
    programs: Sequence[Program]
    report: CaptureReport


def import_capture(config: Config, file: Path, *, run: str | None = None, host: str | None = None) -> pa.Table:
    """Append the capture's batches and programs to the log; returns REPORT rows.

    Raises XSpaceUnreadable for a file that is none, and whatever the log raises when it cannot take it.
    """
    imported = read_capture(file)
    source = source_of(imported, config.cluster, run, host)
    with open_log(config.log_url) as opened:
        topics = Topics(config.log.topic_prefix)
        opened.create_topics(of_role(Role.AGENT, topics, topics.specs(config.log.partitions)))
        for program in imported.programs:
            for key, chunk in chunks(program):
                _append(opened, topics.programs, key, chunk.SerializeToString())
        numberer = Numberer(imported.digest >> 1)
        for draft in import_drafts(imported, source):
            for packed in pack(draft):
                numbered = numberer.number(packed, time.time_ns())
                _append(opened, topics.telemetry, numbered.key, numbered.value)
        opened.flush(_PATIENCE_S)
    return report_rows(imported.name, imported.report)


def read_capture(file: Path) -> Imported:
    """Without a log. A capture that does not say when it began is taken to begin when the file was last written."""
    try:
        data = file.read_bytes()
        written_ns = file.stat().st_mtime_ns
    except OSError as error:
        raise XSpaceUnreadable(f"{file}: {error.strerror}") from error
    space = read_xspace(data, str(file))
    if not space.planes.num_rows:
        raise XSpaceUnreadable(f"{file}: no plane in {len(data)} bytes; XLA writes empty captures beyond 2 GB")
    digest = xxhash.xxh3_64_intdigest(data)
    programs, unreadable = programs_of(space)
    tables = OpTables(f"{digest:016x}", programs)
    capture = convert(space, tables, start_ns=written_ns)
    known = [*programs, *tables.new_provisional()]
    report = capture_report(space, capture, known, unreadable)
    return Imported(file.name, len(data), digest, space, capture, known, report)


def source_of(imported: Imported, cluster: str, run: str | None = None, host: str | None = None) -> wire.Source:
    """The process that was captured, as a source of its own: boot id and attempt are the file's digest."""
    stem = imported.name.removesuffix(".pb").removesuffix(".xplane")
    hostnames = imported.capture.hostnames
    pids = [stats.get("process_id") for stats in plane_stats(imported.space).values()]
    return wire.Source(
        cluster=cluster,
        host=clean_text(host or (hostnames[0] if hostnames else "") or stem, 255),
        boot_id=f"capture-{imported.digest:016x}",
        pid=next((pid for pid in pids if isinstance(pid, int) and 0 < pid < 1 << 31), 1),
        run=clean_text(run or stem),
        attempt=f"{imported.digest:016x}",
    )


def import_drafts(imported: Imported, source: wire.Source) -> Iterator[Draft]:
    """Every batch of the file in order, the announcements first."""
    session = imported.capture.session
    host = wire.HostInfo(cluster=source.cluster, host=source.host, boot_id=source.boot_id)
    process = wire.ProcessInfo(
        pid=source.pid,
        run=source.run,
        attempt=source.attempt,
        command=f"imported from {clean_text(imported.name)}",
        start_ns=session.start_ns,
    )
    begun = wire.RunEvent(event="start", at_ns=session.start_ns)
    yield from announcement_drafts(
        source,
        [wire.Announcement(host=host), wire.Announcement(process=process), wire.Announcement(run_event=begun)],
    )
    window = wire.Window(
        id=identity.key_hash("capture", imported.digest), complete=True, step=-1, xspace_bytes=imported.size_bytes
    )

    def device_of(spans: DeviceSpans) -> wire.Device:
        # A capture names chips by index (global_chip_id only on some TPUs); with host and file that is at least unique.
        chip = spans.stats.get("global_chip_id", spans.ordinal)
        return wire.Device(
            key=f"{source.cluster}/{source.host}/{source.boot_id}/{spans.platform}/{chip}",
            platform=spans.platform,
            sku=clean_text(spans.sku),
            local_name=spans.name,
            local_ordinal=spans.ordinal,
        )

    yield from capture_drafts(imported.capture, source, device_of, imported.programs, window)
    ended = wire.RunEvent(event="end", at_ns=session.stop_ns or session.start_ns)
    yield Draft(source, announcements=[wire.Announcement(run_event=ended), wire.Announcement(process=process)])


def _append(opened: Log, topic: str, key: bytes, value: bytes) -> Pending:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return opened.append(topic, key, value)
        except Backpressure as full:
            if time.monotonic() > deadline:
                raise
            log.info("the log is full, waiting: %s", full)
            time.sleep(0.2)


def report_rows(name: str, report: CaptureReport) -> pa.Table:
    """REPORT rows: the devices, then the file."""
    rows: list[dict[str, Any]] = []
    for device in report.devices:
        own = device.own
        skipped = [f"{count} of {line} are no spans" for line, count in device.skipped.items()]
        rows.append(
            {
                "file": name,
                "device": device.name,
                "sku": device.sku,
                "ops": device.ops,
                "executions": device.executions,
                "busy_ns": device.busy_ps // 1000,
                "flops": device.flops,
                "bytes_accessed": device.bytes_accessed,
                "bytes_hbm": device.bytes_hbm,
                "peak_flops": device.peak_flops,
                "peak_hbm_bytes_per_s": device.peak_hbm_bytes_per_s,
                "own_duty_ratio": own.busy_ps / own.span_ps if own and own.span_ps else None,
                "drift_ppm": own.drift_ppm if own else None,
                "displaced": own.displaced if own else None,
                "notes": "; ".join([*device.conflicts, *skipped]),
            }
        )
    notes = [] if report.start_stated else ["the capture does not say when it began: placed by the file's date"]
    notes += [f"error of the producer: {clean_text(text)}" for text in report.errors]
    notes += [f"{report.unreadable_programs} programs unreadable"] * bool(report.unreadable_programs)
    notes += [f"{report.replaced_utf8} bad UTF-8 sequences replaced"] * bool(report.replaced_utf8)
    rows.append(
        {
            "file": name,
            "device": "all",
            "sku": "",
            "ops": report.ops,
            "executions": sum(device.executions for device in report.devices),
            "busy_ns": sum(device.busy_ps for device in report.devices) // 1000,
            "flops": _sum(device.flops for device in report.devices),
            "bytes_accessed": _sum(device.bytes_accessed for device in report.devices),
            "bytes_hbm": _sum(device.bytes_hbm for device in report.devices),
            "own_duty_ratio": report.duty,
            "displaced": report.displaced if report.duty is not None else None,
            "notes": "; ".join([*notes, f"{report.host_events} host events", f"{report.programs} programs"]),
        }
    )
    return pa.Table.from_pylist([{key: _fits(value) for key, value in row.items()} for row in rows], schema=REPORT)


def _sum(values: Iterator[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _fits(value: Any) -> Any:
    """None for a number that no column holds: a capture may declare any FLOPs it likes."""
    return None if isinstance(value, int) and abs(value) >= 1 << 63 else value
