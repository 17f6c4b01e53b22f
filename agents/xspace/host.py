"""Host lines: annotations, runtime calls, kernel launches. `program` is the hash of the name; wall-clock time."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fleetscope.agents.batches import clean_text
from fleetscope.agents.xspace.device import join_rows
from fleetscope.agents.xspace.events import Events, name_codes
from fleetscope.agents.xspace.session import Clock, Session, host_clock, in_session
from fleetscope.agents.xspace.threads import ThreadNumbers
from fleetscope.agents.xspace.views import Ints
from fleetscope.schema.identity import name_program
from fleetscope.schema.vocabulary import Kind


@dataclass(frozen=True, slots=True)
class HostSpans:
    """Spans of a process's threads. `lines`: line -> thread name; `names`: program -> annotation name."""

    clock: Clock
    rows: pa.RecordBatch
    lines: Mapping[int, str]
    names: Mapping[int, str]


def host_spans(events: Events, session: Session, threads: ThreadNumbers) -> HostSpans:
    """A root event with a step number is a STEP; what it encloses on its thread carries the number.

    `flow` is the correlation id of a launch, else the context id that links a producer to its consumer. Other stats
    of host events (allocator sizes, shapes) are not carried.
    """
    timed = in_session(events, session)
    events = timed.events
    clock, start, dur = host_clock(timed, session)
    codes, names = name_codes(events)
    names = [clean_text(name) for name in names]
    hashes = np.array([*(name_program(name) for name in names), 0], np.int64)
    lines, line_names = threads.number(events)
    is_step = (events.ints("is_root") == 1) & events.present("step_num")
    rows = join_rows(
        [
            {
                "start": start,
                "dur": dur,
                "line": lines,
                "kind": np.where(is_step, int(Kind.STEP), int(Kind.HOST)),
                "program": hashes[codes],
                "step": _steps(lines, start, dur, is_step, events.ints("step_num", -1)),
                "flow": _flows(events),
            }
        ]
    )
    used = np.unique(codes[codes >= 0]).tolist()
    return HostSpans(clock, rows, line_names, {int(hashes[code]): names[code] for code in used})


def _steps(lines: Ints, start: Ints, dur: Ints, is_step: Ints, number: Ints) -> Ints:
    """The step each event lies in, by its begin; steps of one thread follow each other."""
    out = np.full(len(start), -1, np.int64)
    at = np.flatnonzero(is_step)
    for line in np.unique(lines[at]):
        of_line = at[lines[at] == line]
        of_line = of_line[np.argsort(start[of_line], kind="stable")]
        inside = np.flatnonzero(lines == line)
        position = np.searchsorted(start[of_line], start[inside], side="right") - 1
        holder = of_line[np.maximum(position, 0)]
        held = (position >= 0) & (start[inside] + dur[inside] <= start[holder] + dur[holder])
        out[inside] = np.where(held, number[holder], -1)
    return out


def _flows(events: Events) -> Ints:
    link = np.where(
        events.present("consumer_id"),
        link_id(events.ints("consumer_type"), events.ints("consumer_id")),
        np.where(
            events.present("producer_id"),
            link_id(events.ints("producer_type"), events.ints("producer_id")),
            0,
        ),
    )
    correlation = events.ints("correlation_id")
    return np.where(correlation != 0, correlation, link)


def link_id(context_type: Ints, context_id: Ints) -> Ints:
    """One number for a (context type, id) pair, so that ids of two types do not meet. Wraps by design."""
    mixed = context_id.view(np.uint64) ^ (context_type.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return mixed.view(np.int64)
