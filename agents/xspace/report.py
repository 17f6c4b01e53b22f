"""What a capture says of itself, beside what its spans carry: for the person who imports a file.

A TPU capture has two views of time. Spans carry raw device time. The capture's own view is the aligned timeline that
XProf shows: its duty cycle, and how far its placement of each op strays from raw time once the drift both clocks
share is removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fleetscope.agents.programs.optable import Program
from fleetscope.agents.xspace.capture import Capture
from fleetscope.agents.xspace.device import DeviceSpans
from fleetscope.agents.xspace.drift import fit_line
from fleetscope.agents.xspace.events import events_of
from fleetscope.agents.xspace.planes import DevicePlane, device_planes
from fleetscope.agents.xspace.session import Session, in_session
from fleetscope.agents.xspace.views import Ints
from fleetscope.native.xspace import XSpace
from fleetscope.schema.hardware import find_sku
from fleetscope.schema.vocabulary import DEVICE_WORK

DISPLACED_PS = 1_000_000_000
"""An op is displaced when the two views place its begin more than 1 ms apart."""

_CONFLICT = 0.01


def union_ticks(start: Ints, dur: Ints) -> int:
    """Length of the union of intervals."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    begin, end = start[order], np.maximum.accumulate((start + dur)[order])
    covered = np.concatenate([begin[:1], end[:-1]])
    return int(np.maximum(end - np.maximum(begin, covered), 0).sum())


@dataclass(frozen=True, slots=True)
class OwnView:
    """The aligned timeline of one device. `span_ps`: from the first begin to the last end of its ops and modules."""

    busy_ps: int
    span_ps: int
    drift_ppm: float
    displaced: int


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device. FLOPs and bytes are the capture's own declarations times executions; None where it declares none."""

    name: str
    sku: str
    ops: int
    busy_ps: int
    executions: int
    flops: int | None
    bytes_accessed: int | None
    bytes_hbm: int | None
    category_ps: Mapping[str, tuple[int, int]]
    """HLO category -> (ops, time summed over them); "" for work without an HLO op."""
    peak_flops: float | None
    peak_hbm_bytes_per_s: float | None
    conflicts: Sequence[str]
    """Claims that differ by more than 1 % from schema/hardware.json, which wins."""
    own: OwnView | None
    skipped: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CaptureReport:
    """Everything `import` prints."""

    hostnames: Sequence[str]
    start_ns: int
    start_stated: bool
    devices: Sequence[DeviceReport]
    host_events: int
    programs: int
    unreadable_programs: int
    errors: Sequence[str]
    warnings: Sequence[str]
    replaced_utf8: int

    @property
    def duty(self) -> float | None:
        """Sum of aligned busy time / sum of aligned span; None without aligned views."""
        views = [device.own for device in self.devices if device.own is not None]
        span = sum(view.span_ps for view in views)
        return sum(view.busy_ps for view in views) / span if span else None

    @property
    def displaced(self) -> int:
        """Ops of all devices that the two views place more than 1 ms apart."""
        return sum(device.own.displaced for device in self.devices if device.own is not None)

    @property
    def ops(self) -> int:
        return sum(device.ops for device in self.devices)


def capture_report(
    space: XSpace, capture: Capture, programs: Sequence[Program], unreadable_programs: int = 0
) -> CaptureReport:
    """Report of a converted capture; `programs` are those its spans were resolved with."""
    planes = {(plane.platform, plane.ordinal): plane for plane in device_planes(space)}
    ops = _OpFacts(programs)
    devices = [
        _device(space, spans, planes.get((spans.platform, spans.ordinal)), capture.session, ops)
        for spans in capture.devices
    ]
    return CaptureReport(
        capture.hostnames,
        capture.session.start_ns,
        capture.session.stated,
        devices,
        capture.host.rows.num_rows if capture.host else 0,
        len(programs),
        unreadable_programs,
        space.errors,
        space.warnings,
        space.replaced_utf8,
    )


class _OpFacts:
    """(program, op) -> category and declared numbers."""

    columns = ("declared_flops", "declared_bytes", "declared_bytes_hbm")

    def __init__(self, programs: Sequence[Program]) -> None:
        self._facts: dict[tuple[int, int], tuple[str, tuple[int | None, ...]]] = {}
        for program in programs:
            categories = program.ops.column("category").to_pylist()
            numbers = zip(*(program.ops.column(name).to_pylist() for name in self.columns), strict=True)
            for op, category, declared in zip(program.ops.column("op").to_pylist(), categories, numbers, strict=True):
                self._facts[program.program, op] = (category, declared)

    def find(self, program: int, op: int) -> tuple[str, tuple[int | None, ...]]:
        return self._facts.get((program, op), ("", (None, None, None)))


def _device(
    space: XSpace, spans: DeviceSpans, plane: DevicePlane | None, session: Session, facts: _OpFacts
) -> DeviceReport:
    columns = {name: spans.rows.column(name).to_numpy() for name in ("start", "dur", "kind", "program", "op")}
    work = np.isin(columns["kind"], [int(kind) for kind in DEVICE_WORK])
    start, dur = columns["start"][work], columns["dur"][work]
    ops, inverse, counts = np.unique(
        np.stack([columns["program"][work], columns["op"][work].astype(np.int64)]),
        axis=1,
        return_inverse=True,
        return_counts=True,
    )
    ticks = np.zeros(len(counts), np.int64)
    np.add.at(ticks, inverse.reshape(-1), dur)
    totals: list[int | None] = [None] * len(facts.columns)
    categories: dict[str, tuple[int, int]] = {}
    for program, op, count, spent in zip(*ops.tolist(), counts.tolist(), ticks.tolist(), strict=True):
        category, declared = facts.find(program, op)
        seen, ps = categories.get(category, (0, 0))
        categories[category] = (seen + count, ps + _ps(spans, spent))
        for i, value in enumerate(declared):
            if value is not None:
                totals[i] = (totals[i] or 0) + value * count
    peak, bandwidth = _claims(spans)
    return DeviceReport(
        spans.name,
        spans.sku,
        int(work.sum()),
        _ps(spans, union_ticks(start, dur)),
        spans.executions,
        flops=totals[0],
        bytes_accessed=totals[1],
        bytes_hbm=totals[2],
        category_ps=categories,
        peak_flops=peak,
        peak_hbm_bytes_per_s=bandwidth,
        conflicts=_conflicts(spans.sku, peak, bandwidth),
        own=_own_view(space, plane, session) if plane is not None and spans.platform == "tpu" else None,
        skipped=spans.skipped,
    )


def _ps(spans: DeviceSpans, ticks: int) -> int:
    return ticks * 1000 * spans.clock.period_num // spans.clock.period_den


def _claims(spans: DeviceSpans) -> tuple[float | None, float | None]:
    peak = spans.stats.get("peak_teraflops_per_second")
    bandwidth = spans.stats.get("peak_hbm_bw_gigabytes_per_second")
    if bandwidth is None and spans.stats.get("memory_bandwidth"):
        bandwidth = spans.stats["memory_bandwidth"] / 1e9
    return (None if peak is None else peak * 1e12), (None if bandwidth is None else bandwidth * 1e9)


def _conflicts(sku: str, peak: float | None, bandwidth: float | None) -> list[str]:
    known = find_sku(sku)
    if known is None:
        return []
    pairs = {"peak_flops": (peak, known.best_peak()), "hbm_bandwidth": (bandwidth, known.hbm_bandwidth)}
    return [
        f"{name}: capture {claimed:g}, hardware.json {ours:g}"
        for name, (claimed, ours) in pairs.items()
        if claimed is not None and abs(claimed - ours) > _CONFLICT * ours
    ]


def _own_view(space: XSpace, plane: DevicePlane, session: Session) -> OwnView | None:
    ops = in_session(events_of(space, plane.op_lines), session, "device_offset_ps")
    modules = in_session(events_of(space, plane.module_lines), session)
    if not len(ops.begin):
        return None
    begin = np.concatenate([ops.begin, modules.begin])
    end = np.concatenate([ops.begin + ops.dur, modules.begin + modules.dur])
    raw = ops.events.ints("device_offset_ps")
    has_raw = ops.events.present("device_offset_ps")
    line = fit_line(raw[has_raw], ops.begin[has_raw]) if has_raw.any() else None
    strayed = 0
    if line is not None:
        strayed = int((np.abs(line.residual_ps(raw[has_raw], ops.begin[has_raw])) > DISPLACED_PS).sum())
    span = int(end.max() - begin.min())
    return OwnView(union_ticks(ops.begin, ops.dur), span, 0.0 if line is None else line.ppm, strayed)
