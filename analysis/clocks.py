"""Clocks of hosts as the fleet sees them: `fleetscope clocks` and what explains a host."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from fleetscope.analysis.scope import host_name
from fleetscope.schema.rational import apply, first_ticks
from fleetscope.schema.vocabulary import SETTLED, WRITTEN
from fleetscope.sinks.lake.read import Snapshot

SILENT_NS = 60_000_000_000
"""A host whose newest map is so much older than the fleet's newest one is told apart: its clock is not followed."""
PROVED_NS = 30_000_000_000
"""A stretch is proved a hop after it was estimated, so the newest map never is: the newest proved one counts."""

TABLES = ("clock_maps", "clock_verdicts", "clock_edges", "hosts")
_SOLVED = f"ref = 0 AND version > {SETTLED} AND method != 'utc'"

HOST_CLOCKS = pa.schema(
    [
        ("host", pa.string()), ("offset_ns", pa.int64()), ("drift_ppm", pa.float64()), ("bound_ns", pa.int64()),
        ("quality", pa.string()), ("sigma_ns", pa.int64()), ("step_ns", pa.int64()), ("stepped_ns", pa.int64()),
        ("steps", pa.int64()), ("quarantined", pa.string()), ("worst_peer", pa.string()),
        ("worst_asymmetry_ns", pa.int64()), ("behind_ns", pa.int64()), ("reference", pa.string()),
        ("epochs", pa.int64()), ("method", pa.string()), ("version", pa.int64()), ("mapped_to_ns", pa.int64()),
        ("host_id", pa.int64()),
    ]
)  # fmt: skip


def host_clocks(snapshot: Snapshot) -> pa.Table:
    """One row a host that was ever solved, the least certain first; of its newest clock epoch.

    offset_ns: what its wall clock shows minus fleet time, where rows of it were placed by the wall clock. drift_ppm: by
    how much its counter is fast. bound_ns: its stated time is proved to be right within it, against the host that
    `reference` names; null where nothing of late is proved. quality: guaranteed where something is, else of the newest
    map; unsynced where the host has none but old ones. step_ns, stepped_ns: its newest step, and when. quarantined: why
    nothing is proved of it now. worst_peer, worst_asymmetry_ns: of its edges. behind_ns: how old its newest map is
    against the fleet's newest. epochs: how many its counter began (boots, restores).
    """
    query = f"""
        WITH solved AS (SELECT * FROM clock_maps WHERE {_SOLVED}),
        fleet AS (SELECT max(y0) AS newest, max(version) AS version FROM solved WHERE method != 'live'),
        stated AS (SELECT * FROM solved WHERE method != 'live'),
        newest AS (
            SELECT s.* FROM stated s, fleet f QUALIFY row_number() OVER (
                PARTITION BY host ORDER BY s.quality = 'guaranteed' AND s.y0 > f.newest - {PROVED_NS} DESC,
                    valid_from - x0 + y0 DESC, s.version DESC) = 1),
        epochs AS (SELECT host, count(DISTINCT epoch) AS epochs FROM stated GROUP BY host),
        steps AS (
            SELECT host, count(*) AS steps, arg_max(size_ns, t_ns) AS step_ns, max(t_ns) AS stepped_ns
            FROM clock_verdicts WHERE kind = 'step' AND host != 0 GROUP BY host),
        barred AS (
            SELECT v.host, arg_max(v.kind, v.t_ns) AS kind FROM clock_verdicts v, fleet f
            WHERE v.host != 0 AND v.version >= f.version - 1 GROUP BY v.host),
        both_ways AS (
            SELECT host, peer, asymmetry_ns FROM clock_edges
            UNION ALL SELECT peer, host, -asymmetry_ns FROM clock_edges),
        edges AS (
            SELECT host, arg_max(peer, abs(asymmetry_ns)) AS peer, arg_max(asymmetry_ns, abs(asymmetry_ns)) AS ns
            FROM both_ways GROUP BY host),
        names AS (SELECT DISTINCT epoch, host FROM solved)
        SELECT {host_name("n.host")} AS host, (n.d::DOUBLE / n.n - 1) * 1e6 AS drift_ppm,
               CASE WHEN n.quality = 'guaranteed' THEN greatest(-n.lo_ns, n.hi_ns) END AS bound_ns,
               CASE WHEN f.newest - n.y0 > {SILENT_NS} THEN 'unsynced' ELSE n.quality END AS quality, n.sigma_ns,
               s.step_ns, s.stepped_ns, coalesce(s.steps, 0) AS steps, b.kind AS quarantined,
               CASE WHEN e.peer IS NOT NULL THEN {host_name("e.peer", "p")} END AS worst_peer,
               e.ns AS worst_asymmetry_ns, f.newest - n.y0 AS behind_ns,
               CASE WHEN n.reference != 0 THEN {host_name("r.host", "q")} END AS reference, c.epochs, n.method,
               n.version, n.y0 + ((n.valid_to - n.x0)::HUGEINT * n.n // n.d)::BIGINT AS mapped_to_ns, n.host AS host_id
        FROM newest n CROSS JOIN fleet f LEFT JOIN epochs c ON c.host = n.host LEFT JOIN steps s ON s.host = n.host
             LEFT JOIN barred b ON b.host = n.host LEFT JOIN edges e ON e.host = n.host
             LEFT JOIN names r ON r.epoch = n.reference LEFT JOIN hosts q ON q.host = r.host
             LEFT JOIN hosts p ON p.host = e.peer LEFT JOIN hosts h ON h.host = n.host
        ORDER BY quality != 'unsynced', quarantined IS NULL, bound_ns DESC NULLS FIRST, host"""  # noqa: S608 - names are ours
    with snapshot.duckdb(TABLES) as connection:
        rows = connection.sql(query).to_arrow_table().to_pylist()
    offsets = _offsets(snapshot)
    return pa.Table.from_pylist([row | {"offset_ns": offsets.get(row["host_id"])} for row in rows], HOST_CLOCKS)


def _offsets(snapshot: Snapshot) -> dict[int, int]:
    """Host -> wall clock minus fleet time, at the newest tick it is known of: by the segments rows of its clocks were
    written with, where those were placed by a read wall clock."""
    maps = snapshot.table("clock_maps")
    names = ("version", "ref", "err_ns", "host", "map", "x0", "y0", "n", "d", "valid_from", "valid_to")
    column = {name: maps.column(name).to_numpy() for name in names}
    rows = np.flatnonzero((column["version"] == WRITTEN) & (column["ref"] == 0) & (column["err_ns"] >= 0))
    ticks = np.concatenate([column["valid_from"][rows], column["valid_to"][rows] - 1])
    host, written, *line = (np.tile(column[name][rows], 2) for name in ("host", "map", "x0", "y0", "n", "d"))
    t_ns = apply(ticks, *line)
    placed = snapshot.alignment.place(written, t_ns, ticks - first_ticks(t_ns, *line))
    moved = np.flatnonzero(placed.moved)
    moved = moved[np.lexsort((placed.t_ns[moved], host[moved]))]
    newest = moved[np.append(host[moved][1:] != host[moved][:-1], True)] if len(moved) else moved
    return dict(zip(host[newest].tolist(), (t_ns - placed.t_ns)[newest].tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Explained:
    """What is known of one host's clock: its row of host_clocks, its edges, verdicts about it, its newest maps."""

    clock: pa.Table
    edges: pa.Table
    verdicts: pa.Table
    maps: pa.Table


def explain(snapshot: Snapshot, host: str, limit: int = 20) -> Explained:
    """Of a host by its name, or its id as #123. Nothing of a host that was never solved."""
    clocks = host_clocks(snapshot)
    clock = clocks.filter(pa.array([name == host for name in clocks.column("host").to_pylist()], pa.bool_()))
    number = clock.column("host_id")[0].as_py() if clock.num_rows else 0
    with snapshot.duckdb(TABLES) as connection:
        edges = connection.sql(_EDGES.format(where="e.host = ? OR e.peer = ?", limit=int(limit)), params=[number] * 2)
        edge_rows = edges.to_arrow_table()
        verdicts = connection.sql(
            f"""
            SELECT v.t_ns AS from_ns, v.end_ns, v.kind, v.size_ns,
                   (SELECT list({host_name("u.host")} ORDER BY u.host)
                    FROM (SELECT unnest(v.hosts) AS host) u LEFT JOIN hosts h ON h.host = u.host) AS proof
            FROM clock_verdicts v WHERE v.host = ? OR list_contains(v.hosts, ?)
            ORDER BY v.t_ns DESC LIMIT {int(limit)}""",  # noqa: S608 - a number
            params=[number, number],
        ).to_arrow_table()
        maps = connection.sql(
            f"""
            SELECT y0 + ((valid_from - x0)::HUGEINT * n // d)::BIGINT AS from_ns,
                   y0 + ((valid_to - x0)::HUGEINT * n // d)::BIGINT AS to_ns, quality,
                   CASE WHEN quality = 'guaranteed' THEN lo_ns END AS lo_ns,
                   CASE WHEN quality = 'guaranteed' THEN hi_ns END AS hi_ns, sigma_ns,
                   (d::DOUBLE / n - 1) * 1e6 AS drift_ppm, method, final, version, epoch
            FROM clock_maps WHERE host = ? AND {_SOLVED} ORDER BY version DESC, from_ns DESC
            LIMIT {int(limit)}""",  # noqa: S608 - names are ours
            params=[number],
        ).to_arrow_table()
    return Explained(clock, edge_rows, verdicts, maps)


_EDGES = f"""
    SELECT {host_name("e.host")} AS host, {host_name("e.peer", "p")} AS peer, e.asymmetry_ns, e.round_trip_ns, e.hops
    FROM clock_edges e LEFT JOIN hosts h ON h.host = e.host LEFT JOIN hosts p ON p.host = e.peer
    WHERE {{where}} ORDER BY abs(e.asymmetry_ns) DESC LIMIT {{limit}}"""  # noqa: S608 - names are ours


def edge_table(snapshot: Snapshot, limit: int = 50) -> pa.Table:
    """Pairs of hosts whose paths lean most to one side. asymmetry_ns: delay from host to peer minus delay back, as far
    as it can be told from the clocks' own offsets; half of it is what a probe of this pair alone would be off by."""
    with snapshot.duckdb(("clock_edges", "hosts")) as connection:
        return connection.sql(_EDGES.format(where="TRUE", limit=int(limit))).to_arrow_table()


def utc_sentence(snapshot: Snapshot) -> str:
    """Where fleet time is against UTC, as far as wall clocks say; "" where none does."""
    query = """
        SELECT y0 - x0 + lo_ns, y0 - x0 + hi_ns FROM clock_maps WHERE method = 'utc' ORDER BY version DESC LIMIT 1"""
    with snapshot.duckdb(("clock_maps",)) as connection:
        found = connection.sql(query).fetchall()
    return "".join(f"fleet time minus UTC lies within [{lo / 1e6:.3f}, {hi / 1e6:.3f}] ms" for lo, hi in found)
