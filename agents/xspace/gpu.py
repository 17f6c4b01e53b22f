"""GPU planes, and any accelerator whose plane has streams: kernels and copies in host time, as CUPTI and ROCm
converted it.

Only stream lines are work. "Steps", "XLA Modules", "XLA Ops", framework ops and name scopes of such a plane are
derived from the streams, often at view time (xprof.md 3.2), and would count everything twice. A plane without streams,
a third party's, has op lines and module lines of its own: its executions are taken as it tells them.
"""

import numpy as np
from numpy.typing import ArrayLike

from fleetscope.agents.batches import clean_text
from fleetscope.agents.xspace.device import DeviceSpans, join_rows
from fleetscope.agents.xspace.events import events_of, name_codes
from fleetscope.agents.xspace.kinds import kind_of_kernel
from fleetscope.agents.xspace.optables import OpTables, kinds_or
from fleetscope.agents.xspace.planes import DevicePlane, stream_number
from fleetscope.agents.xspace.session import Clock, Session, host_clock, impossible_count, in_session
from fleetscope.agents.xspace.tpu import Intervals
from fleetscope.native.xspace import XSpace
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag


def gpu_spans(space: XSpace, plane: DevicePlane, session: Session, tables: OpTables) -> DeviceSpans | None:
    """Spans of one device; None where nothing ran on it. Line = stream number, or position where the name has none."""
    numbers = [stream_number(line) for line in plane.op_lines]
    own_modules = plane.module_lines if all(number is None for number in numbers) else ()
    derived = (*(() if own_modules else plane.module_lines), *plane.step_lines, *plane.other_lines)
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
    told = [tables.told(kernel) for kernel in kernels]
    hashes = np.array([*(name_program(kernel) for kernel in told), 0], np.int64)
    program = np.where(free, hashes[codes], found.program)
    names = {int(hashes[code]): told[code] for code in np.unique(codes[free]).tolist() if code >= 0}

    lines = [i if number is None else number for i, number in enumerate(numbers)]
    modules = Intervals(in_session(events_of(space, own_modules), session))
    work: dict[str, ArrayLike] = {
        "start": start,
        "dur": dur,
        "line": np.array(lines, np.int64)[events.line],
        "kind": kind,
        "program": program,
        "op": found.op,
        "exec": np.append(modules.run_id, -1)[modules.holding(timed.begin)],
        "flow": events.ints("correlation_id"),
        "flags": np.where(found.provisional, SpanFlag.PROVISIONAL_PROGRAM, 0),
    }
    executions = _executions(modules, clock, session, tables) | {"line": len(lines)}
    rows = join_rows([work, executions])
    stats = plane.stats
    capability = f"{stats.get('compute_cap_major', '?')}.{stats.get('compute_cap_minor', '?')}"
    described = f"{stats.get('device_vendor') or 'GPU'} {capability}, {stats.get('core_count', '?')} cores"
    return DeviceSpans(
        plane.platform,
        plane.ordinal,
        plane.name,
        str(stats.get("gpu_device_name") or (described if "compute_cap_major" in stats else "")),
        clock,
        rows,
        dict(zip(lines, (line.name for line in plane.op_lines), strict=True))
        | ({len(lines): "XLA Modules"} if len(modules.start) else {}),
        names,
        executions=len(modules.start),
        skipped={line.name: line.count for line in derived if line.count} | impossible_count(timed),
        stats=stats,
    )


def _executions(modules: Intervals, clock: Clock, session: Session, tables: OpTables) -> dict[str, ArrayLike]:
    """Rows of module events, whose begins are told, not inferred."""
    start, dur = modules.start, modules.end - modules.start
    if clock.absolute:
        start, dur = session.start_ns + start // 1000, dur // 1000
    told: dict[str, ArrayLike] = {"start": start, "dur": dur, "kind": Kind.MODULE, "exec": modules.run_id}
    return told | modules.programs(tables)
