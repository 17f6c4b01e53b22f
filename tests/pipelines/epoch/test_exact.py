"""Random fleets against an expectation computed span by span in plain Python, on the embedded log and on Kafka."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from fleetscope.schema import identity
from fleetscope.schema.vocabulary import WINDOW_NS, Kind
from fleetscope.transport.open import shared_log

US = 1_000
MS = 1_000_000
BATCH_NS = 700 * MS


@dataclass
class Span:
    """Times in ns of the host's counter, multiples of 5; `child_ns` is that of direct children."""

    line: int
    kind: Kind
    op: int
    start: int
    dur: int
    child_ns: int = 0

    @property
    def end(self) -> int:
        return self.start + self.dur


def grow(rng: random.Random, line: int, begin: int, end: int, depth: int, out: list[Span]) -> int:
    """Spans of a line one after another in [begin, end), some holding others; total of the direct ones."""
    total, now = 0, begin
    while True:
        now += 5 * rng.randrange(0, 200_000)
        dur = 5 * rng.randrange(1, 4_000_000)
        if now + dur > end:
            return total
        kind = rng.choice([Kind.COMPUTE, Kind.COMPUTE, Kind.COLLECTIVE, Kind.COPY])
        span = Span(line, kind, rng.randrange(1, 6), now, dur)
        out.append(span)
        if depth < 3 and rng.random() < 0.4:
            span.child_ns = grow(rng, line, now, now + dur, depth + 1, out)
        total += dur
        now += dur


@dataclass
class Expected:
    events: dict[tuple[str, int], tuple[int, int, int, int]] = field(default_factory=dict)
    """(host, seq) -> op, start, dur, child."""
    by_op: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    counts: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    busy: Counter[str] = field(default_factory=Counter)
    compute: Counter[str] = field(default_factory=Counter)
    lost: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    duplicate: Counter[str] = field(default_factory=Counter)


def union(intervals: list[tuple[int, int]]) -> int:
    total, until = 0, -1
    for begin, end in sorted(intervals):
        if end > until:
            total += end - max(begin, until)
            until = end
    return total


def compute_time(spans: list[Span]) -> int:
    """Instants at which the innermost span of some line is compute."""
    found = []
    for span in spans:
        if span.kind == Kind.COMPUTE:
            # what its children of another kind cover is theirs
            inner = [s for s in spans if s.line == span.line and s is not span and inside(s, span)]
            edges = sorted({span.start, span.end, *(edge for s in inner for edge in (s.start, s.end))})
            for begin, end in itertools.pairwise(edges):
                owners = [s for s in inner if s.start <= begin and end <= s.end]
                if not owners or min(owners, key=lambda s: s.dur).kind == Kind.COMPUTE:
                    found.append((begin, end))
    return union(found)


def inside(inner: Span, outer: Span) -> bool:
    return (
        outer.start <= inner.start
        and inner.end <= outer.end
        and (outer.dur, -outer.start) != (inner.dur, -inner.start)
        and inner.dur < outer.dur
    )


def play(bench: Any, seed: int, drains: bool) -> tuple[Expected, list[Any]]:
    """Three hosts, two chips, 12 batches each across 10 s edges; some lost, some twice, all shuffled a little."""
    rng = random.Random(seed)
    expected = Expected()
    hosts = [bench.host(f"h{number}") for number in range(3)]
    queue: list[Any] = []
    for host in hosts:
        for index in range(12):
            for chip in range(2):
                begin = 1_000 * MS + index * BATCH_NS * 3
                spans: list[Span] = []
                for line in range(2):
                    grow(rng, line, begin, begin + BATCH_NS, 0, spans)
                # A span that ends near a window's edge may be counted on either side: the bound says so.
                spans.sort(key=lambda s: (s.line, s.start, -s.dur))
                spans = [s for s in spans if (s.end + US) % WINDOW_NS > 2 * US]
                rows = {
                    "start": [s.start for s in spans],
                    "dur": [s.dur for s in spans],
                    "line": [s.line for s in spans],
                    "kind": [s.kind for s in spans],
                    "op": [s.op for s in spans],
                    "program": 77,
                }
                (numbered,) = host.spans(chip, begin, begin + BATCH_NS, rows)
                events = range(numbered.first_event, numbered.first_event + numbered.rows)
                fate = rng.random()
                if fate < 0.1:
                    expected.lost[host.name] |= set(events)
                    continue
                if fate > 0.85:
                    expected.duplicate[host.name] += numbered.rows
                    queue.append((index + rng.random() * 3, numbered))
                queue.append((index + rng.random() * 3, numbered))
                for seq, s in zip(events, spans, strict=True):
                    expected.events[host.name, seq] = (s.op, s.start, s.dur, s.child_ns)
                    window = (host.zero_ns + s.end) // WINDOW_NS * WINDOW_NS
                    expected.counts[host.name, s.op, window] += 1
                    expected.by_op[host.name, s.op, window] += s.dur
                expected.busy[host.name] += union([(s.start, s.end) for s in spans])
                expected.compute[host.name] += compute_time(spans)
    queue.sort(key=lambda item: item[0])
    for position, (_, numbered) in enumerate(queue):
        bench.send(numbered)
        if drains and position % 11 == 10:
            bench.drain()
    bench.drain()
    return expected, hosts


def check(bench: Any, expected: Expected, hosts: list[Any]) -> None:
    spans = bench.rows("spans")
    names = {identity.host_id("test", host.name): host for host in hosts}
    maps = {row["map"]: row for row in bench.rows("clock_maps")}
    seen = Counter((names[row["host"]].name, row["seq"]) for row in spans)
    assert set(seen.values()) == {1}
    assert set(seen) == set(expected.events)
    for row in spans:
        host = names[row["host"]]
        op, start, dur, child = expected.events[host.name, row["seq"]]
        assert (row["op"], row["dur_ns"], row["child_ns"]) == (op, dur, child)
        assert abs(row["t_ns"] - (host.zero_ns + start)) <= maps[row["map"]]["err_ns"]
    counts: Counter[Any] = Counter()
    sums: Counter[Any] = Counter()
    for row in bench.rows("op_10s"):
        key = (names[row["host"]].name, row["op"], row["t_ns"])
        counts[key] += row["count"]
        sums[key] += row["sum_ns"]
    assert counts == expected.counts
    assert sums == expected.by_op
    busy: Counter[str] = Counter()
    compute: Counter[str] = Counter()
    for row in bench.rows("device_10s"):
        busy[names[row["host"]].name] += row["busy_ns"]
        compute[names[row["host"]].name] += row["compute_ns"]
    # busy time is cut at window edges in ticks of 1.25 ns: times here are multiples of 5 ns, so cuts cost < 2 ns each
    for host in hosts:
        assert abs(busy[host.name] - expected.busy[host.name]) <= 40
        assert abs(compute[host.name] - expected.compute[host.name]) <= 40
    newest = {}
    for row in sorted(bench.rows("ledger"), key=lambda row: row["epoch"]):
        newest[names[row["host"]].name] = row
    for host in hosts:
        row = newest[host.name]
        gaps = {event for gap in row["gaps"] for event in range(gap["first"], gap["last"] + 1)}
        sent = [seq for name, seq in expected.events if name == host.name]
        assert gaps == {event for event in expected.lost[host.name] if event < row["appended"]}
        assert (row["stored"], row["duplicate"]) == (len(sent), expected.duplicate[host.name])


@pytest.mark.fault
@pytest.mark.parametrize("seed", [1, 2])
def test_every_span_once_and_every_sum_right(bench: Any, seed: int) -> None:
    expected, hosts = play(bench, seed, drains=seed == 1)
    check(bench, expected, hosts)


@pytest.mark.e2e
def test_the_same_on_kafka(bench: Any, kafka_broker: Any) -> None:
    log = bench.config.log.model_copy(update={"url": kafka_broker.url, "topic_prefix": "epoch-test"})
    bench.log.close()
    bench.config = bench.config.model_copy(update={"log": log})
    bench.__post_init__()
    try:
        expected, hosts = play(bench, 3, drains=True)
        check(bench, expected, hosts)
    finally:
        shared_log(kafka_broker.url).close()
