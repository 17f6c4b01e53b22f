"""The loss ledger: what every source produced and what became of it (DESIGN 3.6)."""

from dataclasses import dataclass, fields

import pyarrow as pa

from fleetscope.analysis.scope import Scope, host_name
from fleetscope.sinks.lake.read import Snapshot


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums over sources, in events.

    `dropped`: lost before they got a number (by the source's own count); `lost`: numbered and gone; `open_gap`:
    numbered, not there yet; `in_flight`: produced, not yet numbered or held back by the pipeline; `unbalanced`: what
    does not add up, which is a defect.
    """

    sources: int
    produced: int
    stored: int
    in_flight: int
    dropped: int
    dead_lettered: int
    open_gap: int
    lost: int
    duplicate: int
    unbalanced: int

    @property
    def clean(self) -> bool:
        """Nothing dropped or lost, nothing dead-lettered, nothing waiting in a gap, and the sums add up."""
        return not (self.lost or self.dropped or self.dead_lettered or self.open_gap or self.unbalanced)


_SIZE = "coalesce(list_sum(list_transform({}, lambda r: r.last - r.first + 1)), 0)::BIGINT"


def fates(condition: str) -> str:
    """SELECT of one row a source: its newest ledger row, cumulative, with all ranges closed as lost.

    produced - dropped >= appended = stored + dead-lettered + held + open gaps + lost: what is missing to equality is
    in flight, and more than was produced is unbalanced.
    """
    return f"""
        WITH mine AS (SELECT * FROM ledger l WHERE {condition}),
             newest AS (
                SELECT * FROM mine
                QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1),
             gone AS (SELECT source, flatten(list(lost)) AS ranges FROM mine GROUP BY source),
             sums AS (
                SELECT n.* EXCLUDE (dropped, lost), n.dropped AS dropped_by_reason,
                       coalesce(list_sum(map_values(n.dropped)), 0)::BIGINT AS dropped,
                       {_SIZE.format("n.gaps")} AS open_gap, {_SIZE.format("g.ranges")} AS lost, g.ranges
                FROM newest n JOIN gone g USING (source))
        SELECT *, produced - dropped - stored - dead_lettered - open_gap - lost AS rest,
               greatest(rest, 0) AS in_flight,
               greatest(stored + dead_lettered + open_gap + lost - appended, 0) AS unbalanced
        FROM sums"""  # noqa: S608 - values are bound


def ledger_table(snapshot: Snapshot, scope: Scope) -> pa.Table:
    """One row a source, those with losses first. Counts in events, cumulative since the source began; ranges are event
    numbers. Without a run: the agent of a host, or a process whose announcement was lost (it has spans)."""
    condition, values = scope.where("l", "now_ns")
    query = f"""
        WITH f AS ({fates(condition)})
        SELECT coalesce(p.run_name, '') AS run, {host_name("f.host")} AS host,
               CASE WHEN p.process IS NOT NULL THEN 'process ' || p.pid
                    WHEN f.process IN (SELECT process FROM op_10s) THEN 'process #' || f.process
                    ELSE 'agent' END AS what, p.pid, p.rank,
               f.produced, f.stored, f.in_flight, f.dropped, f.dropped_by_reason, f.dead_lettered, f.open_gap, f.lost,
               f.duplicate, f.unbalanced, f.appended, f.gaps AS open_ranges, f.ranges AS lost_ranges, f.source,
               f.process, p.attempt_name AS attempt
        FROM f LEFT JOIN processes p ON p.process = f.process LEFT JOIN hosts h ON h.host = f.host
        ORDER BY f.dropped + f.dead_lettered + f.open_gap + f.lost + f.unbalanced DESC, run, host, p.rank,
                 f.source"""  # noqa: S608 - values are bound
    with snapshot.duckdb(["ledger", "processes", "hosts", "op_10s"]) as connection:
        return connection.sql(query, params=values).to_arrow_table()


def balance(rows: pa.Table) -> Balance:
    """Sums of `ledger_table`."""
    names = [field.name for field in fields(Balance) if field.name != "sources"]
    sums = {name: sum(value or 0 for value in rows.column(name).to_pylist()) for name in names}
    return Balance(sources=rows.num_rows, **sums)
