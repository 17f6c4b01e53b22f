"""Which of two events was first, and why: claimed only where it is proved (DESIGN 3.3)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fleetscope.analysis.links import first_tick
from fleetscope.analysis.scope import host_name
from fleetscope.schema.vocabulary import GUARANTEED, MAP_QUALITIES, LinkRole
from fleetscope.sinks.lake.read import Snapshot

Event = tuple[int, int]
"""(process, seq) of a span, as `query` and `steps --flow -o json` print them."""

_TABLES = ("spans", "links", "clock_maps", "hosts", "names", "ops")


@dataclass(frozen=True, slots=True)
class Placed:
    """An event on the fleet's axis. `tick`: its begin by its own clock, `epoch`; period in ns as a fraction."""

    event: Event
    host: str
    name: str
    t_ns: int
    dur_ns: int
    lo_ns: int
    hi_ns: int
    quality: str
    moved: bool
    epoch: int
    tick: int
    period: tuple[int, int]
    version: int

    @property
    def proved(self) -> bool:
        return self.moved and self.quality == GUARANTEED


@dataclass(frozen=True, slots=True)
class Order:
    """`word`: before, after (of the first against the second), concurrent, or unknown. `apart_ns`: from the end of the
    earlier to the begin of the later (negative: they overlap); `within_ns`: how far that may be off, None: unknown."""

    word: str
    why: str
    apart_ns: int
    within_ns: int | None

    def sentence(self) -> str:
        """before (by 120 us, within 8 us): why."""
        within = "nobody knows how much" if self.within_ns is None else f"+- {self.within_ns / 1e3:.3f} us"
        return f"{self.word}, {self.apart_ns / 1e3:.3f} us {within}"


def parse_event(text: str) -> Event:
    """PROCESS:SEQ. ValueError."""
    process, _, seq = text.partition(":")
    return int(process), int(seq)


def find(snapshot: Snapshot, events: list[Event]) -> list[Placed | None]:
    """Where each event is, in the order asked; None where no span is known by that name."""
    wanted = ", ".join(f"({process}, {seq})" for process, seq in events)
    columns = "process, seq, host, t_ns, written_ns, t_sub, dur_ns, map, program"
    query = f"""
        WITH s AS (
            SELECT {columns}, op FROM spans WHERE (process, seq) IN ({wanted})
            UNION ALL BY NAME SELECT {columns}, 0 AS op FROM links WHERE (process, seq) IN ({wanted}))
        SELECT DISTINCT ON (s.process, s.seq) s.*, {host_name("s.host")} AS host_name,
               coalesce(o.name, n.name, '#' || s.program) AS name, m.epoch, m.x0, m.y0, m.n, m.d,
               m.period_num, m.period_den
        FROM s LEFT JOIN clock_maps m ON m.map = s.map LEFT JOIN hosts h ON h.host = s.host
             LEFT JOIN names n ON n.program = s.program LEFT JOIN ops o ON o.program = s.program AND o.op = s.op
        """  # noqa: S608 - numbers
    with snapshot.duckdb(_TABLES, written=True) as connection:
        rows = {(row["process"], row["seq"]): row for row in connection.sql(query).to_arrow_table().to_pylist()}
    return [_placed(snapshot, event, rows[event]) if event in rows else None for event in events]


def _placed(snapshot: Snapshot, event: Event, row: dict[str, Any]) -> Placed:
    columns = (np.array([row[name]], np.int64) for name in ("map", "written_ns", "t_sub"))
    at = snapshot.alignment.place(*columns)
    tick = 0
    if row["epoch"] is not None:
        tick = first_tick(row["written_ns"], (row["x0"], row["y0"], row["n"], row["d"])) + row["t_sub"]
    return Placed(
        event, row["host_name"], row["name"], int(at.t_ns[0]), row["dur_ns"], int(at.lo_ns[0]), int(at.hi_ns[0]),
        MAP_QUALITIES[int(at.quality[0])], bool(at.moved[0]), row["epoch"] or 0, tick,
        (row["period_num"] or 1, row["period_den"] or 1), int(at.version[0]),
    )  # fmt: skip


def order(first: Placed, second: Placed, caused: int = 0) -> Order:
    """Of two events. `caused`: 1 where a link says that the second goes on with the first, -1 the other way round.

    On one clock ticks decide. On two, A is before B only if A's interval ended before B's began: then the difference of
    their stated times is beyond what both can be off by. A causal edge needs no clock.
    """
    if first.epoch == second.epoch and first.epoch:
        num, den = first.period
        between = (second.tick - first.tick) * num // den
        return _decide(between, first.dur_ns, second.dur_ns, 1, 1, "one clock: by its own ticks")
    between = second.t_ns - first.t_ns
    if first.proved and second.proved:
        # true_b - true_a = stated difference + [lo_b - hi_a, hi_b - lo_a]
        late, early = second.hi_ns - first.lo_ns, first.hi_ns - second.lo_ns
        found = _decide(between, first.dur_ns, second.dur_ns, early, late, "both clocks are proved within it")
    else:
        found = Order("unknown", _unproved(first, second), _apart(between, first.dur_ns, second.dur_ns), None)
    if caused and found.word in ("concurrent", "unknown"):
        return Order(
            "before" if caused > 0 else "after",
            "a link: it goes on with what the other made",
            found.apart_ns,
            found.within_ns,
        )
    if caused and found.word != ("before" if caused > 0 else "after"):
        return Order(
            found.word,
            f"{found.why}; a link says the opposite: a clock or the link is false",
            found.apart_ns,
            found.within_ns,
        )
    return found


def _unproved(first: Placed, second: Placed) -> str:
    weak = [placed for placed in (first, second) if not placed.proved]
    said = (f"{placed.host} is {placed.quality if placed.moved else 'placed by its own wall clock'}" for placed in weak)
    return f"nothing is proved: {', '.join(dict.fromkeys(said))}"


def _apart(between: int, first_dur: int, second_dur: int) -> int:
    return between - first_dur if between >= 0 else -between - second_dur


def _decide(between: int, first_dur: int, second_dur: int, early: int, late: int, why: str) -> Order:
    """`early`, `late`: the true difference may be so much less, or more, than `between`."""
    within = max(early, late)
    if between - early > first_dur:
        return Order("before", why, between - first_dur, early)
    if -between - late > second_dur:
        return Order("after", why, -between - second_dur, late)
    overlap = "they overlap" if between + late < first_dur and -between + early < second_dur else "the bounds overlap"
    return Order(
        "concurrent",
        f"{overlap}: {why}" if why.startswith("one") else overlap,
        _apart(between, first_dur, second_dur),
        within,
    )


def caused(snapshot: Snapshot, first: Event, second: Event) -> int:
    """1 where the second consumes an id that the first produces, -1 the other way round, 0 where no link says."""
    query = """
        SELECT process, seq, role, context_type, context_id FROM links
        WHERE (process = ? AND seq = ?) OR (process = ? AND seq = ?)"""
    with snapshot.duckdb(("links",)) as connection:
        rows = connection.execute(query, [*first, *second]).fetchall()
    made, took = (
        {(*row[:2], *row[3:]) for row in rows if row[2] & role} for role in (LinkRole.PRODUCES, LinkRole.CONSUMES)
    )
    for a, b, sign in ((first, second, 1), (second, first, -1)):
        if {key[2:] for key in made if key[:2] == a} & {key[2:] for key in took if key[:2] == b}:
            return sign
    return 0
