"""The loss ledger: what every source produced and what became of it (DESIGN 3.6)."""

from dataclasses import dataclass

import pyarrow as pa

from fleetscope.analysis.scope import Scope
from fleetscope.sinks.lake.read import Snapshot


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums over sources, in events."""

    produced: int
    dropped: int
    stored: int
    dead_lettered: int
    duplicate: int
    open_gap: int
    lost: int

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing dead-lettered, nothing waiting in a gap."""
        return self.lost == 0 and self.dropped == 0 and self.dead_lettered == 0 and self.open_gap == 0


_SIZE = "coalesce(list_sum(list_transform({}, lambda r: r.last - r.first + 1)), 0)::BIGINT"


def ledger_table(snapshot: Snapshot, scope: Scope) -> pa.Table:
    """One row a source, from its newest ledger row: cumulative events by fate, open gaps, all ranges closed as lost."""
    condition, values = scope.where("l", "now_ns")
    query = f"""
        WITH mine AS (SELECT * FROM ledger l WHERE {condition}),
             newest AS (
                SELECT * FROM mine
                QUALIFY row_number() OVER (PARTITION BY source ORDER BY epoch DESC, now_ns DESC) = 1),
             gone AS (SELECT source, flatten(list(lost)) AS ranges FROM mine GROUP BY source)
        SELECT coalesce(p.run_name, '') AS run, coalesce(h.name, '') AS host, p.pid, p.rank, n.produced, n.appended,
               list_sum(map_values(n.dropped))::BIGINT AS dropped_sum, n.dropped, n.stored,
               n.duplicate, n.dead_lettered,
               {_SIZE.format("n.gaps")} AS open_gap,
               {_SIZE.format("g.ranges")} AS lost,
               g.ranges AS lost_ranges, n.gaps AS open_ranges, n.source
        FROM newest n JOIN gone g USING (source) LEFT JOIN processes p ON p.process = n.process
             LEFT JOIN hosts h ON h.host = n.host
        ORDER BY run, host, p.rank, n.source"""  # noqa: S608 - values are bound
    with snapshot.duckdb(["ledger", "processes", "hosts"]) as connection:
        return connection.sql(query, params=values).to_arrow_table()


def balance(rows: pa.Table) -> Balance:
    """Sums of `ledger_table`."""
    columns = {
        name: sum(value or 0 for value in rows.column(column).to_pylist())
        for name, column in (
            ("produced", "produced"), ("dropped", "dropped_sum"), ("stored", "stored"), ("open_gap", "open_gap"),
            ("dead_lettered", "dead_lettered"), ("duplicate", "duplicate"), ("lost", "lost"),
        )
    }  # fmt: skip
    return Balance(**columns)
