"""A complete capture as drafts of batches. (Live windows of one device are cut to their window:
agents/node/windows.py.)

A clock of its own (a TPU's raw time, picoseconds since the session began) is placed by anchors, given as snapshots
against a host counter that belongs to the capture: the source's boot id must be the capture's own, and
`wall_snapshots` come first.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from fleetscope.agents.batches import Draft
from fleetscope.agents.programs.optable import Program
from fleetscope.agents.xspace.capture import Capture
from fleetscope.agents.xspace.device import DeviceSpans
from fleetscope.agents.xspace.session import Clock, Session
from fleetscope.schema import identity
from fleetscope.schema import wire_pb2 as wire
from fleetscope.schema.vocabulary import ClockFlag

_COUNTER = wire.ClockEpoch(clock="monotonic_raw", period_num=1, period_den=1, width_bits=64)
_WALL = wire.ClockEpoch(clock="realtime", period_num=1, period_den=1, width_bits=64)

_ANNOUNCED_BYTES = 128 << 10
"""Of announcements in one draft: 5 000 kernel names of a TensorFlow capture come to 0.6 MB."""


def device_draft(
    spans: DeviceSpans, source: wire.Source, device: wire.Device, session: Session, window: wire.Window
) -> Draft:
    """One device's spans. The range is the session's, widened to hold every row; `window.length_ticks` becomes its
    length.
    """
    epoch = clock_epoch(spans.clock, device.key)
    low, high = _range(spans.rows, spans.clock, session)
    window.length_ticks = high - low
    return Draft(
        source,
        low,
        high,
        epoch,
        device,
        spans.rows,
        window,
        snapshots=anchor_snapshots(epoch, _anchors(spans, session, high)),
        announcements=device_announcements(spans, device),
    )


def host_draft(capture: Capture, source: wire.Source) -> Draft | None:
    """Spans of host threads; None where there are none."""
    if capture.host is None or not capture.host.rows.num_rows:
        return None
    host, rows = capture.host, capture.host.rows
    epoch = clock_epoch(host.clock, "")
    low, high = _range(rows, host.clock, capture.session)
    anchors = () if host.clock.absolute else _session_anchors(capture.session, high)
    lines = [wire.Announcement(line=wire.LineInfo(device=0, line=line, name=name)) for line, name in host.lines.items()]
    return Draft(source, low, high, epoch, None, rows, snapshots=anchor_snapshots(epoch, anchors), announcements=lines)


def announcement_drafts(source: wire.Source, announcements: Iterable[wire.Announcement]) -> Iterator[Draft]:
    """Drafts without rows that carry many announcements, each within what a header may hold."""
    taken: list[wire.Announcement] = []
    size = 0
    for announcement in announcements:
        if taken and size + announcement.ByteSize() > _ANNOUNCED_BYTES:
            yield Draft(source, announcements=taken)
            taken, size = [], 0
        taken.append(announcement)
        size += announcement.ByteSize()
    if taken:
        yield Draft(source, announcements=taken)


def device_announcements(spans: DeviceSpans, device: wire.Device) -> list[wire.Announcement]:
    """The device and its lines."""
    key = identity.device_id(device.key)
    lines = [
        wire.Announcement(line=wire.LineInfo(device=key, line=line, name=name)) for line, name in spans.lines.items()
    ]
    return [wire.Announcement(device=wire.DeviceInfo(device=device)), *lines]


def name_announcements(capture: Capture) -> list[wire.Announcement]:
    """Names of host annotations and of kernels without an HLO op."""
    names = {name: text for spans in capture.devices for name, text in spans.names.items()}
    names |= capture.host.names if capture.host else {}
    return [wire.Announcement(name=wire.NameInfo(program=program, name=text)) for program, text in names.items()]


def load_announcements(programs: Sequence[Program], at_ns: int) -> list[wire.Announcement]:
    """Which program each id of the process stands for."""
    return [
        wire.Announcement(
            program_load=wire.ProgramLoad(
                program_id=program.module_id, program=program.program, module=program.module, at_ns=at_ns
            )
        )
        for program in programs
    ]


def clock_epoch(clock: Clock, device_key: str) -> wire.ClockEpoch:
    """A clock of the capture as an epoch; wall clocks belong to no device."""
    return wire.ClockEpoch(
        clock=clock.name,
        device="" if clock.absolute else device_key,
        period_num=clock.period_num,
        period_den=clock.period_den,
        width_bits=64,
    )


def anchor_snapshots(epoch: wire.ClockEpoch, anchors: Iterable[tuple[int, int]]) -> list[wire.ClockSnapshot]:
    """(tick, Unix ns) pairs as brackets of no width: the capture states no error, so none is proved. Equal ticks count
    once."""
    return [_snapshot(epoch, tick, unix_ns, ClockFlag.ESTIMATED) for tick, unix_ns in sorted(dict(anchors).items())]


def wall_snapshots(begin_ns: int, end_ns: int) -> list[wire.ClockSnapshot]:
    """The capture's counter is its wall clock. Once a source and ascending: going back would look like a clock that
    was set.
    """
    return [_snapshot(_WALL, unix_ns, unix_ns) for unix_ns in (begin_ns, max(end_ns, begin_ns + 1))]


def _snapshot(clock: wire.ClockEpoch, value: int, at_ns: int, flags: int = 0) -> wire.ClockSnapshot:
    return wire.ClockSnapshot(clock=clock, ref=_COUNTER, value=value, ref_before=at_ns, ref_after=at_ns, flags=flags)


def _anchors(spans: DeviceSpans, session: Session, high: int) -> Sequence[tuple[int, int]]:
    if spans.clock.absolute:
        return ()
    return spans.anchors or _session_anchors(session, high)


def _session_anchors(session: Session, high_ps: int) -> Sequence[tuple[int, int]]:
    return ((0, session.start_ns), (high_ps, session.start_ns + high_ps // 1000))


def _range(rows: pa.RecordBatch, clock: Clock, session: Session) -> tuple[int, int]:
    """Ticks of the session, widened to hold every row; never empty."""
    start = rows.column("start").to_numpy()
    end = start + np.maximum(rows.column("dur").to_numpy(), 0)
    length_ns = max(session.stop_ns - session.start_ns, 0)
    if clock.absolute:
        low, high = session.start_ns, session.start_ns + length_ns
    else:
        low, high = 0, length_ns * clock.period_den // clock.period_num
    if rows.num_rows:
        # + 1: a row of no length at the very end lies inside [from, to) too.
        low, high = min(low, int(start.min())), max(high, int(end.max()) + 1)
    return low, max(high, low + 1)


DeviceOf = Callable[[DeviceSpans], wire.Device]


def capture_drafts(
    capture: Capture, source: wire.Source, device_of: DeviceOf, programs: Sequence[Program], window: wire.Window
) -> Iterator[Draft]:
    """Everything a complete capture gives, names first."""
    session = capture.session
    yield Draft(source, snapshots=wall_snapshots(session.start_ns, session.stop_ns))
    announcements = [*name_announcements(capture), *load_announcements(programs, session.start_ns)]
    yield from announcement_drafts(source, announcements)
    for spans in capture.devices:
        own = wire.Window()
        own.CopyFrom(window)
        own.executions = spans.executions
        yield device_draft(spans, source, device_of(spans), session, own)
    host = host_draft(capture, source)
    if host is not None:
        yield host
