"""Does the ledger of a lake add up, for every source? What it says against the rows that are there.

The arithmetic is the ledger's definition (DESIGN 3.6) over the lake's tables alone, by DuckDB: nothing of the
pipeline is used. Whoever runs a fleet to its end asks it: exact.py, bounded.py, the tests of faults.
"""

from collections import defaultdict
from itertools import pairwise

import duckdb

NUMBERED_LOSSES = frozenset({"spool_full", "spool_disk", "batch_too_large"})
"""Reasons whose events had numbers when they were lost (docs/format/wire.md, "Losses"): the others are no gap."""


def imbalances(connection: duckdb.DuckDBPyConnection, *, quiet: bool = False) -> list[str]:
    """What does not add up. `quiet`: every producer has stopped and all it had was sent, so nothing is in flight."""
    found: list[str] = []
    found += _ranges(connection)
    found += _balances(connection, quiet=quiet)
    found += _rows(connection)
    return found


def _balances(connection: duckdb.DuckDBPyConnection, *, quiet: bool) -> list[str]:
    """appended = stored + dead-lettered + open gaps + lost; produced = appended + lost without number + in flight."""
    rows = connection.sql("""
        WITH told AS (SELECT source, sum(r.last - r.first + 1)::HUGEINT AS lost
                      FROM (SELECT source, unnest(lost) AS r FROM ledger) GROUP BY source),
             now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1)
        SELECT source, produced, appended, stored, dead_lettered, duplicate, coalesce(lost.lost, 0),
               gaps, map_entries(dropped)
        FROM now LEFT JOIN told AS lost USING (source)""").fetchall()
    found = []
    for source, produced, appended, stored, dead, duplicate, lost, gaps, dropped in rows:
        gap_events = sum(gap["last"] - gap["first"] + 1 for gap in gaps or ())
        if appended != stored + dead + gap_events + int(lost):
            found.append(
                f"source {source}: appended {appended} = stored {stored} + dead {dead} + gaps {gap_events} "
                f"+ lost {lost}"
            )
        if min(produced, appended, stored, dead, duplicate) < 0:
            found.append(f"source {source}: a negative count")
        unnumbered = sum(entry["value"] for entry in dropped or () if entry["key"] not in NUMBERED_LOSSES)
        in_flight = produced - appended - unnumbered
        if in_flight < 0 or (quiet and in_flight):
            found.append(
                f"source {source}: produced {produced} = appended {appended} + dropped unnumbered {unnumbered} "
                f"+ in flight {in_flight}"
            )
    return found


def _ranges(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Gaps and lost ranges of a source: each one way round, and no two overlap."""
    by_source: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for source, first, last in connection.sql("""
        WITH now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1)
        SELECT source, g.first, g.last FROM (SELECT source, unnest(gaps) AS g FROM now)
        UNION ALL SELECT source, r.first, r.last FROM (SELECT source, unnest(lost) AS r FROM ledger)""").fetchall():
        by_source[source].append((first, last))
    found = []
    for source, ranges in by_source.items():
        ranges.sort()
        found += [f"source {source}: range [{first}, {last}]" for first, last in ranges if first > last]
        found += [
            f"source {source}: ranges {one} and {two} overlap" for one, two in pairwise(ranges) if two[0] <= one[1]
        ]
    return found


def _rows(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """What the ledger calls stored and dead-lettered is there, process by process; and once."""
    found = [
        f"process {process}: {stored} events stored by the ledger, {rows} rows in the tables"
        for process, stored, rows in connection.sql("""
            WITH now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1),
                 told AS (SELECT process, sum(stored)::BIGINT AS n FROM now GROUP BY process),
                 real AS (SELECT process, count(*) AS n FROM (
                     SELECT process FROM spans UNION ALL SELECT process FROM samples) GROUP BY process)
            SELECT process, coalesce(told.n, 0), coalesce(real.n, 0) FROM told FULL JOIN real USING (process)
            WHERE coalesce(told.n, 0) != coalesce(real.n, 0)""").fetchall()
    ]
    found += [
        f"source {source}: {dead} events dead-lettered by the ledger, {rows} in dead_letter"
        for source, dead, rows in connection.sql("""
            WITH now AS (SELECT * FROM ledger QUALIFY row_number() OVER (PARTITION BY source ORDER BY now_ns DESC) = 1),
                 real AS (SELECT source, sum(rows)::BIGINT AS n FROM dead_letter WHERE source != 0 GROUP BY source)
            SELECT source, coalesce(dead_lettered, 0), coalesce(real.n, 0) FROM now FULL JOIN real USING (source)
            WHERE coalesce(dead_lettered, 0) != coalesce(real.n, 0)""").fetchall()
    ]
    found += [
        f"{topic}/{partition}@{offset} is in dead_letter {times} times with error {error}"
        for topic, partition, offset, error, times in connection.sql("""
            SELECT topic, partition, "offset", error, count(*) FROM dead_letter
            WHERE error != 4011 GROUP BY ALL HAVING count(*) > 1""").fetchall()
    ]
    return found
