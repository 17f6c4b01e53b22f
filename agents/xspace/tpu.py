"""TPU planes: ops in raw device time, executions and steps from what they enclose.

`device_offset_ps / device_duration_ps` are the truth; the capture's own timeline displaces half of the ops (xprof.md
5.3) and is only reported. Modules and steps have aligned times alone, so they get the raw time of the ops inside
them. Asynchronous ops and trace marks have no raw time and repeat what the op line says: they are no spans.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fleetscope.agents.xspace.declared import module_of
from fleetscope.agents.xspace.device import DeviceSpans, join_rows
from fleetscope.agents.xspace.drift import fit_line
from fleetscope.agents.xspace.events import Events, events_of, name_codes
from fleetscope.agents.xspace.kinds import instruction_of, kind_of_category
from fleetscope.agents.xspace.optables import OpTables, kinds_or
from fleetscope.agents.xspace.planes import DevicePlane
from fleetscope.agents.xspace.session import TPU_RAW, TPU_RAW_PS, Session, Timed, impossible_count, in_session
from fleetscope.agents.xspace.views import Ints, Texts
from fleetscope.native.xspace import XSpace
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind, SpanFlag

STEP_LINE, MODULE_LINE, FIRST_OP_LINE = 1, 2, 3
"""Numbers of a TPU's lines; op lines of its SparseCores follow."""


def tpu_spans(space: XSpace, plane: DevicePlane, session: Session, tables: OpTables) -> DeviceSpans | None:
    """Spans of one core; None where it recorded no op with raw time."""
    ops = events_of(space, plane.op_lines)
    has_raw = ops.present("device_offset_ps") & ops.present("device_duration_ps")
    skipped = {line.name: line.count for line in plane.other_lines if line.count}
    if not has_raw.all():
        skipped["no raw device time"] = int((~has_raw).sum())
        ops = ops.select(np.flatnonzero(has_raw))
    timed = in_session(ops, session, "device_offset_ps", "device_duration_ps")
    ops, aligned = timed.events, timed.begin
    skipped |= impossible_count(timed)
    if not len(ops.rows):
        return None
    raw, raw_dur = ops.ints("device_offset_ps"), ops.ints("device_duration_ps")
    whole = not (np.any(raw % 1250) or np.any(raw_dur % 1250))
    clock, unit = (TPU_RAW, 1250) if whole else (TPU_RAW_PS, 1)
    start, dur = raw // unit, raw_dur // unit

    modules = Intervals(in_session(events_of(space, plane.module_lines), session))
    steps = Intervals(in_session(events_of(space, plane.step_lines), session))
    in_module, in_step = modules.holding(aligned), steps.holding(aligned)
    names = Texts(*_instruction_names(ops))
    found = tables.resolve(ops.metadata_ints("program_id"), names)
    kind = kinds_or(np.where(found.provisional, _category_kinds(ops, found.kind), found.kind), Kind.OTHER)
    kind = _on_sparse_cores(kind, ops.line, plane)

    step_numbers = steps.numbers()
    columns: list[dict[str, ArrayLike]] = [
        {
            "start": start,
            "dur": dur,
            "line": FIRST_OP_LINE + ops.line,
            "kind": kind,
            "program": found.program,
            "op": found.op,
            "exec": np.append(modules.run_id, -1)[in_module],
            "step": np.append(step_numbers, -1)[in_step],
            "flow": ops.ints("flow") | ops.ints("all_reduce_unique_id"),
            "flags": np.where(found.provisional, SpanFlag.PROVISIONAL_PROGRAM, 0),
        },
        _enclosing(modules, in_module, start, dur, aligned, unit)
        | {"line": MODULE_LINE, "kind": Kind.MODULE, "exec": modules.run_id}
        | modules.programs(tables, SpanFlag.INFERRED_BEGIN),
        _enclosing(steps, in_step, start, dur, aligned, unit)
        | {"line": STEP_LINE, "kind": Kind.STEP, "program": name_program("step"), "step": step_numbers},
    ]
    fit = fit_line(raw, aligned)
    ends = (int(raw.min()), int((raw + raw_dur).max()))
    return DeviceSpans(
        "tpu",
        plane.ordinal,
        plane.name,
        str(plane.stats.get("device_type_string") or "TPU"),
        clock,
        join_rows(columns),
        ({STEP_LINE: "Steps"} if len(steps.start) else {})
        | ({MODULE_LINE: "XLA Modules"} if len(modules.start) else {})
        | {FIRST_OP_LINE + i: line.name for i, line in enumerate(plane.op_lines)},
        executions=len(modules.run_id),
        skipped=skipped,
        anchors=tuple(
            (end // unit, session.start_ns + round((end + fit.intercept_ps + fit.slope * end) / 1000)) for end in ends
        ),
        stats=plane.stats,
    )


class Intervals:
    """Disjoint intervals of a line, in aligned time, sorted."""

    def __init__(self, timed: Timed) -> None:
        order = np.argsort(timed.begin, kind="stable")
        events = timed.events.select(order)
        self.start: Ints = timed.begin[order]
        self.end: Ints = self.start + timed.dur[order]
        self.run_id: Ints = events.ints("run_id", -1)
        self.codes, self.names = name_codes(events)

    def holding(self, aligned: Ints) -> Ints:
        """Position of the interval that holds each time; -1 for none."""
        if not len(self.start):
            return np.full(len(aligned), -1, np.int64)
        at = np.searchsorted(self.start, aligned, side="right") - 1
        return np.where((at >= 0) & (aligned < self.end[at]), at, -1).astype(np.int64)

    def numbers(self) -> Ints:
        """Names as numbers (a step's name is its number); -1 where they are none."""
        values = [int(name) if name.isdigit() and len(name) < 19 else -1 for name in self.names]
        return np.append(np.array(values, np.int64), -1)[self.codes]

    def programs(self, tables: OpTables, flags: int = 0) -> dict[str, ArrayLike]:
        """Their programs, and `flags` of all with what is known of each program."""
        pairs = []
        for name in self.names:
            module, program_id = module_of(name)
            pairs.append((name_program(module), False) if program_id is None else tables.program_of(program_id, module))
        program = np.array([program for program, _ in pairs] + [0], np.int64)[self.codes]
        provisional = np.array([flag for _, flag in pairs] + [False])[self.codes]
        return {"program": program, "flags": flags | np.where(provisional, SpanFlag.PROVISIONAL_PROGRAM, 0)}


def _enclosing(
    outer: Intervals, inside: Ints, start: Ints, dur: Ints, aligned: Ints, unit: int
) -> dict[str, ArrayLike]:
    """Raw interval of each outer event: from its first op to its last. One without ops keeps its length, placed by the
    shift between the clocks at the op nearest to it."""
    count = len(outer.start)
    first = np.full(count, np.iinfo(np.int64).max)
    last = np.full(count, np.iinfo(np.int64).min)
    held = inside >= 0
    np.minimum.at(first, inside[held], start[held])
    np.maximum.at(last, inside[held], (start + dur)[held])
    empty = np.flatnonzero(first > last)
    if len(empty):
        order = np.argsort(aligned, kind="stable")
        nearest = order[np.clip(np.searchsorted(aligned[order], outer.start[empty]), 0, len(order) - 1)]
        first[empty] = start[nearest] - (aligned[nearest] - outer.start[empty]) // unit
        last[empty] = first[empty] + (outer.end - outer.start)[empty] // unit
    return {"start": first, "dur": last - first}


def _on_sparse_cores(kind: NDArray[np.uint8], line: Ints, plane: DevicePlane) -> NDArray[np.uint8]:
    """What the SparseCores compute is no time of the main cores; their copies and collectives are what they are
    anywhere."""
    beside = np.array(["Sparse Core" in held.name for held in plane.op_lines], np.bool_)
    computing = np.isin(kind, [int(Kind.COMPUTE), int(Kind.OTHER)])
    return np.where(beside[line] & computing, np.uint8(Kind.SPARSE_CORE), kind)


def _instruction_names(ops: Events) -> tuple[Ints, pa.Array]:
    """An op's instruction name: display_name, or the head of the HLO text that older captures give."""
    codes, names = name_codes(ops, "display_name")
    _, texts = name_codes(ops, "name")
    plain = [name or instruction_of(text) for name, text in zip(names, texts, strict=True)]
    return codes, pa.array(plain, pa.string())


def _category_kinds(ops: Events, otherwise: NDArray[np.uint8]) -> NDArray[np.uint8]:
    categories = ops.metadata_texts("hlo_category")
    used, inverse = np.unique(categories.codes, return_inverse=True)
    known = used >= 0
    kinds = np.zeros(len(used), np.uint8)
    kinds[known] = [int(kind_of_category(text)) for text in categories.at(used[known])]
    return np.where(categories.codes >= 0, kinds[inverse], otherwise)
