"""The way of one step or request through threads, processes and hosts: `fleetscope steps --flow ID`.

Stitched when it is asked for, from `links` alone (docs/design/0020-flows.md has the figures): a rollup would have to be
made again for every producer that comes late, and nobody asks for one flow in a million.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from fleetscope.analysis.links import MOST_LINKS, Links
from fleetscope.analysis.scope import Scope
from fleetscope.analysis.stitch import (
    Edge,
    Key,
    Span,
    apart,
    certainly_ended_before,
    in_order,
    nested,
    reached,
    uses,
)
from fleetscope.schema.vocabulary import CONTEXT_TYPES, SpanFlag
from fleetscope.sinks.lake.read import Snapshot

HORIZON_NS = 3600 * 10**9
"""What a chain goes on with lies within an hour of what is known of it: files beyond are not read."""

HOPS = pa.schema(
    [
        ("hop", pa.int64()), ("after", pa.list_(pa.int64())), ("host", pa.string()), ("pid", pa.int64()),
        ("rank", pa.int64()), ("run", pa.string()), ("thread", pa.string()), ("name", pa.string()),
        ("begin_ns", pa.int64()), ("begin_error_ns", pa.int64()), ("dur_ns", pa.int64()), ("wait_ns", pa.int64()),
        ("wait_error_ns", pa.int64()), ("order", pa.string()), ("consumes", pa.list_(pa.string())),
        ("produces", pa.list_(pa.string())), ("step", pa.int64()), ("flags", pa.string()), ("began_ns", pa.int64()),
        ("process", pa.int64()), ("seq", pa.int64()),
    ]
)  # fmt: skip
"""Columns of a chain; docs/flows.md says what they mean."""


@dataclass(frozen=True, slots=True)
class Chain:
    """`rows`: a hop each, of the newest use. `uses`: how often the id was used in the scope. `more`: it goes on."""

    rows: pa.Table
    uses: int = 0
    more: bool = False


def key_text(key: Key) -> str:
    """As `parse_key` takes it: 123, or batcher:123 where the type is not generic."""
    context, number = key
    if context == 0:
        return str(number)
    return f"{CONTEXT_TYPES[context].replace(' ', '-') if context < len(CONTEXT_TYPES) else context}:{number}"


def parse_key(text: str) -> tuple[int | None, int]:
    """(context type, None for any; id as `links` holds it) of 123, 0x7b, -5, batcher:123 or 11:123. ValueError."""
    name, _, number = text.rpartition(":")
    known = {word.replace(" ", "-"): place for place, word in enumerate(CONTEXT_TYPES)}
    context = (known[name] if name in known else int(name, 0)) if name else None
    value = int(number, 0)
    if not -(1 << 63) <= value < 1 << 64 or (context is not None and not 0 <= context < 1 << 24):
        raise ValueError("an id has 64 bits, its type 24")
    return context, value - (1 << 64) if value >= 1 << 63 else value


def flow_table(snapshot: Snapshot, scope: Scope, number: int, context: int | None = None, limit: int = 50) -> Chain:
    """The newest use of the id in the scope: what led to it, who had it, what came of it; the nearest hops if there are
    more than `limit`, in order of time.

    A run or host in the scope chooses among uses; the chain itself goes wherever it went. begin_ns: since the begin of
    the first hop; wait_ns: from the end of what it goes on with to its own begin (of several, of the one that ended
    last; negative: it was there before). Each with the bound of its error: 0 between spans of one clock, null where a
    clock's error is not known. order: clock, where that hop had certainly ended; link, where only the link says what
    was first; inside, where one of the two lies in the other.
    """
    with closing(Links(snapshot, scope)) as links:
        links.take(links.with_ids([number], context))
        spans = links.spans()
        used = [use for key in _keys(spans, number, context) for use in uses(spans, key)]
        if not used:
            return Chain(pa.table({}))
        asked = _spans_of(max(used, key=lambda use: min(span.t_ns for span in _spans_of(use))))
        kept, edges, more = _grow(links, asked, number, limit)
        edges = [edge for edge in edges if edge.before.id in kept and edge.after.id in kept]
        return Chain(_hops(links, in_order(kept.values(), edges), edges), len(used), more)


def newest_flows(snapshot: Snapshot, scope: Scope, count: int = 5) -> list[str]:
    """Ids there are, the newest first."""
    condition, values = scope.where("s")
    with snapshot.duckdb(("links", "processes", "hosts"), from_ns=scope.from_ns, to_ns=scope.to_ns) as connection:
        query = f"""
            SELECT s.context_type, s.context_id FROM links s WHERE {condition}
            GROUP BY ALL ORDER BY max(s.t_ns) DESC LIMIT {int(count)}"""  # noqa: S608 - values are bound
        return [key_text(key) for key in connection.execute(query, values).fetchall()]


def _spans_of(use: Iterable[Edge | Span]) -> list[Span]:
    return [span for item in use for span in ((item,) if isinstance(item, Span) else (item.before, item.after))]


def _keys(spans: Iterable[Span], number: int | None = None, context: int | None = None) -> list[Key]:
    """Of the spans' links; with that id and type, where one is given."""
    found = {key for span in spans for key in span.produces | span.consumes}
    return sorted(k for k in found if number in (None, k[1]) and context in (None, k[0]))


def _reached(
    spans: Iterable[Span], asked: Iterable[Span], number: int
) -> tuple[list[Span], dict[tuple[int, int], Span], list[Edge]]:
    """(who had the id in the use of the asked spans, what led to the producers among them and what came of all, every
    edge between spans)"""
    known = list(spans)
    by_key: dict[Key, list[Span]] = defaultdict(list)
    for span in known:
        for key in span.produces | span.consumes:
            by_key[key].append(span)
    edges = nested(known)
    names = {span.id for span in asked}
    starts = {span.id: span for span in known if span.id in names}
    for key, of_key in by_key.items():
        for use in uses(of_key, key):
            edges += [item for item in use if isinstance(item, Edge)]
            if key[1] == number and any(span.id in names for span in _spans_of(use)):
                starts |= {span.id: span for span in _spans_of(use)}
    made = [span for span in starts.values() if any(key[1] == number for key in span.produces)]
    chosen = reached(starts.values(), edges, forward=True) | reached(made, edges, forward=False)
    return list(starts.values()), chosen, edges


def _nearest(
    starts: Iterable[Span], chosen: Mapping[tuple[int, int], Span], edges: Iterable[Edge], limit: int
) -> dict[tuple[int, int], Span]:
    """At most `limit` of `chosen`, by how many links they are from `starts`."""
    beside: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
    for edge in edges:
        if edge.before.id in chosen and edge.after.id in chosen:
            beside[edge.before.id].add(edge.after.id)
            beside[edge.after.id].add(edge.before.id)
    round_ = sorted({span.id for span in starts} & chosen.keys(), key=lambda name: chosen[name].t_ns)
    kept: dict[tuple[int, int], Span] = {}
    while round_ and len(kept) < limit:
        for name in round_[: limit - len(kept)]:
            kept[name] = chosen[name]
        round_ = sorted(
            {other for name in round_ for other in beside[name]} - kept.keys(), key=lambda n: chosen[n].t_ns
        )
    return kept


def _grow(
    links: Links, asked: list[Span], number: int, limit: int
) -> tuple[dict[tuple[int, int], Span], list[Edge], bool]:
    """Read what the asked spans came from and what came of them: (the nearest `limit`, edges, whether there are more).

    Round by round, because a span that is found has ids of its own; only what is kept is asked about.
    """
    low, high = min(span.t_ns for span in asked) - HORIZON_NS, max(span.end_ns for span in asked) + HORIZON_NS
    scope = links.scope
    links.close()
    links.open(Scope(None, None, max(low, scope.from_ns or low), min(high, scope.to_ns or high)))
    looked: set[tuple[int, int]] = set()
    known: set[int] = set()
    while True:
        starts, chosen, edges = _reached(links.spans(), asked, number)
        kept = _nearest(starts, chosen, edges, limit)
        fresh = [span for name, span in kept.items() if name not in looked]
        ids = {key[1] for key in _keys(kept.values())} - known
        done = not fresh and not ids
        if done or len(looked) > 4 * limit or len(links) > 2 * MOST_LINKS:
            return kept, edges, not done or len(chosen) > len(kept)
        if fresh:
            links.take(links.near(fresh))
            looked |= {span.id for span in fresh}
        if ids:
            links.take(links.with_ids(ids))
            known |= ids


def _hops(links: Links, spans: list[Span], edges: Iterable[Edge]) -> pa.Table:
    """A row a span, with the words of the lake."""
    before: dict[tuple[int, int], list[Edge]] = defaultdict(list)
    for edge in edges:
        before[edge.after.id].append(edge)
    place = {span.id: number for number, span in enumerate(spans, 1)}
    words = links.words(spans)
    rows = []
    for number, span in enumerate(spans, 1):
        row, told = links.row(span), words[number]
        begin, begin_error = apart(spans[0], span)
        hop = {"hop": number, "after": sorted({place[edge.before.id] for edge in before[span.id]})}
        hop |= told | {"begin_ns": begin, "begin_error_ns": begin_error, "dur_ns": span.dur_ns}
        hop |= _wait(span, before[span.id])
        hop |= {"consumes": sorted(map(key_text, span.consumes)), "produces": sorted(map(key_text, span.produces))}
        hop |= {"step": row["step"] if row["step"] >= 0 else None, "flags": _flags(row["flags"])}
        rows.append(hop | {"began_ns": span.t_ns, "process": span.process, "seq": span.seq})
    return pa.Table.from_pylist(rows, schema=HOPS)


def _wait(span: Span, edges: Iterable[Edge]) -> dict[str, Any]:
    """For the last to end of what it goes on with."""
    linked = [edge for edge in edges if edge.key is not None]
    if not linked:
        return {"order": "inside" if any(True for _ in edges) else None}
    last = max(linked, key=lambda edge: edge.before.end_ns).before
    between, error = apart(last, span)
    order = "clock" if certainly_ended_before(last, span) else "link"
    return {"wait_ns": between - last.dur_ns, "wait_error_ns": error, "order": order}


def _flags(bits: int) -> str | None:
    return ", ".join(str(flag.name).lower().replace("_", " ") for flag in SpanFlag if flag & bits) or None
