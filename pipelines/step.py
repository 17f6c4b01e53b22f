"""The step table: begin to begin on the host, with what the host did and what its devices did in between.

Begins come from annotations of kind STEP. Executions are given to the step in which they began, times are cut at the
steps' edges. Which step that is, is known only when a *later* begin is known: until then all is carried. Rows are
deltas and add up by key, so late data corrects a step that was written before. A process without annotations gets
steps inferred from the programs of one of its devices (infer.py).

What the host did in a step is exclusive (parts.py): an annotation holds its waits and transfers, and only the rest of
it is dispatch, so the parts of a step are never more than the step.

Executions come from profiler windows and, where there is a PJRT shim, whole: then those of windows give the step its
device time by class and are not counted again.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import pyarrow as pa

from fleetscope.pipelines.infer import LEARN_AGAIN, Leader, Ran, begins, in_launch_order, learn, settled
from fleetscope.pipelines.parts import exclusive
from fleetscope.pipelines.state import PartitionState
from fleetscope.schema.tables import STEP, STEP_PROGRAM
from fleetscope.schema.vocabulary import StepFlag

_I64 = pa.int64()

MARKS = pa.schema(
    [(name, _I64) for name in ("process", "host", "run", "attempt", "rank", "step", "begin_ns", "dur_ns")]
)
"""One STEP annotation."""

PARTS = pa.schema([("process", _I64), ("begin_ns", _I64), ("dur_ns", _I64), ("column", pa.string())])
"""A host span that counts into `column` of its step."""

EXECUTIONS = pa.schema(
    [(name, _I64) for name in ("process", "device", "program", "window", "begin_ns", "dur_ns")]
    + [(name, _I64) for name in ("compute_ns", "collective_ns", "copy_ns", "sparse_core_ns", "queue_ns", "watched")]
    + [("launch", _I64)]
)
"""One execution of a program on a device, with the device's time by class until the next one's begin. `watched`: 1 if
the shim told it, with its launch."""

COVERAGE = pa.schema(
    [(name, _I64) for name in ("process", "host", "run", "attempt", "rank", "begin_ns", "end_ns", "watched")]
)
"""A stretch in which a device of the process was observed, its ops or (`watched`) its executions; says too whose
process it is."""

TABLES = {"marks": MARKS, "parts": PARTS, "executions": EXECUTIONS, "coverage": COVERAGE}

RECENT_STEPS = 64
"""Begins kept per process: late data older than that many steps keeps its raw rows but changes no step."""

PENDING_LIMIT = 2048
"""Two entries an execution: 8 devices and 100 executions a step."""
JOINED_NS = 10_000_000_000
"""Longest stretch of those that are joined: what is given to steps by its begin must not be much longer than a step."""
PATIENCE_NS = 60_000_000_000
"""What waits longer for the end of its step goes to the step that is open."""

_CLASSES = ("compute_ns", "collective_ns", "copy_ns")
_MEASURED = ("sparse_core_ns", "queue_ns")
SUMS = (
    "data_wait_ns",
    "h2d_ns",
    "dispatch_ns",
    "compile_ns",
    "checkpoint_ns",
    "compute_ns",
    "collective_ns",
    "copy_ns",
    "occupancy_ns",
    "watched_ns",
    "queue_ns",
    "d2h_ns",
    "sparse_core_ns",
    "idle_ns",
)


@dataclass(slots=True)
class ProcessSteps:
    """Carried per process. `begins`: [begin_ns, step, annotation_ns, flags, confidence, given_ns], ascending; the last
    is open. annotation_ns: how long its annotation was, 0 once that is given; given_ns: of its host time, to all parts.
    """

    host: int = 0
    run: int = 0
    attempt: int = 0
    rank: int = 0
    source: str = ""
    begins: list[list[int]] = field(default_factory=list)
    cut: bool = False
    """Begins older than those kept were forgotten."""
    ordinal: int = 0
    lead: list[Any] = field(default_factory=list)
    """What the steps are told by, when inferred: infer.Leader as JSON."""
    pending: list[list[Any]] = field(default_factory=list)
    shim: bool = False
    """Its executions are told whole."""

    def to_json(self) -> list[Any]:
        return [
            [self.host, self.run, self.attempt, self.rank],
            self.source,
            self.begins,
            self.cut,
            self.ordinal,
            self.lead,
            self.shim,
            self.pending,
        ]

    @classmethod
    def from_json(cls, value: list[Any]) -> "ProcessSteps":
        identity, source, begins, cut, ordinal, lead, shim, pending = value if len(value) == 8 else _grown(value)
        host, run, attempt, rank = identity
        if any(len(begin) == 5 for begin in begins):
            # A release without given_ns had given the annotations of all steps that were over.
            begins = [[*begin[:2], 0, *begin[3:], 0] for begin in begins[:-1]] + [[*begins[-1], 0]]
        return cls(host, run, attempt, rank, source, begins, cut, ordinal, lead, pending, shim)


SURE = 1000
"""Confidence of a declared step."""


def _grown(value: list[Any]) -> list[Any]:
    """What a release without the shim's executions carried, as it is now: a begin ended with its window, not with a
    confidence, and of executions and coverage less was told."""
    identity, source, begins, cut, ordinal, lead, pending = value
    sure = SURE if source == "declared" else 0
    more: dict[str, list[Any]] = {"exec": [0, 0, 0], "cover": ["covered_ns"]}
    items = [[*item, *more.get(item[0], [])] for item in pending]
    return [identity, source, [[*begin[:4], sure] for begin in begins], cut, ordinal, lead, False, items]


_Rows = dict[tuple[int, int, int], dict[str, Any]]
Least = Callable[[int, int, int], int]
"""(process, device, program) -> ns an execution takes at least; 0: unknown (pipelines.counted.shortest)."""


def advance(
    states: Mapping[int, PartitionState], tables: Mapping[str, pa.Table], now_ns: int, least: Least
) -> tuple[pa.Table, pa.Table]:
    """(STEP rows, STEP_PROGRAM rows) of an epoch; carried steps in `states` move on. `tables` holds those of TABLES by
    name, if any."""
    found = {name: by_process(tables.get(name)) for name in TABLES}
    touched = {process for of_table in found.values() for process in of_table}
    rows: list[dict[str, Any]] = []
    for state in states.values():
        mine = {record.process for record in state.sources.values()}
        ended = {process for process, known in state.processes.items() if known.get("end_ns")}
        overdue = {
            process
            for process, value in state.steps.items()
            if _overdue(value, now_ns, 0 if process in ended else PATIENCE_NS)
        }
        for process in sorted(overdue | (touched & mine)):
            value = state.steps.get(process)
            steps = ProcessSteps.from_json(value) if value else ProcessSteps()
            out: _Rows = {}
            new = {name: found[name].get(process, []) for name in TABLES}
            _advance_process(process, steps, new, now_ns, process in ended, least, out)
            if steps.source or steps.pending:
                state.steps[process] = steps.to_json()
            rows += out.values()
    return pa.Table.from_pylist(rows, schema=STEP), _by_program(rows)


def by_process(table: pa.Table | None) -> dict[int, list[dict[str, Any]]]:
    """Rows of a table, if there is one, by their process."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in table.to_pylist() if table is not None else ():
        found.setdefault(row["process"], []).append(row)
    return found


def _by_program(rows: list[dict[str, Any]]) -> pa.Table:
    keys = ("t_ns", "host", "process", "attempt", "step")
    parts = [
        {**{name: row[name] for name in keys}, "program": program, "executions": executions, "dur_ns": dur_ns}
        for row in rows
        for program, (executions, dur_ns) in row["programs"].items()
    ]
    return pa.Table.from_pylist(parts, schema=STEP_PROGRAM)


def _overdue(value: list[Any], now_ns: int, patience_ns: int) -> bool:
    # Without a begin there is no step to give it to: looking again each epoch would find the same.
    begins, pending = value[2], value[-1]
    return bool(begins and pending) and now_ns - pending[0][1] > patience_ns


def _advance_process(
    process: int,
    steps: ProcessSteps,
    new: Mapping[str, list[dict[str, Any]]],
    now_ns: int,
    ended: bool,
    least: Least,
    out: _Rows,
) -> None:
    for row in (*new["coverage"][:1], *new["marks"][:1]):
        steps.host, steps.run, steps.attempt, steps.rank = row["host"], row["run"], row["attempt"], row["rank"]
    for mark in sorted(new["marks"], key=lambda row: row["begin_ns"]):
        if steps.source == "inferred":
            steps.begins, steps.cut, steps.lead = [], False, []
        steps.source = "declared"
        _begin(process, steps, mark["begin_ns"], mark["step"], mark["dur_ns"], out)
    steps.shim |= any(row["watched"] for row in (*new["coverage"], *new["executions"]))
    steps.pending += [["part", row["begin_ns"], row["column"], row["dur_ns"]] for row in new["parts"]]
    steps.pending += [
        ["cover", row["begin_ns"], row["end_ns"], "watched_ns" if row["watched"] else "covered_ns"]
        for row in new["coverage"]
    ]
    for row in new["executions"]:
        steps.pending.append(["exec", *(row[name] for name in _EXECUTION)])
        if row["watched"] and row["dur_ns"]:
            steps.pending.append(["cover", row["begin_ns"], row["begin_ns"] + row["dur_ns"], "occupancy_ns"])
    if steps.source != "declared":
        overdue = bool(steps.pending) and now_ns - steps.pending[0][1] > PATIENCE_NS
        _infer(process, steps, least, out, final=ended or overdue)
    _assign(process, steps, now_ns, out)
    if len(steps.begins) > RECENT_STEPS:
        del steps.begins[:-RECENT_STEPS]
        steps.cut = True


_EXECUTION = ("begin_ns", "device", "program", "window", "dur_ns", *_CLASSES, *_MEASURED, "watched", "launch")
_LAUNCH = 1 + _EXECUTION.index("launch")


def _row(process: int, steps: ProcessSteps, begin_ns: int, step: int, out: _Rows) -> dict[str, Any]:
    key = (process, step, begin_ns)
    if key not in out:
        out[key] = {
            **dict.fromkeys(SUMS, 0),
            "t_ns": begin_ns,
            "dur_ns": 0,
            "run": steps.run,
            "attempt": steps.attempt,
            "host": steps.host,
            "process": process,
            "rank": steps.rank,
            "step": step,
            "source": steps.source,
            "program": 0,
            "executions": 0,
            "covered_ns": 0,
            "flags": 0,
            "confidence": 0,
            "programs": {},
        }
    return out[key]


def _begin(process: int, steps: ProcessSteps, begin_ns: int, step: int, annotation_ns: int, out: _Rows) -> None:
    """Note a begin; the step before it ends there. Among known begins it cuts a step that was written as longer."""
    begins = steps.begins
    index = bisect_right(begins, begin_ns, key=lambda known: known[0])
    if index and begins[index - 1][0] == begin_ns:
        return
    if index == 0 and begins and steps.cut:
        return
    flags = 0 if begins or steps.cut else int(StepFlag.FIRST)
    begins.insert(index, [begin_ns, step, annotation_ns, flags, SURE if steps.source == "declared" else 0, 0])
    following = begins[index + 1][0] if index + 1 < len(begins) else None
    if index:
        earlier = begins[index - 1]
        row = _row(process, steps, earlier[0], earlier[1], out)
        if following is None:
            row["dur_ns"] += begin_ns - earlier[0]
            row["flags"] |= earlier[3]
            row["confidence"] = max(row["confidence"], earlier[4])
        else:
            row["dur_ns"] -= following - begin_ns
    if following is not None:
        row = _row(process, steps, begin_ns, step, out)
        row["dur_ns"] += following - begin_ns
        row["flags"] |= flags
        row["confidence"] = max(row["confidence"], begins[index][4])


def _infer(process: int, steps: ProcessSteps, least: Least, out: _Rows, *, final: bool) -> None:
    """Begins of steps from the executions of one device, once there are enough of them. `final`: nothing more comes."""
    found: Sequence[Ran] = in_launch_order(
        Ran(*item[1:6], *item[_LAUNCH:])  # an older release carried none
        for item in steps.pending
        if item[0] == "exec" and (not steps.shim or item[11])
    )
    leader = Leader.from_json(steps.lead) if steps.lead else None
    if leader is not None and leader.absent >= LEARN_AGAIN:
        leader = learn([item for item in found if item.begin_ns > leader.begun]) or leader
    if leader is None:
        leader = learn(found)
        if leader is None:
            return
        steps.source = "inferred"
    if not final:
        found = settled(leader, found)
    told = [ran for ran in found if ran.device == leader.device] if steps.shim else []
    at = [ran.begin_ns for ran in told]
    took = [0, *accumulate(least(process, ran.device, ran.program) for ran in told)]
    for begin in begins(leader, found):
        newest = steps.begins[-1] if steps.begins else None
        reordered = int(StepFlag.REORDERED) * begin.reordered
        if newest is not None:
            newest[4] = begin.confidence
            newest[3] |= reordered
            if begin.after_gap:
                steps.begins, steps.cut = [], True
            elif took[bisect_left(at, begin.begin_ns)] - took[bisect_left(at, newest[0])] > begin.begin_ns - newest[0]:
                _mistimed(process, steps, out)
        steps.ordinal += 1
        _begin(process, steps, begin.begin_ns, steps.ordinal, 0, out)
        if steps.begins:
            steps.begins[-1][3] |= int(StepFlag.EVAL) * begin.evaluation | reordered
    steps.lead = leader.to_json()


def _mistimed(process: int, steps: ProcessSteps, out: _Rows) -> None:
    """The step that ends now is impossible: its begin, a completion, was told late, so the one before it is too long.
    Both are flagged: leaving out the short ones alone would make the mean too long."""
    flag = int(StepFlag.MISTIMED)
    for before in steps.begins[-2:-1]:
        if not before[3] & flag:
            before[3] |= flag
            _row(process, steps, before[0], before[1], out)["flags"] |= flag
    steps.begins[-1][3] |= flag


def _assign(process: int, steps: ProcessSteps, now_ns: int, out: _Rows) -> None:
    begins = steps.begins
    waiting: list[list[Any]] = []
    parts: dict[int, list[list[Any]]] = {}
    if not begins:
        steps.pending = _joined(steps.pending)[-PENDING_LIMIT:]
        return
    steps.pending.sort(key=lambda item: item[1])
    overdue = len(steps.pending) - PENDING_LIMIT
    for position, item in enumerate(steps.pending):
        forced = position < overdue or now_ns - item[1] > PATIENCE_NS
        index = bisect_right(begins, item[1], key=lambda known: known[0]) - 1
        last = index == len(begins) - 1
        if item[0] == "cover":
            waiting += _cover(process, steps, item, forced, out)
        elif last and not forced:
            waiting.append(item)
        elif index >= 0:
            if item[0] == "part":
                parts.setdefault(index, []).append(item)
                continue
            begin_ns, step, *_ = begins[index]
            row = _row(process, steps, begin_ns, step, out)
            if item[11] or not steps.shim:
                row["executions"] += 1
                row["program"] = item[3]
                executions, dur_ns = row["programs"].get(item[3], (0, 0))
                row["programs"][item[3]] = (executions + 1, dur_ns + item[5])
            for column, value in zip((*_CLASSES, *_MEASURED), item[6:11], strict=True):
                row[column] += value
    for index in range(len(begins)):
        if index in parts or (begins[index][2] and index + 1 < len(begins)):
            rest = _give(process, steps, index, parts.get(index, []), out)
            if index + 2 < len(begins):
                parts.setdefault(index + 1, []).extend(rest)
            else:
                waiting += rest
    steps.pending = waiting


def _give(process: int, steps: ProcessSteps, index: int, parts: list[list[Any]], out: _Rows) -> list[list[Any]]:
    """Give a step these parts, and its annotation if it is over; what of them lies beyond its end."""
    begin = steps.begins[index]
    row = _row(process, steps, begin[0], begin[1], out)
    stop = steps.begins[index + 1][0] if index + 1 < len(steps.begins) else None
    spans, rest = [], []
    for _, begin_ns, column, dur_ns in parts:
        # Of a declared step, the annotation tells how long the host was dispatching.
        if column == "dispatch_ns" and steps.source == "declared":
            continue
        if column == "compile_ns":
            row["flags"] |= int(StepFlag.AFTER_COMPILE)
        end_ns = begin_ns + dur_ns
        if stop is not None and end_ns > stop:
            rest.append(["part", stop, column, end_ns - stop])
            end_ns = stop
        spans.append((column, begin_ns, end_ns))
    if stop is not None and begin[2]:
        spans.append(("dispatch_ns", begin[0], min(begin[0] + begin[2], stop)))
        begin[2] = 0
    for column, time_ns in exclusive(spans).items():
        # Intervals of what was given before are not kept: what comes late gets at most what nothing had.
        given = time_ns if stop is None else max(0, min(time_ns, stop - begin[0] - begin[5]))
        begin[5] += given
        row[column] += given
    return rest


def _joined(pending: list[list[Any]]) -> list[list[Any]]:
    """Stretches that continue one another as one: a process that never has steps tells one a second and device, and
    each was read and written again every epoch."""
    out: list[list[Any]] = []
    ends: dict[tuple[str, int], list[Any]] = {}
    for item in pending:
        if item[0] != "cover":
            out.append(item)
            continue
        _, begin_ns, end_ns, column = item
        known = ends.pop((column, begin_ns), None)
        if known is None or end_ns - known[1] > JOINED_NS:
            out.append(known := ["cover", begin_ns, end_ns, column])
        known[2] = end_ns
        ends[column, end_ns] = known
    return out


_IDLE = {"watched_ns": 1, "occupancy_ns": -1}
"""Idle is what was watched and not occupied."""


def _cover(process: int, steps: ProcessSteps, item: list[Any], forced: bool, out: _Rows) -> Iterable[list[Any]]:
    """Give a stretch of observed or occupied time to the steps it crosses; what lies in the open step waits."""
    _, begin_ns, end_ns, column = item
    begins = steps.begins
    for index in range(max(0, bisect_right(begins, begin_ns, key=lambda known: known[0]) - 1), len(begins)):
        start = begins[index][0]
        stop = begins[index + 1][0] if index + 1 < len(begins) else None
        if stop is None and not forced:
            return [["cover", max(begin_ns, start), end_ns, column]] if end_ns > start else []
        overlap = min(end_ns, stop if stop is not None else end_ns) - max(begin_ns, start)
        if overlap > 0:
            row = _row(process, steps, start, begins[index][1], out)
            row[column] += overlap
            row["idle_ns"] += _IDLE.get(column, 0) * overlap
        if stop is not None and stop >= end_ns:
            break
    return []
