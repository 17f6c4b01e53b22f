"""Links put together: which span goes on with what which other made, and what the clocks say of their order.

Pure: spans in, edges out. What is decided here and why: docs/design/0020-flows.md.
"""

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Key = tuple[int, int]
"""(context type, context id)"""


MANY = 64
"""Producers a consumer is joined with, the newest of its use: XProf's own limit for a context (64 x 64). An id that
everybody uses would make edges in the square of its spans."""

_ROUNDING_NS = 2


@dataclass(frozen=True, slots=True)
class Clock:
    """What placed a span. `err_ns`: how far its time may be off; None: no bound is known."""

    epoch: int
    err_ns: int | None
    period_num: int
    period_den: int


@dataclass(frozen=True, slots=True)
class Span:
    """A span with links. `group`: its attempt, or its host where it is of no run. `tick`: its begin by its own clock, 0
    without one."""

    process: int
    seq: int
    line: int
    host: int
    group: int
    t_ns: int
    tick: int
    dur_ns: int
    clock: Clock | None
    produces: frozenset[Key]
    consumes: frozenset[Key]

    @property
    def id(self) -> tuple[int, int]:
        """What tells it from others."""
        return self.process, self.seq

    @property
    def end_ns(self) -> int:
        return self.t_ns + self.dur_ns


def apart(first: Span, second: Span) -> tuple[int, int | None]:
    """(ns from the begin of `first` to that of `second`, error bound); None: no bound is known.

    On one clock both follow from ticks, and nothing but their rounding is uncertain: 0.
    """
    a, b = first.clock, second.clock
    if a is None or b is None:
        return second.t_ns - first.t_ns, None
    if a.epoch == b.epoch:
        ticks = second.tick - first.tick
        return ticks * a.period_num // a.period_den, 0
    error = None if a.err_ns is None or b.err_ns is None else a.err_ns + b.err_ns
    return second.t_ns - first.t_ns, error


def certainly_ended_before(first: Span, second: Span) -> bool:
    """`first` had ended when `second` began, whatever the clocks' errors."""
    between, error = apart(first, second)
    return error is not None and between - first.dur_ns > error


@dataclass(frozen=True, slots=True)
class Edge:
    """`after` goes on with what `before` made. `key` None: one lies inside the other on their thread."""

    before: Span
    after: Span
    key: Key | None


def uses(spans: Iterable[Span], key: Key) -> list[list[Edge | Span]]:
    """The times `key` was used, in order: each its edges, or the spans alone that had nobody at the other end.

    A consumer goes with producers of its own process where there are such that can have been before it, else with those
    of its host, of its attempt, of the attempt that produced last: eight ranks that number their batches from 0 stay
    apart. Among those a producer that began when a consumer had certainly ended begins a new use: the id was given out
    again.
    """
    holders = [span for span in spans if key in span.produces or key in span.consumes]
    made = [span for span in holders if key in span.produces]
    took = [span for span in holders if key not in span.produces]
    if any(key in span.consumes for span in made):
        edges = _lines(made, took, key)
    else:
        edges = [edge for cell in _cells(made, took) for edge in _of_cell(*cell, key)]
    return _apart(holders, edges, key)


_CELLS: tuple[Callable[[Span], tuple[str, int]], ...] = (
    lambda span: ("process", span.process),
    lambda span: ("host", span.host),
    lambda span: ("attempt", span.group),
)


def _cells(made: Sequence[Span], took: Iterable[Span]) -> list[tuple[list[Span], list[Span]]]:
    """(producers, consumers) of each process, host or attempt whose consumers go with producers of it."""
    makers: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in sorted(made, key=lambda span: (span.t_ns, span.id)):
        for cell in _CELLS:
            makers[cell(span)].append(span)
    newest = sorted(made, key=lambda span: span.t_ns, reverse=True)
    takers: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in took:
        cells = [cell(span) for cell in _CELLS]
        mine = next((cell for cell in cells if any(_may_be(maker, span) for maker in makers[cell][:1])), None)
        if mine is None:
            maker = next((maker for maker in newest if _may_be(maker, span)), None)
            mine = None if maker is None else _CELLS[-1](maker)
        if mine is not None:
            takers[mine].append(span)
    return [(makers[cell], members) for cell, members in takers.items()]


def _may_be(before: Span, after: Span) -> bool:
    """`after` had not certainly ended when `before` began."""
    return not certainly_ended_before(after, before)


def _of_cell(made: Iterable[Span], took: Iterable[Span], key: Key) -> list[Edge]:
    """A consumer has what it consumes at its end: it may have waited for it since its begin."""
    edges: list[Edge] = []
    makers: list[Span] = []
    takers: list[Span] = []
    ordered = [(span.t_ns, 0, span) for span in made] + [(span.end_ns, 1, span) for span in took]
    for _, takes, span in sorted(ordered, key=lambda item: (*item[:2], item[2].id)):
        if takes:
            takers.append(span)
            continue
        if any(certainly_ended_before(taker, span) for taker in takers[:MANY]):
            edges += _edges(makers, takers, key)
            makers, takers = [], []
        makers.append(span)
    return edges + _edges(makers, takers, key)


def _edges(made: Sequence[Span], took: Iterable[Span], key: Key) -> list[Edge]:
    return [Edge(before, after, key) for after in took for before in made[-MANY:] if _may_be(before, after)]


def _lines(made: Iterable[Span], took: Iterable[Span], key: Key) -> list[Edge]:
    """Of spans that only say that they belong together: each goes on with what the one of its attempt did that began
    before it."""
    groups: dict[int, list[Span]] = defaultdict(list)
    for span in sorted(made, key=lambda span: (span.t_ns, span.id)):
        groups[span.group].append(span)
    edges = [Edge(*pair, key) for line in groups.values() for pair in pairwise(line)]
    for span in took:
        line = groups.get(span.group) or next(iter(groups.values()))
        place = bisect_right(line, span.end_ns, key=lambda other: other.t_ns)
        edges.append(Edge(line[max(place - 1, 0)], span, key))
    return edges


def _apart(holders: Iterable[Span], edges: Sequence[Edge], key: Key) -> list[list[Edge | Span]]:
    """What edges hold together; consumers that nothing was seen of what they went on with are one, producers each."""
    head: dict[tuple[int, int], tuple[int, int]] = {}

    def of(name: tuple[int, int]) -> tuple[int, int]:
        while head.setdefault(name, name) != name:
            head[name] = head[head[name]]
            name = head[name]
        return name

    for edge in edges:
        head[of(edge.before.id)] = of(edge.after.id)
    found: dict[tuple[int, int], list[Edge | Span]] = defaultdict(list)
    for edge in edges:
        found[of(edge.before.id)].append(edge)
    lone = [span for span in holders if span.id not in head]
    makers: list[list[Edge | Span]] = [[span] for span in lone if key in span.produces]
    takers: list[Edge | Span] = [span for span in lone if key not in span.produces]
    every = [*found.values(), *makers, *([takers] if takers else [])]
    return sorted(every, key=lambda use: min(_begin(item) for item in use))


def _begin(item: Edge | Span) -> int:
    return item.t_ns if isinstance(item, Span) else min(item.before.t_ns, item.after.t_ns)


def nested(spans: Iterable[Span]) -> list[Edge]:
    """Edges of spans that lie inside others of their thread.

    What a span consumed goes into what is produced inside it, and what is consumed inside a span goes into what it
    produces. Only where the inner one is one or the other, not both: then it says itself what follows from what, and
    tasks that interleave on one thread lie inside each other by chance.
    """
    lines: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        lines[span.process, span.line].append(span)
    found = []
    for members in lines.values():
        members.sort(key=lambda span: (span.t_ns, -span.dur_ns, span.id))
        # Producers and consumers apart, so that the innermost of either is the last: thousands may lie in each other.
        makers: list[tuple[int, Span]] = []
        takers: list[tuple[int, Span]] = []
        for span in members:
            # By ticks: fleet time and durations differ by parts per million, and regions often end together.
            end = apart(members[0], span)[0] + span.dur_ns
            for stack in (makers, takers):
                while stack and stack[-1][0] + _ROUNDING_NS < end:
                    stack.pop()
            if not span.consumes and takers:
                found.append(Edge(takers[-1][1], span, None))
            if not span.produces and makers:
                found.append(Edge(span, makers[-1][1], None))
            if span.produces:
                makers.append((end, span))
            if span.consumes:
                takers.append((end, span))
    return found


def reached(starts: Iterable[Span], edges: Iterable[Edge], *, forward: bool) -> dict[tuple[int, int], Span]:
    """Spans along the edges from `starts`, which are among them; a cycle is gone round once."""
    steps: Mapping[tuple[int, int], list[Span]] = defaultdict(list)
    for edge in edges:
        here, there = (edge.before, edge.after) if forward else (edge.after, edge.before)
        steps[here.id].append(there)
    found: dict[tuple[int, int], Span] = {}
    waiting = list(starts)
    while waiting:
        span = waiting.pop()
        if span.id not in found:
            found[span.id] = span
            waiting += steps[span.id]
    return found


def in_order(spans: Iterable[Span], edges: Iterable[Edge]) -> list[Span]:
    """By begin, but none before what it goes on with: links outweigh clocks. A cycle begins with its earliest."""
    waiting = {span.id: span for span in spans}
    needs: dict[tuple[int, int], set[tuple[int, int]]] = {name: set() for name in waiting}
    frees: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for edge in edges:
        if edge.before.id in waiting and edge.after.id in waiting and edge.before.id != edge.after.id:
            needs[edge.after.id].add(edge.before.id)
            frees[edge.before.id].append(edge.after.id)
    ready = [(span.t_ns, name) for name, span in waiting.items() if not needs[name]]
    rest = sorted((span.t_ns, name) for name, span in waiting.items())
    heapq.heapify(ready)
    done: dict[tuple[int, int], Span] = {}
    place = 0
    while len(done) < len(waiting):
        if not ready:
            while rest[place][1] in done:
                place += 1
            ready.append(rest[place])
        _, name = heapq.heappop(ready)
        if name in done:
            continue
        done[name] = waiting[name]
        for other in frees[name]:
            needs[other].discard(name)
            if not needs[other] and other not in done:
                heapq.heappush(ready, (waiting[other].t_ns, other))
    return list(done.values())
