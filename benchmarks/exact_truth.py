"""The comparison of exact.py: simulator's truth against the lake, by DuckDB, numpy and big integers alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from ledger_balance import imbalances
from numpy.typing import NDArray

from fleetscope.sinks.lake.objects import open_store
from fleetscope.sinks.lake.read import Snapshot

WINDOW_NS = 10_000_000_000
EXTRAPOLATED = 1 << 9
"""Of spans.flags: the wall clock may have been set since it was last read."""
BLIND_REACH = 12
"""Windows in which such a span may be: the simulator sets clocks by 30 s and less."""
WORK = (0, 3, 4, 5, 6, 7, 13)
"""Kinds that make a device busy (schema.vocabulary.DEVICE_WORK)."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    what: str
    detail: str


class _Checker:
    """One connection with the truth as views t_* and the lake's tables, and the list of what differs."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, mismatches: list[Mismatch]) -> None:
        self.sql = connection
        self._mismatches = mismatches

    def one(self, query: str) -> tuple[Any, ...]:
        return tuple(self.sql.sql(query).fetchall()[0])

    def none(self, what: str, query: str) -> None:
        """The query must find nothing."""
        rows = self.sql.sql(query).limit(3).fetchall()
        if rows:
            total = self.one(f"SELECT count(*) FROM ({query})")[0]
            self._mismatches.append(Mismatch(what, f"{total} rows, first {rows}"))

    def equal(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            self._mismatches.append(Mismatch(what, f"found {found}, expected {expected}"))


def compare(truth: Path, lake: Path | str, mismatches: list[Mismatch]) -> dict[str, Any]:
    """Every promise of issue 3, "Exact". What was measured on the way is returned for the record."""
    snapshot = Snapshot.open(open_store(lake))
    with snapshot.duckdb() as connection:
        for file in truth.glob("*.parquet"):
            connection.execute(f"CREATE VIEW t_{file.stem} AS SELECT * FROM read_parquet('{file}')")
        check = _Checker(connection, mismatches)
        _prepare(check)
        _each_span_once(check)
        _ticks_durations_identity(check)
        worst = _stated_bounds(check)
        _sums(check)
        _windows(check)
        _nesting(check)
        _busy(check)
        _ledger(check)
        rows = check.one("SELECT count(*) FROM spans")[0]
        blind = check.one("SELECT count(*) FROM joined WHERE blind")[0]
        lost = check.one("SELECT coalesce(sum(rows), 0) FROM t_damage WHERE kind = 'lost'")[0]
    return {"spans": rows, "extrapolated": int(blind), "lost_on_purpose": int(lost), "worst_error_ns": worst}


def _prepare(check: _Checker) -> None:
    """truth: what must be in the lake, that is all but the lost batches; with nominal ns of the duration."""
    check.sql.execute("""
        CREATE TABLE truth AS
        SELECT s.*, coalesce(c.period_num, 1) AS pn, coalesce(c.period_den, 1) AS pd,
               (s.dur::HUGEINT * coalesce(c.period_num, 1) // coalesce(c.period_den, 1))::BIGINT AS dur_ns
        FROM t_spans s LEFT JOIN t_clocks c ON c.device = s.device AND s.device != 0
        WHERE NOT EXISTS (
            SELECT 1 FROM t_damage d
            WHERE d.kind = 'lost' AND d.source = s.source AND s.seq >= d.first AND s.seq < d.first + d.rows)""")


def _each_span_once(check: _Checker) -> None:
    check.none(
        "a span is in the lake twice", "SELECT process, seq, count(*) FROM spans GROUP BY ALL HAVING count(*) > 1"
    )
    check.none("a span is missing", "SELECT process, seq FROM truth ANTI JOIN spans USING (process, seq)")
    check.none("a span is too much", "SELECT process, seq FROM spans ANTI JOIN truth USING (process, seq)")


def _ticks_durations_identity(check: _Checker) -> None:
    # The smallest x with y0 + floor((x - x0) n / d) >= t_ns is x0 + ceil((t_ns - y0) d / n); t_sub ticks behind it.
    # -(-a // b) is the ceiling only where // floors; DuckDB's truncates, hence the sign cases.
    ceil = "(CASE WHEN {a} > 0 THEN ({a} + {b} - 1) // {b} ELSE -((-{a}) // {b}) END)"
    tick = ceil.format(a="((s.t_ns - m.y0)::HUGEINT * m.d)", b="m.n")
    dur = ceil.format(a="(s.dur_ns::HUGEINT * t.pd)", b="t.pn")
    check.sql.execute(f"""
        CREATE TABLE joined AS
        SELECT t.*, s.t_ns, s.dur_ns AS stored_dur_ns, s.child_ns, m.err_ns, m.quality, m.map,
               m.quality = 'extrapolated' AS blind,
               (m.x0 + {tick} + s.t_sub)::BIGINT AS tick, ({dur} + s.dur_sub)::BIGINT AS ticks,
               s.line AS l2, s.kind AS k2, s.program AS p2, s.op AS o2, s.exec AS e2, s.step AS s2, s.device AS d2
        FROM truth t JOIN spans s USING (process, seq) LEFT JOIN clock_maps m ON m.map = s.map""")
    check.none("a span names no map", "SELECT process, seq FROM joined WHERE map IS NULL")
    check.none("begin ticks differ", "SELECT process, seq, device, start, tick FROM joined WHERE start != tick")
    check.none("duration ticks differ", "SELECT process, seq, device, dur, ticks FROM joined WHERE dur != ticks")
    check.none(
        "nominal durations differ",
        "SELECT process, seq, dur_ns, stored_dur_ns FROM joined WHERE dur_ns != stored_dur_ns",
    )
    check.none(
        "identities differ",
        """SELECT process, seq FROM joined WHERE (line, kind, program, op, exec, step, device) IS DISTINCT FROM
           (l2, k2, p2, o2, e2, s2, d2)""",
    )


def _stated_bounds(check: _Checker) -> int:
    """Fleet time is the host's wall clock here: |t - wall| must be within the stated error."""
    check.none(
        "an error bound is not stated, or stated though the wall clock was not read behind the row",
        "SELECT process, seq FROM joined WHERE (err_ns < 0) != blind",
    )
    check.none(
        "a span lies outside its stated error",
        """SELECT host, chip, seq, t_ns - wall_begin_ns, err_ns FROM joined
           WHERE abs(t_ns - wall_begin_ns) > err_ns AND NOT blind""",
    )
    check.none(
        "a map is extrapolated and its rows do not say so, or the other way round",
        f"""SELECT process, seq FROM spans s JOIN clock_maps m ON m.map = s.map
            WHERE (s.flags & {EXTRAPOLATED} != 0) != (m.quality = 'extrapolated')""",
    )
    return int(check.one("SELECT coalesce(max(abs(t_ns - wall_begin_ns)), 0) FROM joined WHERE NOT blind")[0])


def _sums(check: _Checker) -> None:
    check.none(
        "count or sum of an op on a host differ over the run",
        """WITH a AS (SELECT process, kind, program, op, count(*) n, sum(dur_ns)::BIGINT t FROM truth GROUP BY ALL),
                b AS (SELECT process, kind, program, op, sum(count)::BIGINT n, sum(sum_ns)::BIGINT t
                      FROM op_10s GROUP BY ALL)
           SELECT * FROM a FULL JOIN b USING (process, kind, program, op)
           WHERE (a.n, a.t) IS DISTINCT FROM (b.n, b.t)""",
    )


def _windows(check: _Checker) -> None:
    """A span belongs to the window of its end. Where its stated error reaches over an edge it may be in any window the
    error reaches: behind a clock that was set by 15 s, in one of five."""
    check.sql.execute(f"""
        CREATE TABLE placed AS
        SELECT process, kind, program, op, wall_end_ns - wall_end_ns % {WINDOW_NS} AS w, dur_ns,
               least(wall_end_ns % {WINDOW_NS}, {WINDOW_NS} - wall_end_ns % {WINDOW_NS}) > err_ns
                   AND NOT blind AS certain,
               CASE WHEN blind THEN {BLIND_REACH} ELSE err_ns // {WINDOW_NS} + 1 END AS reach
        FROM joined""")
    check.none(
        "an op's window holds less than it must, or more than it may",
        f"""WITH a AS (SELECT process, kind, program, op, w, count(*) FILTER (certain) AS sure,
                              sum(dur_ns) FILTER (certain) AS sure_ns FROM placed GROUP BY ALL),
                 unsure AS (SELECT process, kind, program, op, w + k * {WINDOW_NS} AS w, count(*) AS n,
                                   sum(dur_ns) AS ns
                            FROM (SELECT *, unnest(range(-reach, reach + 1)) AS k FROM placed WHERE NOT certain)
                            GROUP BY ALL),
                 b AS (SELECT process, kind, program, op, t_ns AS w, sum(count) AS n, sum(sum_ns) AS ns
                       FROM op_10s GROUP BY ALL)
            SELECT * FROM a FULL JOIN b USING (process, kind, program, op, w)
                 LEFT JOIN unsure u USING (process, kind, program, op, w)
            WHERE coalesce(b.n, 0) < coalesce(a.sure, 0) OR coalesce(b.n, 0) > coalesce(a.sure, 0) + coalesce(u.n, 0)
               OR coalesce(b.ns, 0) < coalesce(a.sure_ns, 0)
               OR coalesce(b.ns, 0) > coalesce(a.sure_ns, 0) + coalesce(u.ns, 0)""",
    )


def _nesting(check: _Checker) -> None:
    """Child time of every span, by a stack of our own over the truth."""
    rows = check.sql.execute(
        """SELECT device, line, start, dur, dur_ns, child_ns, process FROM joined
           ORDER BY process, device, line, start, dur DESC, seq"""
    ).fetchnumpy()
    child = _children(rows)
    wrong = np.flatnonzero(child != rows["child_ns"])
    if len(wrong):
        first = int(wrong[0])
        found = {name: int(rows[name][first]) for name in ("device", "line", "start", "child_ns")}
        check.equal(f"child time of {len(wrong)} spans", found, int(child[first]))


def _children(rows: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Sum of dur_ns of the directly nested spans of each row. Rows of a (process, device, line) are consecutive."""
    place = np.stack([rows["process"], rows["device"], rows["line"].astype(np.int64)])
    fresh = np.concatenate([[True], (np.diff(place, axis=1) != 0).any(axis=0)]).tolist()
    start, end = rows["start"].tolist(), (rows["start"] + rows["dur"]).tolist()
    dur_ns = rows["dur_ns"].tolist()
    out = [0] * len(start)
    stack: list[int] = []
    for i, begin in enumerate(start):
        if fresh[i]:
            stack.clear()
        while stack and end[stack[-1]] <= begin:
            stack.pop()
        if stack:
            out[stack[-1]] += dur_ns[i]
        stack.append(i)
    return np.array(out, np.int64)


def _busy(check: _Checker) -> None:
    """Union of the op intervals of each device in ticks, each maximal interval as N(b) - N(a), over the whole run."""
    kinds = ", ".join(map(str, WORK))
    rows = check.sql.execute(f"""
        SELECT device, start, start + dur AS stop, pn, pd FROM truth WHERE device != 0 AND kind IN ({kinds})
        ORDER BY device, start""").fetchnumpy()
    stored = dict(check.sql.sql("SELECT device, sum(busy_ns)::BIGINT FROM device_10s GROUP BY device").fetchall())
    for device in np.unique(rows["device"]):
        mine = rows["device"] == device
        start, stop = rows["start"][mine], np.maximum.accumulate(rows["stop"][mine])
        begins = np.concatenate([[True], start[1:] > stop[:-1]])
        first = start[begins]
        last = stop[np.concatenate([np.flatnonzero(begins)[1:] - 1, [len(start) - 1]])]
        num, den = int(rows["pn"][mine][0]), int(rows["pd"][mine][0])
        expected = sum(b * num // den - a * num // den for a, b in zip(first.tolist(), last.tolist(), strict=True))
        check.equal(f"busy time of device {device}", stored.get(int(device)), expected)


def _ledger(check: _Checker) -> None:
    lost = check.sql.sql(
        "SELECT source, first, first + rows - 1 FROM t_damage WHERE kind = 'lost' ORDER BY ALL"
    ).fetchall()
    named = check.sql.sql("""
        WITH now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1)
        SELECT source, g.first, g.last FROM (SELECT source, unnest(gaps) AS g FROM now)
        UNION SELECT source, r.first, r.last FROM (SELECT source, unnest(lost) AS r FROM ledger)
        ORDER BY ALL""").fetchall()
    check.equal("lost ranges of the ledger", _joined(named), _joined(lost))
    sums = check.one("""
        WITH now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1)
        SELECT sum(duplicate)::BIGINT, sum(stored)::BIGINT, sum(dead_lettered)::BIGINT FROM now""")
    twice = check.one("SELECT coalesce(sum(rows), 0)::BIGINT FROM t_damage WHERE kind = 'duplicate'")[0]
    if sums[0] < twice:  # a restarted agent may send more of its own twice
        check.equal("duplicates", sums[0], f"at least {twice}")
    check.equal("dead letters", sums[2], 0)
    stored = check.one("SELECT (SELECT count(*) FROM spans) + (SELECT count(*) FROM samples)")[0]
    check.equal("events stored by the ledger", sums[1], stored)
    check.equal("the ledger's balance", imbalances(check.sql, quiet=True), [])


def _joined(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Adjacent ranges of a source as one: three batches lost in a row are one gap."""
    out: list[tuple[int, int, int]] = []
    for source, first, last in ranges:
        if out and out[-1][0] == source and out[-1][2] + 1 == first:
            out[-1] = (source, out[-1][1], last)
        else:
            out.append((source, first, last))
    return out
