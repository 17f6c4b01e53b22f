"""Who came last to collectives, by the fleet's clock, and how sure that is; what is impossible before and after.

A rank arrives at a collective when its device begins the op, and no rank leaves a barrier-like one before all have
arrived. The n-th time an op ran in a user's step is the same collective on all ranks of an attempt.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleetscope.analysis.scope import Scope, host_name
from fleetscope.schema.vocabulary import Kind
from fleetscope.sinks.lake.alignment import GUARANTEED
from fleetscope.sinks.lake.read import Snapshot

Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_ARRIVALS = 2_000_000
"""Rows looked at, the newest: an hour of 64 chips that are watched for 3 % of their time."""

STRAGGLERS = pa.schema(
    [
        ("run", pa.string()), ("host", pa.string()), ("rank", pa.int64()), ("last_ratio", pa.float64()),
        ("proved_ratio", pa.float64()), ("late_ns", pa.int64()), ("late_at_least_ns", pa.int64()),
        ("within_ns", pa.int64()), ("collectives", pa.int64()), ("last", pa.int64()), ("proved", pa.int64()),
        ("attempt", pa.string()),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrays over arrivals of ranks; `which` numbers the collectives. true - t_ns is in [lo_ns, hi_ns] where `proved`.
    `written_ns`: as placed by the wall clock."""

    which: Int64s
    who: Int64s
    t_ns: Int64s
    written_ns: Int64s
    dur_ns: Int64s
    lo_ns: Int64s
    hi_ns: Int64s
    proved: Bools
    barrier: Bools
    """Nobody leaves before all have come; an op that sends on (permute) or only begins (-start) is none."""


@dataclass(frozen=True, slots=True)
class Causality:
    """Pairs of ranks in collectives of one attempt, and those in which one left before another had arrived: by wall
    clocks, by the fleet's clock, and so that no error of the clocks excuses it."""

    run: str
    pairs: int
    before: int
    after: int
    proved: int

    def sentence(self) -> str:
        return (
            f"run {self.run}: of {self.pairs:,} pairs of ranks that met, one seems to have left before the other came "
            f"in {self.before:,} by wall clocks and {self.after:,} by the fleet's ({self.proved:,} beyond its bounds)"
        )


def straggler_table(snapshot: Snapshot, scope: Scope, limit: int = 50) -> tuple[pa.Table, list[Causality]]:
    """One row a rank, who came last most often first; and what causality says of each run.

    last_ratio: share of its collectives it came to last by stated time. proved_ratio: share in which its interval
    begins beyond all others' ends, so that no error of the clocks excuses it: only that is blame. late_ns: by how much
    it came after the last of the others, mean over those it was last in; late_at_least_ns: the same of proved ones,
    less what clocks may be off. within_ns: mean of how far the difference to the others may be off; null where that is
    not proved.
    """
    rows, words = _read(snapshot, scope)
    by_attempt: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, word in enumerate(words):
        by_attempt[word["run"], word["attempt"]].append(place)
    lines: list[dict[str, Any]] = []
    verdicts = []
    for (run, attempt), members in sorted(by_attempt.items()):
        mine = _only(rows, np.isin(rows.who, members))
        lines += [words[who] | {"run": run, "attempt": attempt} | told for who, told in ranking(mine).items()]
        verdicts.append(causality(run, mine))
    lines.sort(key=lambda line: (-line["proved_ratio"], -line["last_ratio"], line["host"]))
    return pa.Table.from_pylist(lines[:limit], STRAGGLERS), [one for one in verdicts if one.pairs]


def ranking(rows: Arrivals) -> dict[int, dict[str, Any]]:
    """who -> counts and times of STRAGGLERS. Collectives of one rank say nothing; a rank of several chips came when the
    last of them did."""
    order = np.lexsort((rows.t_ns, rows.who, rows.which))
    named = np.stack([rows.which[order], rows.who[order]])
    order = order[np.append((named[:, 1:] != named[:, :-1]).any(axis=0), True)] if len(order) else order
    order = order[np.lexsort((rows.t_ns[order], rows.which[order]))]
    _, size = np.unique(rows.which[order], return_counts=True)
    rows, size = _only(rows, order[np.repeat(size > 1, size)]), size[size > 1]
    if not len(size):
        return {}
    begin = np.cumsum(size) - size
    last = begin + size - 1
    late = rows.t_ns[last] - rows.t_ns[last - 1]
    # The ends of all intervals but the last one's own; where one is not proved nobody is blamed.
    ends = rows.t_ns + rows.hi_ns
    ends[last] = np.iinfo(np.int64).min
    spare = rows.t_ns[last] + rows.lo_ns[last] - np.maximum.reduceat(ends, begin)
    sure = np.logical_and.reduceat(rows.proved, begin)
    blamed = sure & (spare > 0)
    found = {}
    for name, came in zip(*(part.tolist() for part in np.unique(rows.who, return_counts=True)), strict=True):
        mine = rows.who[last] == name
        found[name] = {
            "collectives": came, "last": int(mine.sum()), "proved": int((mine & blamed).sum()),
            "last_ratio": float(mine.sum() / came), "proved_ratio": float((mine & blamed).sum() / came),
            "late_ns": _mean(late[mine]), "late_at_least_ns": _mean(spare[mine & blamed]),
            "within_ns": _mean((late - spare)[mine & sure]),
        }  # fmt: skip
    return found


def causality(run: str, rows: Arrivals) -> Causality:
    """Ranks that left before another came, over all pairs of each barrier-like collective."""
    rows = _only(rows, rows.barrier)
    never = 1 << 62
    stated = (rows.t_ns, rows.t_ns + rows.dur_ns)
    proved = (
        np.where(rows.proved, stated[0] + rows.lo_ns, -never),
        np.where(rows.proved, stated[1] + rows.hi_ns, never),
    )
    written = (rows.written_ns, rows.written_ns + rows.dur_ns)
    _, size = np.unique(rows.which, return_counts=True)
    return Causality(
        run, int((size * (size - 1) // 2).sum()), *(_parted(rows.which, *times) for times in (written, stated, proved))
    )


def _parted(which: Int64s, begin: Int64s, end: Int64s) -> int:
    """Pairs (i, j) of one collective with end_i < begin_j."""
    order = np.lexsort((begin, which))
    _, first, size = np.unique(which[order], return_index=True, return_counts=True)
    total = 0
    for low, high in zip(first.tolist(), (first + size).tolist(), strict=True):
        total += int((high - low - np.searchsorted(begin[order[low:high]], end[order[low:high]], side="right")).sum())
    return total


def _mean(values: Int64s) -> int | None:
    return int(values.mean()) if len(values) else None


def _only(rows: Arrivals, chosen: Bools | Int64s) -> Arrivals:
    return Arrivals(*(getattr(rows, name)[chosen] for name in Arrivals.__dataclass_fields__))


def _read(snapshot: Snapshot, scope: Scope) -> tuple[Arrivals, list[dict[str, Any]]]:
    """(arrivals, words of each who). Where a window cut a step, ranks saw an op in it more or less often: those rows
    are not the same collective, and do not meet."""
    condition, values = scope.where("s")
    query = f"""
        WITH seen AS (
            SELECT process, seq, device, step, program, op, host, t_ns, written_ns, t_sub, dur_ns, map
            FROM spans s WHERE {condition} AND s.kind = {int(Kind.COLLECTIVE)} AND s.step >= 0
            ORDER BY s.t_ns DESC LIMIT {MOST_ARRIVALS}),
        s AS (SELECT *, row_number() OVER (w ORDER BY seq) AS nth, count(*) OVER w AS total
              FROM seen WINDOW w AS (PARTITION BY process, device, step, program, op))
        SELECT dense_rank() OVER (ORDER BY p.run, p.attempt, s.step, s.program, s.op, s.total, s.nth) AS which,
               s.process, s.t_ns, s.written_ns, s.t_sub::BIGINT AS t_sub, s.dur_ns, s.map,
               {host_name("s.host")} AS host, p.rank, p.run_name AS run, p.attempt_name AS attempt,
               coalesce(nullif(o.opcode, ''), o.name, '') NOT SIMILAR TO '.*(permute|send|recv|-start).*' AS barrier
        FROM s JOIN processes p ON p.process = s.process AND p.run_name != '' LEFT JOIN hosts h ON h.host = s.host
             LEFT JOIN ops o ON o.program = s.program AND o.op = s.op"""  # noqa: S608 - values are bound
    tables = ("spans", "processes", "hosts", "ops")
    with snapshot.duckdb(tables, from_ns=scope.from_ns, to_ns=scope.to_ns, written=True) as connection:
        found = connection.sql(query, params=values).to_arrow_table()
    names = ("which", "t_ns", "written_ns", "dur_ns")
    which, t_ns, written_ns, dur_ns = (found.column(name).to_numpy() for name in names)
    _, first, who = np.unique(found.column("process").to_numpy(), return_index=True, return_inverse=True)
    words = found.select(["host", "rank", "run", "attempt"]).take(pa.array(first)).to_pylist()
    placed = snapshot.alignment.place(found.column("map").to_numpy(), written_ns, found.column("t_sub").to_numpy())
    proved = placed.moved & (placed.quality == GUARANTEED)
    barrier = found.column("barrier").to_numpy(zero_copy_only=False)
    return Arrivals(which, who, t_ns, written_ns, dur_ns, placed.lo_ns, placed.hi_ns, proved, barrier), words
