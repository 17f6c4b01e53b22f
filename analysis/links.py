"""Reading `links`: what stitching asks the lake, a few columns of the files that may hold an answer."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from fleetscope.analysis.scope import Scope, host_name
from fleetscope.analysis.stitch import Clock, Span
from fleetscope.schema.vocabulary import SETTLED, LinkRole
from fleetscope.sinks.lake.alignment import GUARANTEED
from fleetscope.sinks.lake.read import Snapshot

_Line = tuple[int, int, int, int]

MOST_LINKS = 20_000
"""Links an answer of the lake holds, the newest: an id that is a constant (0, a step number) can have millions."""

_TABLES = ("links", "names", "hosts", "processes", "lines", "clock_maps")


def first_tick(t_ns: int, line: _Line) -> int:
    """The smallest tick that `line` (x0, y0, n, d) sends to t_ns (DESIGN 3.3)."""
    x0, y0, n, d = line
    return x0 - (y0 - t_ns) * d // n


class Links:
    """Links that were read so far; asked round by round, each reads the few columns of the files that may hold more."""

    def __init__(self, snapshot: Snapshot, scope: Scope) -> None:
        self._snapshot = snapshot
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}
        self._of: dict[tuple[int, int], set[tuple[int, int, int]]] = defaultdict(set)
        self._clocks: dict[int, tuple[Clock, _Line]] = {}
        self._groups: dict[int, int] = {}
        self.open(scope)

    def open(self, scope: Scope) -> None:
        """Look at this scope from now on; what was read stays."""
        self._connection = self._snapshot.duckdb(_TABLES, from_ns=scope.from_ns, to_ns=scope.to_ns, written=True)
        self._condition, self._values = scope.where("s")
        self.scope = scope

    def __len__(self) -> int:
        """Spans."""
        return len(self._rows)

    def close(self) -> None:
        self._connection.close()

    def with_ids(self, ids: Iterable[int], context: int | None = None) -> list[dict[str, Any]]:
        """Links with one of the ids."""
        condition = f"s.context_id IN ({', '.join(str(int(number)) for number in ids)})"
        return self._ask(condition if context is None else f"{condition} AND s.context_type = {int(context)}")

    def near(self, spans: Iterable[Span]) -> list[dict[str, Any]]:
        """All links of the spans, and of those that lie in them or around them on their threads."""
        given = [(span.process, span.line, span.t_ns, span.end_ns) for span in spans]
        columns = list(map(pa.array, zip(*given, strict=True)))
        self._connection.register("_near", pa.table(columns, names=["process", "line", "t_ns", "end_ns"]))
        # The list is for the scan: it leaves out row groups, which a join does not.
        processes = ", ".join({str(process) for process, *_ in given})
        join = """SEMI JOIN _near f ON f.process = s.process AND f.line = s.line
                      AND s.t_ns <= f.end_ns AND s.t_ns + s.dur_ns >= f.t_ns"""
        return self._ask(f"s.process IN ({processes})", join)

    def _ask(self, condition: str, join: str = "") -> list[dict[str, Any]]:
        query = f"""
            SELECT * FROM links s {join} WHERE {self._condition} AND {condition}
            ORDER BY s.t_ns DESC LIMIT {MOST_LINKS}"""  # noqa: S608 - values are bound, the rest are numbers
        return self._connection.sql(query, params=self._values).to_arrow_table().to_pylist()  # type: ignore[no-any-return]

    def take(self, rows: Iterable[dict[str, Any]]) -> None:
        """Add what a question found."""
        fresh = []
        for row in rows:
            name = row["process"], row["seq"]
            if name not in self._rows:
                fresh.append(row)
                self._rows[name] = row
            self._of[name].add((row["role"], row["context_type"], row["context_id"]))
        self._learn({row["map"] for row in fresh} - self._clocks.keys(), {row["process"] for row in fresh})

    def _learn(self, maps: set[int], processes: set[int]) -> None:
        if maps:
            listed = ", ".join(map(str, maps))
            found = self._connection.sql(f"""
                SELECT map, epoch, CASE WHEN err_ns >= 0 THEN err_ns END, period_num, period_den, x0, y0, n, d
                FROM clock_maps WHERE map IN ({listed})""")  # noqa: S608 - numbers
            self._clocks |= {row[0]: (Clock(*row[1:5]), row[5:]) for row in found.fetchall()}
        if unknown := processes - self._groups.keys():
            listed = ", ".join(map(str, unknown))
            found = self._connection.sql(f"""
                SELECT process, CASE WHEN attempt != 0 THEN attempt ELSE host END
                FROM processes WHERE process IN ({listed})""")  # noqa: S608 - numbers
            self._groups |= dict(found.fetchall())

    def row(self, span: Span) -> dict[str, Any]:
        """Of its first link: what all of them say of the span."""
        return self._rows[span.id]

    def spans(self) -> list[Span]:
        """What was read."""
        found = []
        bounds = self._bounds()
        for name, row in self._rows.items():
            links = self._of[name]
            produces = frozenset((kind, number) for role, kind, number in links if role & LinkRole.PRODUCES)
            consumes = frozenset((kind, number) for role, kind, number in links if role & LinkRole.CONSUMES)
            group = self._groups.get(row["process"], row["host"])
            clock, line = self._clocks.get(row["map"], (None, None))
            tick = first_tick(row["written_ns"], line) + row["t_sub"] if line is not None else 0
            if clock is not None and name in bounds:
                clock = replace(clock, err_ns=bounds[name])
            found.append(
                Span(
                    *name, row["line"], row["host"], group, row["t_ns"], tick, row["dur_ns"], clock, produces, consumes
                )
            )
        return found

    def _bounds(self) -> dict[tuple[int, int], int | None]:
        """Of spans that the fleet's maps place: how far their times may be off against each other, None: not proved.
        Where some are placed by them and others by a wall clock, nothing is known of these against those."""
        alignment = self._snapshot.alignment
        if not alignment or not self._rows:
            return {}
        columns = (
            np.array([row[key] for row in self._rows.values()], np.int64) for key in ("map", "written_ns", "t_sub")
        )
        placed = alignment.place(*columns)
        if not (placed.version > SETTLED).any():
            return {}
        proved = placed.moved & (placed.quality == GUARANTEED)
        worst = np.maximum(-placed.lo_ns, placed.hi_ns)
        return {name: int(err) if ok else None for name, ok, err in zip(self._rows, proved, worst, strict=True)}

    def words(self, spans: Iterable[Span]) -> dict[int, dict[str, Any]]:
        """Host, process, thread and name of each, by its place from 1."""
        given = [
            (place, span.process, span.line, self.row(span)["host"], self.row(span)["program"])
            for place, span in enumerate(spans, 1)
        ]
        columns = map(pa.array, zip(*given, strict=True))
        self._connection.register("_hops", pa.table(list(columns), names=["hop", "process", "line", "host", "program"]))
        found = self._connection.sql(f"""
            SELECT g.hop, {host_name("g.host")} AS host, p.pid, p.rank, nullif(p.run_name, '') AS run,
                   nullif(l.name, '') AS thread, coalesce(n.name, '#' || g.program::VARCHAR) AS name
            FROM _hops g LEFT JOIN hosts h ON h.host = g.host LEFT JOIN processes p ON p.process = g.process
                 LEFT JOIN lines l ON l.process = g.process AND l.device = 0 AND l.line = g.line
                 LEFT JOIN names n ON n.program = g.program""")  # noqa: S608 - names are ours
        return {row.pop("hop"): row for row in found.to_arrow_table().to_pylist()}
