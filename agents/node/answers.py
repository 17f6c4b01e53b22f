"""What the agent answers to a Query (agents/profiler/protocol.py): itself, its processes, what their threads are in."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fleetscope.agents.node.governor import Governor, about
from fleetscope.agents.node.process import Process
from fleetscope.agents.profiler.protocol import Answer, Query
from fleetscope.schema.vocabulary import Kind

ANSWER_BYTES = 32 << 10
"""Of rows in one answer: half of what the socket's server lets a peer leave unread."""
NAME_CHARACTERS = 200
"""A region's name may have 1 KiB; a table of them is read by people."""

Row = Mapping[str, Any]


def answer(
    query: Query, agent: Callable[[], Row], governor: Governor, processes: Sequence[Process], ticks: Mapping[str, int]
) -> Answer:
    """At most about ANSWER_BYTES of rows, from where the query says; `processes` in an order that stays. `ticks`: now,
    by clock."""
    if query.what == "agent":
        return Answer(query.what, json.dumps([agent()]))
    if query.what == "decisions":
        return Answer(query.what, json.dumps([asdict(decision) for decision in governor.decisions]))
    rows_of: Callable[[Process, int], Iterator[Row]] | None = {
        "processes": lambda process, tick: _process(process, governor, tick),
        "stacks": _stacks,
    }.get(query.what)
    if rows_of is None:
        return Answer(query.what, "[]")
    found: list[str] = []
    size = 0
    wanted = [process for process in processes if query.pid in (0, process.hello.pid)]
    for index in range(max(0, query.process), len(wanted)):
        first = max(0, query.row) if index == query.process else 0
        for number, row in enumerate(rows_of(wanted[index], wanted[index].tick(ticks))):
            if number < first:
                continue
            text = json.dumps(row, separators=(",", ":"))
            if found and size + len(text) > ANSWER_BYTES:
                return Answer(query.what, f"[{','.join(found)}]", index, number, True)
            found.append(text)
            size += len(text)
    return Answer(query.what, f"[{','.join(found)}]")


def _who(process: Process) -> dict[str, Any]:
    return {"pid": process.hello.pid, "run": process.source.run, "rank": process.source.rank}


def _process(process: Process, governor: Governor, now_tick: int) -> Iterator[Row]:
    cost, state, governed = process.cost, process.state(), governor.of(process.key)
    yield {
        **_who(process),
        "state": "ended" if process.final else "connected" if process.connected else "silent",
        "recording": bool(state is not None and not state.closed),
        "step": state.step if state is not None else -1,
        "open_ns": process.open_ns(now_tick),
        "events": state.events if state is not None else 0,
        "no_ring": state.no_ring if state is not None else 0,
        "abandoned": state.abandoned if state is not None else 0,
        "windows": cost.windows,
        "windows_skipped": sum(cost.skipped.values()),
        "windows_lost": sum(cost.dropped.values()),
        "windows_off": cost.breaker,
        "stall_ns": cost.stall_ns,
        "step_ns": cost.period_ns,
        "window_stop_ns": cost.stop_ns,
        "thread_cpu_ns": cost.thread_cpu_ns,
        "harvest_ns": cost.harvest_ns,
        "level": governed.rung,
        "window_level": governed.window_shift,
        "records": about(governor.rung(process.key), governed.thin),
        "recorder_ratio": governed.shares.recorder,
        "windows_ratio": governed.windows,
        "agent_ratio": governed.shares.drain + governed.decode,
    }


def _stacks(process: Process, now_tick: int) -> Iterator[Row]:
    for region in process.open_regions():
        yield {
            **_who(process),
            "tid": region.tid,
            "thread": _text(process, region.thread) if region.thread else f"thread {region.tid}",
            "depth": region.depth,
            "region": _text(process, region.name),
            "kind": _kind(region.kind),
            "open_ns": process.age_ns(region.start, now_tick),
        }


def _text(process: Process, name: int) -> str:
    return process.name_told(name)[:NAME_CHARACTERS]


def _kind(number: int) -> str:
    try:
        return Kind(number).name.lower()
    except ValueError:
        return str(number)
