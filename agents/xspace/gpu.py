"""GPU planes, and any accelerator whose plane has streams: kernels and copies in host time, as CUPTI and ROCm
converted it.

Only stream lines are work. "Steps", "XLA Modules", "XLA Ops", framework ops and name scopes of such a plane are
derived from the streams, often at view time (xprof.md 3.2), and would count everything twice.
"""

import numpy as np

from fleetscope.agents.batches import clean_text
from fleetscope.agents.xspace.device import DeviceSpans, join_rows
from fleetscope.agents.xspace.events import events_of, name_codes
from fleetscope.agents.xspace.kinds import kind_of_kernel
from fleetscope.agents.xspace.optables import OpTables, kinds_or
from fleetscope.agents.xspace.planes import DevicePlane, stream_number
from fleetscope.agents.xspace.session import Session, host_clock, impossible_count, in_session
from fleetscope.native.xspace import XSpace
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag


def gpu_spans(space: XSpace, plane: DevicePlane, session: Session, tables: OpTables) -> DeviceSpans | None:
    """Spans of one device; None where nothing ran on it. Line = stream number, or position where the name has none."""
    derived = (*plane.module_lines, *plane.step_lines, *plane.other_lines)
    events = events_of(space, plane.op_lines)
    if not len(events.rows):
        return None
    timed = in_session(events, session)
    events = timed.events
    clock, start, dur = host_clock(timed, session)
    found = tables.resolve(events.ints("program_id"), events.texts("hlo_op"), events.texts("hlo_module"))

    codes, kernels = name_codes(events)
    kernels = [clean_text(kernel) for kernel in kernels]
    by_name = np.array([*(kind_of_kernel(kernel) or 0 for kernel in kernels), 0], np.uint8)[codes]
    by_name = np.where(events.texts("memcpy_details").codes >= 0, np.uint8(Kind.COPY), by_name)
    kind = np.where(by_name != 0, by_name, kinds_or(found.kind, Kind.COMPUTE))

    # A kernel without an HLO op (a library's, a framework's without XLA) is known by its own name.
    free = found.program == 0
    hashes = np.array([*(name_program(kernel) for kernel in kernels), 0], np.int64)
    program = np.where(free, hashes[codes], found.program)
    names = {int(hashes[code]): kernels[code] for code in np.unique(codes[free]).tolist() if code >= 0}

    numbers = [stream_number(line) for line in plane.op_lines]
    lines = [i if number is None else number for i, number in enumerate(numbers)]
    rows = join_rows(
        [
            {
                "start": start,
                "dur": dur,
                "line": np.array(lines, np.int64)[events.line],
                "kind": kind,
                "program": program,
                "op": found.op,
                "flow": events.ints("correlation_id"),
                "flags": np.where(found.provisional, SpanFlag.PROVISIONAL_PROGRAM, 0),
            }
        ]
    )
    stats = plane.stats
    capability = f"{stats.get('compute_cap_major', '?')}.{stats.get('compute_cap_minor', '?')}"
    described = f"{stats.get('device_vendor') or 'GPU'} {capability}, {stats.get('core_count', '?')} cores"
    return DeviceSpans(
        plane.platform,
        plane.ordinal,
        plane.name,
        str(stats.get("gpu_device_name") or described),
        clock,
        rows,
        dict(zip(lines, (line.name for line in plane.op_lines), strict=True)),
        names,
        skipped={line.name: line.count for line in derived if line.count} | impossible_count(timed),
        stats=stats,
    )
