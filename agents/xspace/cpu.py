"""XLA:CPU: there is no device plane; thunks are events of host threads that name an HLO op. The device is
cpu:<ordinal>.

Launches of GPU kernels name an HLO op on host threads too; they carry a correlation id, and are host work.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleetscope.agents.xspace.device import DeviceSpans, join_rows
from fleetscope.agents.xspace.events import Events
from fleetscope.agents.xspace.optables import OpTables, kinds_or
from fleetscope.agents.xspace.session import Session, host_clock, impossible_count, in_session
from fleetscope.agents.xspace.threads import ThreadNumbers
from fleetscope.agents.xspace.views import Ints
from fleetscope.schema.vocabulary import Kind, SpanFlag

MODULE_LINE = 0
"""Line of the executions we infer; thread numbers start at 1."""


def device_ops(host: Events, accelerators: bool) -> Ints:
    """Which of the host's events are ops of the CPU as a device. Files older than `device_ordinal` mean device 0,
    unless the capture has accelerators.
    """
    ops = host.present("hlo_op") & ~host.present("correlation_id")
    if accelerators:
        ops &= host.present("device_ordinal")
    ordinal = host.ints("device_ordinal")
    ops &= (ordinal >= 0) & (ordinal <= 0x7FFFFFFF)
    return np.flatnonzero(ops).astype(np.int64)


def cpu_spans(ops: Events, session: Session, tables: OpTables, threads: ThreadNumbers) -> list[DeviceSpans]:
    """Spans of each CPU device. `exec` is the runtime's run_id; an execution's own span reaches from its first op to
    its last, and is flagged TRUNCATED where the capture cut it (first or last of its program, with fewer ops than the
    most).
    """
    ordinals = ops.ints("device_ordinal")
    return [
        _one_device(ops.select(np.flatnonzero(ordinals == ordinal)), ordinal, session, tables, threads)
        for ordinal in np.unique(ordinals).tolist()
    ]


def _one_device(ops: Events, ordinal: int, session: Session, tables: OpTables, threads: ThreadNumbers) -> DeviceSpans:
    timed = in_session(ops, session)
    ops = timed.events
    clock, start, dur = host_clock(timed, session)
    program_id, run = ops.ints("program_id"), ops.ints("run_id", -1)
    modules = ops.texts("hlo_module")
    found = tables.resolve(program_id, ops.texts("hlo_op"), modules)
    lines, line_names = threads.number(ops)
    parts: list[dict[str, ArrayLike]] = [
        {
            "start": start,
            "dur": dur,
            "line": lines,
            "kind": kinds_or(found.kind, Kind.COMPUTE),
            "program": found.program,
            "op": found.op,
            "exec": run,
            "flags": np.where(found.provisional, SpanFlag.PROVISIONAL_PROGRAM, 0),
        }
    ]
    runs, first_row, inverse, counts = np.unique(run, return_index=True, return_inverse=True, return_counts=True)
    known = runs >= 0
    begin = np.full(len(runs), np.iinfo(np.int64).max)
    end = np.full(len(runs), np.iinfo(np.int64).min)
    np.minimum.at(begin, inverse, start)
    np.maximum.at(end, inverse, start + dur)
    ids = program_id[first_row]
    named = modules.codes[first_row]
    texts = dict(zip(named.tolist(), modules.at(np.maximum(named, 0)), strict=True)) if np.any(named >= 0) else {}
    texts[-1] = ""
    programs = [tables.program_of(id_, texts[code]) for id_, code in zip(ids.tolist(), named.tolist(), strict=True)]
    flags = np.full(len(runs), int(SpanFlag.INFERRED_BEGIN))
    flags |= np.where([provisional for _, provisional in programs], int(SpanFlag.PROVISIONAL_PROGRAM), 0)
    flags |= np.where(_cut(ids, begin, end, counts), int(SpanFlag.TRUNCATED), 0)
    parts.append(
        {
            "start": begin[known],
            "dur": (end - begin)[known],
            "line": np.full(int(known.sum()), MODULE_LINE),
            "kind": np.full(int(known.sum()), int(Kind.MODULE)),
            "program": np.array([program for program, _ in programs], np.int64)[known],
            "exec": runs[known],
            "flags": flags[known],
        }
    )
    return DeviceSpans(
        "cpu", ordinal, f"cpu:{ordinal}", "cpu", clock, join_rows(parts), {MODULE_LINE: "executions", **line_names},
        executions=int(known.sum()), skipped=impossible_count(timed),
    )  # fmt: skip


def _cut(program: Ints, begin: Ints, end: Ints, counts: Ints) -> NDArray[np.bool_]:
    """Executions at an edge of the capture that miss ops, as far as counting can tell."""
    cut = np.zeros(len(program), np.bool_)
    for id_ in np.unique(program):
        of = np.flatnonzero(program == id_)
        most = counts[of].max()
        for edge in {int(of[begin[of].argmin()]), int(of[end[of].argmax()])}:
            cut[edge] = counts[edge] < most
    return cut
